// route.c - routing: the best entries along an axis, and rows that are sorted by group.
#include <float.h>
#include <math.h>
#include <string.h>
#include "compiler/eval/internal.h"

// ---- top_k

static double rank_of(double x) {
  return isnan(x) ? -(double)FLT_MAX : x;
}

// The indices of the n best of `size` numbers, `stride` apart, to `out`, `step` apart.
static void best(const double *x, int64_t size, int64_t stride, int64_t n, int64_t step,
                 double *out) {
  int64_t last = -1;
  for (int64_t k = 0; k < n; k++) {
    int64_t at = -1;
    for (int64_t i = 0; i < size; i++) {
      double v = rank_of(x[i * stride]);
      double bound = last < 0 ? 0 : rank_of(x[last * stride]);
      bool left = last < 0 || v < bound || (v == bound && i > last);
      if (left && (at < 0 || v > rank_of(x[at * stride])))
        at = i;
    }
    out[k * step] = (double)at;
    last = at;
  }
}

static void top_k(const lm_eval *e, const lm_op *op, const lm_tensor *in, lm_tensor *out) {
  lm_axis from = op->attr.axes[0];
  lm_axis to = op->attr.to[0];
  int64_t size = lm_eval_size(e, from);
  int64_t n = lm_eval_size(e, to);
  int64_t inner = stride_of(e, in->type, from);
  int64_t outer = in->n / (size * inner);
  for (int64_t i = 0; i < outer; i++)
    for (int64_t j = 0; j < inner; j++)
      best(in->v + i * size * inner + j, size, inner, n, inner, out->v + i * n * inner + j);
}

// ---- groups

// -1: no group.
static int64_t group_of(const lm_tensor *id, int64_t i, int64_t groups) {
  return id->v[i] < 0 ? -1 : (int64_t)fmin(id->v[i], (double)(groups - 1));
}

// The inverse of each id: after all ids of smaller groups and the equal ones before it; -1 without
// a group.
static int64_t *inverse_of(const lm_tensor *id, const lm_tensor *counts) {
  int64_t *next = lm_calloc((size_t)counts->n + 1, sizeof *next);
  int64_t *inverse = lm_calloc((size_t)id->n + 1, sizeof *inverse);
  for (int64_t g = 0; g < counts->n; g++)
    next[g + 1] = next[g] + (int64_t)counts->v[g];
  for (int64_t i = 0; i < id->n; i++) {
    int64_t g = group_of(id, i, counts->n);
    inverse[i] = g < 0 ? -1 : next[g]++;
  }
  lm_free(next);
  return inverse;
}

static void group(const lm_op *op, const lm_tensor *in, lm_tensor *out) {
  int64_t *inverse = inverse_of(&in[0], &in[1]);
  bool sorts = op->code == LM_OP_GROUP_ORDER;
  for (int64_t i = 0; i < out->n; i++)
    out->v[i] = sorts ? -1 : (double)inverse[i];
  for (int64_t i = 0; sorts && i < in[0].n; i++)
    if (inverse[i] >= 0 && inverse[i] < out->n)
      out->v[inverse[i]] = (double)i;
  lm_free(inverse);
}

