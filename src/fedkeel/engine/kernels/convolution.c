/* Convolutions with kernels of 3 x 3 or 5 x 5 (KERNEL), with a fraction of the multiplications, forth and back.
   `convolution.py` calls it, behind `products.c`.

   Take the kernel w of r numbers for the coefficients of a polynomial, and V for what gives its values at six points:
   0, p, -p, q, -q and infinity. Of six numbers x in a row the kernel makes 7 - r outputs (Winograd, 1980)

       y = V' (N V w * B' x),

   with six multiplications where a sum over the kernel takes (7 - r) r. In the plane every matrix is applied to columns
   and to rows: 36 multiplications instead of 144 or 100 (Lavin and Gray, 2016). As each of them is summed over the
   channels, they are 36 matrix products. By x and w, the derivatives of the formula are

       dx = B (N V w * V dy),    dw = V' N (V dy * B' x).

   With p = 2/3 and q = 3/2 numbers stay of a size, and rounding errors are half of those with the usual 1 and 2.

   Images have their channels innermost. They are taken apart into tiles of 6 x 6, some of which are worked on at a time
   and stay near, while the next ones are fetched. */

enum { SIDE = 6, POINTS = SIDE * SIDE, R = KERNEL, STEP = SIDE + 1 - R, TILES = 24 };
typedef struct { int64_t height, width, channels; } image;
typedef struct { int64_t down, across, all; } grid; /* of tiles, STEP apart: per image, and in all */

#define P (2 / 3.f)
#define Q (3 / 2.f) /* p q = 1, which spares multiplications */
#define PP (P * P)
#define QQ (Q * Q)
#define D(i) d[(i) * apart]
#define EACH(i, j, n) UNROLLED for (int i = 0; i < (n); i++) UNROLLED for (int j = 0; j < (n); j++)

/* V: coefficients become values. */
HERE void values(const int n, vector *d, const int apart) {
    vector c[SIDE] = {0};
    UNROLLED for (int i = 0; i < n; i++) c[i] = D(i);
    vector even_p = c[0] + PP * (c[2] + PP * c[4]), odd_p = P * (c[1] + PP * c[3]);
    vector even_q = c[0] + QQ * (c[2] + QQ * c[4]), odd_q = Q * (c[1] + QQ * c[3]);
    D(0) = c[0], D(1) = even_p + odd_p, D(2) = even_p - odd_p, D(3) = even_q + odd_q, D(4) = even_q - odd_q;
    D(5) = c[n - 1];
}

/* V' */
HERE void values_turned(const int n, vector *d, const int apart) {
    vector even_p = D(1) + D(2), odd_p = P * (D(1) - D(2)), even_q = D(3) + D(4), odd_q = Q * (D(3) - D(4));
    vector last = D(5);
    D(0) += even_p + even_q, D(1) = odd_p + odd_q, D(2) = PP * even_p + QQ * even_q, D(3) = PP * odd_p + QQ * odd_q;
    D(4) = PP * PP * even_p + QQ * QQ * even_q;
    D(n - 1) += last;
}

/* B' */
HERE void spread(const int n, vector *d, const int apart) {
    vector even_p = D(4) - QQ * D(2), odd_p = P * D(3) - Q * D(1);
    vector even_q = D(4) - PP * D(2), odd_q = Q * D(3) - P * D(1);
    D(0) += D(4) - (PP + QQ) * D(2), D(5) += D(1) - (PP + QQ) * D(3);
    D(1) = even_p + odd_p, D(2) = even_p - odd_p, D(3) = even_q + odd_q, D(4) = even_q - odd_q;
}

/* B */
HERE void spread_turned(const int n, vector *d, const int apart) {
    vector even_p = D(1) + D(2), odd_p = D(1) - D(2), even_q = D(3) + D(4), odd_q = D(3) - D(4);
    D(1) = D(5) - Q * odd_p - P * odd_q, D(2) = -(PP + QQ) * D(0) - QQ * even_p - PP * even_q;
    D(3) = P * odd_p + Q * odd_q - (PP + QQ) * D(5), D(4) = D(0) + even_p + even_q;
}

