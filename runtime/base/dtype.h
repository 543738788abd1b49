// dtype.h - conversion of bf16, and kinds of initialisers, which the IR and plans share.
#ifndef LM_DTYPE_H
#define LM_DTYPE_H
#include <string.h>

#include "contract/dtype.h"

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
