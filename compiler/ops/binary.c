// binary.c - elementwise operations of two and three operands, broadcast by name (lm_broadcast).
#include "compiler/ops/ops.h"

static bool same_dtype(const lm_module *m, const lm_op *op, uint32_t first, lm_buf *why) {
  lm_type a = op->in[first]->type;
  lm_type b = op->in[first + 1]->type;
  if (a.dtype == b.dtype)
    return true;
  lm_why_type(why, m, "", a, " with ");
  return lm_why_type(why, m, "", b, ": types are not promoted");
}

bool shape_arith(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  if (!same_dtype(m, op, 0, why))
    return false;
  if (op->in[0]->type.dtype == LM_BOOL)
    return lm_why(why, "the operands are bool");
  return lm_computes(m, op->in[0]->type, why) && lm_broadcast(m, op, out, why);
}

bool shape_arith_float(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  if (!shape_arith(m, op, out, why))
    return false;
  return lm_dtype_is_float(out->dtype) || lm_why(why, "the operands are int, not floating");
}

bool shape_arith_int(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  if (!shape_arith(m, op, out, why))
    return false;
  return out->dtype == LM_INT || lm_why(why, "the operands are not int");
}

bool shape_compare(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  if (!same_dtype(m, op, 0, why) || !lm_computes(m, op->in[0]->type, why) ||
      !lm_broadcast(m, op, out, why))
    return false;
  bool ordered = op->code != LM_OP_EQ && op->code != LM_OP_NE;
  if (ordered && op->in[0]->type.dtype == LM_BOOL)
    return lm_why(why, "the operands are bool, which has no order");
  out->dtype = LM_BOOL;
  return true;
}

bool shape_logic(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  if (op->in[0]->type.dtype != LM_BOOL || op->in[1]->type.dtype != LM_BOOL)
    return lm_why(why, "the operands are not bool");
  return lm_broadcast(m, op, out, why);
}

bool shape_select(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  if (op->in[0]->type.dtype != LM_BOOL)
    return lm_why_type(why, m, "the condition is ", op->in[0]->type, ", not bool");
  if (!same_dtype(m, op, 1, why) || !lm_broadcast(m, op, out, why))
    return false;
  out->dtype = op->in[1]->type.dtype;
  return true;
}
