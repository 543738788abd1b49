// ops.c - the table that ops.def describes.
#include "compiler/ops/ops.h"

const lm_op_info lm_op_table[LM_OPS] = {
#define OP(E, NAME, IN, OUT, ATTRS, TRAITS, STAGES, SHAPE, VJP, FLOPS, DOC) \
  [LM_OP_##E] = {NAME, IN, OUT, ATTRS, TRAITS, STAGES, SHAPE, VJP, FLOPS, DOC},
#include "compiler/ir/ops.def"
#undef OP
};

const char *const lm_keep_names[LM_KEEPS] = {"", "save", "again"};
