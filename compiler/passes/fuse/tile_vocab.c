// tile_vocab.c - tiles the rows of a large GEMM whose result is only used row by row, such as the
// logits, so that the result is never stored as a whole.
//
// before: %z = dot %x, %w over(d) : f32[b, t, vocab]   %m = max %z over(vocab)   …
//         %l = sub %lse, %at : f32[b, t]   %s = sum %l over(b, t)
// after:  %xs = view %x (b, t) -> (part, row) : f32[part, row, d]
//         %ls = loop 8 over(part) %i {
//           %x1 = at %xs, %i   %z1 = dot %x1, %w over(d) : f32[row, vocab]   …
//           yield %l1 : f32[row]
//         } : f32[part, row]
//         %l = view %ls (part, row) -> (b, t) : f32[b, t]   %s = sum %l over(b, t)
//
// Rows are the axes of the result that only the first operand has, wide axes the axes that only the
// second operand has. Rowwise operations that depend on the GEMM move into the loop; the results
// that leave the loop have one number per row. A sum or maximum over rows and wide axes leaves as a
// value per row. The loop has no carries, so its derivative runs in the same order (pass grad) and
// both loops are fused (pass fuse_loops): logits and their cotangents exist for one tile of rows at
// a time. The number of rows per tile depends on sizes, and on blocks of 8-bit floats, which tiles
// do not divide; on a GPU also on its memory, if the whole plan fits then. Declines: GEMMs that are
// small, have dynamic extents, or feed a wide value or another GEMM outside of the loop; GEMMs of
// 8-bit floats of which a tile would have other scales than the whole (lm_fp8_tile_multiple). Cost:
// gradients of weights are read and written once per tile.
#include "compiler/passes/fp8/fp8.h"
#include "compiler/passes/fuse/row_tiling.h"
#include "compiler/passes/pass.h"
#include "compiler/plan/planner.h"

// Elements of the GEMM result per tile, or as many as LM_ROWS rows have.
enum {
  ELEMENTS = 1 << 22
};

typedef struct tiling {
  lm_row_tiling by;
  int64_t max_rows;  // rows per tile, unless they are narrow
  int64_t max_bytes; // that a tile and its cotangent may have instead; 0: max_rows
  const lm_fp8 *fp8; // of the GEMMs of a loss; NULL: none
  lm_op *root;       // the GEMM
} tiling;

static uint32_t mark_of(const tiling *c, const lm_value *v) {
  return v->def && v->region == c->root->parent ? v->def->mark : 0;
}
static bool in_loop(const tiling *c, const lm_value *v) {
  return (mark_of(c, v) & (LM_ROW_TILE_INSIDE | LM_ROW_TILE_REDUCED)) == LM_ROW_TILE_INSIDE;
}

// ---- matching

// Sets rows and wide axes.
static bool is_large_gemm(tiling *c, lm_op *op) {
  lm_row_tiling *r = &c->by;
  if (op->code != LM_OP_DOT)
    return false;
  lm_type z = op->out[0]->type;
  if (lm_type_dynamic(r->m, z) || lm_type_elements(r->m, z) <= ELEMENTS)
    return false;
  c->root = r->first = op;
  r->rows = lm_dot_free_axes(op, 0);
  r->wide = lm_dot_free_axes(op, 1);
  if (!r->rows.rank || !r->wide.rank || r->rows.rank + r->wide.rank != z.rank)
    return false;
  int64_t narrow = ELEMENTS / lm_type_elements(r->m, r->wide);
  int64_t max = narrow > c->max_rows ? narrow : c->max_rows;
  int64_t row = 2 * lm_type_elements(r->m, r->wide) * lm_dtype_bytes((lm_dtype)z.dtype);
  if (max < c->max_bytes / row)
    max = c->max_bytes / row;
  int64_t multiple = lm_fp8_tile_multiple(c->fp8, op, r->rows.axis[r->rows.rank - 1]);
  return multiple && lm_row_tiling_divide(r, max, multiple);
}

// ---- operations inside

