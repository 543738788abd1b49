// row_tiling.c - see row_tiling.h.
#include "compiler/passes/fuse/row_tiling.h"
#include <string.h>
#include "compiler/ops/interface.h"

// ---- types

bool lm_type_intersects(lm_type t, lm_type axes) {
  for (int i = 0; i < axes.rank; i++)
    if (lm_type_find(t, axes.axis[i]) >= 0)
      return true;
  return false;
}

static lm_type axes_type(const lm_axis *axes, int n) {
  return lm_type_make(LM_F32, axes, n);
}

lm_type lm_dot_free_axes(const lm_op *dot, int side) {
  lm_type own = lm_type_without(dot->out[0]->type, dot->in[1 - side]->type);
  own.dtype = LM_F32;
  return own;
}

bool lm_row_tiling_divide(lm_row_tiling *r, int64_t max, int64_t multiple) {
  int64_t all = lm_type_elements(r->m, r->rows);
  int64_t n = max < all ? max : all;
  int64_t min = max < LM_TILE_ROWS_MIN ? max : LM_TILE_ROWS_MIN;
  n -= n % multiple;
  while (n && all % n)
    n -= multiple;
  r->row_count = n;
  r->n_tiles = n ? all / n : 0;
  return n >= min && r->n_tiles > 1;
}

// ---- rowwise operations

bool lm_row_tiling_is_contiguous(const lm_row_tiling *r, lm_type t) {
  int at = lm_type_find(t, r->rows.axis[0]);
  for (int i = 0; i < r->rows.rank; i++)
    if (at < 0 || at + i >= t.rank || t.axis[at + i] != r->rows.axis[i])
      return false;
  return true;
}

bool lm_row_tiling_has_only_rows(const lm_row_tiling *r, lm_type t) {
  return t.rank == r->rows.rank && lm_row_tiling_is_contiguous(r, t);
}

// True if each operand has all rows, no rows, or some axes of the rows and no other axis, which is
// broadcast over the other rows.
static bool operands_fit(const lm_row_tiling *r, const lm_op *op) {
  for (uint32_t i = 0; i < op->n_in; i++) {
    lm_type t = op->in[i]->type;
    if (lm_type_dynamic(r->m, t))
      return false;
    if (lm_type_intersects(t, r->rows) && !lm_row_tiling_is_contiguous(r, t) &&
        !lm_type_subset(t, r->rows))
      return false;
  }
  return true;
}

static lm_type last_axis(lm_type t) {
  return lm_type_make(LM_INT, t.axis + t.rank - (t.rank > 0), t.rank > 0);
}

// Random numbers are numbered by an operand and by the index along the last axis.
static bool by_row(const lm_row_tiling *r, const lm_op *op) {
  switch (lm_op_row_class(op)) {
  case LM_ROW_EACH: return op->n_in && !lm_op_has(op, LM_T_DOT); // the caller chooses the GEMMs
  case LM_ROW_BY_INDEX: return lm_type_intersects(op->in[1]->type, r->rows);
  case LM_ROW_NUMBERED:
    return op->n_in && !lm_type_intersects(last_axis(op->out[0]->type), r->rows);
  default: return false;
  }
}

bool lm_row_tiling_is_rowwise(const lm_row_tiling *r, const lm_op *op) {
  if (op->n_out != 1 || !by_row(r, op) || !operands_fit(r, op) ||
      !lm_row_tiling_is_contiguous(r, op->out[0]->type))
    return false;
  return !lm_type_intersects(axes_type(op->attr.axes, op->attr.n_axes), r->rows) &&
         !lm_type_intersects(axes_type(op->attr.to, op->attr.n_to), r->rows);
}

// The reduction axes of op without the rows; sets *out_rows if op reduces rows.
static lm_attr without_rows(const lm_row_tiling *r, const lm_op *op, bool *out_rows) {
  lm_attr a = op->attr;
  a.n_axes = 0;
  memset(a.axes, 0, sizeof a.axes);
  for (int i = 0; i < op->attr.n_axes; i++)
    if (lm_type_find(r->rows, op->attr.axes[i]) < 0)
      a.axes[a.n_axes++] = op->attr.axes[i];
  *out_rows = a.n_axes < op->attr.n_axes;
  return a;
}

