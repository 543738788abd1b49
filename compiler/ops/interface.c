// interface.c - see interface.h.
#include "compiler/ops/interface.h"

static void axes_add(lm_type *t, const lm_axis *axes, int n) {
  for (int i = 0; i < n; i++)
    if (lm_type_find(*t, axes[i]) < 0 && t->rank < LM_RANK)
      t->axis[t->rank++] = axes[i];
}

lm_type lm_op_touched_axes(const lm_op *op, uint32_t i) {
  lm_type t = {0};
  bool index = op->code == LM_OP_GATHER && i == 1; // read at the position of the result
  if (index || lm_op_has(op, LM_T_ELEMENTWISE | LM_T_REDUCE | LM_T_DOT))
    return t;
  axes_add(&t, op->attr.axes, op->attr.n_axes);
  axes_add(&t, op->attr.to, op->attr.n_to);
  return t;
}

lm_row_class lm_op_row_class(const lm_op *op) {
  if (op->code == LM_OP_RNG || op->code == LM_OP_IOTA)
    return LM_ROW_NUMBERED;
  if (op->code == LM_OP_GATHER)
    return LM_ROW_BY_INDEX;
  if (op->code == LM_OP_AT || op->body)
    return LM_ROW_MIXED;
  uint32_t each = LM_T_ELEMENTWISE | LM_T_MOVE | LM_T_ASSEMBLE | LM_T_REDUCE | LM_T_DOT;
  return lm_op_has(op, each) ? LM_ROW_EACH : LM_ROW_MIXED;
}

static int active_count(const lm_op *op, lm_value_test *active, const void *user) {
  int n = 0;
  for (uint32_t i = 0; i < op->n_in; i++)
    n += active(user, op->in[i]);
  return n;
}

bool lm_op_is_linear(const lm_op *op, lm_value_test *active, const void *user) {
  int n = active_count(op, active, user);
  if (lm_op_has(op, LM_T_LINEAR))
    return true;
  if (lm_op_has(op, LM_T_BILINEAR))
    return n < 2;
  if (lm_op_has(op, LM_T_LINEAR_FIRST))
    return n == active(user, op->in[0]);
  return n == 0;
}

lm_recompute_class lm_op_recompute_class(const lm_op *op) {
  const lm_op_info *info = lm_op_info_of(op);
  bool fuses = info->stages & LM_IN_BODY || info->stages == LM_IN_GRAPH;
  if (!fuses || info->traits & LM_T_STRUCT)
    return LM_RECOMPUTE_UNFUSED;
  if (info->traits & LM_T_MOVE)
    return LM_RECOMPUTE_FREE;
  if (info->traits & LM_T_ELEMENTWISE)
    return info->n_in ? LM_RECOMPUTE_CHEAP : LM_RECOMPUTE_FREE;
  return info->traits & LM_T_ASSEMBLE ? LM_RECOMPUTE_CHEAP : LM_RECOMPUTE_FUSED;
}
