// chunk_weights.c - the decays of pass chunk_scan, and the weights of earlier positions.
//
// Decays are computed by multiplication, without logarithms and divisions: none is larger than the
// factors of the recurrence, and a = 0 at the first position of a document is exact.
//
// If a lacks n, the weights are a GEMM over n times the decay from j to i, which a scan over the
// positions of a chunk computes: h = a * h, which becomes 1 at the position j. If a has n, a scan
// carries k with its decay, for each j, and sums over n at each position. A GEMM would need
// the decay from j to i as a factor of i times one of j, of which one is not bounded (Yang
// et al. 2023, "Gated Linear Attention", section 4.3); chunks are therefore short.
#include <string.h>
#include "compiler/ops/widen.h"
#include "compiler/passes/chunk/chunk.h"

lm_value *lm_chunk_unit(lm_builder *b, lm_axis j, lm_value *index) {
  lm_type row = lm_type_make(LM_INT, &j, 1);
  lm_type scalar = lm_type_make(LM_F32, NULL, 0);
  lm_value *same = lm_emit2(b, LM_OP_EQ, lm_emit(b, LM_OP_IOTA, NULL, 0, NULL, &row), index);
  lm_value *zero = lm_emit_const(b, scalar, 0);
  return lm_emit_select(b, same, lm_emit_const(b, scalar, 1), zero);
}

static bool is_read(const lm_chunk *c, bool inclusive) {
  for (int i = 0; i < c->n_reads; i++)
    if (c->read[i].inclusive == inclusive)
      return true;
  return false;
}

static lm_value *positions(lm_chunked *x) {
  lm_type row = lm_type_make(LM_INT, &x->i, 1);
  return lm_emit(x->b, LM_OP_IOTA, NULL, 0, NULL, &row);
}

// A value at i with i in front, for the slices of a scan.
static lm_value *rows(lm_chunked *x, lm_value *v) {
  return lm_chunk_front(x, lm_chunk_of(x, v), &x->i, 1);
}

// A scan over the positions of a chunk, h = a * h, which begins with 1. With `from_j`, h has axis
// j, begins with 0, and becomes 1 at the position j: the decay from j to each later position.
static void decay(lm_chunked *x, lm_value *a, bool from_j, lm_value **now, lm_value **before,
                  lm_value **last) {
  lm_builder b = *x->b;
  lm_value *index = positions(x);
  lm_type t = lm_type_make(LM_F32, a->type.axis + 1, a->type.rank - 1);
  if (from_j)
    t.axis[t.rank++] = x->j;
  lm_value *start = lm_emit_const(&b, t, !from_j);
  lm_op *scan = lm_scan_begin(&b, x->i, false, &start, 1);
  lm_value *factor = lm_scan_slice(b.m, scan, a);
  lm_value *position = from_j ? lm_scan_slice(b.m, scan, index) : NULL;
  lm_value *h = scan->body->args[0];
  lm_value *next = lm_emit2(&b, LM_OP_MUL, h, factor);
  if (from_j)
    next = lm_emit2(&b, LM_OP_ADD, next, lm_chunk_unit(&b, x->j, position));
  bool inclusive = is_read(x->of, true);
  lm_value *stacked[] = {inclusive ? next : h, h};
  lm_scan_end(&b, scan, &next, stacked, 1 + (inclusive && is_read(x->of, false)));
  *last = scan->out[0];
  *now = scan->out[1];
  *before = scan->out[scan->n_out - 1];
}

// The decay behind each position to the end of the chunk, at j.
static lm_value *decay_rest(lm_chunked *x, lm_value *a) {
  lm_builder b = *x->b;
  lm_value *start = lm_emit_const(&b, lm_type_make(LM_F32, a->type.axis + 1, a->type.rank - 1), 1);
  lm_op *scan = lm_scan_begin(&b, x->i, true, &start, 1);
  lm_value *h = scan->body->args[0];
  lm_value *next = lm_emit2(&b, LM_OP_MUL, h, lm_scan_slice(b.m, scan, a));
  lm_scan_end(&b, scan, &next, &h, 1);
  return lm_chunk_at_j(x, scan->out[1]);
}

// ---- a lacks n

// [i, chunk, batch, j] with the rows of a chunk side by side.
static lm_value *rows_last(lm_chunked *x, lm_value *v) {
  lm_axis last[LM_RANK];
  int rank = 0;
  for (int i = 0; i < v->type.rank; i++)
    if (v->type.axis[i] != x->i && v->type.axis[i] != x->j)
      last[rank++] = v->type.axis[i];
  last[rank++] = x->i;
  last[rank++] = x->j;
  return lm_emit_permute(x->b, v, last, rank);
}

