// gemm_loop.c - see gemm_loop.h.
#include "runtime/cpu/gemm_loop.h"

static double element_load(uint8_t dtype, const char *p, int64_t i) {
  return dtype == LM_F64 ? ((const double *)p)[i] : ((const float *)p)[i];
}

static void store(uint8_t dtype, char *p, int64_t i, double v) {
  if (dtype == LM_F64)
    ((double *)p)[i] = v;
  else
    ((float *)p)[i] = (float)v;
}

void lm_gemm_loop(const lm_gemm_shape *s, const char *a, const char *b, char *c, bool add) {
  for (int64_t i = 0; i < s->m; i++)
    for (int64_t j = 0; j < s->n; j++) {
      int64_t at = i * s->c_m + j * s->c_n;
      double sum = add ? element_load(s->cc, c, at) : 0;
      for (int64_t k = 0; k < s->k; k++)
        sum += element_load(s->ab, a, i * s->a_m + k * s->a_k) *
               element_load(s->ab, b, k * s->b_k + j * s->b_n);
      store(s->cc, c, at, sum);
    }
}
