// chunk_delta.c - the delta rule in pass chunk_scan.
//
//   r = sum over n of z * h        h' = a * h + u * k + r * w
//
// Within a chunk each r depends on the earlier ones by a triangular matrix,
//   r[i] = own[i] + sum over j < i of matrix[i, j] * r[j] + sum over n of of_h[i] * h
//   own = of_k * u      matrix = of_w      of_h = z * before
// where h is the state before the chunk. If w is scale * k, the same holds of d = u + scale * r,
// the factor of k in the update, which the formulas below call r:
//   own = u      matrix = scale * of_k      of_h = scale * z * before
// With m = (1 - matrix)^-1, r = m * (own + of_h * h): the UT transform of Yang et al. 2024,
// "Parallelizing Linear Transformers with the Delta Rule over Sequence Length". Where keys repeat,
// r is a sum of larger numbers, so that a rounding of m to bf16 matters: it is the sum of two
// matrices in bf16.
//
// A loop over the chunks computes r and the next state. All else is computed for all chunks at
// once, also in the backward pass: what `grad` differentiates is a second loop, whose factors are
// constants.
#include <string.h>
#include "compiler/ops/widen.h"
#include "compiler/passes/chunk/chunk.h"

// The axes of the state without n and p.
static lm_type points_of(const lm_chunk *of) {
  lm_type t = of->lift.scan->in[0]->type;
  t.dtype = LM_F32;
  return lm_type_without(lm_type_without(t, of->n), of->p);
}

static lm_type with_axes(lm_type t, lm_type more) {
  memcpy(t.axis + t.rank, more.axis, more.rank * sizeof *t.axis);
  t.rank = (uint8_t)(t.rank + more.rank);
  return t;
}

// The type of own (over i) or r (over j) in a chunk: the rows before the axes p.
static lm_type type_of_rows(const lm_chunked *x, lm_axis rows) {
  lm_type t = points_of(x->of);
  t.axis[t.rank++] = rows;
  return with_axes(t, x->of->p);
}

// The type of the state in the loop: p behind n, as a kernel holds it (pass chain_kernels).
static lm_type type_of_h(const lm_chunked *x) {
  return with_axes(with_axes(points_of(x->of), x->of->n), x->of->p);
}

enum {
  PARTS = 2
};
// The recurrence from chunk to chunk, with chunk in front:
//   r = sum of inverse * (own + dot(of_h, h, n))      h' = whole * h + dot(r, w, j) + added
typedef struct chain {
  lm_value *own, *of_h;     // at i
  lm_value *inverse[PARTS]; // over j, i; NULL: 0
  lm_value *w, *whole;      // w: at j
  lm_value *added;          // NULL: 0
} chain;

typedef struct chained {
  lm_value *last;       // h after the last chunk
  lm_value *states, *r; // h before each chunk, and its r
} chained;

static lm_value *element(lm_builder *b, lm_value *v, lm_value *index) {
  lm_attr first = {
      .imm = {0, 1},
      .n_imm = 2,
  };
  return lm_emit(b, LM_OP_AT, (lm_value *[]){v, index}, 2, &first, NULL);
}

// The r of a chunk.
static lm_value *rows(lm_chunked *x, const chain *d, lm_value *h, lm_value *at) {
  lm_builder *b = x->b;
  lm_type i = lm_type_make(LM_F32, &x->i, 1);
  lm_type own_type = type_of_rows(x, x->i);
  lm_type r_type = type_of_rows(x, x->j);
  lm_value *own = lm_chunk_f32(x, element(b, d->own, at));
  lm_value *read = lm_chunk_dot(x, element(b, d->of_h, at), h, x->of->n, true);
  own = lm_emit2(b, LM_OP_ADD, lm_widen_to(b, read, own_type), own);
  lm_value *r = NULL;
  for (int k = 0; k < PARTS && d->inverse[k]; k++) {
    lm_value *part = lm_chunk_dot(x, element(b, d->inverse[k], at), own, i, true);
    part = lm_widen_to(b, part, r_type);
    r = r ? lm_emit2(b, LM_OP_ADD, r, part) : part;
  }
  return lm_emit_cast(b, r, x->of->dtype);
}

