/* Convolution (stride 1), bias, 2 x 2 max-pooling and ReLU in one pass over an image, so that what is pooled away never
   leaves the cache. Channels are innermost. The sizes of the layer are macros: KERNEL, IN, OUT, HEIGHT, WIDTH, PADDING. */

enum {
    TALL = HEIGHT + 2 * PADDING, WIDE = WIDTH + 2 * PADDING, /* of an image with its border */
    DOWN = (TALL - KERNEL + 1) / 2, ACROSS = (WIDE - KERNEL + 1) / 2, COLUMNS = 2 * ACROSS, /* pooled, and before */
    ROW = KERNEL * IN, TAPS = KERNEL * ROW, /* numbers of a kernel: a row of them is contiguous in an image, too */
    STRIPS = (OUT + LANES - 1) / LANES, BROAD = STRIPS * LANES, /* outputs, filled up to whole vectors */
    MOST = LANES == 16 ? 28 : 12, /* sums that stay in registers */
    PAIR = STRIPS % 2 ? 1 : 2, BLOCKS = (COLUMNS * PAIR + MOST - 1) / MOST, PLACES = (COLUMNS + BLOCKS - 1) / BLOCKS,
    PARTS = (ROW + LANES - 1) / LANES, FULL = PARTS * LANES, /* a row of a kernel, filled up */
    KEPT = KERNEL * PARTS, SIDE_BY_SIDE = MOST / KEPT > 4 ? 4 : MOST / KEPT > 1 ? MOST / KEPT : 1,
    CHANNELS = (OUT + SIDE_BY_SIDE - 1) / SIDE_BY_SIDE * SIDE_BY_SIDE,
    IMAGE = TALL * WIDE * IN + LANES * (PARTS + 1), /* whole vectors may be read at its end */
    DEAD = 4 /* where ReLU gives zero; otherwise 0 to 3, which of the four was the largest */
};
typedef int32_t integers __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint8_t bytes __attribute__((vector_size(LANES), aligned(1)));

/* a where the mask is set, b elsewhere */
HERE integers pick(integers mask, integers a, integers b) { return (a & mask) | (b & ~mask); }

enum { /* numbers that there has to be room for, forward and backward */
    FORTH = IMAGE + TAPS * BROAD + BROAD + 2 * COLUMNS * BROAD,
    BACK = 2 * IMAGE + 2 * OUT * KERNEL * FULL + OUT + 2 * DOWN * ACROSS * CHANNELS
};
int64_t room(void) { return FORTH > BACK ? FORTH : BACK; }

/* An image with a border of zeros, which is there already. */
HERE void place(const float *x, float *image) {
    for (int64_t i = 0; i < HEIGHT; i++)
        memcpy(image + ((i + PADDING) * WIDE + PADDING) * IN, x + i * WIDTH * IN, WIDTH * IN * sizeof *x);
}

/* A row of the convolution, for PAIR strips of its outputs and PLACES columns at a time. */
HERE void convolve(const float *image, const float *w, const float *bias, float *to) {
    for (int strip = 0; strip < STRIPS; strip += PAIR)
        for (int64_t block = 0; block < BLOCKS; block++) {
            const int64_t first = block < BLOCKS - 1 ? block * PLACES : COLUMNS - PLACES;
            vector sum[PLACES * PAIR];
            UNROLLED for (int p = 0; p < PLACES; p++) UNROLLED for (int s = 0; s < PAIR; s++)
                sum[p * PAIR + s] = ((const vector *)bias)[strip + s];
            for (int64_t down = 0; down < KERNEL; down++) {
                const float *at = image + (down * WIDE + first) * IN;
                const vector *of = (const vector *)(w + down * ROW * BROAD) + strip;
                for (int64_t t = 0; t < ROW; t++)
                    UNROLLED for (int p = 0; p < PLACES; p++) UNROLLED for (int s = 0; s < PAIR; s++)
                        sum[p * PAIR + s] += at[p * IN + t] * of[t * STRIPS + s];
            }
            UNROLLED for (int p = 0; p < PLACES; p++) UNROLLED for (int s = 0; s < PAIR; s++)
                ((vector *)(to + (first + p) * BROAD))[strip + s] = sum[p * PAIR + s];
        }
}

/* y[n][DOWN][ACROSS][OUT] of x[n][HEIGHT][WIDTH][IN], kernels w[OUT][IN][KERNEL][KERNEL] and bias[OUT], which may be
   missing; and which of four places each was taken from. As in torch: the first of equal ones, the last NaN. */
