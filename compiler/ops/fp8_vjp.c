// fp8_vjp.c - derivatives of the operations that say how a cotangent is rounded.
#include "compiler/ops/fp8.h"
#include "compiler/ops/ops.h"

void vjp_straight(lm_grad *g, lm_op *op) {
  lm_grad_add(g, op->in[1], lm_grad_of(g, op->out[0]));
}

// With the scale of the whole tensor; ranks along `others` have other tensors.
static lm_value *rounded_whole(lm_builder *b, lm_value *c, lm_mesh_set others, lm_dtype format) {
  lm_value *magnitude = lm_emit_magnitude(b, c, lm_mesh_axes(b->m, others));
  return lm_emit_fp8(b, c, lm_emit_fp8_scale(b, magnitude, format), format);
}

void vjp_round_cotangent(lm_grad *g, lm_op *op) {
  lm_builder *b = g->b;
  lm_value *c = lm_grad_of(g, op->out[0]);
  lm_dtype format = lm_fp8_format_of(op);
  int64_t third = op->attr.n_imm == 3 ? op->attr.imm[2] : 0;
  lm_fp8_blocks blocks = {third, {lm_fp8_axes_of(&op->attr)}, 1};
  if (op->attr.n_axes)
    c = lm_emit_fp8_blocks(b, c, &blocks, format);
  else if (op->n_in == 2)
    c = lm_emit_fp8(b, c, lm_grad_value(g, op->in[1]), format);
  else
    c = rounded_whole(b, c, (lm_mesh_set)third, format);
  lm_grad_add(g, op->in[0], c);
}

void vjp_observe_cotangent(lm_grad *g, lm_op *op) {
  uint32_t n = op->n_in - 1;
  lm_attr at = {
      .sym = op->attr.sym,
  };
  lm_value **index = LM_NEW_N(g->b->m->arena, lm_value *, n + 1);
  lm_value *c = lm_grad_of(g, op->out[0]);
  lm_grad_indices(g, op, n, index, &at);
  lm_emit_observation(g->b, &at, index, n, c, NULL);
  lm_grad_add(g, op->in[n], c);
}