static lm_value *decayed(lm_chunked *x, lm_value *l, lm_value *c, lm_value *k) {
  lm_type n = x->of->n;
  lm_value *dots = lm_emit_dot(x->b, c, k, n.axis, n.rank);
  return lm_chunk_emit2(x->b, LM_OP_MUL, rows_last(x, l), dots);
}

static void weights_by_gemm(lm_chunked *x, lm_value *a) {
  lm_value *now;
  lm_value *before;
  decay(x, a, true, &now, &before, &x->rest);
  for (int r = 0; r < x->of->n_reads; r++) {
    lm_value *l = x->of->read[r].inclusive ? now : before;
    lm_value *c = lm_chunk_of(x, x->of->read[r].c);
    x->of_k[r] = decayed(x, l, c, x->k);
    x->of_w[r] = x->w ? decayed(x, l, c, x->w) : NULL;
  }
}

// ---- a has n

typedef struct carried {
  lm_value *slice, *h, *next;
} carried;

// The axes of a and k behind i, then j, then n.
static lm_type carry_type(lm_chunked *x, lm_value *a, lm_value *k) {
  lm_type t = {.dtype = LM_F32};
  lm_type n = x->of->n;
  const lm_type from[] = {a->type, k->type};
  for (int f = 0; f < 2; f++)
    for (int i = 1; i < from[f].rank; i++)
      if (lm_type_find(t, from[f].axis[i]) < 0 && lm_type_find(n, from[f].axis[i]) < 0)
        t.axis[t.rank++] = from[f].axis[i];
  t.axis[t.rank++] = x->j;
  for (int i = 0; i < n.rank; i++)
    t.axis[t.rank++] = n.axis[i];
  return t;
}

static void weights_by_scan(lm_chunked *x, lm_value *a) {
  lm_builder b = *x->b;
  lm_chunk *of = x->of;
  lm_type n = of->n;
  int n_keys = of->w ? 2 : 1;
  lm_value *key[2];
  key[0] = rows(x, of->k);
  key[1] = of->w ? rows(x, of->w) : NULL;
  lm_value *index = positions(x);
  lm_value *c[LM_CHUNK_READS];
  lm_value *start[2];
  for (int r = 0; r < of->n_reads; r++)
    c[r] = rows(x, of->read[r].c);
  for (int k = 0; k < n_keys; k++)
    start[k] = lm_emit_const(&b, carry_type(x, a, key[k]), 0);
  lm_op *scan = lm_scan_begin(&b, x->i, false, start, (uint32_t)n_keys);
  a = lm_scan_slice(b.m, scan, a);
  index = lm_scan_slice(b.m, scan, index);
  for (int k = 0; k < n_keys; k++)
    key[k] = lm_scan_slice(b.m, scan, key[k]);
  for (int r = 0; r < of->n_reads; r++)
    c[r] = lm_scan_slice(b.m, scan, c[r]);
  lm_value *unit = lm_chunk_unit(&b, x->j, index);
  lm_value *next[2];
  lm_value *stacked[2 * LM_CHUNK_READS];
  for (int k = 0; k < n_keys; k++) {
    lm_value *h = scan->body->args[k];
    lm_value *added = lm_widen_to(&b, lm_chunk_emit2(&b, LM_OP_MUL, key[k], unit), h->type);
    next[k] = lm_emit2(&b, LM_OP_ADD, lm_chunk_emit2(&b, LM_OP_MUL, h, a), added);
    for (int r = 0; r < of->n_reads; r++)
      stacked[k * of->n_reads + r] =
          lm_emit_dot(&b, of->read[r].inclusive ? next[k] : h, c[r], n.axis, n.rank);
  }
  lm_scan_end(&b, scan, next, stacked, (uint32_t)(n_keys * of->n_reads));
  for (int r = 0; r < of->n_reads; r++) {
    x->of_k[r] = rows_last(x, scan->out[n_keys + r]);
    x->of_w[r] = of->w ? rows_last(x, scan->out[n_keys + of->n_reads + r]) : NULL;
  }
  x->rest = decay_rest(x, rows(x, of->a));
}

void lm_chunk_weights(lm_chunked *x) {
  lm_value *a = rows(x, x->of->a);
  x->of->keyed ? weights_by_scan(x, a) : weights_by_gemm(x, a);
  decay(x, a, false, &x->now, &x->before, &x->whole);
}