void forward(int64_t n, const float *x, const float *w, const float *bias, float *y, uint8_t *from, float *room) {
    float *image = room, *kernels = image + IMAGE, *start = kernels + TAPS * BROAD, *rows = start + BROAD;
    memset(room, 0, (IMAGE + TAPS * BROAD + BROAD) * sizeof *room);
    for (int64_t o = 0; o < OUT; o++)
        for (int64_t i = 0; i < IN; i++)
            for (int64_t t = 0; t < KERNEL * KERNEL; t++)
                kernels[(t * IN + i) * BROAD + o] = w[(o * IN + i) * KERNEL * KERNEL + t];
    if (bias) memcpy(start, bias, OUT * sizeof *bias);
    for (int64_t k = 0; k < n; k++, x += HEIGHT * WIDTH * IN) {
        place(x, image);
        for (int64_t i = 0; i < DOWN; i++) {
            for (int row = 0; row < 2; row++)
                convolve(image + (2 * i + row) * WIDE * IN, kernels, start, rows + row * COLUMNS * BROAD);
            for (int64_t j = 0; j < ACROSS; j++, y += OUT, from += OUT)
                for (int strip = 0; strip < STRIPS; strip++) {
                    const float *at = rows + 2 * j * BROAD + strip * LANES;
                    vector most = *(const vector *)at;
                    integers which = {0};
                    UNROLLED for (int p = 1; p < 4; p++) {
                        const vector v = *(const vector *)(at + (p / 2 * COLUMNS + p % 2) * BROAD);
                        const integers more = (v > most) | (v != v);
                        most = (vector)pick(more, (integers)v, (integers)most);
                        which = pick(more, (integers){0} + p, which);
                    }
                    const integers dead = most <= 0;
                    most = (vector)((integers)most & ~dead), which = pick(dead, (integers){0} + DEAD, which);
                    const bytes small = __builtin_convertvector(which, bytes);
                    const int64_t left = OUT - strip * LANES, filled = left < LANES ? left : LANES;
                    memcpy(y + strip * LANES, &most, filled * sizeof *y);
                    memcpy(from + strip * LANES, &small, filled);
                }
        }
    }
}

/* From the derivatives by y those by the kernels, the bias and, unless nobody asks, x. Of four places that are pooled one
   has a derivative: with that weight its patch of the image, a few vectors, is added to the derivatives of the kernel,
   and the kernel to those of the patch. SIDE_BY_SIDE outputs at a time; one alone is skipped where it has none. */
void backward(int64_t n, const float *x, const float *w, const float *dy, const uint8_t *from, float *dx, float *dw,
              float *d_bias, float *room) {
    float *image = room, *d_image = image + IMAGE, *kernels = d_image + IMAGE, *total = kernels + OUT * KERNEL * FULL;
    float *biases = total + OUT * KERNEL * FULL, *weight = biases + OUT;
    int32_t *offset = (int32_t *)(weight + DOWN * ACROSS * CHANNELS);
    memset(room, 0, BACK * sizeof *room);
    memset(d_bias, 0, OUT * sizeof *d_bias);
    for (int64_t o = 0; o < OUT; o++)
        for (int64_t i = 0; i < IN; i++)
            for (int64_t t = 0; t < KERNEL * KERNEL; t++)
                kernels[(o * KERNEL + t / KERNEL) * FULL + t % KERNEL * IN + i] = w[(o * IN + i) * KERNEL * KERNEL + t];
    for (int64_t k = 0; k < n; k++, x += HEIGHT * WIDTH * IN) {
        place(x, image);
        memset(biases, 0, OUT * sizeof *biases);
        for (int32_t i = 0; i < DOWN; i++)
            for (int32_t j = 0; j < ACROSS; j++, dy += OUT, from += OUT) {
                const int32_t first = (2 * i * WIDE + 2 * j) * IN;
                float *d = weight + (i * ACROSS + j) * CHANNELS;
                int32_t *at = offset + (i * ACROSS + j) * CHANNELS;
                for (int32_t o = 0; o < OUT; o++) {
                    const int32_t p = from[o];
                    d[o] = p == DEAD ? 0 : dy[o];
                    at[o] = first + (p >> 1 & 1) * WIDE * IN + (p & 1) * IN;
                    biases[o] += d[o];
                }
            }
        for (int64_t o = 0; o < OUT; o++) d_bias[o] += biases[o];
        for (int64_t o = 0; o < OUT; o += SIDE_BY_SIDE) {
            vector sum[SIDE_BY_SIDE * KEPT] = {0};
            for (int64_t p = 0; p < DOWN * ACROSS; p++)
                UNROLLED for (int c = 0; c < SIDE_BY_SIDE; c++) {
                    const float *patch = image + offset[p * CHANNELS + o + c], d = weight[p * CHANNELS + o + c];
                    if (SIDE_BY_SIDE == 1 && d == 0) continue;
                    UNROLLED for (int v = 0; v < KEPT; v++)
                        sum[c * KEPT + v] += d * ((const vector *)(patch + v / PARTS * WIDE * IN))[v % PARTS];
                }
            for (int64_t c = 0; c < SIDE_BY_SIDE && o + c < OUT; c++)
                for (int v = 0; v < KEPT; v++) ((vector *)total)[(o + c) * KEPT + v] += sum[c * KEPT + v];
        }
        if (!dx) continue;
        memset(d_image, 0, IMAGE * sizeof *d_image);
        for (int64_t p = 0; p < DOWN * ACROSS; p++)
            for (int64_t o = 0; o < OUT; o++) {
                const float d = weight[p * CHANNELS + o];
                if (d == 0) continue;
                UNROLLED for (int v = 0; v < KEPT; v++)
                    ((vector *)(d_image + offset[p * CHANNELS + o] + v / PARTS * WIDE * IN))[v % PARTS]
                        += d * ((const vector *)kernels)[o * KEPT + v];
            }
        for (int64_t i = 0; i < HEIGHT; i++, dx += WIDTH * IN)
            memcpy(dx, d_image + ((i + PADDING) * WIDE + PADDING) * IN, WIDTH * IN * sizeof *dx);
    }
    for (int64_t o = 0; o < OUT; o++)
        for (int64_t i = 0; i < IN; i++)
            for (int64_t t = 0; t < KERNEL * KERNEL; t++)
                dw[(o * IN + i) * KERNEL * KERNEL + t] = total[(o * KERNEL + t / KERNEL) * FULL + t % KERNEL * IN + i];
}
