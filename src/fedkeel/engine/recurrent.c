/* A layer of LSTM cells through all its steps, forth and back. `recurrent.py` calls it, behind
   `products.c`.

       (i, f, g, o) = W_in x_t + W h_{t-1} + b;    c_t = s(f) c_{t-1} + s(i) tanh(g);    h_t = s(o) tanh(c_t)

   Samples stand in rows, steps follow one another. What a product reads of its right side is laid out in panels of a few
   vectors, and used for as many rows as the registers hold sums of. */

enum { ROWS = 5, STRIPS = LANES < 16 ? 2 : 5 };
enum { TOGETHER = 64 }; /* samples that are still near when the weights' derivatives are made */

/* A few rows of: to += a b, with b in panels. */
HERE void few(const int rows, const int strips, const _Bool turned, int64_t depth, matrix a, const float *panel,
              float *to, int64_t down, int64_t width) {
    float edge[ROWS][STRIPS * LANES] = {0}; /* where a panel is wider than what is left */
    const _Bool whole = width >= strips * LANES;
    if (!whole)
        for (int r = 0; r < rows; r++) memcpy(edge[r], to + r * down, width * sizeof *to);
    block(rows, strips, turned, 1, depth, a, (matrix){panel, strips * LANES}, whole ? to : (float *)edge,
          whole ? down : STRIPS * LANES);
    if (!whole)
        for (int r = 0; r < rows; r++) memcpy(to + r * down, edge[r], width * sizeof *to);
}

/* All rows, in blocks of nearly the same size. */
HERE void column(const int strips, const _Bool turned, int64_t n, int64_t depth, matrix a, const float *panel,
                 float *to, int64_t down, int64_t width) {
    const int64_t blocks = (n + ROWS - 1) / ROWS;
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t begin = n * b / blocks, rows = n * (b + 1) / blocks - begin;
        matrix part = {a.at + begin * (turned ? 1 : a.stride), a.stride};
        switch (rows) {
        case 5: few(5, strips, turned, depth, part, panel, to + begin * down, down, width); break;
        case 4: few(4, strips, turned, depth, part, panel, to + begin * down, down, width); break;
        case 3: few(3, strips, turned, depth, part, panel, to + begin * down, down, width); break;
        case 2: few(2, strips, turned, depth, part, panel, to + begin * down, down, width); break;
        default: few(1, strips, turned, depth, part, panel, to + begin * down, down, width);
        }
    }
}

HERE int64_t vectors(int64_t width) { return (width + LANES - 1) / LANES; }
HERE int64_t padded(int64_t width) { return vectors(width) * LANES; }

/* Where panel p of a matrix begins: all of them are nearly as wide. */
HERE int64_t panels(int64_t width) { return (vectors(width) + STRIPS - 1) / STRIPS; }
HERE int64_t edge_of(int64_t width, int64_t p) { return vectors(width) * p / panels(width) * LANES; }

/* to[n][width] += a[n][depth] b, with b in panels */
HERE void product(const _Bool turned, int64_t n, int64_t width, int64_t depth, matrix a, const float *b, float *to) {
    for (int64_t p = 0; p < panels(width); p++) {
        const int64_t j = edge_of(width, p), strips = (edge_of(width, p + 1) - j) / LANES;
        switch (strips) {
#if defined __AVX512F__
        case 5: column(5, turned, n, depth, a, b + depth * j, to + j, width, width - j); break;
        case 4: column(4, turned, n, depth, a, b + depth * j, to + j, width, width - j); break;
        case 3: column(3, turned, n, depth, a, b + depth * j, to + j, width, width - j); break;
#endif
        case 2: column(2, turned, n, depth, a, b + depth * j, to + j, width, width - j); break;
        default: column(1, turned, n, depth, a, b + depth * j, to + j, width, width - j);
        }
    }
}
static void times(int64_t n, int64_t width, int64_t depth, matrix a, const float *panels, float *to) {
    product(0, n, width, depth, a, panels, to);
}
static void turned_times(int64_t n, int64_t width, int64_t depth, matrix a, const float *panels, float *to) {
    product(1, n, width, depth, a, panels, to);
}

