// gemm_loop.c - see gemm_loop.h.
#include "runtime/cpu/gemm_loop.h"

#include <string.h>

int lm_gemm_dtype_bytes(uint8_t dtype) {
  static const uint8_t bytes[] = {[LM_F32] = 4, [LM_BF16] = 2, [LM_F64] = 8, [LM_INT] = 4,
                                  [LM_BOOL] = 1};
  return bytes[dtype];
}

static float float_of_bits(uint32_t bits) {
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

static uint16_t bf16_round(float f) {   // to nearest, ties to even
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  if (f != f) return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static double load(uint8_t dtype, const char *p, int64_t i) {
  switch (dtype) {
  case LM_F64: return ((const double *)p)[i];
  case LM_BF16: return float_of_bits((uint32_t)((const uint16_t *)p)[i] << 16);
  case LM_INT: return ((const int32_t *)p)[i];
  case LM_BOOL: return ((const uint8_t *)p)[i];
  default: return ((const float *)p)[i];
  }
}

static void store(uint8_t dtype, char *p, int64_t i, double v) {
  switch (dtype) {
  case LM_F64: ((double *)p)[i] = v; break;
  case LM_BF16: ((uint16_t *)p)[i] = bf16_round((float)v); break;
  case LM_INT: ((int32_t *)p)[i] = (int32_t)v; break;
  case LM_BOOL: ((uint8_t *)p)[i] = v != 0; break;
  default: ((float *)p)[i] = (float)v;
  }
}

void lm_gemm_loop(const lm_gemm_shape *s, const char *a, const char *b, char *c, bool add) {
  for (int64_t i = 0; i < s->m; i++)
    for (int64_t j = 0; j < s->n; j++) {
      int64_t at = i * s->c_m + j * s->c_n;
      double sum = add ? load(s->cc, c, at) : 0;
      for (int64_t k = 0; k < s->k; k++)
        sum += load(s->ab, a, i * s->a_m + k * s->a_k) * load(s->ab, b, k * s->b_k + j * s->b_n);
      store(s->cc, c, at, sum);
    }
}
