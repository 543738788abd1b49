// map.h - a plan's tensor maps as the driver makes them: for kernels whose operands the copy engine
// brings.
#ifndef LM_CUDA_MAP_H
#define LM_CUDA_MAP_H
#include "runtime/cuda/builtin.h"
#include "runtime/plan/plan.h"

typedef struct lm_cuda_map {
  _Alignas(128) uint64_t word[16];
} lm_cuda_map;

// Of the operand that lies at `base`. Made for each launch, which takes a copy: the driver only
// packs the numbers, and a graph keeps what was recorded.
lm_status lm_cuda_map_make(const lm_cuda_driver *d, const lm_plan_map *m, lm_cuda_address base,
                           const int64_t *var, lm_cuda_map *out);
#endif
