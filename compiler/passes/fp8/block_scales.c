// block_scales.c - see block_scales.h.
//
// before: %n = cast %q : f32[m, block, element]   %x = mul %n, %u : f32[m, block, element]
//         %y = view %x (block, element) -> (k)   %h = cast %y : bf16[m, k]
// after:  %c = view %q (block, element) -> (k) : e4m3[m, k]
//         %1 = pad %u (m) -> (row)   %2 = pad %1 (block) -> (column)
//         %3 = view %2 (row) -> (row_tile, group, lane)
//         %4 = view %3 (column) -> (column_tile, slot)
//         %5 = permute %4 : f32[row_tile, column_tile, lane, group, slot]   %6 = cast %5 : e8m0[…]
#include "compiler/passes/fp8/block_scales.h"

#include <string.h>

#include "compiler/ir/dot.h"
#include "compiler/ops/fp8.h"
#include "compiler/passes/rewrite.h"

enum {
  MOVES = 4
};

// Axes of a value, in its order.
typedef struct axes {
  lm_axis v[LM_RANK];
  int n;
} axes;

// A rounded value: of the result of `scaling`, which multiplies the number of a code by a scale,
// the moves, views and permutations, the last one first, make it. A scale is that of the elements
// along one axis or, in blocks of several rows, two axes of the codes.
typedef struct split {
  lm_axis element, block; // block 0: there is one
  lm_fp8_axes whole;      // what views make of both; the element's axis without a view
} split;

typedef struct rounded {
  lm_op *scaling, *move[MOVES];
  int n_moves;
  lm_value *codes, *scale;
  split of[2]; // along the axes that are summed, along the others
  int n;
} rounded;

lm_value *lm_uncast(lm_value *v) {
  while (lm_op_is(v, LM_OP_CAST) && lm_dtype_is_float(v->def->in[0]->type.dtype))
    v = v->def->in[0];
  return v;
}

bool lm_is_number_of_code(const lm_value *v) {
  lm_dtype from = lm_op_is(v, LM_OP_CAST) ? (lm_dtype)v->def->in[0]->type.dtype : LM_F32;
  return from == LM_E4M3 || from == LM_E5M2;
}

static bool scaling_find(rounded *r) {
  const lm_op *op = r->scaling;
  for (int i = 0; i < 2 && op && op->code == LM_OP_MUL; i++) {
    if (!lm_is_number_of_code(op->in[i]))
      continue;
    r->codes = op->in[i]->def->in[0];
    r->scale = op->in[1 - i];
    return r->scale->type.dtype == LM_F32;
  }
  return false;
}

// The axes that blocks have and scales do not.
static bool elements_find(rounded *r) {
  lm_type t = r->codes->type;
  for (int i = 0; i < t.rank; i++) {
    if (lm_type_find(r->scale->type, t.axis[i]) >= 0)
      continue;
    if (r->n == 2)
      return false;
    r->of[r->n++] = (split){t.axis[i], 0, {{t.axis[i]}, 1}};
  }
  return r->n && r->scale->type.rank == t.rank - r->n;
}

static bool is_viewed(const split *s) {
  return s->block || s->whole.v[0] != s->element;
}

// The axes that views make of them.
static bool blocks_find(rounded *r) {
  for (int i = 0; i < r->n_moves; i++) {
    const lm_attr *a = &r->move[i]->attr;
    if (r->move[i]->code == LM_OP_PERMUTE)
      continue;
    lm_axis element = a->axes[a->n_axes - 1];
    split *s = element == r->of[0].element ? &r->of[0] : &r->of[1];
    if (is_viewed(s) || a->n_axes > 2 || element != s->element)
      return false;
    s->block = a->n_axes == 2 ? a->axes[0] : 0;
    s->whole.n = a->n_to;
    memcpy(s->whole.v, a->to, sizeof s->whole.v);
  }
  return true;
}

static bool rounded_find(lm_value *v, rounded *r) {
  *r = (rounded){0};
  for (v = lm_uncast(v); lm_op_is(v, LM_OP_VIEW) || lm_op_is(v, LM_OP_PERMUTE);) {
    if (r->n_moves == MOVES)
      return false;
    r->move[r->n_moves++] = v->def;
    v = lm_uncast(v->def->in[0]);
  }
  r->scaling = v->def;
  return scaling_find(r) && elements_find(r) && blocks_find(r);
}

static bool has_axis(const lm_fp8_axes *of, lm_axis a) {
  bool found = false;
  for (int i = 0; i < of->n; i++)
    found |= of->v[i] == a;
  return found;
}

