// chunk.c - a large product that is only used row by row runs some rows at a time, so that it never exists whole.
//
// before: %z = dot %x, %w over(d) : f32[b, t, vocab]   %m = max %z over(vocab)   …   %l = sub %lse, %at : f32[b, t]
//         %s = sum %l over(b, t)
// after:  %xs = view %x (b, t) -> (part, row) : f32[part, row, d]
//         %ls = loop 8 over(part) %i {
//           %x1 = at %xs, %i   %z1 = dot %x1, %w over(d) : f32[row, vocab]   …   yield %l1 : f32[row]
//         } : f32[part, row]
//         %l = view %ls (part, row) -> (b, t) : f32[b, t]   %s = sum %l over(b, t)
//
// Rows are the axes of the product that only its first operand has, wide axes those that only the second one has. What
// follows from the product goes into the loop as far as each row is computed by itself; all that leaves it has one number
// a row. A sum or maximum over rows and more leaves as one of rows. The loop carries nothing, so its derivative runs in
// the same order (pass grad) and both become one loop (pass jam): logits and their cotangents live for some rows alone.
// How many rows there are at a time depends on sizes alone.
// Declines: products that are small, whose sizes are known only at run time, or of which something wide or another
// product is made. Cost: gradients of weights are read and written once a turn.
#include <string.h>
#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"
#include "compiler/plan/planner.h"

enum {
  ELEMENTS = 1 << 22,                  // of the product at a time
  ROWS = 512,                          // at a time, if those are more elements and the target says no other number
  ROWS_LEAST = 32,
};
enum { REACHED = 1, INSIDE = 2, LAST = 4 };   // op->mark: follows from the product; in the loop; and sums rows outside of it

typedef struct chunk {
  lm_module *m;
  int64_t most;                        // rows at a time, unless they are narrow
  lm_op *root;                         // the product
  lm_type rows, wide;                  // as sets of axes; rows in their order
  int64_t turns, row_count;
  lm_axis turn, row;
  lm_op *last;                         // the last operation that goes inside; the loop takes its place
  lm_builder b;                        // in the loop
  lm_op *loop;
  lm_idmap map;                        // value outside -> what stands for it inside
} chunk;

static bool has_any(lm_type t, lm_type axes) {
  for (int i = 0; i < axes.rank; i++)
    if (lm_type_find(t, axes.axis[i]) >= 0) return true;
  return false;
}

static lm_type axes_type(const lm_axis *axes, int n) { return lm_type_make(LM_F32, axes, n); }
static bool here(const chunk *c, const lm_value *v) { return v->region == c->root->parent; }
static uint32_t mark_of(const chunk *c, const lm_value *v) { return v->def && here(c, v) ? v->def->mark : 0; }
static bool in_loop(const chunk *c, const lm_value *v) { return (mark_of(c, v) & (INSIDE | LAST)) == INSIDE; }

// ---- which products

static lm_type own_axes(const lm_op *dot, int side) {
  lm_type z = dot->out[0]->type, other = dot->in[1 - side]->type, own = {.dtype = LM_F32};
  for (int i = 0; i < z.rank; i++)
    if (lm_type_find(other, z.axis[i]) < 0) own.axis[own.rank++] = z.axis[i];
  return own;
}

// The most rows at a time that divide all rows; 0 if those are too few.
static int64_t rows_at_a_time(int64_t all, int64_t width, int64_t most) {
  int64_t n = ELEMENTS / width > most ? ELEMENTS / width : most;
  if (n > all) n = all;
  while (all % n) n--;
  return n >= ROWS_LEAST ? n : 0;
}

static bool is_large_product(chunk *c, lm_op *op) {
  if (op->code != LM_OP_DOT) return false;
  lm_type z = op->out[0]->type;
  if (lm_type_dynamic(c->m, z) || lm_type_elements(c->m, z) <= ELEMENTS) return false;
  c->root = op;
  c->rows = own_axes(op, 0);
  c->wide = own_axes(op, 1);
  if (!c->rows.rank || !c->wide.rank || c->rows.rank + c->wide.rank != z.rank) return false;
  int64_t all = lm_type_elements(c->m, c->rows);
  c->row_count = rows_at_a_time(all, lm_type_elements(c->m, c->wide), c->most);
  c->turns = c->row_count ? all / c->row_count : 0;
  return c->turns > 1;
}

