// defer.c - see defer.h.
#include "compiler/passes/grad/defer.h"

#include <string.h>

static int innermost(const lm_op *accum) {
  return (int)accum->n_in - 2;
}

// The factor of the loop's index.
static int64_t step_of(const lm_op *accum) {
  return accum->attr.imm[2 * innermost(accum) + 1];
}

lm_axis lm_defer_axis(lm_module *m, const lm_op *accum) {
  return lm_global_find(m, accum->attr.sym)->type.axis[innermost(accum)];
}

bool lm_defer_visits_all(lm_module *m, const lm_op *loop, const lm_op *accum) {
  int last = innermost(accum);
  if (last < 0 || accum->in[last] != loop->body->args[0])
    return false;
  for (int i = 0; i < last; i++)
    if (accum->in[i]->region == loop->body)
      return false;
  int64_t n = loop->attr.imm[0], first = accum->attr.imm[2 * last], step = step_of(accum);
  bool all = (first == 0 && step == 1) || (first == n - 1 && step == -1);
  return all && n > 1 && n == lm_axis_size(m, lm_defer_axis(m, accum));
}

bool lm_defer_in_order(const lm_op *loop, const lm_op *accum) {
  return lm_loop_is_reversed(loop) == (step_of(accum) < 0);
}

void lm_defer_order(lm_op *loop, const lm_op *accum) {
  if (loop->n_out > loop->n_in || lm_defer_in_order(loop, accum))
    return;
  loop->attr.imm[1] = !lm_loop_is_reversed(loop);
  loop->attr.n_imm = 2;
}

void lm_defer_accum(lm_builder *b, const lm_op *accum, lm_value *all) {
  lm_attr a = accum->attr;
  lm_value *in[LM_RANK + 1];
  uint32_t n = accum->n_in - 2;
  memcpy(in, accum->in, n * sizeof *in);
  in[n] = all;
  a.n_imm -= 2;
  a.imm[a.n_imm] = a.imm[a.n_imm + 1] = 0;
  lm_emit_op(b, LM_OP_ACCUM, in, n + 1, &a, NULL);
}
