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
// A loop over the chunks computes r and the next state. The matrix is inverted by substitution, row
// by row: powers of of_w, whose factors 1 + of_w^(2^i) also give it, can exceed the inverse by
// orders of magnitude where keys repeat.
#include <string.h>
#include "compiler/ops/widen.h"
#include "compiler/passes/chunk/chunk.h"

// (1 - a)^-1 of a strictly lower triangular a over i, j.
static lm_value *inverse(lm_chunked *x, lm_value *a) {
  lm_builder b = *x->b;
  lm_axis m = lm_axis_add(b.m, b.m->axes[x->i].name, lm_axis_size(b.m, x->i), 0);
  lm_attr to_m = {.axes = {x->j}, .n_axes = 1, .to = {m}, .n_to = 1};
  lm_type row = lm_type_make(LM_INT, &x->i, 1);
  a = lm_emit(&b, LM_OP_RENAME, &a, 1, &to_m, NULL);
  a = lm_chunk_front(x, a, &x->i, 1);
  lm_value *index = lm_emit(&b, LM_OP_IOTA, NULL, 0, NULL, &row);
  lm_type t = lm_type_make(LM_F32, a->type.axis + 1, a->type.rank - 1);
  t.axis[t.rank++] = x->j;
  lm_value *start = lm_emit_const(&b, t, 0);
  lm_op *scan = lm_scan_begin(&b, x->i, false, &start, 1);
  a = lm_scan_slice(b.m, scan, a);
  index = lm_scan_slice(b.m, scan, index);
  lm_value *done = scan->body->args[0]; // the rows before i, along m
  lm_value *next = lm_emit_dot(&b, a, done, &m, 1);
  next = lm_emit2(&b, LM_OP_ADD, next, lm_chunk_unit(&b, x->j, index));
  lm_value *put = lm_chunk_emit2(&b, LM_OP_MUL, next, lm_chunk_unit(&b, m, index));
  lm_value *rows = lm_emit2(&b, LM_OP_ADD, done, lm_widen_to(&b, put, t));
  lm_scan_end(&b, scan, &rows, &next, 1);
  return scan->out[1];
}

// The type of r in a chunk: the axes of the state without n, and j before those of p.
static lm_type type_of_r(const lm_chunked *x, lm_type h) {
  lm_type t = {.dtype = LM_F32};
  const lm_chunk *of = x->of;
  for (int i = 0; i < h.rank; i++)
    if (lm_type_find(of->n, h.axis[i]) < 0 && lm_type_find(of->p, h.axis[i]) < 0)
      t.axis[t.rank++] = h.axis[i];
  t.axis[t.rank++] = x->j;
  for (int i = 0; i < of->p.rank; i++)
    t.axis[t.rank++] = of->p.axis[i];
  return t;
}

static lm_type behind_chunk(const lm_chunked *x, lm_type t) {
  memmove(t.axis + 1, t.axis, t.rank * sizeof *t.axis);
  t.axis[0] = x->chunk;
  t.rank++;
  return t;
}

typedef struct delta {
  lm_value *own, *from; // at j
  lm_value *w, *whole;  // what r adds to the state after the chunk; its decay
  lm_value *added;
} delta;

static lm_value *element(lm_builder *b, lm_value *v, lm_value *index) {
  lm_attr first = {.imm = {0, 1}, .n_imm = 2};
  return lm_emit(b, LM_OP_AT, (lm_value *[]){v, index}, 2, &first, NULL);
}

// The loop over the chunks.
static lm_value *run(lm_chunked *x, const delta *d) {
  lm_builder *b = x->b;
  lm_value *h0 = x->of->lift.scan->in[0];
  lm_type n = x->of->n;
  lm_type r_type = type_of_r(x, h0->type);
  lm_op *loop = lm_loop_begin(b, lm_axis_size(b->m, x->chunk), x->chunk, &h0, 1);
  lm_value *at = loop->body->args[0];
  lm_value *h = loop->body->args[1];
  lm_value *r = lm_emit_dot(b, element(b, d->from, at), h, n.axis, n.rank);
  lm_value *own = element(b, d->own, at);
  r = lm_emit2(b, LM_OP_ADD, lm_widen_to(b, r, r_type), own);
  lm_value *update = lm_emit_dot(b, r, element(b, d->w, at), &x->j, 1);
  lm_value *kept = lm_emit2(b, LM_OP_MUL, h, element(b, d->whole, at));
  lm_value *next = lm_emit2(b, LM_OP_ADD, kept, element(b, d->added, at));
  next = lm_emit2(b, LM_OP_ADD, next, lm_widen_to(b, update, h->type));
  lm_loop_end(b, loop, &next, 1, (lm_value *[]){h, r}, 2);
  x->states = loop->out[1];
  x->delta = loop->out[2];
  return loop->out[0];
}

lm_value *lm_chunk_delta(lm_chunked *x) {
  lm_builder *b = x->b;
  const lm_chunk *of = x->of;
  int r = of->delta;
  lm_value *scale = of->scale ? lm_chunk_at_j(x, lm_chunk_of(x, of->scale)) : NULL;
  lm_value *a = scale ? lm_chunk_emit2(b, LM_OP_MUL, x->of_k[r], scale) : x->of_w[r];
  // The second operand is the one with n, which then is the innermost axis.
  lm_value *w = scale ? lm_chunk_emit2(b, LM_OP_MUL, scale, x->k) : x->w;
  lm_value *z = lm_chunk_emit2(b, LM_OP_MUL, x->before, lm_chunk_of(x, of->read[r].c));
  lm_value *m = inverse(x, a);
  lm_value *own = lm_chunk_at_j(x, lm_emit_dot(b, x->of_k[r], x->u, &x->j, 1));
  lm_value *from = lm_emit_dot(b, m, lm_chunk_at_j(x, z), &x->j, 1);
  own = lm_chunk_at_j(x, lm_emit_dot(b, m, own, &x->j, 1));
  lm_type r_type = behind_chunk(x, type_of_r(x, of->lift.scan->in[0]->type));
  w = lm_chunk_emit2(b, LM_OP_MUL, w, x->rest);
  delta d;
  d.own = lm_widen_to(b, own, r_type);
  d.from = lm_chunk_front(x, lm_chunk_at_j(x, from), &x->chunk, 1);
  d.w = lm_chunk_front(x, w, &x->chunk, 1);
  d.whole = lm_chunk_front(x, x->whole, &x->chunk, 1);
  d.added = lm_chunk_added(x);
  lm_value *last = run(x, &d);
  if (scale)
    x->u = lm_chunk_emit2(b, LM_OP_ADD, x->u, lm_chunk_emit2(b, LM_OP_MUL, x->delta, scale));
  return last;
}