// ---- what goes into the loop

// All rows, next to each other and in order.
static bool rows_together(const chunk *c, lm_type t) {
  int at = lm_type_find(t, c->rows.axis[0]);
  for (int i = 0; i < c->rows.rank; i++)
    if (at < 0 || at + i >= t.rank || t.axis[at + i] != c->rows.axis[i]) return false;
  return true;
}

static bool is_rows(const chunk *c, lm_type t) { return t.rank == c->rows.rank && rows_together(c, t); }

// What is read inside: all rows, none, or some of them with nothing wide, which is repeated for the others.
static bool operands_fit(const chunk *c, const lm_op *op) {
  for (uint32_t i = 0; i < op->n_in; i++) {
    lm_type t = op->in[i]->type;
    if (lm_type_dynamic(c->m, t) || (has_any(t, c->rows) && !rows_together(c, t) && has_any(t, c->wide))) return false;
  }
  return true;
}

static bool by_row(const lm_op *op) {
  switch (op->code) {
  case LM_OP_VIEW: case LM_OP_PERMUTE: case LM_OP_RENAME: case LM_OP_SLICE: case LM_OP_PAD: case LM_OP_CONCAT: return true;
  case LM_OP_GATHER: return true;
  default: return lm_op_info_of(op)->traits & (LM_T_ELEMENTWISE | LM_T_REDUCE) && op->n_in;
  }
}

// Axes of op but rows; *out_rows: whether there were any.
static lm_attr without_rows(const chunk *c, const lm_op *op, bool *out_rows) {
  lm_attr a = op->attr;
  a.n_axes = 0;
  memset(a.axes, 0, sizeof a.axes);
  for (int i = 0; i < op->attr.n_axes; i++)
    if (lm_type_find(c->rows, op->attr.axes[i]) < 0) a.axes[a.n_axes++] = op->attr.axes[i];
  *out_rows = a.n_axes < op->attr.n_axes;
  return a;
}

static bool each_row_alone(const chunk *c, const lm_op *op) {
  lm_type t = op->n_out == 1 ? op->out[0]->type : (lm_type){0};
  if (!by_row(op) || !operands_fit(c, op) || !rows_together(c, t)) return false;
  if (op->code == LM_OP_GATHER && !has_any(op->in[1]->type, c->rows)) return false;
  return !has_any(axes_type(op->attr.axes, op->attr.n_axes), c->rows) && !has_any(axes_type(op->attr.to, op->attr.n_to), c->rows);
}

// A sum or maximum over rows and others: over the others inside, over the rows outside.
static bool sums_rows(const chunk *c, const lm_op *op) {
  bool rows;
  if ((op->code != LM_OP_SUM && op->code != LM_OP_MAX) || !rows_together(c, op->in[0]->type)) return false;
  lm_attr a = without_rows(c, op, &rows);
  return rows && a.n_axes && op->in[0]->type.rank == c->rows.rank + a.n_axes;
}

static uint32_t mark_for(const chunk *c, const lm_op *op) {
  bool reached = false, outside = false;
  for (uint32_t i = 0; i < op->n_in; i++) {
    reached |= mark_of(c, op->in[i]) & REACHED;
    outside |= mark_of(c, op->in[i]) & REACHED && !in_loop(c, op->in[i]);
  }
  if (!reached || outside || op->body) return reached ? REACHED : 0;
  if (sums_rows(c, op)) return REACHED | INSIDE | LAST;
  bool goes = each_row_alone(c, op) && (is_rows(c, op->out[0]->type) || has_any(op->out[0]->type, c->wide));
  return goes ? REACHED | INSIDE : REACHED;
}

typedef struct leaving { chunk *c; bool fits; } leaving;

// What leaves the loop has one number a row.
static void check_use(lm_op *op, void *user) {
  leaving *l = user;
  for (uint32_t i = 0; i < op->n_in; i++)
    if (in_loop(l->c, op->in[i]) && !is_rows(l->c, op->in[i]->type)) l->fits = false;
}

static void reach_inner(lm_op *op, void *user) {
  leaving *l = user;
  for (uint32_t i = 0; i < op->n_in; i++) l->fits |= mark_of(l->c, op->in[i]) & REACHED;
}