bool lm_row_tiling_is_row_sum(const lm_row_tiling *r, const lm_op *op) {
  bool rows;
  if ((op->code != LM_OP_SUM && op->code != LM_OP_MAX) ||
      !lm_row_tiling_is_contiguous(r, op->in[0]->type))
    return false;
  lm_attr a = without_rows(r, op, &rows);
  return rows && a.n_axes && op->in[0]->type.rank == r->rows.rank + a.n_axes;
}

// ---- building the loop

// The type of one tile of a tensor of type t.
static lm_type tile_type(const lm_row_tiling *r, lm_type t) {
  lm_type out = {.dtype = t.dtype};
  for (int i = 0; i < t.rank; i++) {
    int k = lm_type_find(r->rows, t.axis[i]);
    if (k <= 0)
      out.axis[out.rank++] = k < 0 ? t.axis[i] : r->row;
  }
  return out;
}

// v with the rows first, split into tiles; emitted before the loop.
static lm_value *split_rows(lm_row_tiling *r, lm_value *v) {
  lm_builder b = {r->m, r->loop->parent, r->loop, r->b.loc};
  lm_axis order[LM_RANK];
  lm_type whole = r->rows;
  int n = 0;
  whole.dtype = v->type.dtype;
  for (int i = 0; i < r->rows.rank; i++)
    if (lm_type_find(v->type, r->rows.axis[i]) >= 0)
      order[n++] = r->rows.axis[i];
  for (int i = 0; i < v->type.rank; i++)
    if (lm_type_find(r->rows, v->type.axis[i]) < 0)
      order[n++] = whole.axis[whole.rank++] = v->type.axis[i];
  lm_attr a = {.n_axes = r->rows.rank, .to = {r->tile, r->row}, .n_to = 2};
  memcpy(a.axes, r->rows.axis, sizeof a.axes);
  lm_value *x = lm_emit_expand(&b, lm_emit_permute(&b, v, order, n), whole);
  return lm_emit(&b, LM_OP_VIEW, &x, 1, &a, NULL);
}

// The tile of v of this iteration, in the axis order of v; if v has only some axes of the rows, the
// rows are first.
static lm_value *sliced(lm_row_tiling *r, lm_value *v) {
  lm_attr a = {.imm = {0, 1}, .n_imm = 2};
  lm_value *x = lm_emit(&r->b, LM_OP_AT, (lm_value *[]){split_rows(r, v), r->loop->body->args[0]},
                        2, &a, NULL);
  if (!lm_row_tiling_is_contiguous(r, v->type))
    return x;
  lm_type t = tile_type(r, v->type);
  return lm_emit_permute(&r->b, x, t.axis, t.rank);
}

static lm_value *inside(lm_row_tiling *r, lm_value *v);

static lm_value *copied(lm_row_tiling *r, lm_op *op) {
  bool rows = false;
  lm_value **in = LM_NEW_N(r->m->arena, lm_value *, op->n_in + 1);
  lm_type t = tile_type(r, op->out[0]->type);
  for (uint32_t i = 0; i < op->n_in; i++)
    in[i] = inside(r, op->in[i]);
  lm_attr a = op->mark & LM_ROW_TILE_REDUCED ? without_rows(r, op, &rows) : op->attr;
  lm_builder b = r->b;
  b.loc = op->loc;
  b.remat = op->remat;
  lm_value *v = lm_emit(&b, op->code, in, op->n_in, &a, &t);
  v->name = op->out[0]->name;
  return v;
}

// The value inside the loop. A wide value that is not inside, such as a mask, is recomputed inside.
static lm_value *inside(lm_row_tiling *r, lm_value *v) {
  lm_value *there = lm_idmap_get(&r->map, v);
  if (there || !lm_type_intersects(v->type, r->rows))
    return there ? there : v;
  bool recomputed = v->def && v->region == r->first->parent &&
                    lm_type_intersects(v->type, r->wide) && lm_row_tiling_is_rowwise(r, v->def);
  if (lm_op_is(v, LM_OP_CONST))
    there = lm_emit_const(&r->b, tile_type(r, v->type), v->def->attr.num);
  else
    there = recomputed ? copied(r, v->def) : sliced(r, v);
  lm_idmap_set(&r->map, v, there);
  return there;
}

