// mesh_vjp.c - derivatives of the collectives.
//
// The cotangent of a value that is equal on all ranks has one of two forms. Where every rank
// computes all users of the value, each has the whole cotangent. Behind `fan` and `all_gather` each
// rank computes a part of the users, and has a term of the cotangent. A partial value, the sum
// of the ranks' values, has the whole cotangent on each rank.
//
//   fan             equal, whole cotangent   ->  equal, terms            back: all_reduce
//   all_reduce      partial                  ->  equal, whole cotangent  back: the cotangent itself
//   first           equal, terms             ->  partial                 back: first
//   all_gather      parts                    ->  equal, terms            back: reduce_scatter
//   reduce_scatter  partial                  ->  parts                   back: all_gather
//   collect         parts                    ->  equal, whole cotangent  back: part
//   part            equal, whole cotangent   ->  parts                   back: collect
#include "compiler/ops/ops.h"

// Adds the result of `code`, over the axis of the mesh of op and with its axes exchanged.
static void back(lm_grad *g, lm_op *op, lm_opcode code) {
  const lm_attr *a = &op->attr;
  lm_attr b = {
      .mesh = a->mesh,
      .n_axes = a->n_to,
      .n_to = a->n_axes,
  };
  for (int i = 0; i < a->n_axes; i++) {
    b.axes[i] = a->to[i];
    b.to[i] = a->axes[i];
  }
  lm_value *gz = lm_grad_of(g, op->out[0]);
  lm_grad_add(g, op->in[0], lm_emit(g->b, code, &gz, 1, &b, NULL));
}

void vjp_fan(lm_grad *g, lm_op *op) {
  back(g, op, LM_OP_ALL_REDUCE);
}
void vjp_first(lm_grad *g, lm_op *op) {
  back(g, op, LM_OP_FIRST);
}
void vjp_all_reduce(lm_grad *g, lm_op *op) {
  lm_grad_add(g, op->in[0], lm_grad_of(g, op->out[0]));
}
void vjp_all_gather(lm_grad *g, lm_op *op) {
  back(g, op, LM_OP_REDUCE_SCATTER);
}
void vjp_reduce_scatter(lm_grad *g, lm_op *op) {
  back(g, op, LM_OP_ALL_GATHER);
}
void vjp_collect(lm_grad *g, lm_op *op) {
  back(g, op, LM_OP_PART);
}
void vjp_part(lm_grad *g, lm_op *op) {
  back(g, op, LM_OP_COLLECT);
}

// The axes of the attributes are exchanged in pairs: the divided one stays first.
void vjp_all_to_all(lm_grad *g, lm_op *op) {
  const lm_attr *a = &op->attr;
  lm_attr b = {.mesh = a->mesh,
               .axes = {a->to[1], a->to[0]},
               .n_axes = 2,
               .to = {a->axes[1], a->axes[0]},
               .n_to = 2};
  lm_value *gz = lm_grad_of(g, op->out[0]);
  lm_grad_add(g, op->in[0], lm_emit(g->b, LM_OP_ALL_TO_ALL, &gz, 1, &b, NULL));
}

// Every row goes back to where it came from.
void vjp_exchange_rows(lm_grad *g, lm_op *op) {
  const lm_attr *a = &op->attr;
  lm_attr b = {
      .mesh = a->mesh,
      .axes = {a->to[0]},
      .n_axes = 1,
      .to = {a->axes[0]},
      .n_to = 1,
  };
  lm_value *in[3];
  in[0] = lm_grad_of(g, op->out[0]);
  in[1] = lm_grad_value(g, op->in[2]);
  in[2] = lm_grad_value(g, op->in[1]);
  lm_grad_add(g, op->in[0], lm_emit(g->b, LM_OP_EXCHANGE_ROWS, in, LM_COUNT(in), &b, NULL));
}

void vjp_ring_shift(lm_grad *g, lm_op *op) {
  lm_attr b = {
      .mesh = op->attr.mesh,
      .imm = {-op->attr.imm[0]},
      .n_imm = 1,
  };
  lm_value *gz = lm_grad_of(g, op->out[0]);
  lm_grad_add(g, op->in[0], lm_emit(g->b, LM_OP_RING_SHIFT, &gz, 1, &b, NULL));
}

// As for `max`, the first of equal maxima gets the cotangent: here the one of the first rank. The
// ranks that have the maximum offer size - rank, the others 0.
void vjp_all_max(lm_grad *g, lm_op *op) {
  lm_builder *b = g->b;
  lm_attr over = {
      .mesh = op->attr.mesh,
  };
  lm_type number = lm_type_make(LM_INT, NULL, 0);
  lm_value *z = lm_grad_value(g, op->out[0]);
  lm_value *x = lm_grad_value(g, op->in[0]);
  lm_value *size = lm_emit_const(b, number, b->m->mesh.axis[op->attr.mesh - 1].size);
  lm_value *rank = lm_emit(b, LM_OP_RANK, NULL, 0, &over, NULL);
  lm_value *none = lm_emit_const(b, number, 0);
  lm_value *some = lm_emit2(b, LM_OP_SUB, size, rank);
  lm_value *is_max = lm_emit2(b, LM_OP_EQ, x, z);
  lm_value *offer = lm_emit_select(b, is_max, some, none);
  lm_value *best = lm_emit(b, LM_OP_ALL_MAX, &offer, 1, &over, NULL);
  lm_value *own = lm_emit2(b, LM_OP_EQ, offer, best);
  lm_value *zero = lm_emit_const(b, lm_type_make(z->type.dtype, NULL, 0), 0);
  lm_grad_add(g, op->in[0], lm_emit_select(b, own, lm_grad_of(g, op->out[0]), zero));
}