// True if all axes of s are summed, or all are not.
static bool is_of_side(const split *s, const lm_attr *over, bool summed) {
  bool all = true;
  for (int i = 0; i < s->whole.n; i++)
    all &= lm_attr_has_axis(over, s->whole.v[i]) == summed;
  return all;
}

// Puts the blocks of the axes that are summed first.
static bool sides_find(rounded *r, const lm_attr *over) {
  if (!is_of_side(&r->of[0], over, true)) {
    split rows = r->of[0];
    r->of[0] = r->of[1];
    r->of[1] = rows;
  }
  return is_of_side(&r->of[0], over, true) && r->of[0].whole.n &&
         is_of_side(&r->of[1], over, false);
}

static bool is_of_split(const split *s, lm_axis a) {
  return s->whole.n && (has_axis(&s->whole, a) || a == s->element || a == s->block);
}

// The axes of t that are summed, or the others; with the axis of blocks for those of the split, if
// there is one.
static axes axes_of(const rounded *r, lm_type t, const lm_attr *over, bool summed) {
  axes out = {.n = 0};
  const split *s = &r->of[!summed];
  for (int i = 0; i < t.rank; i++) {
    lm_axis a = t.axis[i];
    bool of_s = is_of_split(s, a);
    lm_axis to = of_s ? s->block : a;
    if (!is_of_split(&r->of[summed], a) && (of_s || lm_attr_has_axis(over, a) == summed) && to &&
        !(out.n && out.v[out.n - 1] == to))
      out.v[out.n++] = to;
  }
  return out;
}

static bool axes_equal(const axes *a, const axes *b) {
  bool equal = a->n == b->n;
  for (int i = 0; equal && i < a->n; i++)
    equal = a->v[i] == b->v[i];
  return equal;
}

// The one axis that these adjacent axes become.
static lm_axis joined(lm_builder *b, lm_value **v, const axes *of, const char *name) {
  int64_t size = 1;
  lm_attr a = {.n_axes = (uint8_t)of->n, .n_to = 1};
  for (int i = 0; i < of->n; i++) {
    a.axes[i] = of->v[i];
    size *= lm_axis_size(b->m, of->v[i]);
  }
  if (of->n == 1)
    return of->v[0];
  a.to[0] = lm_axis_shared(b->m, LM_SYM(b->m->ctx, name), size, (*v)->type);
  *v = lm_emit(b, LM_OP_VIEW, v, 1, &a, NULL);
  return a.to[0];
}

// Zeros behind the elements along an axis, up to a multiple; axis 0: a new last axis.
static lm_axis padded(lm_builder *b, lm_value **v, lm_axis axis, int64_t multiple,
                      const char *name) {
  int64_t size = axis ? lm_axis_size(b->m, axis) : 1;
  int64_t to = (size + multiple - 1) / multiple * multiple;
  lm_attr a = {.axes = {axis}, .n_axes = axis != 0, .n_to = 1, .imm = {0, 1}, .n_imm = 2};
  if (axis && to == size)
    return axis;
  a.to[0] = lm_axis_shared(b->m, LM_SYM(b->m->ctx, name), to, (*v)->type);
  *v = lm_emit(b, LM_OP_PAD, v, 1, &a, NULL);
  return a.to[0];
}

static lm_axis axis_new(lm_builder *b, const char *name, int64_t size) {
  return lm_axis_shared(b->m, LM_SYM(b->m->ctx, name), size, (lm_type){0});
}

// v, with axes [rows, columns], in tiles: e8m0.
static lm_value *tiled(lm_builder *b, lm_value *v, lm_axis rows, lm_axis columns) {
  lm_axis row_tile = axis_new(b, "row_tile", lm_axis_size(b->m, rows) / LM_SCALES_ROWS);
  lm_axis group = axis_new(b, "group", LM_SCALES_ROWS / LM_SCALES_GROUP);
  lm_axis lane = axis_new(b, "lane", LM_SCALES_GROUP);
  lm_axis column_tile = axis_new(b, "column_tile", lm_axis_size(b->m, columns) / LM_SCALES_COLUMNS);
  lm_axis slot = axis_new(b, "slot", LM_SCALES_COLUMNS);
  lm_attr of_rows = {.axes = {rows}, .n_axes = 1, .to = {row_tile, group, lane}, .n_to = 3};
  lm_axis order[] = {row_tile, column_tile, lane, group, slot};
  lm_type t = lm_type_make(LM_F32, order, LM_COUNT(order));
  v = lm_emit(b, LM_OP_VIEW, &v, 1, &of_rows, NULL);
  v = lm_emit_split(b, v, columns, column_tile, slot);
  v = lm_emit(b, LM_OP_PERMUTE, &v, 1, NULL, &t);
  return lm_emit_cast(b, v, LM_E8M0);
}

