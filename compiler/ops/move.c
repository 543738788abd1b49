// move.c - sources, and operations that move elements without computing.
#include <math.h>
#include <string.h>
#include "compiler/ops/ops.h"

// ---- sources

bool shape_given(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  double v = op->attr.num;
  if (out->dtype == LM_INT && (v != floor(v) || v < INT32_MIN || v > INT32_MAX))
    return lm_why(why, "%.17g is not an int", v);
  if (out->dtype == LM_BOOL && v != 0 && v != 1)
    return lm_why(why, "%.17g is not a bool", v);
  if (lm_dtype_is_code((lm_dtype)out->dtype) && v != lm_dtype_round((lm_dtype)out->dtype, v))
    return lm_why(why, "%.17g is not an %s", v, lm_dtype_name((lm_dtype)out->dtype));
  return true;
}

bool shape_iota(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  if (out->dtype == LM_INT && out->rank == 1)
    return true;
  return lm_why_type(why, m, "", *out, " is not int with one axis");
}

bool shape_rng(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  lm_type rows = op->in[1]->type;
  lm_type lines = *out;
  for (uint32_t i = 0; i < 4; i++)
    if (op->in[i]->type.dtype != LM_INT || (i != 1 && op->in[i]->type.rank))
      return lm_why(why, "step, first and layer are scalars of type int, and rows are ints");
  lines.rank -= lines.rank > 0;
  if (!lm_type_subset(rows, lines))
    return lm_why_type(why, m, "rows ", rows, " have other axes than the result without its last");
  if (op->attr.n_imm != 3 || op->attr.imm[2] < 1)
    return lm_why(why, "needs [seed, site, width]");
  return out->dtype == LM_F32 || lm_why_type(why, m, "", *out, " is not f32");
}

// ---- shape

bool shape_expand(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  lm_type x = op->in[0]->type;
  int at = 0;
  for (int i = 0; i < out->rank; i++)
    at += at < x.rank && out->axis[i] == x.axis[at];
  if (at == x.rank && out->dtype == x.dtype)
    return true;
  lm_why_type(why, m, "", *out, " does not hold the axes of ");
  return lm_why_type(why, m, "", x, " in their order");
}

// Replaces n axes from index `at` by `to`.
static bool splice(const lm_module *m, lm_type x, int at, int n, const lm_axis *to, int n_to,
                   lm_type *out, lm_buf *why) {
  if (x.rank - n + n_to > LM_RANK)
    return lm_why(why, "the result has more than %d axes", LM_RANK);
  lm_type t = {
      .dtype = x.dtype,
      .rank = (uint8_t)(x.rank - n + n_to),
  };
  memcpy(t.axis, x.axis, (size_t)at * sizeof *t.axis);
  memcpy(t.axis + at, to, (size_t)n_to * sizeof *t.axis);
  memcpy(t.axis + at + n_to, x.axis + at + n, (size_t)(x.rank - at - n) * sizeof *t.axis);
  for (int i = 0; i < t.rank; i++)
    for (int j = 0; j < i; j++)
      if (t.axis[i] == t.axis[j])
        return lm_why(why, "the result has axis %s twice", lm_axis_name(m, t.axis[i]));
  *out = t;
  return true;
}

static bool axes_product(const lm_module *m, const lm_axis *axes, int n, int64_t *out,
                         lm_buf *why) {
  *out = 1;
  for (int i = 0; i < n; i++) {
    if (m->axes[axes[i]].dyn)
      return lm_why(why, "the extent of axis %s is not known before run time",
                    lm_axis_name(m, axes[i]));
    if (__builtin_mul_overflow(*out, lm_axis_size(m, axes[i]), out))
      return lm_why(why, "the axes hold too many elements");
  }
  return true;
}

static bool has_axis(const lm_module *m, lm_type x, lm_axis a, lm_buf *why) {
  if (lm_type_find(x, a) >= 0)
    return true;
  lm_why_type(why, m, "", x, "");
  return lm_why(why, " has no axis %s", lm_axis_name(m, a));
}

