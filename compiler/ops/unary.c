// unary.c - elementwise operations of one operand: result[i] = f(operand[i]).
#include "compiler/ops/ops.h"

bool shape_same(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  *out = op->in[0]->type;
  return true;
}

bool shape_number1(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  *out = op->in[0]->type;
  if (out->dtype == LM_BOOL)
    return lm_why(why, "the operand is bool");
  return lm_computes(m, *out, why);
}

bool shape_float1(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  *out = op->in[0]->type;
  return lm_dtype_is_float(out->dtype) ||
         lm_why_type(why, m, "the operand is ", *out, ", not floating");
}

bool shape_not(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  *out = op->in[0]->type;
  return out->dtype == LM_BOOL || lm_why_type(why, m, "the operand is ", *out, ", not bool");
}

bool shape_unrounded(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  bool ok = shape_float1(m, op, out, why);
  out->dtype = LM_F32;
  return ok;
}

bool shape_cast(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  lm_type t = op->in[0]->type;
  t.dtype = out->dtype;
  return lm_type_equal(t, *out) ||
         lm_why_type(why, m, "a cast changes axes of ", op->in[0]->type, "");
}