// A copy with the axes in this order.
static lm_value *copied(lm_builder *b, lm_value *v, const lm_axis *order, int n) {
  lm_type t = lm_type_make(LM_F32, order, n);
  if (!lm_type_equal(t, v->type))
    v = lm_emit(b, LM_OP_PERMUTE, &v, 1, NULL, &t);
  return lm_emit(b, LM_OP_CAST, &v, 1, NULL, &t);
}

// v, with axes [rows, columns], of 128 rows each: f32, by four columns.
static lm_value *by_four(lm_builder *b, lm_value *v, lm_axis rows, lm_axis columns) {
  lm_axis column_tile = axis_new(b, "column_tile", lm_axis_size(b->m, columns) / LM_SCALES_COLUMNS);
  lm_axis slot = axis_new(b, "slot", LM_SCALES_COLUMNS);
  lm_axis order[] = {rows, column_tile, slot};
  v = lm_emit_split(b, v, columns, column_tile, slot);
  return copied(b, v, order, LM_COUNT(order));
}

static lm_value *scales_emit(lm_builder *b, lm_value *v, const axes *rows, const axes *columns,
                             lm_scales kind) {
  lm_type t = lm_type_make(LM_F32, rows->v, rows->n);
  int64_t row_multiple = kind == LM_SCALES_VEC32 ? LM_SCALES_ROWS : 1;
  int64_t column_multiple = kind == LM_SCALES_VEC128 ? 1 : LM_SCALES_COLUMNS;
  for (int i = 0; i < columns->n; i++)
    t.axis[t.rank++] = columns->v[i];
  if (!lm_type_equal(t, v->type))
    v = lm_emit(b, LM_OP_PERMUTE, &v, 1, NULL, &t);
  lm_axis row = rows->n ? joined(b, &v, rows, "row") : 0;
  lm_axis column = columns->n ? joined(b, &v, columns, "column") : 0;
  row = padded(b, &v, row, row_multiple, "row");
  column = padded(b, &v, column, column_multiple, "column");
  if (kind == LM_SCALES_VEC128)
    return copied(b, v, (lm_axis[]){column, row}, 2);
  return kind == LM_SCALES_VEC32 ? tiled(b, v, row, column) : by_four(b, v, row, column);
}

// The codes, moved as their numbers were.
static lm_value *codes_emit(lm_builder *b, const rounded *r) {
  lm_value *v = r->codes;
  for (int i = r->n_moves; i-- > 0;) {
    lm_type t = r->move[i]->out[0]->type;
    t.dtype = v->type.dtype;
    v = lm_emit(b, r->move[i]->code, &v, 1, &r->move[i]->attr, &t);
  }
  return v;
}

// Whether blocks of so many elements along an axis are the library's, whose rows and columns are
// all axes of that side, the last one innermost.
static bool elements_fit(const lm_module *m, const split *s, const axes *side, int64_t elements) {
  int64_t size = lm_axis_size(m, s->element);
  return size == elements || (size < elements && !side->n);
}

static lm_scales kind_of(const lm_module *m, const rounded *r) {
  int64_t of_mx = lm_scales_of(LM_SCALES_VEC32).elements;
  if (r->n == 2)
    return LM_SCALES_BLK128;
  return lm_axis_size(m, r->of[0].element) == of_mx ? LM_SCALES_VEC32 : LM_SCALES_VEC128;
}

// Whether the axes of a split are the last ones of their side of t, in their order.
static bool ends_side(lm_type t, const lm_attr *over, bool summed, const split *s) {
  int n = s->whole.n;
  for (int i = t.rank - 1; i >= 0 && n > 0; i--)
    if (lm_attr_has_axis(over, t.axis[i]) == summed && t.axis[i] != s->whole.v[--n])
      return false;
  return n == 0;
}

bool lm_coded_in_blocks(lm_builder *b, lm_value *v, const lm_attr *over, lm_coded *out) {
  rounded r;
  if (!rounded_find(v, &r) || !sides_find(&r, over))
    return false;
  // The library's rows and columns are in the order of memory.
  lm_type t = v->type, codes = r.codes->type;
  lm_scales kind = kind_of(b->m, &r);
  axes side[2];
  for (int i = 0; i < 2; i++) {
    axes in_codes = axes_of(&r, codes, over, !i);
    side[i] = axes_of(&r, t, over, !i);
    if (!axes_equal(&side[i], &in_codes))
      return false;
    if (i < r.n && (!ends_side(t, over, !i, &r.of[i]) ||
                    !elements_fit(b->m, &r.of[i], &side[i], lm_scales_of(kind).elements)))
      return false;
  }
  out->codes = codes_emit(b, &r);
  out->scale = scales_emit(b, r.scale, &side[1], &side[0], kind);
  return true;
}
