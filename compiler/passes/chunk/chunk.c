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
  lm_attr a = {.axes = {x->t}, .n_axes = 1, .to = {x->chunk, x->i}, .n_to = 2};
  if (lm_type_find(v->type, x->t) < 0) {
    lm_type to = {
        .dtype = v->type.dtype,
        .rank = (uint8_t)(v->type.rank + 1),
        .axis = {x->t},
    };
    memcpy(to.axis + 1, v->type.axis, v->type.rank * sizeof *to.axis);
    v = lm_emit_expand(x->b, v, to);
  }
  return lm_emit(x->b, LM_OP_VIEW, &v, 1, &a, NULL);
}

lm_value *lm_chunk_rename(lm_chunked *x, lm_value *v, lm_axis from, lm_axis to) {
  lm_attr a = {.axes = {from}, .n_axes = 1, .to = {to}, .n_to = 1};
  return lm_emit(x->b, LM_OP_RENAME, &v, 1, &a, NULL);
}

lm_value *lm_chunk_at_j(lm_chunked *x, lm_value *v) {
  return lm_chunk_rename(x, v, x->i, x->j);
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

lm_value *lm_chunk_added(lm_chunked *x) {
  lm_type h = x->of->lift.scan->in[0]->type;
  lm_axis order[LM_RANK] = {x->chunk};
  memcpy(order + 1, h.axis, h.rank * sizeof *order);
  bool keyed = x->of->keyed;
  lm_value *u = keyed ? x->u : lm_chunk_emit2(x->b, LM_OP_MUL, x->u, x->rest);
  lm_value *k = keyed ? lm_chunk_emit2(x->b, LM_OP_MUL, x->k, x->rest) : x->k;
  lm_value *sum = lm_emit_dot(x->b, u, k, &x->j, 1);
  return lm_widen_to(x->b, sum, lm_type_make(LM_F32, order, h.rank + 1));
}
