// scales.h - the kinds of scales of scales.def.
#ifndef LM_CONTRACT_SCALES_H
#define LM_CONTRACT_SCALES_H

typedef enum {
#define SCALES(id, name, elements, cublaslt, since) LM_SCALES_##id,
#include "contract/scales.def"
  LM_SCALES_KINDS
} lm_scales;

typedef struct lm_scales_row {
  const char *name; // "vec32"
  int elements;     // that share a scale, along the axes that are summed; 0: all of the operand
  int cublaslt;     // cublasLtMatmulMatrixScale_t
  unsigned since;   // first version of cuBLASLt that has it: 120800 is 12.8
} lm_scales_row;

static inline lm_scales_row lm_scales_of(lm_scales kind) {
  static const lm_scales_row rows[] = {
#define SCALES(id, name, elements, cublaslt, since) {name, elements, cublaslt, since},
#include "contract/scales.def"
  };
  return rows[kind];
}
#endif
