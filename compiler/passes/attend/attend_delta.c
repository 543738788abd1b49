// attend_delta.c - computes delta of attend_vjp once, in a separate operation.
//
// before: %dv, … = attend_vjp over(t, s) (%v, %o, %lse, %do, …)
// after:  %m = sum (%do * %o) over(the axes that only %v has)
//         %dv, … = attend_vjp over(t, s) (%v, %m, %lse, %do, …)
//
// Every tile of queries that a kernel visits needs delta; with %o it computes it each time from
// two rows of %o and %do, with %m it reads one number. Declines: targets whose kernels do not ask
// for it; operations that have it. Cost: one kernel, which reads %o and %do once.
#include "compiler/ir/attend.h"
#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"
#include "compiler/plan/planner.h"

lm_value *lm_attend_delta(lm_builder *b, const lm_op *op) {
  lm_type lse = op->in[LM_ATTEND_LSE]->type;
  lm_value *o = lm_emit_cast(b, op->in[LM_ATTEND_O], LM_F32);
  lm_value *go = lm_emit_cast(b, op->in[LM_ATTEND_DO], LM_F32);
  lm_axis over[LM_RANK];
  int n = 0;
  for (int i = 0; i < go->type.rank; i++)
    if (lm_type_find(lse, go->type.axis[i]) < 0)
      over[n++] = go->type.axis[i];
  lm_value *sum = lm_emit_reduce(b, LM_OP_SUM, lm_emit2(b, LM_OP_MUL, go, o), over, n);
  return lm_emit_permute(b, sum, lse.axis, lse.rank);
}

static void visit(lm_op *op, void *user) {
  if (op->code != LM_OP_ATTEND_VJP || lm_attend_has_delta(op))
    return;
  lm_builder b = {
      .m = user,
      .at = op->parent,
      .before = op,
      .loc = op->loc,
      .remat = op->remat,
  };
  op->in[LM_ATTEND_O] = lm_attend_delta(&b, op);
  lm_attend_arg(op, LM_ATTEND_O)->type = op->in[LM_ATTEND_O]->type;
}

bool lm_pass_attend_delta(lm_module *m, const lm_pass_env *env) {
  if (!env->codegen || !env->codegen->attend_delta)
    return true;
  for (lm_func *f = m->funcs; f; f = f->next)
    lm_region_walk(f->body, visit, m);
  return true;
}
