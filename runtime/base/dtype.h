// dtype.h - element types and kinds of initialisers, which the IR and plans share.
#ifndef LM_DTYPE_H
#define LM_DTYPE_H
#include <stdint.h>
#include <string.h>

typedef enum {
  LM_F32,
  LM_BF16,
  LM_F64,
  LM_INT /* 32 bits */,
  LM_BOOL,
  LM_DTYPES
} lm_dtype;
extern const char *const lm_dtype_names[LM_DTYPES]; // "f32", "bf16", "f64", "int", "bool"
static inline const char *lm_dtype_name(lm_dtype t) {
  return lm_dtype_names[t];
}
int lm_dtype_bytes(lm_dtype t); // 4, 2, 8, 4, 1

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
