// stash_operands.c - keeps for the backward pass what GEMMs and attention have read from memory.
//
// before: loop 24 … { %h = mul %s, %u   %y = dot %h, %w over(ff)   … }
// after:  loop 24 … { %h = mul %s, %u (save)   %y = dot %h, %w over(ff)   … }
//
// Results of elementwise operations are recomputed in the backward pass (pass grad). An operand of
// a GEMM or of attention is in memory anyway, and the derivative needs it in memory again: the
// gradient of %w is a GEMM that reads %h. With a stash its kernel need not run, or not write %h, a
// second time, at the cost of the memory. Operands that are views of such a result mark the result.
// Declines: targets other than GPUs, and plans that must fit less memory; values that the recipe
// asks to recompute; biases of scores; GEMMs of two activations, since weights of attention that no
// kernel computes are larger than all else.
#include "compiler/ir/attend.h"
#include "compiler/ir/dot.h"
#include "compiler/ops/interface.h"
#include "compiler/passes/pass.h"

// The value of which v is a view of all elements.
static lm_value *viewed(lm_value *v) {
  for (;;) {
    lm_op *op = v->def;
    bool whole = op && lm_op_has(op, LM_T_VIEW) && op->code != LM_OP_SLICE && op->code != LM_OP_AT;
    if (!whole)
      return v;
    v = op->in[0];
  }
}

static void mark(lm_value *operand, const lm_op *reader) {
  lm_op *op = viewed(operand)->def;
  if (!op || op->parent != reader->parent || lm_remat_choice(op->remat) != LM_REMAT_AUTO)
    return;
  bool computed = lm_op_has(op, LM_T_ELEMENTWISE) && !lm_op_has(op, LM_T_MOVE | LM_T_SOURCE);
  if (computed && lm_dtype_is_float(operand->type.dtype) && !lm_value_is_weight(operand))
    op->remat |= LM_REMAT_SAVE;
}

static void mark_dot(lm_op *op) {
  bool x = lm_value_is_weight(op->in[LM_DOT_X]), w = lm_value_is_weight(op->in[LM_DOT_W]);
  if (x != w)
    mark(op->in[x ? LM_DOT_W : LM_DOT_X], op);
}

static void mark_attend(lm_op *op) {
  lm_axis t = lm_attend_t(op), s = lm_attend_s(op);
  for (uint32_t i = 0; i < op->n_in; i++) {
    lm_type operand = op->in[i]->type;
    if (lm_type_find(operand, t) < 0 || lm_type_find(operand, s) < 0)
      mark(op->in[i], op);
  }
}

static void visit(lm_op *op, void *user) {
  (void)user;
  const lm_op *loop = op->parent->owner;
  if (!loop || loop->code != LM_OP_LOOP)
    return;
  if (op->code == LM_OP_DOT)
    mark_dot(op);
  else if (op->code == LM_OP_ATTEND)
    mark_attend(op);
}

bool lm_pass_stash_operands(lm_module *m, const lm_pass_env *env) {
  bool gpu = env->target && env->target->kind == LM_TARGET_CUDA;
  bool forced = lm_pass_is_forced(env, "stash_operands");
  if (!forced && (!gpu || env->less_memory))
    return true;
  for (lm_func *f = m->funcs; f; f = f->next)
    lm_region_walk(f->body, visit, NULL);
  return true;
}