// Copies element e of the source to row inverse[e] of `to`, or row inverse[e] of `from` to element
// e, unless inverse[e] is -1. The axes of inverse are those of the elements, which a source may
// lack.
static void rows_move(const lm_eval *e, const lm_tensor *inverse, lm_axis n, const lm_tensor *x,
                      lm_tensor *rows_of, bool group) {
  lm_type wide = inverse->type;
  const lm_tensor *sorted = group ? rows_of : x;
  const lm_tensor *plain = group ? x : rows_of;
  for (int i = 0; i < sorted->type.rank; i++)
    if (sorted->type.axis[i] != n)
      wide.axis[wide.rank++] = sorted->type.axis[i];
  nest loops = nest_over(e, wide.axis, wide.rank);
  nest_operand(e, &loops, 0, inverse->type);
  nest_operand(e, &loops, 1, sorted->type);
  nest_operand(e, &loops, 2, plain->type);
  int64_t index[LM_NEST_AXES] = {0};
  int64_t stride = stride_of(e, sorted->type, n);
  for (int i = 0; i >= 0;) {
    int64_t at[3] = {0};
    for (int k = 0; k < 3; k++)
      for (int j = 0; j < loops.rank; j++)
        at[k] += index[j] * loops.step[k][j];
    int64_t row = at[1] + (int64_t)inverse->v[at[0]] * stride;
    bool moves = inverse->v[at[0]] >= 0;
    if (group && moves)
      rows_of->v[row] = x->v[at[2]];
    else if (moves)
      rows_of->v[at[2]] = x->v[row];
    for (i = loops.rank - 1; i >= 0 && ++index[i] == loops.size[i]; i--)
      index[i] = 0;
  }
}

// ---- GEMMs

// x[n, over] w[group, over, free] -> out[n, free], or x[n, a] y[n, b] -> out[group, a, b]: a nest
// over the axes of both operands for each row, in the group that the counts give it.
typedef struct factors {
  const double *x;
  const double *w;
  double *out;
} factors;

static void factors_inner(void *user, int64_t n, const int64_t *at, const int64_t *step) {
  const factors *p = user;
  for (int64_t i = 0; i < n; i++)
    p->out[at[0] + i * step[0]] += p->x[at[1] + i * step[1]] * p->w[at[2] + i * step[2]];
}

static lm_type joined(lm_type a, lm_type b, lm_axis without, lm_axis and_without) {
  lm_type t = {.dtype = a.dtype};
  const lm_type *both[] = {
      &a,
      &b,
  };
  for (int k = 0; k < 2; k++)
    for (int i = 0; i < both[k]->rank; i++) {
      lm_axis axis = both[k]->axis[i];
      if (axis != without && axis != and_without && lm_type_find(t, axis) < 0)
        t.axis[t.rank++] = axis;
    }
  return t;
}

static void grouped(const lm_eval *e, const lm_op *op, const lm_tensor *in, lm_tensor *out) {
  lm_axis group = in[2].type.axis[0];
  lm_axis n = op->code == LM_OP_GROUPED_OUTER ? op->attr.axes[0] : op->out[0]->type.axis[0];
  lm_type t = joined(in[0].type, in[1].type, n, group);
  const lm_tensor *part[] = {
      out,
      &in[0],
      &in[1],
  };
  nest loops = nest_over(e, t.axis, t.rank);
  for (int k = 0; k < 3; k++)
    nest_operand(e, &loops, k, part[k]->type);
  int64_t row = 0;
  int64_t rows = lm_eval_size(e, n);
  for (int64_t g = 0; g < in[2].n; g++)
    for (int64_t i = 0; i < (int64_t)in[2].v[g] && row < rows; i++, row++) {
      for (int k = 0; k < 3; k++)
        loops.start[k] =
            row * stride_of(e, part[k]->type, n) + g * stride_of(e, part[k]->type, group);
      nest_run(&loops, factors_inner, &(factors){in[0].v, in[1].v, out->v});
    }
}

void lm_eval_route(const lm_eval *e, const lm_op *op, const lm_tensor *in, lm_tensor *out) {
  switch (op->code) {
  case LM_OP_TOP_K: top_k(e, op, in, out); break;
  case LM_OP_GROUP_COUNTS:
    for (int64_t i = 0; i < in->n; i++)
      if (in->v[i] >= 0)
        out->v[group_of(in, i, out->n)]++;
    break;
  case LM_OP_GROUP_ORDER:
  case LM_OP_GROUP_INVERSE: group(op, in, out); break;
  case LM_OP_GROUP_ROWS: rows_move(e, &in[2], op->attr.to[0], &in[0], out, true); break;
  case LM_OP_UNGROUP_ROWS: rows_move(e, &in[1], op->attr.axes[0], &in[0], out, false); break;
  default: grouped(e, op, in, out); break;
  }
}
