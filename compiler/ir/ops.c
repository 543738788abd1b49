// ops.c - the properties of operations that ops.def lists. The tables of its shape rules and
// derivatives are in compiler/ops.
#include "compiler/ir/ir.h"

const lm_op_info lm_op_table[LM_OPS] = {
#define OP(E, NAME, IN, OUT, ATTRS, TRAITS, STAGES, SHAPE, VJP, FACTOR, FLOPS, DOC)                \
  [LM_OP_##E] = {NAME, IN, OUT, ATTRS, TRAITS, STAGES, LM_FACTOR_##FACTOR, FLOPS, DOC},
#include "compiler/ir/ops.def"
#undef OP
};

const char *const lm_remat_names[LM_REMATS] = {"", "save", "recompute"};
const char *const lm_pipe_schedule_names[LM_SCHEDULES] = {"gpipe", "one_f_one_b", "interleaved"};
const char *const lm_global_names[LM_GLOBAL_KINDS] = {"param",  "cache", "derived", "fixed",
                                                      "packed", "state", "terms"};

static bool is_state(const lm_op *param) {
  const lm_global *g = lm_global_find(param->parent->func->module, param->attr.sym);
  return g && (g->kind == LM_GLOBAL_STATE || g->untrained);
}

bool lm_value_is_weight(const lm_value *v) {
  for (const lm_op *op = v->def; op; op = op->n_in ? op->in[0]->def : NULL) {
    if (op->code == LM_OP_PARAM)
      return !is_state(op);
    if (op->code != LM_OP_CAST && !(lm_op_info_of(op)->traits & LM_T_VIEW))
      return false;
  }
  return false;
}
