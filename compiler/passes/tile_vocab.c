// tile_vocab.c - a large product that is only used row by row runs some rows at a time, so that it
// never exists whole.
//
// before: %z = dot %x, %w over(d) : f32[b, t, vocab]   %m = max %z over(vocab)   …   %l = sub %lse,
// %at : f32[b, t]
//         %s = sum %l over(b, t)
// after:  %xs = view %x (b, t) -> (part, row) : f32[part, row, d]
//         %ls = loop 8 over(part) %i {
//           %x1 = at %xs, %i   %z1 = dot %x1, %w over(d) : f32[row, vocab]   …   yield %l1 :
//           f32[row]
//         } : f32[part, row]
//         %l = view %ls (part, row) -> (b, t) : f32[b, t]   %s = sum %l over(b, t)
//
// Rows are the axes of the product that only its first operand has, wide axes those that only the
// second one has. What follows from the product goes into the loop as far as each row is computed
// by itself; all that leaves it has one number a row. A sum or maximum over rows and more leaves as
// one of rows. The loop carries nothing, so its derivative runs in the same order (pass grad) and
// both become one loop (pass jam): logits and their cotangents live for some rows alone. How many
// rows there are at a time depends on sizes alone. Declines: products that are small, whose sizes
// are known only at run time, or of which something wide or another product is made. Cost:
// gradients of weights are read and written once a turn.
#include "compiler/passes/row_tiling.h"
#include "compiler/passes/pass.h"
#include "compiler/plan/planner.h"

enum {
  ELEMENTS = 1 << 22
}; // of the product at a time, or as many as there are in LM_ROWS rows

typedef struct chunk {
  lm_row_tiling by;
  int64_t most; // rows at a time, unless they are narrow
  lm_op *root;  // the product
} chunk;

static uint32_t mark_of(const chunk *c, const lm_value *v) {
  return v->def && v->region == c->root->parent ? v->def->mark : 0;
}
static bool in_loop(const chunk *c, const lm_value *v) {
  return (mark_of(c, v) & (LM_ROW_TILE_INSIDE | LM_ROW_TILE_REDUCED)) == LM_ROW_TILE_INSIDE;
}

// ---- which products

// Rows are the axes of the product that only its first operand has, wide axes those that only the
// second one has.
static bool is_large_product(chunk *c, lm_op *op) {
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
  return lm_row_tiling_divide(r, narrow > c->most ? narrow : c->most);
}

// ---- what goes into the loop

static uint32_t mark_for(const chunk *c, const lm_op *op) {
  bool reached = false, outside = false;
  for (uint32_t i = 0; i < op->n_in; i++) {
    reached |= mark_of(c, op->in[i]) & LM_ROW_TILE_FOLLOWS;
    outside |= mark_of(c, op->in[i]) & LM_ROW_TILE_FOLLOWS && !in_loop(c, op->in[i]);
  }
  if (!reached || outside || op->body)
    return reached ? LM_ROW_TILE_FOLLOWS : 0;
  if (lm_row_tiling_is_row_sum(&c->by, op))
    return LM_ROW_TILE_FOLLOWS | LM_ROW_TILE_INSIDE | LM_ROW_TILE_REDUCED;
  bool goes = lm_row_tiling_is_rowwise(&c->by, op) &&
              (lm_row_tiling_has_only_rows(&c->by, op->out[0]->type) ||
               lm_type_intersects(op->out[0]->type, c->by.wide));
  return goes ? LM_ROW_TILE_FOLLOWS | LM_ROW_TILE_INSIDE : LM_ROW_TILE_FOLLOWS;
}

typedef struct leaving {
  chunk *c;
  bool fits;
} leaving;

// What leaves the loop has one number a row.
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

static bool region_marks(chunk *c) {
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
  for (lm_op *op = c->root; op != c->by.last;
       op = op->next) // what only follows the loop has to move behind it
    if (op->mark == LM_ROW_TILE_FOLLOWS && lm_op_info_of(op)->traits & LM_T_EFFECT)
      return false;
  return l.fits && c->by.last != c->root;
}

// ---- the pass

// The loop stands where its last operation stood; other large products may lie in front of it, and
// are next.
static void chunk_region(lm_module *m, lm_region *r, int64_t most) {
  for (lm_op *op = r->first, *next; op; op = next) {
    chunk c = {.by.m = m, .most = most};
    const lm_op *before = op->prev;
    next = op->next;
    if (op->code == LM_OP_LOOP)
      chunk_region(m, op->body, most);
    if (!is_large_product(&c, op) || !region_marks(&c))
      continue;
    lm_row_tiling_apply(&c.by);
    next = before ? before->next : r->first;
  }
}

bool lm_pass_tile_vocab(lm_module *m, const lm_pass_env *env) {
  const lm_plan_target *target = env ? env->target : NULL;
  for (lm_func *f = m->funcs; f; f = f->next)
    chunk_region(m, f->body, target && target->rows ? target->rows : LM_ROWS);
  return true;
}