static bool region_marks(chunk *c) {
  leaving l = {c, true};
  for (lm_op *op = c->root->parent->first; op != c->root; op = op->next) op->mark = 0;
  for (lm_op *op = c->root->next; op; op = op->next) op->mark = 0;
  c->root->mark = REACHED | INSIDE;
  c->last = c->root;
  for (lm_op *op = c->root->next; op; op = op->next) {
    op->mark = mark_for(c, op);
    leaving inner = {c, false};
    if (op->body) lm_region_walk(op->body, reach_inner, &inner);
    if (inner.fits) op->mark |= REACHED;
    if (op->mark & INSIDE) c->last = op;
    else check_use(op, &l);
    if (op->body) lm_region_walk(op->body, check_use, &l);
  }
  for (lm_op *op = c->root; op != c->last; op = op->next)      // what only follows the loop has to move behind it
    if (op->mark == REACHED && lm_op_info_of(op)->traits & LM_T_EFFECT) return false;
  return l.fits && c->last != c->root;
}

// ---- writing the loop

// Of a type with rows, that of those of one turn.
static lm_type few(const chunk *c, lm_type t) {
  lm_type out = {.dtype = t.dtype};
  for (int i = 0; i < t.rank; i++) {
    int k = lm_type_find(c->rows, t.axis[i]);
    if (k <= 0) out.axis[out.rank++] = k < 0 ? t.axis[i] : c->row;
  }
  return out;
}

// v with the rows in front, as turns of a few; in front of the loop.
static lm_value *by_turns(chunk *c, lm_value *v) {
  lm_builder b = {c->m, c->loop->parent, c->loop, c->b.loc};
  lm_axis order[LM_RANK];
  lm_type whole = c->rows;
  int n = 0;
  whole.dtype = v->type.dtype;
  for (int i = 0; i < c->rows.rank; i++)
    if (lm_type_find(v->type, c->rows.axis[i]) >= 0) order[n++] = c->rows.axis[i];
  for (int i = 0; i < v->type.rank; i++)
    if (lm_type_find(c->rows, v->type.axis[i]) < 0) order[n++] = whole.axis[whole.rank++] = v->type.axis[i];
  lm_attr a = {.n_axes = c->rows.rank, .to = {c->turn, c->row}, .n_to = 2};
  memcpy(a.axes, c->rows.axis, sizeof a.axes);
  lm_value *x = lm_emit_expand(&b, lm_emit_permute(&b, v, order, n), whole);
  return lm_emit(&b, LM_OP_VIEW, &x, 1, &a, NULL);
}

// The rows of v, in the order of axes that v has; some rows come in front.
static lm_value *sliced(chunk *c, lm_value *v) {
  lm_attr a = {.imm = {0, 1}, .n_imm = 2};
  lm_value *x = lm_emit(&c->b, LM_OP_AT, (lm_value *[]){by_turns(c, v), c->loop->body->args[0]}, 2, &a, NULL);
  if (!rows_together(c, v->type)) return x;
  lm_type t = few(c, v->type);
  return lm_emit_permute(&c->b, x, t.axis, t.rank);
}

static lm_value *inside(chunk *c, lm_value *v);

static lm_value *copied(chunk *c, lm_op *op) {
  bool rows = false;
  lm_value **in = LM_NEW_N(c->m->arena, lm_value *, op->n_in + 1);
  lm_type t = few(c, op->out[0]->type);
  for (uint32_t i = 0; i < op->n_in; i++) in[i] = inside(c, op->in[i]);
  lm_attr a = op->mark & LAST ? without_rows(c, op, &rows) : op->attr;
  lm_builder b = c->b;
  b.loc = op->loc;
  b.keep = op->keep;
  lm_value *v = lm_emit(&b, op->code, in, op->n_in, &a, &t);
  v->name = op->out[0]->name;
  return v;
}

// Something wide that does not follow from the product (a mask, say) is made inside as well.
static lm_value *inside(chunk *c, lm_value *v) {
  lm_value *there = lm_idmap_get(&c->map, v);
  if (there || !has_any(v->type, c->rows)) return there ? there : v;
  bool again = v->def && here(c, v) && has_any(v->type, c->wide) && each_row_alone(c, v->def);
  if (lm_op_is(v, LM_OP_CONST)) there = lm_emit_const(&c->b, few(c, v->type), v->def->attr.num);
  else there = again ? copied(c, v->def) : sliced(c, v);
  lm_idmap_set(&c->map, v, there);
  return there;
}

