// st_dtype.c - element types of safetensors and their conversion to and from float32. Data may be
// unaligned.
#include <string.h>

#include "runtime/base/dtype.h"
#include "runtime/weights/safetensors.h"

const char *lm_st_dtype_name(lm_st_dtype t) {
  return lm_st_dtype_table[t].name;
}
int lm_st_dtype_bytes(lm_st_dtype t) {
  return lm_st_dtype_table[t].bytes;
}
bool lm_st_dtype_is_float(lm_st_dtype t) {
  return lm_st_dtype_table[t].is_float;
}

void lm_st_to_f32(lm_st_dtype t, const void *data, int64_t from, int64_t n, float *out) {
  const char *p = (const char *)data + from * lm_st_dtype_table[t].bytes;
  switch (t) {
  case LM_ST_F32:
    if (n)
      memcpy(out, p, (size_t)n * sizeof *out);
    break;
  case LM_ST_BF16:
    for (int64_t i = 0; i < n; i++) {
      uint16_t x;
      memcpy(&x, p + 2 * i, 2);
      out[i] = lm_bf16_to_f32(x);
    }
    break;
  case LM_ST_F16:
    for (int64_t i = 0; i < n; i++) {
      uint16_t x;
      memcpy(&x, p + 2 * i, 2);
      out[i] = lm_f16_load(x);
    }
    break;
  case LM_ST_F64:
    for (int64_t i = 0; i < n; i++) {
      double x;
      memcpy(&x, p + 8 * i, 8);
      out[i] = (float)x;
    }
    break;
  default: LM_BUG("%s is not a float", lm_st_dtype_table[t].name);
  }
}

void lm_st_from_f32(lm_st_dtype t, const float *x, int64_t n, void *out) {
  char *p = out;
  switch (t) {
  case LM_ST_F32:
    if (n)
      memcpy(p, x, (size_t)n * sizeof *x);
    break;
  case LM_ST_BF16:
    for (int64_t i = 0; i < n; i++) {
      uint16_t y = lm_bf16_from_f32(x[i]);
      memcpy(p + 2 * i, &y, 2);
    }
    break;
  case LM_ST_F16:
    for (int64_t i = 0; i < n; i++) {
      uint16_t y = lm_f16_round(x[i]);
      memcpy(p + 2 * i, &y, 2);
    }
    break;
  case LM_ST_F64:
    for (int64_t i = 0; i < n; i++) {
      double y = x[i];
      memcpy(p + 8 * i, &y, 8);
    }
    break;
  default: LM_BUG("%s is not a float", lm_st_dtype_table[t].name);
  }
}

void lm_st_shape_print(lm_buf *b, const int64_t *shape, int rank) {
  lm_buf_puts(b, "[");
  for (int i = 0; i < rank; i++)
    lm_buf_printf(b, "%s%lld", i ? ", " : "", (long long)shape[i]);
  lm_buf_puts(b, "]");
}
