// narrow.c - computes the logits of the last position of a prompt only.
//
// before: func @prefill(%tok: int[b, t], …) -> (logits: f32[b, t, vocab]) {
//           %y = loop … layers : f32[b, t, d]
//           %n = … norm of %y : f32[b, t, d]   %z = dot %n, %w over(d) : f32[b, t, vocab]
//           return %z
// after:    %y = loop … layers : f32[b, t, d]
//           %p = iota : int[t]   %m = max %p over(t)   %e = expand %m : int[last]
//           %g = gather %y, %e over(t)   %x = permute %g : f32[b, last, d]
//           %n = … norm of %x : f32[b, last, d]   %z = dot %n, %w over(d) : f32[b, last, vocab]
//           return %z
//
// Generation reads the logits of the last position of a call. An operation is narrowed if it
// computes each position from the same position of its operands and if all operations that read its
// result are narrowed, up to the logits. Its other operands are gathered. An element of a GEMM does
// not depend on the number of rows, so f32 logits keep their bits where GEMMs are generated and the
// target has a kernel of attention for one query, and elsewhere differ by rounding.
//
// If narrowed operations alone read the results of a loop, such as that of the layers, and GEMMs of
// its last iteration can be narrowed, that iteration becomes operations behind the loop. Of the
// last layer, all positions then have keys and values alone.
// Declines: other operations in loops; iterations on several ranks; logits that come from an
// operation that mixes positions. Cost: a maximum over t, one gather for each value of all
// positions that the narrowed operations read, and kernels of the last layer.
#include "compiler/ops/interface.h"
#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"

// op->mark
enum {
  WHOLE,    // computes all positions
  NARROW,   // computes the last position
  READ_LAST // a loop whose results are read at the last position alone
};

typedef struct narrowing {
  lm_builder b;
  lm_axis t, last; // all positions, and the last one
  lm_value *index; // int[last]: of the last position; NULL until it is needed
  lm_idmap map;    // by value with axis t: its value at the last position
} narrowing;

// ---- which operations

static bool has_axis(lm_type type, lm_axis a) {
  return lm_type_find(type, a) >= 0;
}

static bool is_rowwise(const lm_op *op, lm_axis t) {
  for (int i = 0; i < op->attr.n_axes; i++)
    if (op->attr.axes[i] == t)
      return false;
  for (int i = 0; i < op->attr.n_to; i++)
    if (op->attr.to[i] == t)
      return false;
  switch (lm_op_row_class(op)) {
  case LM_ROW_EACH: return op->n_in > 0;
  case LM_ROW_BY_INDEX: return has_axis(op->in[1]->type, t);
  default: return false;
  }
}

static void operands_note(lm_op *op, void *user) {
  uint8_t *whole = user; // by value id: an operation reads all positions
  for (uint32_t i = 0; i < op->n_in; i++)
    whole[op->in[i]->id] = 1;
}

static int mark_of(const lm_op *op, const uint8_t *whole, lm_axis t) {
  bool read_last = op->n_out > 0;
  for (uint32_t i = 0; i < op->n_out; i++)
    read_last &= !whole[op->out[i]->id];
  if (op->code == LM_OP_LOOP)
    return read_last ? READ_LAST : WHOLE;
  bool narrow = op->n_out == 1 && lm_op_pure(op) && has_axis(op->out[0]->type, t);
  return narrow && read_last && is_rowwise(op, t) ? NARROW : WHOLE;
}

// Marks the operations of a region, from the last but one to the first. The last one reads its
// operands at the last position alone. Returns the number of dots that are narrowed.
static int ops_mark(const lm_module *m, const lm_region *r, lm_axis t) {
  uint8_t *whole = lm_calloc((size_t)m->n_values + 1, 1);
  int dots = 0;
  for (lm_op *op = r->last->prev; op; op = op->prev) {
    op->mark = (uint32_t)mark_of(op, whole, t);
    dots += op->mark == NARROW && op->code == LM_OP_DOT;
    if (op->mark != NARROW)
      operands_note(op, whole);
    if (op->body)
      lm_region_walk(op->body, operands_note, whole);
  }
  lm_free(whole);
  return dots;
}

// ---- the last iteration of a loop

static bool is_peeled(const lm_module *m, const lm_op *op, lm_axis t) {
  return op->mark == READ_LAST && op->n_out == op->n_in && !lm_loop_is_reversed(op) &&
         lm_mesh_ranks(m) == 1 && ops_mark(m, op->body, t) > 0;
}

static void operands_map(lm_op *op, void *user) {
  lm_value **map = user;
  for (uint32_t i = 0; i < op->n_in; i++)
    if (map[op->in[i]->id])
      op->in[i] = map[op->in[i]->id];
}

// Replaces the results of the loop by `map` in the operations from `op` on.
static void results_replace(lm_op *op, lm_value **map) {
  for (; op; op = op->next) {
    operands_map(op, map);
    if (op->body)
      lm_region_walk(op->body, operands_map, map);
  }
}