static chained run(lm_chunked *x, const chain *d) {
  lm_builder *b = x->b;
  lm_value *h0 = lm_widen_to(b, x->of->lift.scan->in[0], type_of_h(x));
  lm_type j = lm_type_make(LM_F32, &x->j, 1);
  lm_op *loop = lm_loop_begin(b, lm_axis_size(b->m, x->chunk), x->chunk, &h0, 1);
  lm_value *at = loop->body->args[0];
  lm_value *h = loop->body->args[1];
  lm_value *r = rows(x, d, h, at);
  lm_value *update = lm_chunk_dot(x, r, element(b, d->w, at), j, true);
  lm_value *next = lm_emit2(b, LM_OP_MUL, h, element(b, d->whole, at));
  if (d->added)
    next = lm_emit2(b, LM_OP_ADD, next, lm_chunk_f32(x, element(b, d->added, at)));
  next = lm_emit2(b, LM_OP_ADD, next, lm_widen_to(b, update, h->type));
  h = lm_emit_cast(b, h, x->of->dtype);
  lm_loop_end(b, loop, &next, 1, (lm_value *[]){h, r}, 2);
  lm_value *last = lm_widen_to(b, loop->out[0], x->of->lift.scan->in[0]->type);
  return (chained){
      .last = last,
      .states = loop->out[1],
      .r = loop->out[2],
  };
}

// v, at i, as `own` of a chain.
static lm_value *as_own(lm_chunked *x, lm_value *v) {
  lm_type t = lm_type_stacked(x->chunk, type_of_rows(x, x->i));
  t.dtype = (uint8_t)x->of->dtype;
  return lm_widen_to(x->b, lm_emit_cast(x->b, v, x->of->dtype), t);
}

// A chain with the same derivative as d at the point where h and r have the values of `value`. The
// loop of this chain multiplies by constant factors. What depends on the derivatives of the factors
// is computed before the loop, by one GEMM over all chunks for each factor, and is a part of `own`
// and `added`. The derivative of the inverse is a part of `own`:
//   dr = inverse * (d own + d matrix * r + d of_h * h)   where h is constant
static chain tangent(lm_chunked *x, const chain *d, lm_value *matrix, const chained *value) {
  lm_builder *b = x->b;
  lm_type j = lm_type_make(LM_F32, &x->j, 1);
  lm_value *h = lm_emit1(b, LM_OP_STOP, value->states);
  lm_value *r = lm_emit1(b, LM_OP_STOP, value->r);
  lm_value *read = as_own(x, lm_chunk_dot(x, d->of_h, h, x->of->n, false));
  lm_value *of_r = as_own(x, lm_chunk_dot(x, matrix, r, j, false));
  lm_value *update = lm_chunk_dot(x, r, d->w, j, false);
  lm_value *kept = lm_chunk_emit2(b, LM_OP_MUL, lm_chunk_f32(x, h), d->whole);
  chain t = *d;
  kept = lm_emit_cast(b, kept, x->of->dtype);
  t.own = lm_emit2(b, LM_OP_ADD, lm_emit2(b, LM_OP_ADD, read, of_r), d->own);
  update = lm_widen_to(b, update, h->type);
  t.added = lm_emit2(b, LM_OP_ADD, update, lm_widen_to(b, kept, h->type));
  if (d->added)
    t.added = lm_emit2(b, LM_OP_ADD, t.added, d->added);
  t.of_h = lm_emit1(b, LM_OP_STOP, d->of_h);
  t.w = lm_emit1(b, LM_OP_STOP, d->w);
  t.whole = lm_emit1(b, LM_OP_STOP, d->whole);
  return t;
}

static lm_value *straight(lm_chunked *x, lm_value *value, lm_value *derivative) {
  return lm_emit2(x->b, LM_OP_STRAIGHT, value, derivative);
}

