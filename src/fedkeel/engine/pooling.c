/* The largest of each window of 2 x 2, forth and back. `pooling.py` calls it, behind `products.c`.

   Images have their channels innermost, a multiple of 16 of them. What is kept for the way back is which of the four it
   was; every derivative is written once, also those that are zero. As with torch, the first of equal ones counts, and
   what is no number is the largest. */

typedef uint8_t places __attribute__((vector_size(LANES), aligned(1)));
typedef int32_t chosen __attribute__((vector_size(4 * LANES)));

void forward(int64_t n, int64_t height, int64_t width, int64_t c, const float *x, float *y, uint8_t *place) {
    const int64_t down = height / 2, across = width / 2;
    for (int64_t row = 0; row < n * down; row++)
        for (int64_t column = 0; column < across; column++) {
            const float *from = x + ((row / down * height + row % down * 2) * width + column * 2) * c;
            for (int64_t j = 0; j < c; j += LANES, y += LANES, place += LANES) {
                vector largest = *(vector *)(from + j);
                chosen which = {0};
                UNROLLED for (int k = 1; k < 4; k++) {
                    const vector one = *(vector *)(from + (k / 2 * width + k % 2) * c + j);
                    const chosen larger = (one > largest) | (one != one); /* all bits, or none */
                    largest = (vector)((larger & (chosen)one) | (~larger & (chosen)largest));
                    which = (larger & k) | (~larger & which);
                }
                *(vector *)y = largest, *(places *)place = __builtin_convertvector(which, places);
            }
        }
}

void backward(int64_t n, int64_t height, int64_t width, int64_t c, const float *dy, const uint8_t *place, float *dx) {
    const int64_t down = height / 2, across = width / 2;
    for (int64_t row = 0; row < n * down; row++) {
        float *to = dx + (row / down * height + row % down * 2) * width * c;
        for (int64_t column = 0; column < across; column++, to += 2 * c)
            for (int64_t j = 0; j < c; j += LANES, dy += LANES, place += LANES) {
                const chosen which = __builtin_convertvector(*(const places *)place, chosen);
                const chosen d = (chosen) * (const vector *)dy;
                UNROLLED for (int k = 0; k < 4; k++)
                    *(vector *)(to + (k / 2 * width + k % 2) * c + j) = (vector)(d & (which == k));
            }
        /* what no window has: the last column and, below the last windows, the last row */
        if (width % 2) memset(to, 0, c * sizeof *to), memset(to + width * c, 0, c * sizeof *to);
        if (height % 2 && row % down == down - 1) {
            float *last = dx + (row / down + 1) * height * width * c - width * c;
            memset(last, 0, width * c * sizeof *last);
        }
    }
}