/* N, in the plane */
HERE float scale(const int point) {
    const float at_p = 1 / (2 * PP * (PP - QQ)), at_q = 1 / (2 * QQ * (QQ - PP));
    const float n[SIDE] = {1, at_p, at_p, at_q, at_q, 1};
    return n[point / SIDE] * n[point % SIDE];
}

/* On the columns that there are, then on the rows that there are. */
#define PLANE(transform, n, columns, rows) \
    UNROLLED for (int j = 0; j < (columns); j++) transform(n, d + j, SIDE); \
    UNROLLED for (int i = 0; i < (rows); i++) transform(n, d + i * SIDE, 1)

HERE vector *vector_at(const float *at) { return (vector *)at; }

/* Kernels w[out][in][R][R] as u[POINTS][rows][columns], where rows and columns are the inputs and outputs or, with
   their strides in w, the other way round. */
HERE void lay_kernels(int64_t rows, int64_t row, int64_t columns, int64_t column, const float *w, float *u) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j += LANES) {
            vector d[POINTS];
            float near[R * R][LANES];
            for (int lane = 0; lane < LANES; lane++)
                UNROLLED for (int e = 0; e < R * R; e++) near[e][lane] = w[i * row + (j + lane) * column + e];
            EACH(a, b, R) d[a * SIDE + b] = *vector_at(near[a * R + b]);
            PLANE(values, R, R, SIDE);
            UNROLLED for (int p = 0; p < POINTS; p++) *vector_at(u + (p * rows + i) * columns + j) = scale(p) * d[p];
        }
}

/* dw from its du[POINTS][in][out] */
HERE void gather_kernels(int64_t in, int64_t out, const float *du, float *dw) {
    for (int64_t i = 0; i < in; i++)
        for (int64_t j = 0; j < out; j += LANES) {
            vector d[POINTS];
            float near[R * R][LANES];
            UNROLLED for (int p = 0; p < POINTS; p++) d[p] = scale(p) * *vector_at(du + (p * in + i) * out + j);
            PLANE(values_turned, R, SIDE, R);
            EACH(a, b, R) *vector_at(near[a * R + b]) = d[a * SIDE + b];
            for (int lane = 0; lane < LANES; lane++)
                UNROLLED for (int e = 0; e < R * R; e++) dw[((j + lane) * in + i) * R * R + e] = near[e][lane];
        }
}

/* Tiles that cover these outputs of n images. */
HERE grid grid_of(int64_t n, image outputs) {
    const int64_t down = (outputs.height + STEP - 1) / STEP, across = (outputs.width + STEP - 1) / STEP;
    return (grid){down, across, n * down * across};
}

/* What of a square of n x n an image has: where its corner is or would be, and the rows and columns inside. */
typedef struct { int64_t corner; int top, bottom, left, right; _Bool whole; } square;
HERE square square_of(const int n, const grid *g, image of, int64_t padding, int64_t tile) {
    const int64_t number = tile / (g->down * g->across);
    const int64_t y = tile / g->across % g->down * STEP - padding, x = tile % g->across * STEP - padding;
    square s = {((number * of.height + y) * of.width + x) * of.channels};
    if (tile >= g->all) return s;
    s.top = y < 0 ? -y : 0, s.bottom = y + n > of.height ? of.height - y : n;
    s.left = x < 0 ? -x : 0, s.right = x + n > of.width ? of.width - x : n;
    s.whole = s.bottom - s.top == n && s.right - s.left == n;
    return s;
}

/* The squares that TILES tiles have in an image, as to[POINTS][TILES][channels]: spread if they are of x; values if they
   are of the smaller dy, which is summed as well. */
