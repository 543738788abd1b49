// chunk_scan.c - computes linear recurrences over outer products in chunks, by GEMMs.
//
// before: %h, %y = scan over(t) [1, 4, 0] (%s = %h0, %a.1 = %a, %u.1 = %u, %k.1 = %k, %c.1 = %c) {
//           %n = %a.1 * %s + %u.1 * %k.1 : f32[b, h, p, n]
//           %o = dot %n, %c.1 over(n)
//           yield %n, %o
//         }
// after:  t is divided into chunks of C positions, t = (chunk, i); j also counts the positions of a
//         chunk
//         %l = scan over(i) … : f32[i, chunk, b, h, j]     a[j + 1] … a[i], 0 for j > i
//         %q = scan over(i) … : f32[i, chunk, b, h]        a[0] … a[i]
//         %w = dot(%c, %k[j], n) * %l
//         %s = dot(%u[j] * %l[C - 1, j], %k[j], j)         what the chunk adds to the state
//         %h, %before = scan over(chunk) … h = %q[C - 1] * h + %s : f32[b, h, p, n]
//         %y = dot(%w, %u[j], j) + dot(%c, %before, n) * %q
//
// This is the chunked form of Mamba-2 (Dao and Gu 2024, "Transformers are SSMs", section 6) and of
// linear attention with a decay for each head. Decays are computed by multiplication, without
// logarithms: none is larger than the factors of the recurrence, and a = 0 at the first position of
// a document is exact. The scan is recognized by chunk_match.c. The state of size
// p * n is passed from chunk to chunk only; all else is GEMMs and elementwise operations. `grad`
// differentiates the result.
//
// Declines: a that depends on p or n, as in Mamba and in gated linear attention; results that need
// the state itself; lengths without a divisor from 16 to 64; states that are small beside C, for
// which the scan is faster, unless the pass is forced; lengths that are known at run time only, as
// in prefill, where the scan stays. Cost: memory for C numbers for each position and head.
#include <string.h>
#include "compiler/ops/widen.h"
#include "compiler/passes/chunk_match.h"
#include "compiler/passes/pass.h"

enum {
  LEAST_POSITIONS = 16,
  POSITIONS = 64,
  STATE = 8 // times C: the least size of the state
};

typedef struct chunked {
  lm_builder *b;
  lm_chunk *of;
  lm_axis t, chunk, i, j;
  lm_value *l_now, *l_before, *l_last; // [i, chunk, …, j]; last: [chunk, …, j]
  lm_value *q_now, *q_before, *q_last; // [i, chunk, …]
  lm_value *states;                    // before each chunk: [chunk, …]
} chunked;

static lm_value *mul(chunked *x, lm_value *v, lm_value *w) {
  lm_op op = {.code = LM_OP_MUL, .n_in = 2};
  lm_value *out = LM_NEW(x->b->m->arena, lm_value);
  op.out = &out;
  return lm_widen(x->b, &op, (lm_value *[]){v, w});
}

static lm_value *add(chunked *x, lm_value *v, lm_value *w) {
  lm_axis order[LM_RANK];
  memcpy(order, v->type.axis, sizeof order);
  return lm_emit2(x->b, LM_OP_ADD, v, lm_emit_permute(x->b, w, order, v->type.rank));
}

static lm_value *dot(chunked *x, lm_value *v, lm_value *w, const lm_axis *over, int n) {
  return lm_emit_dot(x->b, v, w, over, n);
}