// The loop over the chunks.
static chained chain_run(lm_chunked *x, const chain *d, lm_value *matrix) {
  chained value = run(x, d);
  chain t = tangent(x, d, matrix, &value);
  chained derivative = run(x, &t);
  value.last = straight(x, value.last, derivative.last);
  value.states = straight(x, value.states, derivative.states);
  value.r = straight(x, value.r, derivative.r);
  return value;
}

static void axes_put(lm_type *t, lm_type of, lm_type but) {
  for (int i = 0; i < of.rank; i++)
    if (lm_type_find(*t, of.axis[i]) < 0 && lm_type_find(but, of.axis[i]) < 0)
      t->axis[t->rank++] = of.axis[i];
}

// v, which has n, times a factor, with chunk in front and n behind the other axes, as GEMMs read
// it.
static lm_value *scaled(lm_chunked *x, lm_value *factor, lm_value *v) {
  lm_type t = lm_type_make(LM_F32, &x->chunk, 1);
  lm_type n = x->of->n;
  axes_put(&t, factor->type, n);
  axes_put(&t, v->type, n);
  axes_put(&t, n, t);
  v = lm_widen_to(x->b, lm_chunk_f32(x, v), t);
  factor = lm_widen_to(x->b, factor, t);
  return lm_emit2(x->b, LM_OP_MUL, factor, v);
}

// What u adds to the state after each chunk.
static lm_value *added(lm_chunked *x) {
  lm_value *k = scaled(x, x->rest, x->k);
  lm_value *sum = lm_chunk_dot(x, k, x->u, lm_type_make(LM_F32, &x->j, 1), false);
  lm_type t = lm_type_stacked(x->chunk, type_of_h(x));
  t.dtype = (uint8_t)x->of->dtype;
  return lm_widen_to(x->b, sum, t);
}

// Sets the parts of the inverse of 1 - matrix, over j, i.
static void inverse_put(lm_chunked *x, lm_value *matrix, chain *d) {
  lm_builder *b = x->b;
  lm_axis rows = lm_axis_add(b->m, b->m->axes[x->i].name, lm_axis_size(b->m, x->i), 0);
  lm_value *m = lm_chunk_front(x, lm_chunk_inverse(x, matrix), &x->chunk, 1);
  m = lm_chunk_rename(x, m, x->i, rows);
  m = lm_chunk_rename(x, m, x->j, x->i);
  m = lm_chunk_rename(x, m, rows, x->j);
  d->inverse[0] = lm_emit_cast(b, m, x->of->dtype);
  if (x->of->dtype == LM_F32)
    return;
  m = lm_emit2(b, LM_OP_SUB, m, lm_chunk_f32(x, d->inverse[0]));
  d->inverse[1] = lm_emit_cast(b, m, x->of->dtype);
}

lm_value *lm_chunk_delta(lm_chunked *x) {
  lm_builder *b = x->b;
  const lm_chunk *of = x->of;
  lm_type j = lm_type_make(LM_F32, &x->j, 1);
  int r = of->delta;
  lm_value *scale = of->scale ? lm_chunk_of(x, of->scale) : NULL;
  lm_value *matrix = scale ? lm_chunk_emit2(b, LM_OP_MUL, x->of_k[r], scale) : x->of_w[r];
  lm_value *z = scale ? lm_chunk_emit2(b, LM_OP_MUL, x->before, scale) : x->before;
  lm_value *own = scale ? lm_chunk_rename(x, x->u, x->j, x->i) : NULL;
  own = own ? own : lm_chunk_dot(x, x->of_k[r], x->u, j, false);
  lm_value *of_h = scaled(x, z, lm_chunk_of(x, of->read[r].c));
  chain d = {0};
  d.own = as_own(x, own);
  d.of_h = lm_emit_cast(b, of_h, of->dtype);
  d.w = lm_emit_cast(b, scaled(x, x->rest, scale ? x->k : x->w), of->dtype);
  d.whole = lm_chunk_front(x, x->whole, &x->chunk, 1);
  d.added = scale ? NULL : added(x);
  inverse_put(x, matrix, &d);
  chained c = chain_run(x, &d, matrix);
  x->states = c.states;
  *(scale ? &x->u : &x->delta) = c.r;
  return c.last;
}
