// shard_norm.c - the norm of the gradients of which each rank has a part.
//
// before: func @norm(%g: f32[blk, el]) -> (norm: f32) {
//           %q = mul %g, %g   %s = sum %q over(blk, el)   %n = sqrt %s   return %n }
// after:  func @norm(%g: f32[blk, el], %own: f32[blk]) -> (norm: f32) {
//           %q = mul %g, %g   %c = mul %q, %own   %p = sum %c over(blk, el)
//           %s = all_reduce %p over(tp)   %n = sqrt %s   return %n }
//
// The ranks along an axis of the mesh that divides parameters have other blocks of these, and the
// same blocks of the other parameters. The table `own`, which the host fills, is 1 for the blocks
// that a rank counts and 0 for the others, so that each gradient is counted once.
#include "compiler/passes/shard/shard.h"

static lm_value *argument_own(lm_module *m, lm_func *f) {
  lm_sym name = LM_SYM(m->ctx, lm_port_table[LM_PORT_OWN].name);
  for (uint32_t i = 0; i < f->body->n_args; i++)
    if (f->body->args[i]->name == name)
      return f->body->args[i];
  return NULL;
}

// Counts own blocks only.
static void blocks_select(lm_module *m, lm_func *f, lm_op *sum) {
  if (argument_own(m, f))
    return;
  lm_type t = lm_type_make(LM_F32, &m->blocks, 1);
  lm_value *own = lm_arg_add(m, f->body, t, LM_SYM(m->ctx, lm_port_table[LM_PORT_OWN].name));
  lm_builder b = {m, sum->parent, sum, sum->loc, 0};
  sum->in[0] = lm_emit2(&b, LM_OP_MUL, sum->in[0], own);
}

static void use_replace(lm_region *r, const lm_value *old, lm_value *now) {
  for (lm_op *op = r->first; op; op = op->next)
    for (uint32_t i = 0; i < op->n_in; i++)
      if (op->in[i] == old && op != now->def)
        op->in[i] = now;
}

void lm_shard_norm(lm_module *m, int mesh) {
  lm_func *f = lm_func_get(m, LM_FUNC_NORM, 0);
  lm_op *sum = f ? f->body->first : NULL;
  while (sum && !(sum->code == LM_OP_SUM && lm_attr_has_axis(&sum->attr, m->blocks)))
    sum = sum->next;
  if (!sum)
    return;
  blocks_select(m, f, sum);
  lm_builder b = {m, sum->parent, sum->next, sum->loc, 0};
  lm_attr over = {.mesh = (uint8_t)mesh};
  use_replace(f->body, sum->out[0], lm_emit(&b, LM_OP_ALL_REDUCE, sum->out, 1, &over, NULL));
}
