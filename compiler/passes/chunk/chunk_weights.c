// chunk_weights.c - the weights of earlier positions in pass chunk_scan.
//
// If a lacks n, the weights are a GEMM over n times the decay from j to i. If a has n, a scan
// carries k with its decay, for each j, and sums over n at each position. A GEMM would need
// the decay from j to i as a factor of i times one of j, of which one is not bounded (Yang
// et al. 2023, "Gated Linear Attention", section 4.3) unless a is (chunk_bounded.c); chunks are
// therefore short.
#include <string.h>
#include "compiler/ops/widen.h"
#include "compiler/passes/chunk/chunk.h"

// ---- a lacks n

// v with j and n last, so that j is the innermost axis of a GEMM's result. If v has an axis that c
// lacks, it would be that axis, and the GEMM would have few columns.
static lm_value *columns_last(lm_chunked *x, lm_value *v) {
  lm_type n = x->of->n;
  lm_axis order[LM_RANK];
  int rank = 0;
  for (int i = 0; i < v->type.rank; i++)
    if (v->type.axis[i] != x->j && lm_type_find(n, v->type.axis[i]) < 0)
      order[rank++] = v->type.axis[i];
  order[rank++] = x->j;
  for (int i = 0; i < n.rank; i++)
    order[rank++] = n.axis[i];
  return lm_emit_permute(x->b, v, order, rank);
}

// Those of read r. The matrix of a delta rule is inverted, so that its weights are not rounded.
static lm_value *decayed(lm_chunked *x, int r, lm_value *k) {
  bool inclusive = x->of->read[r].inclusive;
  lm_value *one = x->one[inclusive];
  lm_value *l = lm_chunk_rows_last(x, inclusive ? x->to_now : x->to_before);
  lm_value *c = lm_chunk_of(x, x->of->read[r].c);
  lm_value *dots = lm_chunk_dot(x, c, columns_last(x, k), x->of->n, true);
  lm_value *weights = lm_chunk_emit2(x->b, LM_OP_MUL, l, dots);
  if (!one)
    return weights;
  if (r != x->of->delta) {
    weights = lm_emit_cast(x->b, weights, x->of->dtype);
    if (!x->mixes)
      lm_chunk_keep(x, weights);
    weights = lm_chunk_f32(x, weights);
  }
  return lm_chunk_emit2(x->b, LM_OP_MUL, weights, lm_chunk_rows_last(x, one));
}

static void weights_by_gemm(lm_chunked *x) {
  for (int r = 0; r < x->of->n_reads; r++) {
    x->of_k[r] = decayed(x, r, x->k);
    x->of_w[r] = x->w ? decayed(x, r, x->w) : NULL;
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

static void weights_by_scan(lm_chunked *x) {
  lm_builder b = *x->b;
  lm_chunk *of = x->of;
  lm_type n = of->n;
  int n_keys = of->w ? 2 : 1;
  lm_value *key[2];
  lm_value *a = lm_chunk_rows(x, of->a);
  key[0] = lm_chunk_rows(x, of->k);
  key[1] = of->w ? lm_chunk_rows(x, of->w) : NULL;
  lm_value *index = lm_chunk_positions(x, x->i);
  lm_value *c[LM_CHUNK_READS];
  lm_value *start[2];
  for (int r = 0; r < of->n_reads; r++)
    c[r] = lm_chunk_f32(x, lm_chunk_rows(x, of->read[r].c));
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
    x->of_k[r] = lm_chunk_rows_last(x, scan->out[n_keys + r]);
    x->of_w[r] = of->w ? lm_chunk_rows_last(x, scan->out[n_keys + of->n_reads + r]) : NULL;
  }
}

void lm_chunk_weights(lm_chunked *x) {
  if (!x->of->keyed)
    weights_by_gemm(x);
  else if (lm_axis_size(x->b->m, x->i) <= lm_chunk_bounded(x->of))
    lm_chunk_weights_bounded(x);
  else
    weights_by_scan(x);
}
