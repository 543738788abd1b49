// state_vjp.c - derivatives of operations that read at indices: gathers, parameters, stacked
// values.
#include "compiler/ops/ops.h"

// True if the index is a column of the batch, whose ids are checked against the sizes of the tables
// when the batch is read (compiler/analysis/id_limits.h).
static bool is_checked(const lm_value *index) {
  const lm_value *v = index;
  while (v->def && (lm_op_info_of(v->def)->traits & LM_T_VIEW || v->def->code == LM_OP_EXPAND ||
                    v->def->code == LM_OP_AT))
    v = v->def->in[0];
  if (v->def || v->region->owner || !v->name)
    return false;
  lm_column_id column = lm_column_find(v->name);
  return column < LM_COLUMNS && lm_column_table[column].is_index;
}

// gather and scatter_add clamp their index, so each is the derivative of the other. If single
// elements of a table are read, the derivative is a comparison with the clamped index, which can be
// fused; for rows it is scatter_add.
void vjp_gather(lm_grad *g, lm_op *op) {
  lm_type table = op->in[0]->type;
  lm_value *index = lm_grad_value(g, op->in[1]);
  lm_value *gz = lm_grad_of(g, op->out[0]);
  if (!lm_type_subset(gz->type, table)) {
    lm_grad_add(g, op->in[0],
                lm_emit(g->b, LM_OP_SCATTER, (lm_value *[]){gz, index}, 2, &op->attr, &table));
    return;
  }
  lm_type line = lm_type_make(LM_INT, op->attr.axes, 1);
  lm_type wide = table;
  wide.dtype = LM_INT;
  lm_value *at = lm_emit_expand(g->b, lm_emit(g->b, LM_OP_IOTA, NULL, 0, NULL, &line), wide);
  lm_value *zero = lm_emit_const(g->b, lm_type_make(table.dtype, NULL, 0), 0);
  lm_value *read = is_checked(op->in[1])
                       ? index
                       : lm_emit_clamp(g->b, index, lm_axis_size(g->b->m, op->attr.axes[0]));
  lm_grad_add(g, op->in[0], lm_emit_select(g->b, lm_emit2(g->b, LM_OP_EQ, at, read), gz, zero));
}

void vjp_scatter(lm_grad *g, lm_op *op) {
  lm_value *gz = lm_grad_of(g, op->out[0]);
  lm_value *index = lm_grad_value(g, op->in[1]);
  lm_grad_add(g, op->in[0],
              lm_emit(g->b, LM_OP_GATHER, (lm_value *[]){gz, index}, 2, &op->attr, NULL));
}

void vjp_param(lm_grad *g, lm_op *op) {
  lm_attr a = {
      .sym = op->attr.sym,
  };
  lm_value **in = LM_NEW_N(g->b->m->arena, lm_value *, op->n_in + 1);
  lm_grad_indices(g, op, op->n_in, in, &a);
  const lm_global *p = lm_global_find(g->b->m, op->attr.sym);
  in[op->n_in] = lm_emit_cast(g->b, lm_grad_of(g, op->out[0]), lm_global_gradient_dtype(p));
  lm_emit_op(g->b, LM_OP_ACCUM, in, op->n_in + 1, &a, NULL);
}

// The cotangent at its index along the leading axis, zero elsewhere; per iteration in a loop that
// reads all elements.
void vjp_at(lm_grad *g, lm_op *op) {
  lm_builder *b = g->b;
  lm_type x = op->in[0]->type;
  lm_type line = lm_type_make(LM_INT, x.axis, 1);
  lm_type scalar = lm_type_make(LM_INT, NULL, 0);
  lm_type wide = x;
  lm_value *gz = lm_grad_of(g, op->out[0]);
  if (lm_grad_add_iteration(g, op, gz))
    return;
  lm_value *i = lm_grad_value(g, op->in[1]);
  lm_value *step = lm_emit_const(b, scalar, (double)op->attr.imm[1]);
  lm_value *first = lm_emit_const(b, scalar, (double)op->attr.imm[0]);
  lm_value *index = lm_emit2(b, LM_OP_ADD, lm_emit2(b, LM_OP_MUL, i, step), first);
  wide.dtype = LM_INT;
  lm_value *here = lm_emit2(
      b, LM_OP_EQ, lm_emit_expand(b, lm_emit(b, LM_OP_IOTA, NULL, 0, NULL, &line), wide), index);
  lm_grad_add(
      g, op->in[0],
      lm_emit_select(b, here, gz, lm_emit_const(b, lm_type_make(gz->type.dtype, NULL, 0), 0)));
}
