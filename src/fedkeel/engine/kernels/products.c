/* What `recurrent.c` and `convolution.c` share: a few rows of a matrix product, whose sums stay in registers. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined __AVX512F__
#pragma GCC target("prefer-vector-width=512")
enum { LANES = 16, SUMS = 25 };
#elif defined __AVX__
enum { LANES = 8, SUMS = 12 };
#else
enum { LANES = 4, SUMS = 12 };
#endif

typedef float vector __attribute__((vector_size(4 * LANES), aligned(4)));
typedef struct { const float *at; int64_t stride; } matrix; /* in rows, or turned: in columns */

#define HERE static inline __attribute__((always_inline)) /* with its sizes, where they are constants */
#define UNROLLED _Pragma("GCC unroll 36")

/* to = a b, or to += a b: what is added is summed for itself first, which keeps long sums accurate. */
HERE void block(const int rows, const int strips, const _Bool turned, const _Bool adding, int64_t depth, matrix a,
                matrix b, float *to, int64_t down) {
    vector sum[SUMS] = {0};
    for (int64_t k = 0; k < depth; k++)
        UNROLLED for (int r = 0; r < rows; r++) UNROLLED for (int s = 0; s < strips; s++)
            sum[r * strips + s] += (turned ? a.at[k * a.stride + r] : a.at[r * a.stride + k])
                                   * ((const vector *)(b.at + k * b.stride))[s];
    UNROLLED for (int r = 0; r < rows; r++) UNROLLED for (int s = 0; s < strips; s++) {
        vector *at = (vector *)(to + r * down) + s;
        *at = adding ? *at + sum[r * strips + s] : sum[r * strips + s];
    }
}