// True if the axes become one axis of a run-time extent: only axes of size 1 precede the dynamic
// one, so that positions are the same at capacity and at run time.
static bool merges_dynamic(const lm_module *m, const lm_attr *a) {
  int i = 0;
  while (i < a->n_axes && !m->axes[a->axes[i]].dyn && m->axes[a->axes[i]].size == 1)
    i++;
  return i < a->n_axes && m->axes[a->axes[i]].dyn && a->n_to == 1 &&
         lm_axis_counts(m, a->to[0], a->axes, a->n_axes);
}

bool shape_view(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  const lm_attr *a = &op->attr;
  lm_type x = op->in[0]->type;
  int64_t before;
  int64_t after;
  if (!a->n_axes)
    return lm_why(why, "no axes are given");
  for (int i = 0; i < a->n_axes; i++)
    if (!has_axis(m, x, a->axes[i], why))
      return false;
  int at = lm_type_find(x, a->axes[0]);
  for (int i = 0; i < a->n_axes; i++)
    if (at + i >= x.rank || x.axis[at + i] != a->axes[i])
      return lm_why(why, "the axes are not adjacent in this order");
  if (merges_dynamic(m, a))
    return splice(m, x, at, a->n_axes, a->to, a->n_to, out, why);
  if (!axes_product(m, a->axes, a->n_axes, &before, why) ||
      !axes_product(m, a->to, a->n_to, &after, why))
    return false;
  if (before != after)
    return lm_why(why, "%lld elements become %lld", (long long)before, (long long)after);
  return splice(m, x, at, a->n_axes, a->to, a->n_to, out, why);
}

bool shape_permute(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  lm_type x = op->in[0]->type;
  if (x.rank == out->rank && x.dtype == out->dtype && lm_type_subset(x, *out))
    return true;
  return lm_why_type(why, m, "", *out, " does not have the same axes");
}

static bool same_extent(const lm_module *m, lm_axis a, lm_axis b) {
  return m->axes[a].size == m->axes[b].size && m->axes[a].dyn == m->axes[b].dyn;
}

bool shape_rename(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  const lm_attr *a = &op->attr;
  lm_type t = op->in[0]->type;
  if (a->n_axes != a->n_to || !a->n_axes)
    return lm_why(why, "needs one new axis per axis");
  for (int i = 0; i < a->n_axes; i++) {
    if (!has_axis(m, op->in[0]->type, a->axes[i], why))
      return false;
    if (!same_extent(m, a->axes[i], a->to[i]))
      return lm_why(why, "axes %s and %s differ in size", lm_axis_name(m, a->axes[i]),
                    lm_axis_name(m, a->to[i]));
    t.axis[lm_type_find(op->in[0]->type, a->axes[i])] = a->to[i];
  }
  for (int i = 0; i < t.rank; i++)
    for (int j = 0; j < i; j++)
      if (t.axis[i] == t.axis[j])
        return lm_why(why, "the result has axis %s twice", lm_axis_name(m, t.axis[i]));
  *out = t;
  return true;
}

// True if the elements first + step * j for j < n are in [0, size).
static bool indices_fit(const lm_module *m, const lm_attr *a, int64_t n, lm_axis whole,
                        lm_buf *why) {
  if (a->n_imm != 2)
    return lm_why(why, "needs [first, step]");
  int64_t first = a->imm[0];
  int64_t step = a->imm[1];
  int64_t size = lm_axis_size(m, whole);
  int64_t last;
  bool bad =
      __builtin_mul_overflow(step, n - 1, &last) || __builtin_add_overflow(last, first, &last);
  if (!step)
    return lm_why(why, "the step is 0");
  if (!bad && first >= 0 && first < size && last >= 0 && last < size)
    return true;
  return lm_why(why, "first %lld, step %lld, count %lld exceed axis %s of size %lld",
                (long long)first, (long long)step, (long long)n, lm_axis_name(m, whole),
                (long long)size);
}

bool shape_slice(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  const lm_attr *a = &op->attr;
  lm_type x = op->in[0]->type;
  if (a->n_axes != 1 || a->n_to > 1)
    return lm_why(why, "needs one axis, and at most one new axis");
  if (!has_axis(m, x, a->axes[0], why))
    return false;
  if (!indices_fit(m, a, a->n_to ? lm_axis_size(m, a->to[0]) : 1, a->axes[0], why))
    return false;
  return splice(m, x, lm_type_find(x, a->axes[0]), 1, a->to, a->n_to, out, why);
}

