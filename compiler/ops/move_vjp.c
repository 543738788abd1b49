// move_vjp.c - derivatives of operations that move elements without computing.
#include <string.h>
#include "compiler/ops/ops.h"

// Applies the operation `code`, the inverse of op, to the cotangent of op's result.
static lm_value *back(lm_grad *g, lm_op *op, lm_opcode code, const int64_t *imm) {
  lm_attr a = {
      .n_axes = op->attr.n_to,
      .n_to = op->attr.n_axes,
  };
  memcpy(a.axes, op->attr.to, sizeof a.axes);
  memcpy(a.to, op->attr.axes, sizeof a.to);
  if (imm) {
    a.imm[0] = imm[0];
    a.imm[1] = imm[1];
    a.n_imm = 2;
  }
  lm_value *gz = lm_grad_of(g, op->out[0]);
  return lm_emit(g->b, code, &gz, 1, &a, NULL);
}

// lm_grad_add sums over the new axes and permutes.
void vjp_expand(lm_grad *g, lm_op *op) {
  lm_grad_add(g, op->in[0], lm_grad_of(g, op->out[0]));
}
void vjp_permute(lm_grad *g, lm_op *op) {
  lm_grad_add(g, op->in[0], lm_grad_of(g, op->out[0]));
}
void vjp_view(lm_grad *g, lm_op *op) {
  if (op->attr.n_to) {
    lm_grad_add(g, op->in[0], back(g, op, LM_OP_VIEW, NULL));
    return;
  }
  lm_grad_add(g, op->in[0],
              lm_emit_expand(g->b, lm_grad_of(g, op->out[0]), op->in[0]->type)); // axes of size 1
}
void vjp_rename(lm_grad *g, lm_op *op) {
  lm_grad_add(g, op->in[0], back(g, op, LM_OP_RENAME, NULL));
}
void vjp_slice(lm_grad *g, lm_op *op) {
  lm_grad_add_slice(g, op, lm_grad_of(g, op->out[0]));
}
void vjp_pad(lm_grad *g, lm_op *op) {
  lm_grad_add(g, op->in[0], back(g, op, LM_OP_SLICE, op->attr.imm));
}

// lm_grad_add sums over k.
void vjp_window(lm_grad *g, lm_op *op) {
  lm_value *gz = lm_grad_of(g, op->out[0]);
  lm_attr a = op->attr;
  a.n_axes = 2;
  a.axes[0] = op->attr.to[0];
  a.axes[1] = op->attr.to[1];
  a.to[0] = op->attr.axes[0];
  lm_grad_add(g, op->in[0], lm_emit(g->b, LM_OP_UNWINDOW, &gz, 1, &a, NULL));
}

// A slice of a dot along an axis of one operand is a dot with a slice of this operand. The
// gradients of concatenated weights are thereby accumulated separately and never stored together.
// NULL if gz is not such a dot.
static lm_value *slice_of_dot(lm_grad *g, const lm_op *dot, const lm_attr *cut) {
  if (!dot || dot->code != LM_OP_DOT)
    return NULL;
  lm_value *in[2] = {dot->in[0], dot->in[1]};
  bool of_x = lm_type_find(in[0]->type, cut->axes[0]) >= 0;
  bool of_w = lm_type_find(in[1]->type, cut->axes[0]) >= 0;
  if (of_x == of_w || lm_type_find(in[0]->type, cut->to[0]) >= 0 ||
      lm_type_find(in[1]->type, cut->to[0]) >= 0)
    return NULL;
  in[of_w] = lm_emit(g->b, LM_OP_SLICE, &in[of_w], 1, cut, NULL);
  return lm_emit(g->b, LM_OP_DOT, in, 2, &dot->attr, NULL);
}

void vjp_concat(lm_grad *g, lm_op *op) {
  lm_value *gz = lm_grad_of(g, op->out[0]);
  int64_t first = 0;
  for (uint32_t i = 0; i < op->n_in; i++) {
    lm_attr a = {.axes = {op->attr.to[0]},
                 .n_axes = 1,
                 .to = {op->attr.axes[i]},
                 .n_to = 1,
                 .imm = {first, 1},
                 .n_imm = 2};
    first += lm_axis_size(g->b->m, op->attr.axes[i]);
    if (!lm_grad_needs(g, op->in[i]))
      continue;
    lm_value *part = lm_value_is_weight(op->in[i]) ? slice_of_dot(g, gz->def, &a) : NULL;
    lm_grad_add(g, op->in[i], part ? part : lm_emit(g->b, LM_OP_SLICE, &gz, 1, &a, NULL));
  }
}