static void note_use(lm_op *op, void *user) {
  uint8_t *used = user;
  for (uint32_t i = 0; i < op->n_in; i++)
    used[op->in[i]->id] = 1;
}

// By value id: 1 if the value is used outside of the loop.
static uint8_t *used_outside(lm_row_tiling *r) {
  uint8_t *used = lm_calloc((size_t)r->m->n_values + 1, 1);
  for (lm_op *op = r->first; op; op = op->next) {
    if (!(op->mark & LM_ROW_TILE_INSIDE))
      note_use(op, used);
    if (op->body)
      lm_region_walk(op->body, note_use, used);
  }
  return used;
}

// The value outside for the result of op: all tiles joined, and for LM_ROW_TILE_REDUCED their sum
// or maximum over the rows.
static lm_value *joined(lm_row_tiling *r, const lm_op *op, lm_value *stacked) {
  lm_attr a = {.axes = {r->tile, r->row}, .n_axes = 2, .n_to = r->rows.rank};
  memcpy(a.to, r->rows.axis, sizeof a.to);
  lm_value *v = lm_emit(&r->b, LM_OP_VIEW, &stacked, 1, &a, NULL);
  if (!(op->mark & LM_ROW_TILE_REDUCED))
    return v;
  lm_axis over[LM_RANK];
  int n = 0;
  for (int i = 0; i < op->attr.n_axes; i++)
    if (lm_type_find(r->rows, op->attr.axes[i]) >= 0)
      over[n++] = op->attr.axes[i];
  return lm_emit_permute(&r->b, lm_emit_reduce(&r->b, op->code, v, over, n), op->out[0]->type.axis,
                         op->out[0]->type.rank);
}

void lm_row_tiling_apply(lm_row_tiling *r) {
  lm_module *m = r->m;
  uint32_t n = 0;
  uint32_t cap = 0;
  uint32_t n_ops = 0;
  uint32_t cap_ops = 0;
  uint32_t n_values = m->n_values;
  lm_value **results = NULL;
  lm_value **replacement = lm_calloc((size_t)n_values + 1, sizeof *replacement);
  lm_op **ops = NULL;
  uint8_t *outside = used_outside(r);
  if (!r->tile)
    r->tile = lm_axis_add(m, LM_SYM(m->ctx, "part"), r->n_tiles, 0);
  if (!r->row)
    r->row = lm_axis_add(m, LM_SYM(m->ctx, "row"), r->row_count, 0);
  r->b = (lm_builder){m, r->first->parent, r->last->next, r->first->loc};
  r->loop = lm_loop_begin(&r->b, r->n_tiles, r->tile, NULL, 0);
  for (lm_op *op = r->first; op != r->loop; op = op->next) {
    if (!(op->mark & LM_ROW_TILE_INSIDE))
      continue;
    lm_value *v = copied(r, op);
    lm_idmap_set(&r->map, op->out[0], v);
    if (!(op->mark & LM_ROW_TILE_REDUCED) && !outside[op->out[0]->id])
      continue;
    LM_PUSH(m->arena, results, n, cap) = v;
    LM_PUSH(m->arena, ops, n_ops, cap_ops) = op;
  }
  lm_loop_end(&r->b, r->loop, NULL, 0, results, n);
  for (uint32_t i = 0; i < n; i++)
    replacement[ops[i]->out[0]->id] = joined(r, ops[i], r->loop->out[i]);
  lm_ops_sink(r->first, r->b.before, LM_ROW_TILE_FOLLOWS);
  for (lm_op *op = r->loop->prev, *prev; op; op = prev) {
    prev = op == r->first ? NULL : op->prev;
    if (op->mark & LM_ROW_TILE_INSIDE)
      lm_op_remove(op);
  }
  lm_func_substitute(r->loop->parent->func, replacement, n_values);
  lm_idmap_free(&r->map);
  lm_free(outside);
  lm_free(replacement);
}
