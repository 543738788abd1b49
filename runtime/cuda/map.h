// map.h - encodes a plan's tensor maps for the driver, for kernels whose operands are loaded by the
// GPU's copy engine (TMA).
#ifndef LM_CUDA_MAP_H
#define LM_CUDA_MAP_H
#include "runtime/cuda/builtin.h"
#include "runtime/plan/plan.h"

typedef struct lm_cuda_map {
  _Alignas(128) uint64_t word[16];
} lm_cuda_map;

// base: address of the operand. A map is made for each launch, which copies it; this is cheap,
// since the driver only packs the numbers. A CUDA graph keeps the maps that were recorded.
lm_status lm_cuda_map_make(const lm_cuda_driver *d, const lm_plan_map *m, lm_cuda_address base,
                           const int64_t *var, lm_cuda_map *out);
#endif
