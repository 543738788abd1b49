// partial.h - sums and maxima of rows.
//
// A row has LM_PARTIALS partial results: element i is added to partial result i % LM_PARTIALS, in
// the order of i. Then l and l + 16 are combined, l and l + 8, and so on to one result. This order
// does not depend on the width of vectors, so all processors and compilers give the same bits, and
// partial results are independent of each other: the compiler keeps them in vector registers.
typedef __INT32_TYPE__ int32_t;

enum {
  LM_PARTIALS = 32
};

#define LM_ADD(A, B) ((A) + (B))
#define LM_ADD_INT(A, B) lm_iadd(A, B)
#define LM_MAX(A, B) ((B) > (A) ? (B) : (A))
#define LM_HALVE(COMBINE, N)                                                                       \
  LM_PRAGMA(omp simd)                                                                              \
  for (int l = 0; l < N; l++)                                                                      \
    p[l] = COMBINE(p[l], p[l + N]);
#define LM_TOTAL(NAME, TYPE, COMBINE)                                                              \
  LM_INLINE TYPE NAME(TYPE *p) {                                                                   \
    LM_HALVE(COMBINE, 16)                                                                          \
    LM_HALVE(COMBINE, 8)                                                                           \
    LM_HALVE(COMBINE, 4)                                                                           \
    p[0] = COMBINE(p[0], p[2]);                                                                    \
    p[1] = COMBINE(p[1], p[3]);                                                                    \
    return COMBINE(p[0], p[1]);                                                                    \
  }
LM_TOTAL(lm_sum_float, float, LM_ADD)
LM_TOTAL(lm_sum_double, double, LM_ADD)
LM_TOTAL(lm_sum_int32_t, int32_t, LM_ADD_INT)
LM_TOTAL(lm_max_float, float, LM_MAX)
LM_TOTAL(lm_max_double, double, LM_MAX)
LM_TOTAL(lm_max_int32_t, int32_t, LM_MAX)

// Declares the partial results NAME, equal to the identity element.
#define LM_PARTIALS_OF(TYPE, NAME, IDENTITY)                                                       \
  TYPE NAME[LM_PARTIALS] __attribute__((aligned(64)));                                             \
  LM_PRAGMA(omp simd)                                                                              \
  for (int l = 0; l < LM_PARTIALS; l++)                                                            \
    NAME[l] = IDENTITY;
