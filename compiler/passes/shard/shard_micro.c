// shard_micro.c - the micro-batches of one process, where ranks divide the rows of a call.
//
// A call of a pipeline has the rows of several micro-batches, one after the other. A rank along an
// axis that divides them has consecutive ones. A balance loss, or another term that is no sum over
// rows, needs a part of each micro-batch instead: then a loop over ticks reads the rows of all
// ranks.
//   before: mesh dp = 2, pp = 2 pipeline 2 one_f_one_b                   b = 8, b@dp = 4
//           %x1 = gather %x, %rows over(b@dp)             %rows = 2 * micro + …
//   after:  %all = collect %x over(dp) (b@dp) -> (b)
//           %x1 = gather %all, %rows over(b)              %rows = 4 * micro + 2 * rank over(dp) + …
//
// Cost: the columns of a call are gathered along the axes that divide the rows.
#include "compiler/analysis/row_mix.h"
#include "compiler/passes/shard/shard.h"

bool lm_shard_mixes(const lm_module *m) {
  for (const lm_func *f = m->funcs; f; f = f->next)
    for (uint32_t i = 0; f->key.id == LM_FUNC_LOSS && i < f->n_out; i++)
      if (lm_row_mix_result(f, i) == LM_ROWS_MIXED)
        return true;
  return false;
}

lm_axis lm_shard_rows_axis(const lm_module *m, lm_axis rows) {
  while (m->axes[rows].whole)
    rows = m->axes[rows].whole;
  return rows;
}

lm_axis lm_shard_rows_like(lm_module *m, lm_axis rows, int64_t size) {
  const lm_axis_info part = m->axes[rows];
  if (!part.whole)
    return lm_axis_add(m, part.name, size, 0);
  int64_t ranks = m->mesh.axis[part.mesh - 1].size;
  return lm_axis_part(m, lm_shard_rows_like(m, part.whole, size * ranks), part.mesh);
}

lm_value *lm_shard_rows_collect(lm_builder *b, lm_value *x, lm_axis rows) {
  const lm_axis_info *part = &b->m->axes[rows];
  if (!part->whole)
    return x;
  lm_attr whole = {
      .mesh = part->mesh,
      .axes = {rows},
      .n_axes = 1,
      .to = {part->whole},
      .n_to = 1,
  };
  bool takes = x->def && lm_shard_takes_part(x->def, rows);
  lm_value *y = takes ? x->def->in[0] : lm_emit(b, LM_OP_COLLECT, &x, 1, &whole, NULL);
  return lm_shard_rows_collect(b, y, whole.to[0]);
}

lm_value *lm_shard_rows_part(lm_builder *b, lm_axis rows) {
  const lm_axis_info part = b->m->axes[rows];
  lm_type number = lm_type_make(LM_INT, NULL, 0);
  if (!part.whole)
    return lm_emit_const(b, number, 0);
  double size = b->m->mesh.axis[part.mesh - 1].size;
  lm_value *outer = lm_shard_rows_part(b, part.whole);
  lm_value *own = lm_emit(b, LM_OP_RANK, NULL, 0, &(lm_attr){.mesh = part.mesh}, NULL);
  outer = lm_emit2(b, LM_OP_MUL, outer, lm_emit_const(b, number, size));
  return lm_emit2(b, LM_OP_ADD, outer, own);
}