HERE void take(const int n, const grid *g, image of, int64_t padding, int64_t tile, const float *x, float *to,
               float *sums) {
    const int64_t c = of.channels;
    for (int64_t t = 0; t < TILES; t++, tile++, to += c) {
        const square s = square_of(n, g, of, padding, tile);
        for (int64_t j = 0; j < c; j += LANES) {
            const float *from = x + s.corner + j;
            vector d[POINTS];
            if (s.whole) EACH(a, b, n) d[a * SIDE + b] = *vector_at(from + (a * of.width + b) * c);
            else {
                memset(d, 0, sizeof d);
                for (int a = s.top; a < s.bottom; a++)
                    for (int b = s.left; b < s.right; b++) d[a * SIDE + b] = *vector_at(from + (a * of.width + b) * c);
            }
            if (n == SIDE) { PLANE(spread, n, n, SIDE); }
            else {
                vector sum = *vector_at(sums + j);
                EACH(a, b, n) sum += d[a * SIDE + b];
                *vector_at(sums + j) = sum;
                PLANE(values, n, n, SIDE);
            }
            UNROLLED for (int p = 0; p < POINTS; p++) *vector_at(to + p * TILES * c + j) = d[p];
        }
    }
}

/* And back: y is set, with its bias; dx is added to, since tiles overlap. */
HERE void give(const int n, const grid *g, image of, int64_t padding, int64_t tile, const float *from,
               const float *bias, float *x) {
    const int64_t c = of.channels;
    for (int64_t t = 0; t < TILES; t++, tile++, from += c) {
        const square s = square_of(n, g, of, padding, tile);
        for (int64_t j = 0; j < c; j += LANES) {
            float *to = x + s.corner + j;
            vector d[POINTS], more = bias ? *vector_at(bias + j) : (vector){0};
            UNROLLED for (int p = 0; p < POINTS; p++) d[p] = *vector_at(from + p * TILES * c + j);
            if (n == SIDE) { PLANE(spread_turned, n, SIDE, n); }
            else { PLANE(values_turned, n, SIDE, n); }
#define GIVEN(a, b) *vector_at(to + ((a) * of.width + (b)) * c)
            if (s.whole) EACH(a, b, n) GIVEN(a, b) = (n == SIDE ? GIVEN(a, b) : more) + d[a * SIDE + b];
            else
                for (int a = s.top; a < s.bottom; a++)
                    for (int b = s.left; b < s.right; b++)
                        GIVEN(a, b) = (n == SIDE ? GIVEN(a, b) : more) + d[a * SIDE + b];
        }
    }
}

/* Where, in these images, the rows end that tiles before this one reach into. */
HERE int64_t reach(const int n, const grid *g, image of, int64_t padding, int64_t tile) {
    const int64_t last = (tile < g->all ? tile : g->all) - 1, number = last / (g->down * g->across);
    const int64_t bottom = last / g->across % g->down * STEP - padding + n;
    return (number * of.height + (bottom < of.height ? bottom : of.height)) * of.width * of.channels;
}

/* The rows that TILES tiles from this one on reach into, and none before does: to be fetched while there is something
   else to do, and where dx begins with zeros. */
typedef struct { const float *at; int64_t size; } span;
HERE span fresh(const int n, const grid *g, image of, int64_t padding, int64_t tile, const float *x) {
    const int64_t begin = tile ? reach(n, g, of, padding, tile) : 0;
    return (span){x + begin, reach(n, g, of, padding, tile + TILES) - begin};
}
HERE void fetch(span part, int64_t number) {
    const int64_t size = (part.size + POINTS - 1) / POINTS, line = 64 / sizeof *part.at;
    for (int64_t i = 0; i < size; i += line) __builtin_prefetch(part.at + number * size + i);
}

/* At each point: to[n][width] = a[n][depth] b, or to += a[depth][n]' b. There are TILES rows or a multiple of 16, and a
   multiple of 16 columns. */
