// part.c - results that kernels write where their only user has them: parts of a concatenation, and
// sums that are added to a gradient.
#include <string.h>

#include "compiler/plan/internal.h"

// The operation of the same region that uses v first; NULL if there is none.
static const lm_op *user_of(const lm_value *v) {
  for (const lm_op *op = v->def->next; op; op = op->next)
    for (uint32_t i = 0; i < op->n_in; i++)
      if (op->in[i] == v)
        return op;
  return NULL;
}

// The elements of the concatenation's axis before operand x.
static int64_t elements_before(const lm_module *m, const lm_op *concat, const lm_value *x) {
  int64_t n = 0;
  for (uint32_t i = 0; concat->in[i] != x; i++)
    n += lm_axis_size(m, concat->attr.axes[i]);
  return n;
}

bool lm_plan_part_of(const lm_module *m, const lm_value *v, lm_plan_part *out) {
  const lm_op *views[LM_RANK];
  int n = 0;
  const lm_op *user = v->def ? user_of(v) : NULL;
  while (user && lm_op_info_of(user)->traits & LM_T_VIEW && n < LM_RANK) {
    views[n++] = user;
    v = user->out[0];
    user = user_of(v);
  }
  if (!user || user->code != LM_OP_CONCAT)
    return false;
  int64_t stride[LM_RANK];
  lm_type whole = user->out[0]->type;
  lm_strides_dense(m, whole, stride);
  *out = (lm_plan_part){.concat = user};
  out->offset = elements_before(m, user, v) * stride[lm_type_find(whole, user->attr.to[0])];
  while (n > 0) {
    if (!lm_view_invert(m, views[--n], stride, out->stride))
      return false;
    memcpy(stride, out->stride, sizeof stride);
  }
  memcpy(out->stride, stride, sizeof stride);
  return true;
}

static bool is_used_once(const lm_value *v) {
  uint32_t *uses = lm_func_uses(v->def->parent->func);
  bool once = uses[v->id] == 1;
  lm_free(uses);
  return once;
}

const lm_op *lm_plan_accum_of(lm_module *m, const lm_value *v) {
  int64_t stride[LM_RANK];
  const lm_op *user = v->def ? user_of(v) : NULL;
  if (!user || user->code != LM_OP_ACCUM || user->n_in != 1 || v->type.dtype != LM_F32)
    return NULL;
  const lm_global *g = lm_global_find(m, user->attr.sym);
  if (g->kind != LM_GLOBAL_PARAM || g->n_stack)
    return NULL;
  lm_global_strides(m, g, stride);
  return lm_strides_are_dense(m, v->type, stride) && is_used_once(v) ? user : NULL;
}

void lm_concat_check(planner *p, const lm_op *concat) {
  const storage *whole = p->locations[concat->out[0]->id].at;
  for (uint32_t i = 0; i < concat->n_in; i++)
    if (!whole || lm_value_location(p, concat->in[i])->at != whole)
      LM_BUG("a concatenation outside a kernel, of an operand that no kernel writes there");
}