// v, lifted, by chunks: t in front becomes chunk, i. A value that is the same at each position is
// repeated.
static lm_value *by_chunk(chunked *x, lm_value *v) {
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

static lm_value *at_j(chunked *x, lm_value *v) {
  lm_attr a = {.axes = {x->i}, .n_axes = 1, .to = {x->j}, .n_to = 1};
  return lm_emit(x->b, LM_OP_RENAME, &v, 1, &a, NULL);
}

// v with `first` axes in front.
static lm_value *with_front(chunked *x, lm_value *v, const lm_axis *first, int n) {
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

// ---- decays

// 1 where j is the position i, which `index` holds.
static lm_value *unit(lm_builder *b, lm_axis j, lm_value *index) {
  lm_type row = lm_type_make(LM_INT, &j, 1);
  lm_type scalar = lm_type_make(LM_F32, NULL, 0);
  lm_value *same = lm_emit2(b, LM_OP_EQ, lm_emit(b, LM_OP_IOTA, NULL, 0, NULL, &row), index);
  return lm_emit_select(b, same, lm_emit_const(b, scalar, 1), lm_emit_const(b, scalar, 0));
}

static bool is_read(const lm_chunk *c, bool inclusive) {
  for (int i = 0; i < c->n_reads; i++)
    if (c->read[i].inclusive == inclusive)
      return true;
  return false;
}

// A scan over the positions of a chunk, h = a * h, which begins with 1. With `rows`, h has axis j,
// begins with 0, and becomes 1 at the position j: the decay from j to each later position.
static void decay(chunked *x, lm_value *a, bool rows, lm_value **now, lm_value **before,
                  lm_value **last) {
  lm_builder b = *x->b;
  lm_type row = lm_type_make(LM_INT, &x->i, 1);
  lm_value *index = lm_emit(&b, LM_OP_IOTA, NULL, 0, NULL, &row);
  lm_type t = lm_type_make(LM_F32, a->type.axis + 1, a->type.rank - 1);
  if (rows)
    t.axis[t.rank++] = x->j;
  lm_value *start = lm_emit_const(&b, t, !rows);
  lm_op *scan = lm_scan_begin(&b, x->i, false, &start, 1);
  lm_value *factor = lm_scan_slice(b.m, scan, a);
  lm_value *position = rows ? lm_scan_slice(b.m, scan, index) : NULL;
  lm_value *h = scan->body->args[0];
  lm_value *next = lm_emit2(&b, LM_OP_MUL, h, factor);
  if (rows)
    next = lm_emit2(&b, LM_OP_ADD, next, unit(&b, x->j, position));
  bool inclusive = is_read(x->of, true);
  lm_value *stacked[] = {inclusive ? next : h, h};
  lm_scan_end(&b, scan, &next, stacked, 1 + (inclusive && is_read(x->of, false)));
  *last = scan->out[0];
  *now = scan->out[1];
  *before = scan->out[scan->n_out - 1];
}

static void decays(chunked *x) {
  lm_value *a = with_front(x, by_chunk(x, x->of->a), &x->i, 1);
  decay(x, a, true, &x->l_now, &x->l_before, &x->l_last);
  decay(x, a, false, &x->q_now, &x->q_before, &x->q_last);
}

// ---- states

// The state before each chunk. Returns the state after the last one.
static lm_value *states(chunked *x, lm_value *u, lm_value *k) {
  lm_op *old = x->of->lift.scan;
  lm_type h = old->in[0]->type;
  lm_axis order[LM_RANK + 1] = {x->chunk};
  memcpy(order + 1, h.axis, h.rank * sizeof *order);
  lm_value *sum = dot(x, mul(x, u, x->l_last), k, &x->j, 1);
  lm_type whole = lm_type_make(LM_F32, order, h.rank + 1);
  sum = lm_widen_to(x->b, sum, whole);
  lm_builder b = *x->b;
  lm_op *scan = lm_scan_begin(&b, x->chunk, false, old->in, 1);
  lm_value *factor = lm_scan_slice(b.m, scan, with_front(x, x->q_last, &x->chunk, 1));
  lm_value *added = lm_scan_slice(b.m, scan, sum);
  lm_value *before = scan->body->args[0];
  lm_value *next = lm_emit2(&b, LM_OP_ADD, lm_emit2(&b, LM_OP_MUL, before, factor), added);
  lm_scan_end(&b, scan, &next, &before, 1);
  x->states = scan->out[1];
  return scan->out[0];
}

// ---- reads

static lm_value *read(chunked *x, const lm_chunk_read *r, lm_value *u, lm_value *k) {
  lm_value *c = by_chunk(x, r->c);
  lm_value *l = r->inclusive ? x->l_now : x->l_before;
  lm_value *q = r->inclusive ? x->q_now : x->q_before;
  lm_type n = x->of->n;
  lm_axis last[LM_RANK];
  int rank = 0;
  for (int i = 0; i < l->type.rank; i++) // the rows of a chunk side by side
    if (l->type.axis[i] != x->i && l->type.axis[i] != x->j)
      last[rank++] = l->type.axis[i];
  last[rank++] = x->i;
  last[rank++] = x->j;
  lm_value *w = mul(x, lm_emit_permute(x->b, l, last, rank), dot(x, c, k, n.axis, n.rank));
  lm_value *y = dot(x, w, u, &x->j, 1);
  lm_value *earlier = dot(x, c, x->states, n.axis, n.rank);
  y = add(x, y, mul(x, earlier, with_front(x, q, &x->chunk, 1)));
  const lm_axis both[] = {x->chunk, x->i};
  lm_attr merge = {.axes = {x->chunk, x->i}, .n_axes = 2, .to = {x->t}, .n_to = 1};
  y = with_front(x, y, both, 2);
  y = lm_emit(x->b, LM_OP_VIEW, &y, 1, &merge, NULL);
  lm_type in_region = r->of->type;
  lm_type to = {
      .dtype = LM_F32,
      .rank = (uint8_t)(in_region.rank + 1),
      .axis = {x->t},
  };
  memcpy(to.axis + 1, in_region.axis, in_region.rank * sizeof *to.axis);
  y = lm_widen_to(x->b, y, to);
  return r->plus ? add(x, y, lm_widen_to(x->b, r->plus, to)) : y;
}

// ---- the pass

// The largest divisor of n up to POSITIONS; 0 if it is less than LEAST_POSITIONS.
static int64_t positions_of(int64_t n) {
  for (int64_t c = POSITIONS; c >= LEAST_POSITIONS; c--)
    if (n % c == 0)
      return c;
  return 0;
}

static int64_t product_of(const lm_module *m, lm_type t) {
  return lm_type_elements(m, t);
}

static bool is_profitable(const lm_module *m, const lm_chunk *c, int64_t positions) {
  return product_of(m, c->n) * product_of(m, c->p) >= STATE * positions;
}

static void rewrite(lm_chunk *c, int64_t size, uint32_t n_values) {
  lm_op *scan = c->lift.scan;
  lm_module *m = c->lift.b.m;
  lm_axis t = lm_scan_axis(scan);
  lm_sym name = LM_SYM(m->ctx, m->axes[t].name);
  chunked x = {.b = &c->lift.b,
               .of = c,
               .t = t,
               .chunk = lm_axis_add(m, LM_SYM(m->ctx, "chunk"), lm_axis_size(m, t) / size, 0),
               .i = lm_axis_add(m, name, size, 0),
               .j = lm_axis_add(m, name, size, 0)};
  c->lift.b.loc = scan->loc;
  lm_value *u = at_j(&x, by_chunk(&x, c->u));
  lm_value *k = at_j(&x, by_chunk(&x, c->k));
  lm_value **map = lm_calloc((size_t)n_values + 1, sizeof *map);
  decays(&x);
  map[scan->out[0]->id] = states(&x, u, k);
  for (int i = 0; i < c->n_reads; i++) {
    c->lift.map[c->read[i].of->id] = read(&x, &c->read[i], u, k);
    c->lift.ready[c->read[i].of->id] = true;
  }
  for (uint32_t i = 1; i < scan->n_out; i++)
    map[scan->out[i]->id] = lm_scan_lift_stacked(&c->lift, scan->body->last->in[i]);
  lm_func_substitute(scan->parent->func, map, n_values);
  lm_free(map);
  lm_op_remove(scan);
}

static void chunk_visit(lm_module *m, lm_region *r, bool forced) {
  for (lm_op *op = r->first, *next; op; op = next) {
    next = op->next;
    if (op->code == LM_OP_LOOP)
      chunk_visit(m, op->body, forced);
    if (op->code != LM_OP_SCAN || lm_scan_is_backward(op) || m->axes[lm_scan_axis(op)].dyn)
      continue;
    lm_chunk c;
    uint32_t n_values = m->n_values;
    int64_t size = positions_of(lm_axis_size(m, lm_scan_axis(op)));
    if (lm_chunk_match(op, &c) && size && (forced || is_profitable(m, &c, size)))
      rewrite(&c, size, n_values);
    lm_scan_lift_end(&c.lift);
  }
}

bool lm_pass_chunk_scan(lm_module *m, const lm_pass_env *env) {
  for (lm_func *f = m->funcs; f; f = f->next)
    chunk_visit(m, f->body, lm_pass_is_forced(env, "chunk_scan"));
  return true;
}
