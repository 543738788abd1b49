// map.c - see map.h.
#include "runtime/cuda/map.h"

lm_status lm_cuda_map_make(const lm_cuda_driver *d, const lm_plan_map *m, lm_cuda_address base,
                           const int64_t *var, lm_cuda_map *out) {
  unsigned long long size[LM_PLAN_MAP_RANK], stride[LM_PLAN_MAP_RANK];
  unsigned box[LM_PLAN_MAP_RANK], step[LM_PLAN_MAP_RANK];
  for (int i = 0; i < LM_PLAN_MAP_RANK; i++) {
    size[i] = (unsigned long long)lm_plan_extent_value(&m->dim[i].size, var);
    stride[i] = (unsigned long long)m->dim[i].stride;
    box[i] = (unsigned)m->dim[i].box;
    step[i] = 1;
  }
  int result = d->cuTensorMapEncodeTiled(out, LM_CU_MAP_BF16, LM_PLAN_MAP_RANK,
                                         (void *)(uintptr_t)base, size, stride + 1, box, step, 0,
                                         LM_CU_MAP_SWIZZLE_128, LM_CU_MAP_PROMOTE_128, 0);
  return lm_cuda_check(d, result, "a tensor map of operand %d", m->buf);
}
