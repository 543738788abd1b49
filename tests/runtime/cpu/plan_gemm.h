// plan_gemm.h - GEMMs of plans for tests.
#ifndef LM_TESTS_PLAN_GEMM_H
#define LM_TESTS_PLAN_GEMM_H
#include "runtime/plan/plan.h"

static inline lm_plan_extent fixed(int64_t n) {
  return (lm_plan_extent){.fixed = n};
}

// C[m, n] = A[m, k] B[k, n], dense and row-major.
static inline lm_plan_gemm gemm_make(int64_t m, int64_t n, int64_t k, lm_dtype dtype) {
  return (lm_plan_gemm){.m = fixed(m),
                        .n = fixed(n),
                        .k = fixed(k),
                        .a_m = k,
                        .a_k = 1,
                        .b_k = n,
                        .b_n = 1,
                        .c_m = n,
                        .c_n = 1,
                        .dtype_ab = (uint8_t)dtype,
                        .dtype_c = (uint8_t)dtype};
}
#endif
