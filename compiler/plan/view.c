// view.c - strides of values that are views of others.
#include <string.h>

#include "compiler/plan/internal.h"

void lm_strides_dense(const lm_module *m, lm_type t, int64_t *stride) {
  int64_t n = 1;
  for (int i = t.rank - 1; i >= 0; i--) {
    stride[i] = n;
    n *= lm_axis_size(m, t.axis[i]);
  }
}

bool lm_strides_are_dense(const lm_module *m, lm_type t, const int64_t *stride) {
  int64_t n = 1;
  for (int i = t.rank - 1; i >= 0; i--) {
    int64_t size = lm_axis_size(m, t.axis[i]);
    if (size > 1 && stride[i] != n)
      return false;
    n *= size;
  }
  return true;
}

// The stride of axes from..to (inclusive) merged into one axis. False if they cannot be merged.
static bool run_stride(const lm_module *m, const lm_axis *axes, const int64_t *stride, int from,
                       int to, int64_t *out) {
  int64_t size = 1, unit = 0;
  for (int i = to; i >= from; i--) {
    int64_t n = lm_axis_size(m, axes[i]);
    if (n == 1)
      continue;
    if (size == 1)
      unit = stride[i];
    else if (stride[i] != unit * size)
      return false;
    size *= n;
  }
  *out = unit;
  return true;
}

static void run_split(const lm_module *m, const lm_axis *axes, int64_t *stride, int from, int to,
                      int64_t unit) {
  for (int i = to; i >= from; i--) {
    stride[i] = unit;
    unit *= lm_axis_size(m, axes[i]);
  }
}

// The strides of adjacent axes a viewed as axes b, with the same number of elements. Matches the
// shortest runs of equal size from the right: the axes of a within a run must be mergeable.
static bool regroup(const lm_module *m, const lm_axis *a, int n_a, const int64_t *stride,
                    const lm_axis *b, int n_b, int64_t *out) {
  int i = n_a - 1;
  int j = n_b - 1;
  while (i >= 0 || j >= 0) {
    int last_i = i, last_j = j;
    int64_t left = i >= 0 ? lm_axis_size(m, a[i--]) : 1;
    int64_t right = j >= 0 ? lm_axis_size(m, b[j--]) : 1;
    while (left != right) {
      if (left < right && i >= 0)
        left *= lm_axis_size(m, a[i--]);
      else if (j >= 0)
        right *= lm_axis_size(m, b[j--]);
      else
        return false;
    }
    int64_t unit;
    if (!run_stride(m, a, stride, i + 1, last_i, &unit))
      return false;
    run_split(m, b, out, j + 1, last_j, unit);
  }
  return true;
}

// Replaces n axes of x from index `at` by n_to others with the strides `mid`.
static void splice(const int64_t *x, int rank, int at, int n, const int64_t *mid, int n_to,
                   int64_t *out) {
  memcpy(out, x, (size_t)at * sizeof *out);
  memcpy(out + at, mid, (size_t)n_to * sizeof *out);
  memcpy(out + at + n_to, x + at + n, (size_t)(rank - at - n) * sizeof *out);
}

static void permute(lm_type from, lm_type to, const int64_t *in, int64_t *out) {
  for (int i = 0; i < to.rank; i++)
    out[i] = in[lm_type_find(from, to.axis[i])];
}

static void slice(const lm_op *op, const int64_t *in, int64_t *out, int64_t *out_offset) {
  const lm_attr *a = &op->attr;
  int at = lm_type_find(op->in[0]->type, a->axes[0]);
  int64_t mid = in[at] * a->imm[1];
  *out_offset = in[at] * a->imm[0];
  splice(in, op->in[0]->type.rank, at, 1, &mid, a->n_to, out);
}

bool lm_view_strides(const lm_module *m, const lm_op *op, const int64_t *in, int64_t *out,
                     int64_t *out_offset) {
  const lm_attr *a = &op->attr;
  lm_type x = op->in[0]->type;
  int64_t mid[LM_RANK];
  *out_offset = 0;
  switch (op->code) {
  case LM_OP_PERMUTE: permute(x, op->out[0]->type, in, out); return true;
  case LM_OP_RENAME: memcpy(out, in, x.rank * sizeof *out); return true;
  case LM_OP_SLICE: slice(op, in, out, out_offset); return true;
  case LM_OP_VIEW: {
    int at = lm_type_find(x, a->axes[0]);
    if (!regroup(m, a->axes, a->n_axes, in + at, a->to, a->n_to, mid))
      return false;
    splice(in, x.rank, at, a->n_axes, mid, a->n_to, out);
    return true;
  }
  default: LM_BUG("%s is not a view", lm_op_info_of(op)->name);
  }
}

bool lm_view_invert(const lm_module *m, const lm_op *op, const int64_t *out, int64_t *in) {
  const lm_attr *a = &op->attr;
  lm_type x = op->in[0]->type;
  lm_type y = op->out[0]->type;
  int64_t mid[LM_RANK];
  switch (op->code) {
  case LM_OP_PERMUTE: permute(y, x, out, in); return true;
  case LM_OP_RENAME: memcpy(in, out, x.rank * sizeof *in); return true;
  case LM_OP_VIEW: {
    int at = lm_type_find(x, a->axes[0]);
    if (!regroup(m, a->to, a->n_to, out + at, a->axes, a->n_axes, mid))
      return false;
    splice(out, y.rank, at, a->n_to, mid, a->n_axes, in);
    return true;
  }
  default: return false;
  }
}