static uint32_t mark_for(const tiling *c, const lm_op *op) {
  bool reached = false, outside = false;
  for (uint32_t i = 0; i < op->n_in; i++) {
    reached |= mark_of(c, op->in[i]) & LM_ROW_TILE_FOLLOWS;
    outside |= mark_of(c, op->in[i]) & LM_ROW_TILE_FOLLOWS && !in_loop(c, op->in[i]);
  }
  if (!reached || outside || op->body)
    return reached ? LM_ROW_TILE_FOLLOWS : 0;
  if (lm_row_tiling_is_row_sum(&c->by, op))
    return LM_ROW_TILE_FOLLOWS | LM_ROW_TILE_INSIDE | LM_ROW_TILE_REDUCED;
  bool inside = lm_row_tiling_is_rowwise(&c->by, op) &&
                (lm_row_tiling_has_only_rows(&c->by, op->out[0]->type) ||
                 lm_type_intersects(op->out[0]->type, c->by.wide));
  return inside ? LM_ROW_TILE_FOLLOWS | LM_ROW_TILE_INSIDE : LM_ROW_TILE_FOLLOWS;
}

typedef struct leaving {
  tiling *c;
  bool fits;
} leaving;

// Values that leave the loop have one number per row.
static void check_use(lm_op *op, void *user) {
  leaving *l = user;
  for (uint32_t i = 0; i < op->n_in; i++)
    if (in_loop(l->c, op->in[i]) && !lm_row_tiling_has_only_rows(&l->c->by, op->in[i]->type))
      l->fits = false;
}

static void reach_inner(lm_op *op, void *user) {
  leaving *l = user;
  for (uint32_t i = 0; i < op->n_in; i++)
    l->fits |= mark_of(l->c, op->in[i]) & LM_ROW_TILE_FOLLOWS;
}

static bool region_marks(tiling *c) {
  leaving l = {c, true};
  for (lm_op *op = c->root->parent->first; op != c->root; op = op->next)
    op->mark = 0;
  for (lm_op *op = c->root->next; op; op = op->next)
    op->mark = 0;
  c->root->mark = LM_ROW_TILE_FOLLOWS | LM_ROW_TILE_INSIDE;
  c->by.last = c->root;
  for (lm_op *op = c->root->next; op; op = op->next) {
    op->mark = mark_for(c, op);
    leaving inner = {c, false};
    if (op->body)
      lm_region_walk(op->body, reach_inner, &inner);
    if (inner.fits)
      op->mark |= LM_ROW_TILE_FOLLOWS;
    if (op->mark & LM_ROW_TILE_INSIDE)
      c->by.last = op;
    else
      check_use(op, &l);
    if (op->body)
      lm_region_walk(op->body, check_use, &l);
  }
  // Operations that depend on the loop and are not inside move after it.
  for (lm_op *op = c->root; op != c->by.last; op = op->next)
    if (op->mark == LM_ROW_TILE_FOLLOWS && lm_op_info_of(op)->traits & LM_T_EFFECT)
      return false;
  return l.fits && c->by.last != c->root;
}

// ---- the pass

// The loop replaces its last operation; other large GEMMs may precede it and are visited next.
static void tile_region(lm_region *r, const tiling *how) {
  for (lm_op *op = r->first, *next; op; op = next) {
    tiling c = *how;
    const lm_op *before = op->prev;
    next = op->next;
    if (op->code == LM_OP_LOOP)
      tile_region(op->body, how);
    if (!is_large_gemm(&c, op) || !region_marks(&c))
      continue;
    lm_row_tiling_apply(&c.by);
    next = before ? before->next : r->first;
  }
}

bool lm_pass_tile_vocab(lm_module *m, const lm_pass_env *env) {
  const lm_target *target = env ? env->target : NULL;
  for (lm_func *f = m->funcs; f; f = f->next) {
    tiling how = {
        .by.m = m,
        .max_rows = target && target->choices.rows ? target->choices.rows : LM_ROWS,
        .max_bytes = target && !env->small_tiles ? target->choices.logits : 0,
        .fp8 = env && f->key.id == LM_FUNC_LOSS ? env->fp8 : NULL,
    };
    tile_region(f->body, &how);
  }
  return true;
}
