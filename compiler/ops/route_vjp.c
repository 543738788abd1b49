// route_vjp.c - derivatives of rows that are sorted by group.
#include <string.h>
#include "compiler/ops/ops.h"

// The same permutation backwards; lm_grad_add sums over the axes that x lacks.
static lm_value *moved_back(lm_grad *g, const lm_op *op, lm_opcode inverse) {
  lm_attr a = {
      .n_axes = op->attr.n_to,
      .n_to = op->attr.n_axes,
  };
  memcpy(a.axes, op->attr.to, sizeof a.axes);
  memcpy(a.to, op->attr.axes, sizeof a.to);
  lm_value *in[3];
  in[0] = lm_grad_of(g, op->out[0]);
  in[1] = lm_grad_value(g, op->in[2]);
  in[2] = lm_grad_value(g, op->in[1]);
  return lm_emit(g->b, inverse, in, LM_COUNT(in), &a, NULL);
}

void vjp_group_rows(lm_grad *g, lm_op *op) {
  lm_grad_add(g, op->in[0], moved_back(g, op, LM_OP_UNGROUP_ROWS));
}

void vjp_ungroup_rows(lm_grad *g, lm_op *op) {
  lm_grad_add(g, op->in[0], moved_back(g, op, LM_OP_GROUP_ROWS));
}

// The axes of w that it shares with neither x nor the counts.
static lm_attr free_axes(const lm_op *op) {
  lm_attr a = {0};
  lm_type x = op->in[0]->type;
  lm_type w = op->in[1]->type;
  lm_type counts = op->in[2]->type;
  for (int i = 0; i < w.rank; i++)
    if (lm_type_find(x, w.axis[i]) < 0 && lm_type_find(counts, w.axis[i]) < 0)
      a.axes[a.n_axes++] = w.axis[i];
  return a;
}

// The operand whose axes come first in the gradient of w: those that come first in w.
static bool sums_first(const lm_op *op) {
  lm_type w = op->in[1]->type;
  for (int i = 0; i < w.rank; i++)
    if (w.axis[i] != op->in[2]->type.axis[0])
      return lm_attr_has_axis(&op->attr, w.axis[i]);
  return true;
}

// x: the rows of g times w transposed; w: for each group the sum over its rows of x * g
void vjp_grouped_dot(lm_grad *g, lm_op *op) {
  lm_value *gz = lm_emit_cast(g->b, lm_grad_of(g, op->out[0]), op->in[0]->type.dtype);
  lm_value *counts = lm_grad_value(g, op->in[2]);
  if (lm_grad_needs(g, op->in[0])) {
    lm_attr over = free_axes(op);
    lm_value *in[] = {
        gz,
        lm_grad_value(g, op->in[1]),
        counts,
    };
    lm_grad_add(g, op->in[0], lm_emit(g->b, LM_OP_GROUPED_DOT, in, 3, &over, NULL));
  }
  if (lm_grad_needs(g, op->in[1])) {
    lm_attr over = {
        .axes = {gz->type.axis[0]},
        .n_axes = 1,
    };
    lm_value *x = lm_grad_value(g, op->in[0]);
    bool straight = sums_first(op);
    lm_value *in[] = {
        straight ? x : gz,
        straight ? gz : x,
        counts,
    };
    lm_grad_add(g, op->in[1], lm_emit(g->b, LM_OP_GROUPED_OUTER, in, 3, &over, NULL));
  }
}