bool shape_pad(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  const lm_attr *a = &op->attr;
  lm_type x = op->in[0]->type;
  if (a->n_axes > 1 || a->n_to != 1)
    return lm_why(why, "needs at most one axis, and one new axis");
  if (a->n_axes && !has_axis(m, x, a->axes[0], why))
    return false;
  if (!indices_fit(m, a, a->n_axes ? lm_axis_size(m, a->axes[0]) : 1, a->to[0], why))
    return false;
  return splice(m, x, a->n_axes ? lm_type_find(x, a->axes[0]) : x.rank, a->n_axes, a->to, 1, out,
                why);
}

// The bounds keep u * stride + k * dilate - before within 64 bits.
static bool taps_fit(const lm_attr *a, lm_buf *why) {
  if (a->n_imm != 3)
    return lm_why(why, "needs [before, stride, dilate]");
  const int64_t *v = a->imm;
  bool fits = v[0] >= 0 && v[1] >= 1 && v[2] >= 1;
  for (int i = 0; i < 3; i++)
    fits &= v[i] <= INT32_MAX;
  return fits || lm_why(why, "before %lld, stride %lld or dilate %lld is out of bounds",
                        (long long)v[0], (long long)v[1], (long long)v[2]);
}

// A run-time extent is known only of an axis that keeps its positions.
static bool extents_fit(const lm_module *m, const lm_attr *a, lm_axis t, lm_axis u, lm_buf *why) {
  if (!m->axes[t].dyn && !m->axes[u].dyn)
    return true;
  return (same_extent(m, t, u) && a->imm[1] == 1) ||
         lm_why(why, "axis %s has no fixed extent", lm_axis_name(m, t));
}

bool shape_window(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  const lm_attr *a = &op->attr;
  lm_type x = op->in[0]->type;
  if (a->n_axes != 1 || a->n_to != 2)
    return lm_why(why, "needs (t) -> (u, k)");
  if (!has_axis(m, x, a->axes[0], why) || !taps_fit(a, why) ||
      !extents_fit(m, a, a->axes[0], a->to[0], why))
    return false;
  return splice(m, x, lm_type_find(x, a->axes[0]), 1, a->to, 2, out, why);
}

bool shape_unwindow(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  const lm_attr *a = &op->attr;
  lm_type x = op->in[0]->type;
  if (a->n_axes != 2 || a->n_to != 2 || a->axes[1] != a->to[1])
    return lm_why(why, "needs (u, k) -> (t, k)");
  int at = lm_type_find(x, a->axes[0]);
  if (!has_axis(m, x, a->axes[0], why) || !has_axis(m, x, a->axes[1], why) || !taps_fit(a, why) ||
      !extents_fit(m, a, a->to[0], a->axes[0], why))
    return false;
  return splice(m, x, at, 1, a->to, 1, out, why);
}

bool shape_concat(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  const lm_attr *a = &op->attr;
  if (!op->n_in || a->n_axes != op->n_in || a->n_to != 1)
    return lm_why(why, "needs an axis for each operand, and one for the result");
  int64_t size = 0;
  for (uint32_t i = 0; i < op->n_in; i++) {
    lm_type x = op->in[i]->type;
    lm_type t;
    if (!has_axis(m, x, a->axes[i], why))
      return false;
    if (m->axes[a->axes[i]].dyn)
      return lm_why(why, "axis %s has no fixed extent", lm_axis_name(m, a->axes[i]));
    if (!splice(m, x, lm_type_find(x, a->axes[i]), 1, a->to, 1, &t, why))
      return false;
    if (i && !lm_type_equal(t, *out)) {
      lm_why_type(why, m, "the parts differ: ", *out, "");
      return lm_why_type(why, m, " and ", t, "");
    }
    *out = t;
    size += lm_axis_size(m, a->axes[i]);
  }
  if (size == lm_axis_size(m, a->to[0]))
    return true;
  return lm_why(why, "the parts have %lld elements in total, axis %s has %lld", (long long)size,
                lm_axis_name(m, a->to[0]), (long long)lm_axis_size(m, a->to[0]));
}