static void note_use(lm_op *op, void *user) {
  uint8_t *used = user;
  for (uint32_t i = 0; i < op->n_in; i++) used[op->in[i]->id] = 1;
}

// By value id.
static uint8_t *used_outside(chunk *c) {
  uint8_t *used = lm_calloc((size_t)c->m->n_values + 1, 1);
  for (lm_op *op = c->root; op; op = op->next) {
    if (!(op->mark & INSIDE)) note_use(op, used);
    if (op->body) lm_region_walk(op->body, note_use, used);
  }
  return used;
}

// What stands outside for the result of op: all turns, and of a LAST one the sum or maximum over their rows.
static lm_value *joined(chunk *c, const lm_op *op, lm_value *stacked) {
  lm_attr a = {.axes = {c->turn, c->row}, .n_axes = 2, .n_to = c->rows.rank};
  memcpy(a.to, c->rows.axis, sizeof a.to);
  lm_value *v = lm_emit(&c->b, LM_OP_VIEW, &stacked, 1, &a, NULL);
  if (!(op->mark & LAST)) return v;
  lm_axis over[LM_RANK];
  int n = 0;
  for (int i = 0; i < op->attr.n_axes; i++)
    if (lm_type_find(c->rows, op->attr.axes[i]) >= 0) over[n++] = op->attr.axes[i];
  return lm_emit_permute(&c->b, lm_emit_reduce(&c->b, op->code, v, over, n), op->out[0]->type.axis, op->out[0]->type.rank);
}

static void write_loop(chunk *c) {
  lm_module *m = c->m;
  uint32_t n = 0, cap = 0, n_ops = 0, cap_ops = 0, n_values = m->n_values;
  lm_value **results = NULL, **stand = lm_calloc((size_t)n_values + 1, sizeof *stand);
  lm_op **ops = NULL;
  uint8_t *outside = used_outside(c);
  c->turn = lm_axis_add(m, LM_SYM(m->ctx, "part"), c->turns, 0);
  c->row = lm_axis_add(m, LM_SYM(m->ctx, "row"), c->row_count, 0);
  c->b = (lm_builder){m, c->root->parent, c->last->next, c->root->loc};
  c->loop = lm_loop_begin(&c->b, c->turns, c->turn, NULL, 0);
  for (lm_op *op = c->root; op != c->loop; op = op->next) {
    if (!(op->mark & INSIDE)) continue;
    lm_value *v = copied(c, op);
    lm_idmap_set(&c->map, op->out[0], v);
    if (!(op->mark & LAST) && !outside[op->out[0]->id]) continue;
    LM_PUSH(m->arena, results, n, cap) = v;
    LM_PUSH(m->arena, ops, n_ops, cap_ops) = op;
  }
  lm_loop_end(&c->b, c->loop, NULL, 0, results, n);
  for (uint32_t i = 0; i < n; i++) stand[ops[i]->out[0]->id] = joined(c, ops[i], c->loop->out[i]);
  lm_ops_sink(c->root, c->b.before, REACHED);
  for (lm_op *op = c->loop->prev, *prev; op; op = prev) {
    prev = op == c->root ? NULL : op->prev;
    if (op->mark & INSIDE) lm_op_remove(op);
  }
  lm_func_substitute(c->loop->parent->func, stand, n_values);
  lm_idmap_free(&c->map);
  lm_free(outside);
  lm_free(stand);
}

// ---- the pass

// The loop has no product as large; the walk goes on behind it.
static void chunk_region(lm_module *m, lm_region *r, int64_t most) {
  for (lm_op *op = r->first, *next; op; op = next) {
    chunk c = {.m = m, .most = most};
    next = op->next;
    if (op->code == LM_OP_LOOP) chunk_region(m, op->body, most);
    if (!is_large_product(&c, op) || !region_marks(&c)) continue;
    write_loop(&c);
    next = c.loop->next;
  }
}

bool lm_pass_chunk(lm_module *m, const lm_pass_env *env) {
  const lm_plan_target *target = env ? env->target : NULL;
  for (lm_func *f = m->funcs; f; f = f->next) chunk_region(m, f->body, target && target->rows ? target->rows : ROWS);
  return true;
}
