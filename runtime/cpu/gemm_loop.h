// gemm_loop.h - the plain product, for strides and types that the library has no call for.
#ifndef LM_CPU_GEMM_LOOP_H
#define LM_CPU_GEMM_LOOP_H
#include <stdbool.h>
#include <stdint.h>

#include "runtime/base/dtype.h"

typedef struct lm_gemm_shape {   // strides in elements
  int64_t m, n, k, a_m, a_k, b_k, b_n, c_m, c_n;
  uint8_t ab, cc;                // lm_dtype of A and B, of C
} lm_gemm_shape;

int lm_gemm_dtype_bytes(uint8_t dtype);
// Each element is summed over k in order, in double.
void lm_gemm_loop(const lm_gemm_shape *s, const char *a, const char *b, char *c, bool add);
#endif
