// grad_region.c - reverses one region: visits its operations last to first and calls the rule of
// each that has a cotangent. The rule of a loop (grad_loop.c) enters the frame of the loop's body
// and reverses that.
#include "compiler/ops/interface.h"
#include "compiler/passes/grad/grad.h"

void lm_gradient_enter(gradient *g, frame *f) {
  f->outer = g->at;
  g->at = f;
  g->base.b = &f->b;
}

void lm_gradient_leave(gradient *g) {
  frame *f = g->at;
  g->at = f->outer;
  g->base.b = g->at ? &g->at->b : NULL;
  lm_idmap_free(&f->parts);
  lm_idmap_free(&f->total);
  lm_idmap_free(&f->memo);
  lm_idmap_free(&f->stashes);
  lm_idmap_free(&f->elements);
}

static bool has_cotangent(gradient *g, const lm_op *op) {
  for (uint32_t i = 0; i < op->n_out; i++)
    if (lm_idmap_get(&g->at->parts, op->out[i]))
      return true;
  return false;
}

// The operations are listed first, because the backward code of the function's frame, and renames
// before yields, are added to the region during the walk.
void lm_gradient_reverse(gradient *g) {
  uint32_t n = 0;
  for (lm_op *op = g->at->forward->first; op; op = op->next)
    n++;
  lm_op **ops = lm_calloc(n + 1, sizeof *ops);
  n = 0;
  for (lm_op *op = g->at->forward->first; op; op = op->next)
    ops[n++] = op;
  while (n--) {
    lm_op *op = ops[n];
    if (lm_op_derivative(op->code) == LM_DERIVATIVE_ZERO || !has_cotangent(g, op))
      continue;
    g->at->b.loc = op->loc;
    lm_op_differentiate(&g->base, op);
  }
  lm_free(ops);
}
