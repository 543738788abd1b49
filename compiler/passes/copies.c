// copies.c - parameters that are computed with in bf16 are cast once a change, not wherever they are used.
//
// before: %w = param @w[%i] : f32[d, f]   %h = cast %w : bf16[d, f]   %y = dot %x, %h over(d)
// after:  %h = param @w[%i] : bf16[d, f]   %y = dot %x, %h over(d)
//         func @copies(%p: f32[blk, el]) -> (copies: bf16[blk, el]) { %c = cast %p   return %c }
//
// Such a param reads an arena of copies, which has the layout of the parameters; whoever runs the plan runs @copies before
// a function that reads it, if parameters have changed since. Declines: casts to other types; modules without any. Cost: two
// bytes a parameter, and one pass over all of them for each change, where a step of n micro-batches took 2 n.
#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"
#include "compiler/plan/planner.h"

static lm_value *rule(lm_rewrite *r, lm_op *op) {
  const lm_op *def = op->in && op->n_in == 1 ? op->in[0]->def : NULL;
  if (op->code != LM_OP_CAST || op->out[0]->type.dtype != LM_BF16 || !def || def->code != LM_OP_PARAM) return NULL;
  if (op->in[0]->type.dtype != LM_F32) return NULL;
  return lm_emit(&r->b, LM_OP_PARAM, def->in, def->n_in, &def->attr, &op->out[0]->type);
}

static void copies_make(lm_module *m) {
  lm_func *f = lm_func_add(m, LM_SYM(m->ctx, "copies"));
  lm_axis axes[2] = {lm_axis_add(m, LM_SYM(m->ctx, "blk"), lm_plan_layout_blocks(m), 0), lm_axis_add(m, LM_SYM(m->ctx, "el"), LM_BLOCK, 0)};
  lm_builder b = {.m = m, .at = f->body};
  lm_value *p = lm_arg_add(m, f->body, lm_type_make(LM_F32, axes, 2), LM_SYM(m->ctx, "p")), *c = lm_emit_cast(&b, p, LM_BF16);
  lm_emit_op(&b, LM_OP_RETURN, &c, 1, NULL, NULL);
  f->out_names = LM_NEW(m->arena, lm_sym);
  f->out_names[0] = f->name;
  f->n_out = 1;
}

bool lm_pass_copies(lm_module *m, const lm_pass_env *env) {
  int changes = 0;
  for (lm_func *f = m->funcs; f; f = f->next) changes += lm_rewrite_func(f, rule, NULL);
  if (changes) copies_make(m);
  return true;
}