/* b[depth][width] in panels, or what is b turned; what is beyond the width is zero */
HERE const float *lay(const _Bool turned, int64_t width, int64_t depth, const float *b, int64_t stride, float *to) {
    const float *laid = to;
    for (int64_t p = 0; p < panels(width); p++) {
        const int64_t begin = edge_of(width, p), end = edge_of(width, p + 1);
        for (int64_t k = 0; k < depth; k++)
            for (int64_t l = begin; l < end; l++)
                *to++ = l >= width ? 0 : turned ? b[l * stride + k] : b[k * stride + l];
    }
    return laid;
}

/* e^x - 1, with all digits near zero too; what is no number stays none. */
HERE float grown(float x) {
    x = x > 88 ? 88 : x < -87 ? -87 : x;
    float n = rintf(x * 1.442695041f), r = x - n * 0.6931471806f; /* x = n log 2 + r, and then the series of e^r */
    float p = 1 + r * (1 / 7.f);
    p = 1 + r * (1 / 6.f) * p, p = 1 + r * (1 / 5.f) * p, p = 1 + r * (1 / 4.f) * p, p = 1 + r * (1 / 3.f) * p;
    p = r + r * r * (1 / 2.f) * p;
    int32_t bits = ((int32_t)n + 127) << 23; /* of 2^n */
    float power;
    memcpy(&power, &bits, sizeof power);
    return power * p + (power - 1);
}
HERE float sigmoid(float x) { return 1 / (2 + grown(-x)); }
HERE float bent(float x) { float e = grown(2 * x); return e / (e + 2); } /* tanh */

static void cell(int64_t hidden, float *restrict i, float *restrict f, float *restrict g, float *restrict o,
                 const float *restrict before, float *restrict c, float *restrict h) {
    for (int64_t k = 0; k < hidden; k++) {
        i[k] = sigmoid(i[k]), f[k] = sigmoid(f[k]), g[k] = bent(g[k]), o[k] = sigmoid(o[k]);
        c[k] = f[k] * before[k] + i[k] * g[k];
        h[k] = o[k] * bent(c[k]);
    }
}

/* From the derivatives by h_t and c_t (dc) those by what entered the gates, and in dc that by c_{t-1}. */
static void cell_back(int64_t hidden, const float *restrict i, const float *restrict f, const float *restrict g,
                      const float *restrict o, const float *restrict before, const float *restrict c,
                      const float *restrict dh, float *restrict dc, float *restrict di, float *restrict df,
                      float *restrict dg, float *restrict d_o) {
    for (int64_t k = 0; k < hidden; k++) {
        float b = bent(c[k]), d = dc[k] + dh[k] * o[k] * (1 - b * b);
        di[k] = d * g[k] * i[k] * (1 - i[k]);
        df[k] = d * before[k] * f[k] * (1 - f[k]);
        dg[k] = d * i[k] * (1 - g[k] * g[k]);
        d_o[k] = dh[k] * b * o[k] * (1 - o[k]);
        dc[k] = d * f[k];
    }
}

/* Numbers that there has to be room for, on either way. */
int64_t room(int64_t n, int64_t in, int64_t hidden) {
    const int64_t wide = 4 * hidden, rows = n < TOGETHER ? TOGETHER : n;
    const int64_t forth = padded(wide) * (in + hidden) + hidden;
    const int64_t weights = wide * (padded(in) + padded(hidden) + in + hidden);
    const int64_t back = weights + hidden + 2 * n * hidden + rows * (wide + padded(wide));
    return forth > back ? forth : back;
}

/* x[steps][n][in], weights by[4 hidden][in] and own[4 hidden][hidden], bias[4 hidden], which may be missing */
void forward(int64_t steps, int64_t n, int64_t in, int64_t hidden, const float *x, const float *by, const float *own,
             const float *bias, float *gates, float *cells, float *outputs, float *room) {
    const int64_t size = n * hidden, wide = 4 * hidden;
    const float *first = lay(1, wide, in, by, in, room);
    const float *second = lay(1, wide, hidden, own, hidden, room += padded(wide) * in);
    const float *none = memset(room + padded(wide) * hidden, 0, hidden * sizeof *none);
    for (int64_t t = 0; t < steps; t++, x += n * in, gates += n * wide, cells += size, outputs += size) {
        for (int64_t s = 0; s < n; s++)
            if (bias) memcpy(gates + s * wide, bias, wide * sizeof *bias);
            else memset(gates + s * wide, 0, wide * sizeof *gates);
        times(n, wide, in, (matrix){x, in}, first, gates);
        /* zeros too: with a weight that is no number, the client has to be seen to have diverged */
        times(n, wide, hidden, t ? (matrix){outputs - size, hidden} : (matrix){none, 0}, second, gates);
        for (int64_t s = 0; s < n; s++) {
            float *i = gates + s * wide, *f = i + hidden, *g = f + hidden, *o = g + hidden, *c = cells + s * hidden;
            cell(hidden, i, f, g, o, t ? c - size : none, c, outputs + s * hidden);
        }
    }
}

