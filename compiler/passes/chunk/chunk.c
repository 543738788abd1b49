// chunk.c - see chunk.h.
#include "compiler/passes/chunk/chunk.h"
#include <string.h>
#include "compiler/ops/widen.h"

lm_value *lm_chunk_emit2(lm_builder *b, lm_opcode code, lm_value *v, lm_value *w) {
  lm_op op = {
      .code = code,
      .n_in = 2,
  };
  lm_value *out = LM_NEW(b->m->arena, lm_value);
  op.out = &out;
  return lm_widen(b, &op, (lm_value *[]){v, w});
}

lm_value *lm_chunk_of(lm_chunked *x, lm_value *v) {
  if (lm_type_find(v->type, x->t) < 0)
    v = lm_emit_expand(x->b, v, lm_type_stacked(x->t, v->type));
  return lm_emit_split(x->b, v, x->t, x->chunk, x->i);
}

lm_value *lm_chunk_rename(lm_chunked *x, lm_value *v, lm_axis from, lm_axis to) {
  lm_attr a = {
      .axes = {from},
      .n_axes = 1,
      .to = {to},
      .n_to = 1,
  };
  return lm_emit(x->b, LM_OP_RENAME, &v, 1, &a, NULL);
}

lm_value *lm_chunk_at_j(lm_chunked *x, lm_value *v) {
  return lm_chunk_rename(x, v, x->i, x->j);
}

lm_value *lm_chunk_rows(lm_chunked *x, lm_value *v) {
  return lm_chunk_front(x, lm_chunk_of(x, v), &x->i, 1);
}

lm_value *lm_chunk_merged(lm_chunked *x, lm_value *v) {
  const lm_axis both[] = {x->chunk, x->i};
  v = lm_chunk_front(x, v, both, 2);
  return lm_emit_join(x->b, v, x->chunk, x->i, x->t);
}

lm_value *lm_chunk_decayed(lm_chunked *x, lm_value *v, lm_value *decay) {
  return lm_chunk_emit2(x->b, LM_OP_MUL, v, lm_chunk_merged(x, decay));
}

lm_value *lm_chunk_positions(lm_chunked *x, lm_axis i) {
  lm_type row = lm_type_make(LM_INT, &i, 1);
  return lm_emit(x->b, LM_OP_IOTA, NULL, 0, NULL, &row);
}

lm_value *lm_chunk_front(lm_chunked *x, lm_value *v, const lm_axis *first, int n) {
  lm_axis order[LM_RANK];
  memcpy(order, first, (size_t)n * sizeof *order);
  for (int i = 0; i < v->type.rank; i++) {
    bool listed = false;
    for (int k = 0; k < n; k++)
      listed |= order[k] == v->type.axis[i];
    if (!listed)
      order[n++] = v->type.axis[i];
  }
  return lm_emit_permute(x->b, v, order, n);
}

lm_value *lm_chunk_f32(lm_chunked *x, lm_value *v) {
  return lm_emit_cast(x->b, v, LM_F32);
}

void lm_chunk_keep(const lm_chunked *x, lm_value *v) {
  if (x->keeps && lm_remat_choice(v->def->remat) == LM_REMAT_AUTO)
    v->def->remat |= LM_REMAT_SAVE;
}

lm_value *lm_chunk_dot(lm_chunked *x, lm_value *v, lm_value *w, lm_type over, bool wide) {
  lm_dtype t = x->of->dtype;
  lm_type result = {
      .dtype = (uint8_t)(wide ? LM_F32 : t),
  };
  lm_attr a = {
      .n_axes = over.rank,
  };
  memcpy(a.axes, over.axis, over.rank * sizeof *a.axes);
  v = lm_emit_cast(x->b, v, t);
  w = lm_emit_cast(x->b, w, t);
  return lm_emit(x->b, LM_OP_DOT, (lm_value *[]){v, w}, 2, &a, &result);
}

lm_value *lm_chunk_unit(lm_builder *b, lm_axis j, lm_value *index) {
  lm_type row = lm_type_make(LM_INT, &j, 1);
  lm_type scalar = lm_type_make(LM_F32, NULL, 0);
  lm_value *same = lm_emit2(b, LM_OP_EQ, lm_emit(b, LM_OP_IOTA, NULL, 0, NULL, &row), index);
  lm_value *zero = lm_emit_const(b, scalar, 0);
  return lm_emit_select(b, same, lm_emit_const(b, scalar, 1), zero);
}

lm_value *lm_chunk_rows_last(lm_chunked *x, lm_value *v) {
  lm_axis last[LM_RANK];
  int rank = 0;
  for (int i = 0; i < v->type.rank; i++)
    if (v->type.axis[i] != x->i && v->type.axis[i] != x->j)
      last[rank++] = v->type.axis[i];
  last[rank++] = x->i;
  last[rank++] = x->j;
  return lm_emit_permute(x->b, v, last, rank);
}

static lm_value *chunks_from(lm_chunked *x, lm_value *v, int64_t first) {
  lm_attr a = {
      .axes = {x->chunk}, .n_axes = 1, .to = {x->later}, .n_to = 1, .imm = {first, 1}, .n_imm = 2};
  return x->later == x->chunk ? v : lm_emit(x->b, LM_OP_SLICE, &v, 1, &a, NULL);
}

lm_value *lm_chunk_later(lm_chunked *x, lm_value *v) {
  return chunks_from(x, v, 1);
}

lm_value *lm_chunk_earlier(lm_chunked *x, lm_value *v) {
  return chunks_from(x, v, 0);
}

// u times the decay behind its position, at j.
static lm_value *until_end(lm_chunked *x) {
  if (!x->by_position)
    return lm_chunk_emit2(x->b, LM_OP_MUL, x->u, x->rest);
  lm_value *u = lm_chunk_decayed(x, x->of->u, lm_chunk_rename(x, x->rest, x->j, x->i));
  u = lm_emit_cast(x->b, u, x->of->dtype);
  if (x->of->dtype != LM_F32)
    lm_chunk_keep(x, u);
  return lm_chunk_at_j(x, lm_chunk_of(x, u));
}

lm_value *lm_chunk_added(lm_chunked *x) {
  lm_type h = x->of->lift.scan->in[0]->type;
  lm_axis order[LM_RANK] = {x->later};
  memcpy(order + 1, h.axis, h.rank * sizeof *order);
  bool keyed = x->of->keyed;
  lm_value *u = keyed ? x->u : until_end(x);
  lm_value *k = keyed ? lm_chunk_emit2(x->b, LM_OP_MUL, x->k, x->rest) : x->k;
  u = lm_chunk_earlier(x, lm_emit_cast(x->b, u, x->of->dtype));
  k = lm_chunk_earlier(x, lm_emit_cast(x->b, k, x->of->dtype));
  lm_value *sum = lm_chunk_dot(x, u, k, lm_type_make(LM_F32, &x->j, 1), false);
  return lm_widen_to(x->b, sum, lm_type_make(x->of->dtype, order, h.rank + 1));
}
