// chunk_delta.c - the delta rule in pass chunk_scan.
//
//   r = sum over n of z * h        h' = a * h + u * k + r * w
//
// Within a chunk each r depends on the earlier ones by a triangular matrix,
//   r[i] = sum over j < i of (of_k[i, j] * u[j] + of_w[i, j] * r[j]) + sum over n of z * before * h
// where h is the state before the chunk. With m = (1 - of_w)^-1 the r of a chunk are an affine
// function of h by GEMMs (the UT transform of Yang et al. 2024, "Parallelizing Linear Transformers
// with the Delta Rule over Sequence Length"):
//   r = own + dot(from, h, n)      own = m * of_k * u      from = m * (z * before)
// If w is scale * k, the same holds of d = u + scale * r, the factor of k in the update:
//   d = own + dot(from, h, n)      own = m * u             from = m * (scale * z * before)
// where m is (1 - scale * of_k)^-1.
//
// A loop over the chunks computes r, or d, and the next state, two GEMMs for each chunk. All else
// is computed for all chunks at once, also in the backward pass: what `grad` differentiates is a
// second loop, whose factors are constants.
#include <string.h>
#include "compiler/ops/widen.h"
#include "compiler/passes/chunk/chunk.h"

// The axes of the state without n and p.
static lm_type points_of(const lm_chunk *of) {
  lm_type h = of->lift.scan->in[0]->type;
  lm_type t = {
      .dtype = LM_F32,
  };
  for (int i = 0; i < h.rank; i++)
    if (lm_type_find(of->n, h.axis[i]) < 0 && lm_type_find(of->p, h.axis[i]) < 0)
      t.axis[t.rank++] = h.axis[i];
  return t;
}

static lm_type with_axes(lm_type t, lm_type more) {
  memcpy(t.axis + t.rank, more.axis, more.rank * sizeof *t.axis);
  t.rank = (uint8_t)(t.rank + more.rank);
  return t;
}

// The type of r in a chunk: j before the axes p.
static lm_type type_of_r(const lm_chunked *x) {
  lm_type t = points_of(x->of);
  t.axis[t.rank++] = x->j;
  return with_axes(t, x->of->p);
}

// The type of the state in the loop: p behind n, as a kernel holds it (pass chain_kernels).
static lm_type type_of_h(const lm_chunked *x) {
  return with_axes(with_axes(points_of(x->of), x->of->n), x->of->p);
}

// The recurrence from chunk to chunk, with chunk in front:
//   r = own + dot(from, h, n)      h' = whole * h + dot(r, w, j) + added
// r is d where w is scale * k.
typedef struct chain {
  lm_value *own, *from; // at j
  lm_value *w, *whole;
  lm_value *added; // NULL: 0
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

static chained run(lm_chunked *x, const chain *d) {
  lm_builder *b = x->b;
  lm_value *h0 = lm_widen_to(b, x->of->lift.scan->in[0], type_of_h(x));
  lm_type j = lm_type_make(LM_F32, &x->j, 1);
  lm_type r_type = type_of_r(x);
  lm_op *loop = lm_loop_begin(b, lm_axis_size(b->m, x->chunk), x->chunk, &h0, 1);
  lm_value *at = loop->body->args[0];
  lm_value *h = loop->body->args[1];
  lm_value *r = lm_chunk_dot(x, element(b, d->from, at), h, x->of->n, true);
  lm_value *own = lm_chunk_f32(x, element(b, d->own, at));
  r = lm_emit2(b, LM_OP_ADD, lm_widen_to(b, r, r_type), own);
  r = lm_emit_cast(b, r, x->of->dtype);
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

// The chain whose derivative is that of d, where h and r have the values of `value`: its factors
// are constants, and GEMMs of all factors with these values are terms of own and added.
static chain tangent(lm_chunked *x, const chain *d, const chained *value) {
  lm_builder *b = x->b;
  lm_value *h = lm_emit1(b, LM_OP_STOP, value->states);
  lm_value *r = lm_emit1(b, LM_OP_STOP, value->r);
  lm_value *read = lm_chunk_dot(x, d->from, h, x->of->n, false);
  lm_value *update = lm_chunk_dot(x, r, d->w, lm_type_make(LM_F32, &x->j, 1), false);
  lm_value *kept = lm_chunk_emit2(b, LM_OP_MUL, lm_chunk_f32(x, h), d->whole);
  chain t;
  kept = lm_emit_cast(b, kept, x->of->dtype);
  t.own = lm_emit2(b, LM_OP_ADD, lm_widen_to(b, read, d->own->type), d->own);
  update = lm_widen_to(b, update, h->type);
  t.added = lm_emit2(b, LM_OP_ADD, update, lm_widen_to(b, kept, h->type));
  if (d->added)
    t.added = lm_emit2(b, LM_OP_ADD, t.added, d->added);
  t.from = lm_emit1(b, LM_OP_STOP, d->from);
  t.w = lm_emit1(b, LM_OP_STOP, d->w);
  t.whole = lm_emit1(b, LM_OP_STOP, d->whole);
  return t;
}

static lm_value *straight(lm_chunked *x, lm_value *value, lm_value *derivative) {
  return lm_emit2(x->b, LM_OP_STRAIGHT, value, derivative);
}

// The loop over the chunks.
static chained chain_run(lm_chunked *x, const chain *d) {
  chained value = run(x, d);
  chain t = tangent(x, d, &value);
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

lm_value *lm_chunk_delta(lm_chunked *x) {
  lm_builder *b = x->b;
  const lm_chunk *of = x->of;
  lm_type j = lm_type_make(LM_F32, &x->j, 1);
  int r = of->delta;
  lm_value *scale = of->scale ? lm_chunk_of(x, of->scale) : NULL;
  lm_value *a = scale ? lm_chunk_emit2(b, LM_OP_MUL, x->of_k[r], scale) : x->of_w[r];
  lm_value *z = scale ? lm_chunk_emit2(b, LM_OP_MUL, x->before, scale) : x->before;
  lm_value *w = scaled(x, x->rest, scale ? x->k : x->w);
  lm_value *m = lm_chunk_inverse(x, a);
  lm_value *own = x->u;
  z = lm_chunk_at_j(x, scaled(x, z, lm_chunk_of(x, of->read[r].c)));
  if (!scale)
    own = lm_chunk_at_j(x, lm_chunk_dot(x, x->of_k[r], x->u, j, false));
  lm_value *from = lm_chunk_dot(x, m, z, j, false);
  own = lm_chunk_at_j(x, lm_chunk_dot(x, m, own, j, false));
  lm_type r_type = lm_type_stacked(x->chunk, type_of_r(x));
  r_type.dtype = (uint8_t)of->dtype;
  chain d = {0};
  d.own = lm_widen_to(b, own, r_type);
  d.from = lm_chunk_front(x, lm_chunk_at_j(x, from), &x->chunk, 1);
  d.w = lm_emit_cast(b, w, of->dtype);
  d.whole = lm_chunk_front(x, x->whole, &x->chunk, 1);
  d.added = scale ? NULL : added(x);
  chained c = chain_run(x, &d);
  x->states = c.states;
  *(scale ? &x->u : &x->delta) = c.r;
  return c.last;
}
