// widen.c - see widen.h.
#include "compiler/ops/widen.h"
#include <string.h>
#include "compiler/ops/interface.h"

// The axes of a, then those that it lacks of b in front.
static lm_type joined(lm_type a, lm_type b) {
  lm_type t = {
      .dtype = a.dtype,
  };
  for (int i = 0; i < b.rank; i++)
    if (lm_type_find(a, b.axis[i]) < 0)
      t.axis[t.rank++] = b.axis[i];
  memcpy(t.axis + t.rank, a.axis, a.rank * sizeof *a.axis);
  t.rank = (uint8_t)(t.rank + a.rank);
  return t;
}

// The type `t` of a value that is made from x, of which `was` is the type in the original.
static lm_type with_more(lm_type t, const lm_value *x, lm_type was) {
  lm_type more = {0};
  for (int i = 0; i < x->type.rank; i++)
    if (lm_type_find(was, x->type.axis[i]) < 0)
      more.axis[more.rank++] = x->type.axis[i];
  return joined(t, more);
}

// Expands the first operand if no operand has the axes of all.
static void nest_operands(lm_builder *b, lm_value **in, uint32_t n) {
  lm_type all = {0};
  for (uint32_t i = 0; i < n; i++)
    all = in[i]->type.rank > all.rank ? joined(in[i]->type, all) : joined(all, in[i]->type);
  for (uint32_t i = 0; i < n; i++)
    if (in[i]->type.rank == all.rank)
      return;
  uint32_t widest = n - 1;
  for (uint32_t i = n - 1; i-- > 0;)
    if (in[i]->type.rank >= in[widest]->type.rank)
      widest = i;
  lm_type to = joined(in[widest]->type, all);
  in[widest] = lm_emit_expand(b, in[widest], to);
}

lm_value *lm_widen_to(lm_builder *b, lm_value *x, lm_type to) {
  lm_axis order[LM_RANK];
  int n = 0;
  for (int i = 0; i < to.rank; i++)
    if (lm_type_find(x->type, to.axis[i]) >= 0)
      order[n++] = to.axis[i];
  return lm_emit_expand(b, lm_emit_permute(b, x, order, n), to);
}

lm_value *lm_widen(lm_builder *b, const lm_op *op, lm_value **in) {
  lm_type t = op->out[0]->type;
  if (op->code == LM_OP_CAST)
    return lm_emit_cast(b, in[0], (lm_dtype)t.dtype);
  if (op->code == LM_OP_EXPAND)
    return lm_widen_to(b, in[0], with_more(t, in[0], op->in[0]->type));
  if (op->code == LM_OP_PERMUTE)
    t = with_more(t, in[0], op->in[0]->type);
  else if (op->n_in > 1 && lm_op_has(op, LM_T_ELEMENTWISE))
    nest_operands(b, in, op->n_in);
  bool typed = lm_op_has(op, LM_T_TYPED);
  return lm_emit(b, op->code, in, op->n_in, &op->attr, typed ? &t : NULL);
}

bool lm_widens(const lm_op *op) {
  bool linear = op->code == LM_OP_SUM || op->code == LM_OP_MAX || op->code == LM_OP_DOT;
  bool moves = op->code == LM_OP_VIEW || op->code == LM_OP_RENAME || op->code == LM_OP_SLICE ||
               op->code == LM_OP_PAD || op->code == LM_OP_PERMUTE || op->code == LM_OP_WINDOW;
  return linear || moves || lm_op_has(op, LM_T_ELEMENTWISE);
}