static void loop_peel(lm_module *m, lm_op *loop) {
  lm_op *next = loop->next;
  lm_value *const *args = loop->body->args;
  const lm_op *yield = loop->body->last;
  lm_builder b = {m, loop->parent, next, loop->loc, 0};
  int64_t last = --loop->attr.imm[0];
  loop->attr.n_axes = 0; // of the trips before; nothing is stacked
  loop->attr.axes[0] = 0;
  lm_value **from = last ? loop->out : loop->in; // the carries of the last iteration
  lm_value *index = lm_emit_const(&b, args[0]->type, (double)last);
  lm_value **map = lm_calloc(m->n_values, sizeof *map);
  map[args[0]->id] = index;
  for (uint32_t i = 0; i < loop->n_in; i++)
    map[args[i + 1]->id] = from[i];
  uint32_t n = m->n_values;
  for (const lm_op *op = loop->body->first; op != yield; op = op->next)
    lm_op_clone(&b, op, map);
  lm_value **results = lm_calloc(m->n_values, sizeof *results);
  for (uint32_t i = 0; i < loop->n_out; i++) {
    lm_value *v = yield->in[i];
    results[loop->out[i]->id] = v->id < n && map[v->id] ? map[v->id] : v;
  }
  results_replace(next, results);
  if (!last)
    lm_op_remove(loop);
  lm_free(results);
  lm_free(map);
}

// The loops of the function, not those in loops.
static void loops_peel(lm_module *m, lm_func *f, lm_axis t) {
  for (lm_op *op = f->body->last, *before; op; op = before) {
    before = op->prev;
    if (op->code != LM_OP_LOOP)
      continue;
    ops_mark(m, f->body, t);
    if (is_peeled(m, op, t))
      loop_peel(m, op);
  }
}

// ---- the last position

static lm_type narrow_type(const narrowing *n, lm_type type) {
  int i = lm_type_find(type, n->t);
  if (i >= 0)
    type.axis[i] = n->last;
  return type;
}

static lm_value *last_index(narrowing *n) {
  lm_type positions = lm_type_make(LM_INT, &n->t, 1);
  lm_value *all = lm_emit(&n->b, LM_OP_IOTA, NULL, 0, NULL, &positions);
  lm_value *last = lm_emit_reduce(&n->b, LM_OP_MAX, all, &n->t, 1);
  return lm_emit_expand(&n->b, last, lm_type_make(LM_INT, &n->last, 1));
}

static lm_value *gathered(narrowing *n, lm_value *v) {
  lm_attr over = {.axes = {n->t}, .n_axes = 1};
  if (!n->index)
    n->index = last_index(n);
  lm_value *x = lm_emit(&n->b, LM_OP_GATHER, (lm_value *[]){v, n->index}, 2, &over, NULL);
  lm_type type = narrow_type(n, v->type);
  return lm_emit_permute(&n->b, x, type.axis, type.rank);
}

// v at the last position; v itself if it has no positions.
static lm_value *narrowed(narrowing *n, lm_value *v) {
  lm_value *known = lm_idmap_get(&n->map, v);
  if (known)
    return known;
  if (!has_axis(v->type, n->t))
    return v;
  lm_type type = narrow_type(n, v->type);
  lm_value *x = NULL;
  if (lm_op_is(v, LM_OP_CONST))
    x = lm_emit_const(&n->b, type, v->def->attr.num);
  else
    x = gathered(n, v);
  lm_idmap_set(&n->map, v, x);
  return x;
}

static void op_narrow(narrowing *n, const lm_op *op) {
  lm_type type = narrow_type(n, op->out[0]->type);
  lm_value **in = lm_calloc(op->n_in, sizeof *in);
  n->b.loc = op->loc;
  n->b.remat = op->remat;
  for (uint32_t i = 0; i < op->n_in; i++)
    in[i] = narrowed(n, op->in[i]);
  lm_value *v = lm_emit(&n->b, op->code, in, op->n_in, &op->attr, &type);
  v->name = op->out[0]->name;
  lm_idmap_set(&n->map, op->out[0], v);
  lm_free(in);
}

static void func_narrow(lm_module *m, lm_func *f, lm_axis t) {
  lm_op *end = f->body->last;
  lm_axis last = lm_axis_add(m, LM_SYM(m->ctx, "last"), 1, 0);
  narrowing n = {{m, f->body, end, end->loc, 0}, t, last, NULL, {0}};
  for (lm_op *op = f->body->first, *stop = end->prev;; op = op->next) {
    if (op->mark == NARROW)
      op_narrow(&n, op);
    if (op == stop)
      break;
  }
  end->in[0] = narrowed(&n, end->in[0]);
  for (lm_op *op = end->prev, *prev; op; op = prev) {
    prev = op->prev;
    if (op->mark == NARROW)
      lm_op_remove(op);
  }
  lm_idmap_free(&n.map);
}

bool lm_pass_narrow(lm_module *m, const lm_pass_env *env) {
  lm_func *f = lm_func_get(m, LM_FUNC_PREFILL, 0);
  const lm_value *logits = f && f->n_out == 1 ? f->body->last->in[0] : NULL;
  if (!logits || logits->type.rank != 3 || lm_axis_size(m, logits->type.axis[1]) == 1)
    return true;
  lm_axis t = logits->type.axis[1];
  loops_peel(m, f, t);
  logits = f->body->last->in[0];
  ops_mark(m, f->body, t);
  if (logits->def && logits->def->mark == NARROW)
    func_narrow(m, f, t);
  return true;
}