/* to[n][width] = from[width][n], turned */
static void turn(int64_t n, int64_t width, const float *restrict from, float *restrict to) {
    for (int64_t j = 0; j < n; j += LANES) /* a strip of columns that stays near while it becomes rows */
        for (int64_t k = 0; k < width; k++)
            for (int64_t r = j; r < j + LANES && r < n; r++) to[r * width + k] = from[k * n + r];
}

/* From the derivatives by the outputs (slope, whose steps and samples are so far apart) and by the last cells (dc, which
   is used up): those by the weights, the bias and, unless nobody asks, x. */
void backward(int64_t steps, int64_t n, int64_t in, int64_t hidden, const float *x, const float *by, const float *own,
              const float *gates, const float *cells, const float *outputs, const float *slope, int64_t step,
              int64_t sample, float *dc, float *dx, float *d_by, float *d_own, float *d_bias, float *room) {
    const int64_t size = n * hidden, wide = 4 * hidden, together = n < TOGETHER ? TOGETHER / n : 1;
    const float *first = lay(0, in, wide, by, in, room);
    const float *second = lay(0, hidden, wide, own, hidden, room += wide * padded(in));
    float *by_x = room += wide * padded(hidden), *by_h = room += in * wide, *none = room += hidden * wide;
    memset(by_x, 0, ((in + hidden) * wide + hidden) * sizeof *by_x);
    memset(d_bias, 0, wide * sizeof *d_bias);
    float *dh = room += hidden, *next = room += size, *slopes = room += size, *laid = slopes + together * n * wide;
    for (int64_t s = 0; s < n; s++)
        memcpy(dh + s * hidden, slope + (steps - 1) * step + s * sample, hidden * sizeof *dh);
    for (int64_t end = steps, begin; end > 0; end = begin) {
        begin = end > together ? end - together : 0;
        for (int64_t t = end - 1; t >= begin; t--) {
            float *d = slopes + (t - begin) * n * wide;
            for (int64_t s = 0; s < n; s++) {
                const float *i = gates + (t * n + s) * wide, *f = i + hidden, *g = f + hidden, *o = g + hidden;
                const float *c = cells + (t * n + s) * hidden;
                float *di = d + s * wide, *df = di + hidden, *dg = df + hidden, *d_o = dg + hidden;
                cell_back(hidden, i, f, g, o, t ? c - size : none, c, dh + s * hidden, dc + s * hidden, di, df, dg, d_o);
            }
            if (t) {
                for (int64_t s = 0; s < n; s++)
                    memcpy(next + s * hidden, slope + (t - 1) * step + s * sample, hidden * sizeof *next);
                times(n, hidden, wide, (matrix){d, wide}, second, next);
                float *was = dh;
                dh = next, next = was;
            }
        }
        /* The derivatives by the weights turned, since x and h are narrower: with d in panels, products are faster. */
        const int64_t at = begin * n, rows = (end - begin) * n, skip = begin ? 0 : n; /* no output before step 0 */
        turned_times(in, wide, rows, (matrix){x + at * in, in}, lay(0, wide, rows, slopes, wide, laid), by_x);
        if (skip) lay(0, wide, rows - n, slopes + n * wide, wide, laid);
        turned_times(hidden, wide, rows - skip, (matrix){outputs + (at + skip - n) * hidden, hidden}, laid, by_h);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = 0; k < wide; k++) d_bias[k] += slopes[r * wide + k];
        if (dx) {
            memset(dx + at * in, 0, rows * in * sizeof *dx);
            times(rows, in, wide, (matrix){slopes, wide}, first, dx + at * in);
        }
    }
    turn(wide, in, by_x, d_by);
    turn(wide, hidden, by_h, d_own);
}
