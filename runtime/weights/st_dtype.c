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

static float float_of(uint32_t bits) {
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

static uint32_t bits_of(float f) {
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  return bits;
}

// The exponent is rebiased by a multiplication, which also makes subnormals normal.
static float f16_to_f32(uint16_t x) {
  uint32_t sign = (uint32_t)(x & 0x8000) << 16;
  uint32_t magnitude = x & 0x7fff;
  uint32_t bits = bits_of(float_of(magnitude << 13) * 0x1p112f);
  if (magnitude >= 0x7c00)
    bits |= 0x7f800000;
  return float_of(bits | sign);
}

static uint16_t f16_from_f32(float f) {
  uint32_t bits = bits_of(f);
  uint32_t magnitude = bits & 0x7fffffff;
  uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
  if (magnitude > 0x7f800000)
    return sign | 0x7e00;
  if (magnitude >= 0x477ff000)
    return sign | 0x7c00;     // 65520 and more round to infinity
  if (magnitude < 0x38800000) // subnormal: adding 0.5 rounds to multiples of 2^-24
    return (uint16_t)(sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f)));
  return (uint16_t)(sign | ((magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13));
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
      out[i] = f16_to_f32(x);
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
      uint16_t y = f16_from_f32(x[i]);
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
