// chunk_bounded.c - the weights of pass chunk_scan where a has n and its logarithm a known bound.
//
// The decay from j to i is exp(s[i] - s[j]) of the running sum s of z, a = exp(z). Where all z of a
// chunk are at most MOST in magnitude together, exp(s[i]) and exp(-s[j]) are numbers of bf16, and
// the weights a GEMM:
//   sum over n of (c[i] * exp(s[i])) * (k[j] * exp(-s[j]))    where j <= i, else 0
// Each term has the relative error of its factors, however small their decay is. The decays of
// RWKV-7 have such a bound, exp(-0.61 * sigmoid). Positions with a = 0 are counted as in
// chunk_decay.c.
#include <math.h>
#include "compiler/passes/chunk/chunk.h"
#include "compiler/passes/rewrite.h"

enum {
  DEPTH = 24,
  MOST = 40, // exp(40) is 2e17
  LONGEST = 1 << 20
};

typedef struct range {
  double least, most;
} range;

static const range ALL = {-INFINITY, INFINITY};

static range times(range x, range y) {
  const double all[] = {x.least * y.least, x.least * y.most, x.most * y.least, x.most * y.most};
  range r = {all[0], all[0]};
  for (int i = 0; i < 4; i++) {
    if (!isfinite(all[i]))
      return ALL;
    r.least = fmin(r.least, all[i]);
    r.most = fmax(r.most, all[i]);
  }
  return r;
}

static range range_of(const lm_value *v, int depth) {
  const lm_op *op = v->def;
  double c;
  if (lm_const_of(v, &c))
    return (range){c, c};
  if (!op || !depth)
    return ALL;
  range x = op->n_in && op->code != LM_OP_LOGISTIC ? range_of(op->in[0], depth - 1) : ALL;
  switch (op->code) {
  case LM_OP_LOGISTIC: return (range){0, 1};
  case LM_OP_NEG: return (range){-x.most, -x.least};
  case LM_OP_MUL: return times(x, range_of(op->in[1], depth - 1));
  case LM_OP_CAST:
  case LM_OP_EXPAND:
  case LM_OP_PERMUTE:
  case LM_OP_RENAME:
  case LM_OP_VIEW: return x;
  default: return ALL;
  }
}

// What lm_chunk_exponent_of finds in a.
typedef struct exponent {
  lm_type n;    // the axes of keys
  double least; // a lower bound
  bool found;
} exponent;

static bool has_any(lm_type t, lm_type axes) {
  for (int i = 0; i < axes.rank; i++)
    if (lm_type_find(t, axes.axis[i]) >= 0)
      return true;
  return false;
}

// False if a has no bound, or is 0 at some keys only, which a mask of positions cannot say.
static bool exponent_find(const lm_value *a, int depth, exponent *e) {
  const lm_op *op = a->def;
  double c;
  if (lm_const_of(a, &c))
    return c == 1;
  if (!op || !depth)
    return false;
  switch (op->code) {
  case LM_OP_EXP: {
    range z = range_of(op->in[0], DEPTH);
    e->least += z.least;
    e->found = true;
    return z.most <= 0;
  }
  case LM_OP_MUL:
    return exponent_find(op->in[0], depth - 1, e) && exponent_find(op->in[1], depth - 1, e);
  case LM_OP_EXPAND:
  case LM_OP_PERMUTE: return exponent_find(op->in[0], depth - 1, e);
  case LM_OP_SELECT:
    if (has_any(op->in[0]->type, e->n) || !lm_const_of(op->in[2], &c) || c != 0)
      return false;
    return exponent_find(op->in[1], depth - 1, e);
  default: return false;
  }
}

int64_t lm_chunk_bounded(const lm_chunk *c) {
  exponent e = {
      .n = c->n,
  };
  bool fits = c->keyed && c->dtype == LM_BF16;
  if (!fits || !exponent_find(c->a, LM_CHUNK_DEPTH, &e) || !e.found)
    return 0;
  return (int64_t)fmin(MOST / fabs(e.least), LONGEST);
}

// v times exp(s), rounded. The cotangent of s is a sum over positions in which the terms of the
// other factor cancel, so both multiply by the rounded values: those of 1, which is the derivative
// of s.
static lm_value *scaled(lm_chunked *x, lm_value *v, lm_value *s) {
  lm_value *e = lm_emit1(x->b, LM_OP_STOP, lm_emit1(x->b, LM_OP_EXP, s));
  lm_value *one = lm_emit_const(x->b, s->type, 1);
  v = lm_emit_cast(x->b, lm_chunk_emit2(x->b, LM_OP_MUL, v, e), x->of->dtype);
  one = lm_emit2(x->b, LM_OP_STRAIGHT, one, s);
  return lm_chunk_emit2(x->b, LM_OP_MUL, lm_chunk_f32(x, v), one);
}

static lm_value *weighted(lm_chunked *x, lm_value *c, lm_value *k, lm_value *mask) {
  lm_value *dots = lm_chunk_rows_last(x, lm_chunk_dot(x, c, k, x->of->n, true));
  return lm_chunk_emit2(x->b, LM_OP_MUL, dots, mask);
}

static lm_value *positions_behind(lm_chunked *x, bool inclusive) {
  lm_value *i = lm_chunk_positions(x, x->i);
  lm_value *j = lm_chunk_positions(x, x->j);
  return lm_chunk_emit2(x->b, inclusive ? LM_OP_GE : LM_OP_GT, i, j);
}

// v through the position before each one, of its sums s.
static lm_value *before(lm_chunked *x, lm_value *s, lm_value *v) {
  v = lm_chunk_rows(x, v);
  return lm_chunk_emit2(x->b, LM_OP_SUB, s, v);
}

void lm_chunk_weights_bounded(lm_chunked *x) {
  const lm_chunk *of = x->of;
  lm_chunk_exponent e = {0};
  if (!lm_chunk_exponent_of(x, of->a, &e))
    LM_BUG("a decay without an exponent");
  lm_value *sums = lm_chunk_running_sum(x, e.z);
  lm_value *zeros = e.kept ? lm_chunk_number_of_zeros(x, e.kept) : NULL;
  lm_value *counts = zeros ? lm_chunk_running_sum(x, zeros) : NULL;
  lm_value *minus = lm_emit1(x->b, LM_OP_NEG, lm_chunk_at_j(x, sums));
  lm_value *k = scaled(x, x->k, minus);
  lm_value *w = x->w ? scaled(x, x->w, minus) : NULL;
  for (int r = 0; r < of->n_reads; r++) {
    bool inclusive = of->read[r].inclusive;
    lm_value *s = inclusive ? sums : before(x, sums, e.z);
    lm_value *c = lm_chunk_f32(x, lm_chunk_of(x, of->read[r].c));
    lm_value *mask = positions_behind(x, inclusive);
    c = scaled(x, c, s);
    if (zeros) {
      lm_value *own = inclusive ? counts : before(x, counts, zeros);
      own = lm_chunk_emit2(x->b, LM_OP_EQ, own, lm_chunk_at_j(x, counts));
      mask = lm_chunk_emit2(x->b, LM_OP_AND, own, mask);
    }
    mask = lm_chunk_where(x, mask);
    x->of_k[r] = weighted(x, c, k, mask);
    x->of_w[r] = w ? weighted(x, c, w, mask) : NULL;
  }
}