HERE void column(const int rows, const int strips, const _Bool turned, int64_t n, int64_t depth, matrix a, matrix b,
                 float *to) {
    for (int64_t i = 0; i < n; i += rows)
        block(rows, strips, turned, turned, depth, (matrix){a.at + (turned ? i : i * depth), a.stride}, b,
              to + i * b.stride, b.stride);
}
HERE void products(const _Bool turned, int64_t n, int64_t width, int64_t depth, const float *a, const float *b,
                   float *to, span soon, span later) {
    const int rows = LANES < 16 ? (turned ? 4 : 6) : turned ? 8 : 12;
    for (int p = 0; p < POINTS; p++, a += n * depth, b += depth * width, to += n * width) {
        const matrix left = {a, turned ? n : depth};
        int64_t j = 0;
        fetch(soon, p), fetch(later, p);
        for (; j + 2 * LANES <= width; j += 2 * LANES)
            column(rows, 2, turned, n, depth, left, (matrix){b + j, width}, to + j);
        if (j < width) column(2 * rows, 1, turned, n, depth, left, (matrix){b + j, width}, to + j);
    }
}
static void times(int64_t width, int64_t depth, const float *a, const float *b, float *to, span soon, span later) {
    products(0, TILES, width, depth, a, b, to, soon, later);
}
static void turned_times(int64_t n, int64_t width, const float *a, const float *b, float *to, span soon, span later) {
    products(1, n, width, TILES, a, b, to, soon, later);
}

/* Numbers that there has to be room for, on either way. */
int64_t room(int64_t in, int64_t out) { return POINTS * (2 * in * out + TILES * (2 * in + out)); }

/* y[n][..][..][out] of x[n][height][width][in], with kernels w[out][in][R][R] and bias[out], which may be missing */
void forward(int64_t n, int64_t height, int64_t width, int64_t in, int64_t padding, int64_t out, const float *x,
             const float *w, const float *bias, float *y, float *room) {
    const image of = {height, width, in}, to = {height + 2 * padding - R + 1, width + 2 * padding - R + 1, out};
    const grid g = grid_of(n, to);
    float *u = room, *v = u + POINTS * in * out, *m = v + POINTS * TILES * in;
    lay_kernels(in, R * R, out, in * R * R, w, u);
    for (int64_t tile = 0; tile < g.all; tile += TILES) {
        take(SIDE, &g, of, padding, tile, x, v, 0);
        times(out, in, v, u, m, fresh(STEP, &g, to, 0, tile, y), fresh(SIDE, &g, of, padding, tile + TILES, x));
        give(STEP, &g, to, 0, tile, m, bias, y);
    }
}

/* From the derivatives by y those by the bias and, unless nobody asks, the kernels and x. */
void backward(int64_t n, int64_t height, int64_t width, int64_t in, int64_t padding, int64_t out, const float *x,
              const float *w, const float *dy, float *dx, float *dw, float *d_bias, float *room) {
    const image of = {height, width, in}, to = {height + 2 * padding - R + 1, width + 2 * padding - R + 1, out};
    const grid g = grid_of(n, to);
    float *u = room, *du = u + POINTS * in * out, *v = du + POINTS * in * out, *z = v + POINTS * TILES * in;
    float *dv = z + POINTS * TILES * out;
    if (dw) memset(du, 0, POINTS * in * out * sizeof *du);
    memset(d_bias, 0, out * sizeof *d_bias);
    if (dx) lay_kernels(out, in * R * R, in, R * R, w, u);
    for (int64_t tile = 0; tile < g.all; tile += TILES) {
        take(STEP, &g, to, 0, tile, dy, z, d_bias);
        if (dw) {
            const int64_t next = tile + TILES;
            take(SIDE, &g, of, padding, tile, x, v, 0);
            turned_times(in, out, v, z, du, fresh(SIDE, &g, of, padding, next, x), fresh(STEP, &g, to, 0, next, dy));
        }
        if (dx) {
            const span soon = fresh(SIDE, &g, of, padding, tile, dx);
            times(in, out, z, u, dv, soon, (span){0});
            memset((float *)soon.at, 0, soon.size * sizeof *dx);
            give(SIDE, &g, of, padding, tile, dv, 0, dx);
        }
    }
    if (dw) gather_kernels(in, out, du, dw);
}
