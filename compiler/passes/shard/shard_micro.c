// shard_micro.c - the micro-batches of one process, where ranks divide the rows of a call.
//
// A call of a pipeline has the rows of several micro-batches, one after the other. A rank along an
// axis that divides them has consecutive ones. A balance loss, another term that is no sum over
// rows, or a scale of 8-bit floats needs a part of each micro-batch instead: then a loop over ticks
// reads the rows of all ranks.
//   before: mesh dp = 2, pp = 2 pipeline 2 one_f_one_b                   b = 8, b@dp = 4
//           %x1 = gather %x, %rows over(b@dp)             %rows = 2 * micro + …
//   after:  %all = collect %x over(dp) (b@dp) -> (b)
//           %x1 = gather %all, %rows over(b)              %rows = 4 * micro + 2 * rank over(dp) + …
//
// Cost: the columns of a call are gathered along the axes that divide the rows.
#include "compiler/analysis/row_mix.h"
#include "compiler/passes/shard/shard.h"
#include "runtime/base/diag_code.h"

const lm_mesh_axis *lm_shard_stages_axis(const lm_module *m) {
  const lm_mesh_axis *by = NULL;
  for (int k = 0; k < m->mesh.n; k++)
    by = m->mesh.axis[k].pipeline && m->mesh.axis[k].size > 1 ? &m->mesh.axis[k] : by;
  return by;
}

bool lm_shard_sums_rows(const lm_func *loss) {
  if (lm_shard_carries_statistic(loss))
    return false;
  for (uint32_t i = 0; i < loss->body->last->n_in; i++) {
    lm_rows_kind kind = lm_row_mix_result(loss, i);
    if (kind == LM_ROWS_MIXED || kind == LM_ROWS_BOTH)
      return false;
  }
  return true;
}

// Reports that the ranks do not divide the rows of a micro-batch of the loss.
static bool rows_divide(const lm_module *m, const lm_func *loss, const lm_mesh_axis *by) {
  lm_type t = loss->body->args[0]->type;
  int64_t rows = lm_axis_size(m, t.axis[0]) / by->pipeline;
  int64_t tokens = t.rank > 1 ? lm_axis_size(m, t.axis[1]) : 1;
  int parts = by->size;
  const char *name = by->name;
  for (int k = 0; k < m->mesh.n; k++) {
    const lm_mesh_axis *a = &m->mesh.axis[k];
    if (!a->rows || a->size < 2)
      continue;
    parts *= a->size;
    name = lm_arena_printf(m->arena, "%s * %s", name, a->name);
  }
  if (rows % parts == 0)
    return true;
  lm_diag *d = LM_REPORT(m->ctx, by->loc, E255, name, parts, (long long)rows, (long long)tokens);
  lm_diag_note(m->ctx, d, (lm_loc){0},
               "the loss, a scale of 8-bit floats, or a value that blocks carry, is computed from "
               "all rows of a micro-batch, so %s divides them too",
               by->name);
  return false;
}

bool lm_shard_rows_choose(lm_module *m, const lm_fp8 *fp8) {
  const lm_mesh_axis *pipeline = lm_shard_stages_axis(m);
  lm_mesh_axis *by = pipeline ? &m->mesh.axis[pipeline - m->mesh.axis] : NULL;
  const lm_func *mixed = NULL;
  for (lm_func *f = by && by->rows ? m->funcs : NULL; f; f = f->next)
    if (f->key.id == LM_FUNC_LOSS && (!lm_shard_sums_rows(f) || lm_fp8_follows_outside(fp8, f)))
      mixed = f;
  if (!mixed)
    return true;
  by->rows = false;
  return rows_divide(m, mixed, by);
}

bool lm_shard_mixes(const lm_module *m, const lm_fp8 *fp8) {
  if (lm_fp8_follows_micro(fp8))
    return true;
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
