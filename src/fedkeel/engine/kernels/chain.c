/* The layers of a chain, for one client: n samples in rows, one after the other, and their sizes known in advance.
   `chain.py` puts a type for `real` before this, and behind it the function that calls these. Four rows at a time, so
   that what is read of the others is used four times. */

#include <stdint.h>
#include <tgmath.h>

#define HERE static inline __attribute__((always_inline)) /* with its sizes, which are constants where it is called */

/* y = x W' + b */
HERE void linear(int64_t n, int64_t in, int64_t out, const real *restrict w, const real *restrict b,
                 const real *restrict x, real *restrict y) {
    int64_t s = 0;
    for (; s + 4 <= n; s += 4, x += 4 * in, y += 4 * out)
        for (int64_t o = 0; o < out; o++) {
            real start = b ? b[o] : 0, t0 = 0, t1 = 0, t2 = 0, t3 = 0;
            for (int64_t i = 0; i < in; i++) {
                real v = w[o * in + i];
                t0 += v * x[i], t1 += v * x[in + i], t2 += v * x[2 * in + i], t3 += v * x[3 * in + i];
            }
            y[o] = start + t0, y[out + o] = start + t1, y[2 * out + o] = start + t2, y[3 * out + o] = start + t3;
        }
    for (; s < n; s++, x += in, y += out)
        for (int64_t o = 0; o < out; o++) {
            real t = 0;
            for (int64_t i = 0; i < in; i++) t += w[o * in + i] * x[i];
            y[o] = (b ? b[o] : 0) + t;
        }
}

/* y += a0 x0 + a1 x1 + ... for the rows x of a matrix, with a every `step` numbers */
HERE void add_rows(int64_t rows, int64_t width, int64_t step, const real *restrict a, const real *restrict x,
                   real *restrict y) {
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4, a += 4 * step, x += 4 * width) {
        real a0 = a[0], a1 = a[step], a2 = a[2 * step], a3 = a[3 * step];
        for (int64_t i = 0; i < width; i++)
            y[i] += a0 * x[i] + a1 * x[width + i] + a2 * x[2 * width + i] + a3 * x[3 * width + i];
    }
    for (; r < rows; r++, a += step, x += width)
        for (int64_t i = 0; i < width; i++) y[i] += a[0] * x[i];
}

/* The derivatives of `linear` by W and b: d' x, and the sum of d. */
HERE void linear_by_weights(int64_t n, int64_t in, int64_t out, const real *restrict x, const real *restrict d,
                            real *restrict w, real *restrict b) {
    for (int64_t o = 0; o < out; o++) {
        for (int64_t i = 0; i < in; i++) w[o * in + i] = 0;
        add_rows(n, in, out, d + o, x, w + o * in);
        if (b) {
            b[o] = 0;
            for (int64_t s = 0; s < n; s++) b[o] += d[s * out + o];
        }
    }
}

/* The derivative of `linear` by x: d W. */
HERE void linear_by_input(int64_t n, int64_t in, int64_t out, const real *restrict w, const real *restrict d,
                          real *restrict x) {
    for (int64_t s = 0; s < n; s++) {
        for (int64_t i = 0; i < in; i++) x[s * in + i] = 0;
        add_rows(out, in, 1, d + s * out, w, x + s * in);
    }
}

/* Layers of single numbers, and their derivatives by what came out of them; what is no number stays none. */
#define ELEMENTWISE(name, forward, derivative)                                                                \
    HERE void name(int64_t size, const real *restrict x, real *restrict y) {                                  \
        for (int64_t k = 0; k < size; k++) { real v = x[k]; y[k] = forward; }                                 \
    }                                                                                                         \
    HERE void name##_back(int64_t size, const real *restrict y, real *restrict d) {                           \
        for (int64_t k = 0; k < size; k++) { real v = y[k]; d[k] = derivative; }                              \
    }
ELEMENTWISE(relu, v < 0 ? 0 : v, v <= 0 ? 0 : d[k])
ELEMENTWISE(tanh_, tanh(v), d[k] * (1 - v * v))
ELEMENTWISE(sigmoid, 1 / (1 + exp(-v)), d[k] * (v * (1 - v)))

/* The mean loss, and its derivative by the scores; false for a label that no score belongs to. */
HERE _Bool cross_entropy(int64_t n, int64_t classes, const int64_t *restrict label, const real *restrict share,
                         const real *restrict score, real *restrict d, real *restrict loss) {
    *loss = 0;
    for (int64_t s = 0; s < n; s++, score += classes, d += classes) {
        if (label[s] < 0 || label[s] >= classes) return 0;
        real part = share ? share[s] : (real)1 / n, most = score[0], sum = 0;
        for (int64_t o = 1; o < classes; o++) most = score[o] > most ? score[o] : most;
        for (int64_t o = 0; o < classes; o++) d[o] = score[o] - most;
        real own = d[label[s]]; /* from memory, so that no sum in another order brings the large numbers back */
        for (int64_t o = 0; o < classes; o++) sum += d[o] = exp(d[o]);
        for (int64_t o = 0; o < classes; o++) d[o] *= part / sum;
        d[label[s]] -= part;
        *loss += part * (log(sum) - own);
    }
    return 1;
}
