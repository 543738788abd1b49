// strides.c - where the operands of a kernel that copies tiles are in memory: dense, or the views
// of a larger tensor.
#include "codegen/cuda/emit.h"

void cuda_dense_strides(const lm_module *m, lm_type t, int64_t *out) {
  int64_t n = 1;
  for (int i = t.rank - 1; i >= 0; i--) {
    out[i] = n;
    n *= lm_axis_size(m, t.axis[i]);
  }
}

bool cuda_tile_views(const lm_module *m, const lm_value *v, int64_t *out) {
  int64_t bits;
  if (!v->def || !(lm_op_info_of(v->def)->traits & LM_T_VIEW) || !lm_plan_strides(m, v, out, &bits))
    return false;
  for (int i = 0; i < v->type.rank - 1; i++)
    bits |= lm_axis_size(m, v->type.axis[i]) > 1 ? out[i] : 0;
  return out[v->type.rank - 1] == 1 && bits % 8 == 0;
}

void cuda_tile_strides(const lm_module *m, const lm_value *v, bool copied, int64_t *out) {
  if (!copied || !cuda_tile_views(m, v, out))
    cuda_dense_strides(m, v->type, out);
}
