// shape.c - the table of shape rules that ops.def describes.
#include "compiler/ops/ops.h"

static lm_shape_rule *const rules[LM_OPS] = {
#define OP(E, NAME, IN, OUT, ATTRS, TRAITS, STAGES, SHAPE, VJP, FACTOR, FLOPS, DOC)                \
  [LM_OP_##E] = SHAPE,
#include "compiler/ir/ops.def"
#undef OP
};

bool lm_op_shape(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  return rules[op->code](m, op, out, why);
}
