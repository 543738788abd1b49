// flops.c - floating-point operations of an operation, from its shapes.
#include "compiler/ir/attend.h"
#include "compiler/ir/product.h"
#include "compiler/plan/planner.h"

static double elements(const lm_module *m, lm_type t) { return (double)lm_type_elements(m, t); }

static double dot_flops(const lm_module *m, const lm_op *dot) {
  double n = 2 * elements(m, dot->out[0]->type);
  for (int i = 0; i < dot->attr.n_axes; i++) n *= (double)lm_axis_size(m, dot->attr.axes[i]);
  return n;
}

// What a mask compares: an argument of the region, moved or not.
static lm_type compared(const lm_value *v) {
  while (v->def && lm_op_info_of(v->def)->traits & LM_T_MOVE) v = v->def->in[0];
  return v->type;
}

// `t >= s` in one of the ways to write it, alone or as one of several conditions.
static bool orders_places(const lm_op *attend, const lm_value *mask) {
  const lm_op *op = mask->def;
  if (!op) return false;
  if (op->code == LM_OP_AND) return orders_places(attend, op->in[0]) || orders_places(attend, op->in[1]);
  if (op->code != LM_OP_GE && op->code != LM_OP_GT && op->code != LM_OP_LE && op->code != LM_OP_LT) return false;
  lm_type a = compared(op->in[0]), b = compared(op->in[1]);
  lm_axis t = lm_attend_t(attend), s = lm_attend_s(attend);
  bool straight = lm_type_find(a, t) >= 0 && lm_type_find(b, s) >= 0, crossed = lm_type_find(a, s) >= 0 && lm_type_find(b, t) >= 0;
  return straight != crossed;
}

// The products with v (one forward; those with do and for dv backward) and what the region holds. A mask that orders places
// leaves half of the pairs; what documents leave out is known only to the data.
static double attend_flops(const lm_module *m, const lm_op *op) {
  lm_type space = lm_attend_space(op), v = op->in[LM_ATTEND_V]->type;
  double own = 1, n = 0;
  for (int i = 0; i < v.rank; i++)
    if (lm_type_find(space, v.axis[i]) < 0) own *= (double)lm_axis_size(m, v.axis[i]);
  n += (op->code == LM_OP_ATTEND ? 2 : 4) * own * elements(m, space);
  for (const lm_op *o = op->body->first; o; o = o->next) n += lm_plan_flops(m, o);
  return orders_places(op, lm_attend_yield(op, LM_ATTEND_MASK)) ? n / 2 : n;
}

double lm_plan_flops(const lm_module *m, const lm_op *op) {
  const lm_op_info *info = lm_op_info_of(op);
  if (lm_op_multiplies(op)) return dot_flops(m, op);
  if (op->code == LM_OP_ATTEND || op->code == LM_OP_ATTEND_VJP) return attend_flops(m, op);
  if (info->traits & LM_T_REDUCE) return info->flops * elements(m, op->in[0]->type);
  double n = op->n_out ? info->flops * elements(m, op->out[0]->type) : 0;
  for (const lm_op *o = op->code == LM_OP_KERNEL ? op->body->first : NULL; o; o = o->next) n += lm_plan_flops(m, o);
  return n;
}
