// dtype.h - conversion between dtypes, and kinds of initialisers, which the IR and plans share.
#ifndef LM_DTYPE_H
#define LM_DTYPE_H
#include <math.h>
#include <string.h>

#include "contract/dtype.h"
#include "contract/floats.h"

// bf16 is the upper half of an f32. The conversion rounds to nearest, ties to even, and keeps NaNs.
// It has no branches, so loops of it vectorize.
static inline float lm_bf16_to_f32(uint16_t h) {
  uint32_t bits = (uint32_t)h << 16;
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

static inline uint16_t lm_bf16_from_f32(float f) {
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  uint32_t near = bits + 0x7fffu + (bits >> 16 & 1);
  uint32_t quiet = bits | 0x400000u;
  return (uint16_t)((f == f ? near : quiet) >> 16);
}

static inline double lm_dtype_clamp(double v, double least, double most) {
  return v != v ? 0 : fmin(fmax(trunc(v), least), most);
}

// An element of type t, not real, with value v, or the nearest one that there is, as generated code
// casts f32 to t. The bits of its memory, as a number; of a type of at most 32 bits.
static inline uint32_t lm_dtype_bits(lm_dtype t, double v) {
  float f = (float)v;
  uint32_t bits = 0;
  switch (t) {
  case LM_F32: memcpy(&bits, &f, sizeof bits); return bits;
  case LM_BF16: return lm_bf16_from_f32(f);
  case LM_F16: return lm_f16_round(f);
  case LM_E4M3: return lm_e4m3_round(f);
  case LM_E5M2: return lm_e5m2_round(f);
  case LM_E8M0: return lm_e8m0_round(f);
  case LM_DYN8: return lm_dyn8_round(f);
  case LM_UDYN8: return lm_udyn8_round(f);
  case LM_INT: return (uint32_t)(int32_t)lm_dtype_clamp(v, INT32_MIN, INT32_MAX);
  case LM_I8: return (uint8_t)(int8_t)lm_dtype_clamp(v, INT8_MIN, INT8_MAX);
  case LM_U8: return (uint8_t)lm_dtype_clamp(v, 0, UINT8_MAX);
  default: return v != 0;
  }
}

// The value of an element of a type of at most 32 bits, from the bits of its memory.
static inline double lm_dtype_value(lm_dtype t, uint32_t bits) {
  float f;
  switch (t) {
  case LM_F32: memcpy(&f, &bits, sizeof f); return f;
  case LM_BF16: return lm_bf16_to_f32((uint16_t)bits);
  case LM_F16: return lm_f16_load((uint16_t)bits);
  case LM_E4M3: return lm_e4m3_load((uint8_t)bits);
  case LM_E5M2: return lm_e5m2_load((uint8_t)bits);
  case LM_E8M0: return lm_e8m0_load((uint8_t)bits);
  case LM_DYN8: return lm_dyn8_load((uint8_t)bits);
  case LM_UDYN8: return lm_udyn8_load((uint8_t)bits);
  case LM_INT: return (int32_t)bits;
  case LM_I8: return (int8_t)bits;
  default: return bits;
  }
}

// The number that is nearest to v in a type.
static inline double lm_dtype_round(lm_dtype t, double v) {
  float f = (float)v;
  switch (t) {
  case LM_F32: return f;
  case LM_BF16: return lm_bf16_to_f32(lm_bf16_from_f32(f));
  case LM_F16: return lm_f16_load(lm_f16_round(f));
  case LM_E4M3: return lm_e4m3_load(lm_e4m3_round(f));
  case LM_E5M2: return lm_e5m2_load(lm_e5m2_round(f));
  case LM_E8M0: return lm_e8m0_load(lm_e8m0_round(f));
  case LM_DYN8: return lm_dyn8_load(lm_dyn8_round(f));
  case LM_UDYN8: return lm_udyn8_load(lm_udyn8_round(f));
  case LM_INT: return lm_dtype_clamp(v, INT32_MIN, INT32_MAX);
  case LM_I8: return lm_dtype_clamp(v, INT8_MIN, INT8_MAX);
  case LM_U8: return lm_dtype_clamp(v, 0, UINT8_MAX);
  case LM_BOOL: return v != 0;
  default: return v;
  }
}

typedef enum {
  LM_INIT_ZEROS,
  LM_INIT_ONES,
  LM_INIT_CONST,
  LM_INIT_NORMAL,
  LM_INIT_UNIFORM
} lm_init_kind;
// normal: standard deviation a; uniform: [a, b); const: a
typedef struct lm_init {
  lm_init_kind kind;
  double a, b;
} lm_init;
#endif
