// gemm.c - describes a dot as a GEMM: the axes of one call, and the axes that are looped over.
//
// An axis of a dot is a free axis of x (M), a free axis of w (N), a reduction axis (K) or shared
// (batch). Adjacent axes of one kind that are evenly spaced in all three tensors are merged. One
// axis (or none) of each of M, N and K makes the call: the choice with the largest dot of sizes
// for which every matrix keeps a unit stride. The other axes are loops around the call.
#include <string.h>

#include "compiler/ir/dot.h"
#include "compiler/plan/internal.h"

typedef enum {
  OF_M,
  OF_N,
  OF_K,
  OF_BATCH,
  KINDS
} axis_kind;
typedef struct dim {
  lm_axis axis; // the innermost one
  axis_kind kind;
  int64_t size, s[3]; // s: strides in x, w, z
  lm_plan_extent extent;
  bool dynamic;
} dim;
typedef struct dims {
  dim d[2 * LM_RANK];
  int n;
} dims;

static const dim NONE = {.size = 1, .extent = {.fixed = 1}};

static int64_t stride_of(lm_type t, const int64_t *stride, lm_axis a) {
  int i = lm_type_find(t, a);
  return i < 0 ? 0 : stride[i];
}

static void dims_add(const lm_module *m, const lm_op *dot, lm_axis a, const int64_t *const *strides,
                     dims *out) {
  const lm_axis_info *info = &m->axes[a];
  if (info->size == 1 && !info->dyn)
    return;
  lm_type x = dot->in[0]->type;
  lm_type w = dot->in[1]->type;
  lm_type z = dot->out[0]->type;
  bool in_x = lm_type_find(x, a) >= 0;
  bool in_w = lm_type_find(w, a) >= 0;
  bool in_z = lm_type_find(z, a) >= 0;
  dim *d = &out->d[out->n++];
  *d = (dim){
      .axis = a,
      .kind = !in_z   ? OF_K
              : !in_w ? OF_M
              : !in_x ? OF_N
                      : OF_BATCH,
      .size = info->size,
      .dynamic = info->dyn,
      .s = {stride_of(x, strides[0], a), stride_of(w, strides[1], a), stride_of(z, strides[2], a)},
      .extent = {.fixed = info->dyn ? 1 : info->size, .n_dyn = info->dyn ? 1 : 0},
  };
  if (info->dyn)
    d->extent.dyn[0].var = info->dyn - 1;
}

// True if both are one axis: the stride of `outer` is the extent of `inner` times its stride, in
// every tensor.
static bool mergeable(const dim *outer, const dim *inner) {
  if (outer->kind != inner->kind || inner->dynamic || outer->extent.n_dyn == 4)
    return false;
  for (int i = 0; i < 3; i++)
    if (outer->s[i] != inner->s[i] * inner->size)
      return false;
  return true;
}

static void dims_merge(dims *d) {
  for (int i = 0; i < d->n; i++)
    for (int j = 0; j < d->n; j++) {
      if (i == j || !mergeable(&d->d[i], &d->d[j]))
        continue;
      d->d[j].size *= d->d[i].size;
      d->d[j].dynamic = d->d[i].dynamic;
      int64_t inner = d->d[j].extent.fixed;
      d->d[j].extent = d->d[i].extent;
      d->d[j].extent.fixed *= inner;
      memmove(&d->d[i], &d->d[i + 1], (size_t)(d->n - i - 1) * sizeof *d->d);
      d->n--;
      i = j = -1;
      break;
    }
}

// True if a BLAS library accepts the matrix: of its row and column stride one is 1 and the other at
// least a whole row. An absent axis (size 1) fits any.
static bool matrix_ok(const dim *rows, const dim *cols, int t) {
  int64_t r = rows->s[t];
  int64_t c = cols->s[t];
  bool no_rows = rows->size == 1 && !rows->dynamic;
  bool no_cols = cols->size == 1 && !cols->dynamic;
  if (no_rows && no_cols)
    return true;
  if (no_rows)
    return c > 0;
  if (no_cols)
    return r > 0;
  return (c == 1 && r >= cols->size) || (r == 1 && c >= rows->size);
}

// The first matrix without a unit stride, -1 if there is none.
static int form_fault(const dim *m, const dim *n, const dim *k) {
  if (!matrix_ok(m, k, 0))
    return 0;
  if (!matrix_ok(k, n, 1))
    return 1;
  return matrix_ok(m, n, 2) ? -1 : 2;
}

typedef struct choice {
  int m, n, k; // indices into dims; -1: none
  double flops;
  int fault;
} choice;

static const dim *dim_at(const dims *d, int i) {
  return i < 0 ? &NONE : &d->d[i];
}
static bool is_kind(const dims *d, int i, axis_kind kind) {
  return i < 0 || d->d[i].kind == kind;
}

// True if `rows`, an axis of d, is none of the three.
static bool lacks(const dims *d, lm_axis rows, int m, int n, int k) {
  for (int i = 0; i < d->n; i++)
    if (d->d[i].axis == rows)
      return i != m && i != n && i != k;
  return false;
}

// Prefers a valid form, then the larger one. rows: an axis that the call must have, or 0.
static choice layout_choose(const dims *d, lm_axis rows) {
  choice best = {-1, -1, -1, 0, 3};
  for (int m = -1; m < d->n; m++)
    for (int n = -1; is_kind(d, m, OF_M) && n < d->n; n++)
      for (int k = -1; is_kind(d, n, OF_N) && k < d->n; k++) {
        if (!is_kind(d, k, OF_K) || lacks(d, rows, m, n, k))
          continue;
        const dim *dm = dim_at(d, m);
        const dim *dn = dim_at(d, n);
        const dim *dk = dim_at(d, k);
        choice c = {m, n, k, (double)dm->size * (double)dn->size * (double)dk->size,
                    form_fault(dm, dn, dk)};
        bool valid = c.fault < 0;
        bool best_valid = best.fault < 0;
        if (valid != best_valid ? valid : c.flops > best.flops)
          best = c;
      }
  return best;
}

static void batch_add(lm_plan_gemm *g, const dim *d) {
  LM_ASSERT(g->n_batch < LM_PLAN_BATCH);
  g->batch[g->n_batch].size = d->extent;
  g->batch[g->n_batch].a = d->s[0];
  g->batch[g->n_batch].b = d->s[1];
  g->batch[g->n_batch].c = d->s[2];
  g->batch[g->n_batch++].sum = d->kind == OF_K;
}

static void gemm_fill(const dims *d, choice c, lm_plan_gemm *out) {
  const dim *m = dim_at(d, c.m);
  const dim *n = dim_at(d, c.n);
  const dim *k = dim_at(d, c.k);
  *out = (lm_plan_gemm){.m = m->extent,
                        .n = n->extent,
                        .k = k->extent,
                        .a_m = m->s[0],
                        .a_k = k->s[0],
                        .b_k = k->s[1],
                        .b_n = n->s[1],
                        .c_m = m->s[2],
                        .c_n = n->s[2]};
  for (int sum = 0; sum < 2; sum++)
    for (int i = 0; i < d->n; i++)
      if (i != c.m && i != c.n && i != c.k && (d->d[i].kind == OF_K) == sum)
        batch_add(out, &d->d[i]);
}

// The groups of a grouped_dot or grouped_outer, whose rows are m or k of the call.
static void groups_fill(const lm_module *m, const lm_op *dot, const int64_t *w, const int64_t *z,
                        lm_plan_gemm *out) {
  lm_axis group = dot->in[LM_GROUPED_COUNTS]->type.axis[0];
  out->groups.count = (int)lm_axis_size(m, group);
  out->groups.sums = dot->code == LM_OP_GROUPED_OUTER;
  out->groups.b = stride_of(dot->in[1]->type, w, group);
  out->groups.c = stride_of(dot->out[0]->type, z, group);
}

bool lm_dot_gemm(const lm_module *m, const lm_op *dot, const int64_t *x, const int64_t *w,
                 const int64_t *z, lm_plan_gemm *out, int *out_operand) {
  const int64_t *strides[] = {x, w, z};
  dims d = {.n = 0};
  lm_type tx = dot->in[0]->type;
  lm_type tw = dot->in[1]->type;
  bool grouped = lm_op_is_grouped(dot);
  lm_axis group = grouped ? dot->in[LM_GROUPED_COUNTS]->type.axis[0] : 0;
  for (int i = 0; i < tx.rank; i++)
    dims_add(m, dot, tx.axis[i], strides, &d);
  for (int i = 0; i < tw.rank; i++)
    if (lm_type_find(tx, tw.axis[i]) < 0 && tw.axis[i] != group)
      dims_add(m, dot, tw.axis[i], strides, &d);
  dims_merge(&d);
  choice c = layout_choose(&d, grouped ? lm_grouped_rows(dot) : 0);
  gemm_fill(&d, c, out);
  if (grouped)
    groups_fill(m, dot, w, z, out);
  out->dtype_ab = tx.dtype;
  out->dtype_c = dot->out[0]->type.dtype;
  out->scaled = dot->code == LM_OP_DOT_SCALED;
  out->fast = out->scaled && lm_dot_is_fast(dot);
  for (int i = 0; i < 2 && out->scaled; i++)
    out->scales[i] = (uint8_t)lm_dot_scales(dot, i);
  out->dtype_b = out->scaled ? tw.dtype : 0;
  out->residual = !grouped && lm_dot_residual(dot);
  out->bias = !grouped && lm_dot_bias(dot);
  out->gelu = dot->code == LM_OP_DOT_GELU;
  if (out_operand)
    *out_operand = c.fault;
  return c.fault < 0;
}

// ---- panels

// The axes of columns and of k of a GEMM, of the call and around it.
typedef struct panel_axes {
  lm_plan_batch v[LM_PLAN_BATCH + 2]; // sizes and strides
  int n;
} panel_axes;

static void panel_axis_add(panel_axes *x, lm_plan_batch axis) {
  if (axis.size > 1)
    x->v[x->n++] = axis;
}

static panel_axes panel_axes_of(const lm_plan_gemm *g) {
  panel_axes x = {.n = 0};
  panel_axis_add(&x, (lm_plan_batch){g->n.fixed, 0, g->b_n, g->c_n});
  panel_axis_add(&x, (lm_plan_batch){g->k.fixed, g->a_k, g->b_k, 0});
  for (int i = 0; i < g->n_batch; i++)
    panel_axis_add(
        &x, (lm_plan_batch){g->batch[i].size.fixed, g->batch[i].a, g->batch[i].b, g->batch[i].c});
  return x;
}

// Removes the axis with these strides; returns its size, 1 if there is none. a < 0: any stride,
// which is returned.
static int64_t panel_axis_take(panel_axes *x, int64_t *a, int64_t b, int64_t c) {
  for (int i = 0; i < x->n; i++) {
    lm_plan_batch axis = x->v[i];
    if (axis.b != b || axis.c != c || (*a >= 0 && axis.a != *a))
      continue;
    x->v[i] = x->v[--x->n];
    *a = axis.a;
    return axis.size;
  }
  return 1;
}

static bool has_extents(const lm_plan_gemm *g) {
  bool any = g->n.n_dyn || g->k.n_dyn;
  for (int i = 0; i < g->n_batch; i++)
    any |= g->batch[i].size.n_dyn > 0;
  return any;
}

// B is [panel, k, column, pair] or [panel, k, column]. Which of the axes belong to the call depends
// on the number of rows.
bool lm_gemm_panels(lm_plan_gemm *g, lm_target_panel p) {
  if (!p.columns || has_extents(g))
    return false;
  panel_axes x = panel_axes_of(g);
  bool paired = p.group > 1;
  int64_t none = 0;
  int64_t unit = 1;
  int64_t a_k = paired ? p.group : -1;
  int64_t columns = panel_axis_take(&x, &none, p.group, 1);
  int64_t group = paired ? panel_axis_take(&x, &unit, 1, 0) : 1;
  int64_t k = group * panel_axis_take(&x, &a_k, p.columns * p.group, 0);
  int64_t panels = panel_axis_take(&x, &none, k * p.columns, p.columns);
  bool matrix = panels == 1 && !paired; // a panel, but also a matrix that a library reads
  if (columns != p.columns || group != p.group || x.n || k == group ||
      (matrix && !lm_plan_gemm_any_rows(g)))
    return false;
  g->n.fixed = panels * columns;
  g->k.fixed = k;
  g->a_k = a_k / p.group;
  g->c_n = 1;
  g->b_k = g->b_columns = p.columns;
  g->b_n = k;
  g->b_group = p.group;
  g->n_batch = 0;
  return true;
}

// ---- before locations are known

static bool is_alias(const lm_op *op) {
  return op && lm_op_info_of(op)->traits & LM_T_VIEW;
}

bool lm_plan_strides(const lm_module *m, const lm_value *v, int64_t *out, int64_t *offsets) {
  const lm_op *op = v->def;
  *offsets = 0;
  if (op && op->code == LM_OP_PARAM) {
    *offsets = lm_global_strides(m, lm_global_find((lm_module *)m, op->attr.sym), out);
    return true;
  }
  if (!is_alias(op)) {
    lm_strides_dense(m, v->type, out);
    return true;
  }
  int64_t in[LM_RANK + 1];
  int64_t offset = 0;
  if (!lm_plan_strides(m, op->in[0], in, offsets))
    return false;
  if (op->code == LM_OP_AT)
    memcpy(out, in + 1, v->type.rank * sizeof *out);
  else if (!lm_view_strides(m, op, in, out, &offset))
    return false;
  *offsets |= op->code == LM_OP_AT ? in[0] : offset;
  return true;
}

bool lm_plan_dot_strides_ok(const lm_module *m, const lm_op *dot, int *out_operand) {
  int64_t s[3][LM_RANK];
  int64_t offsets;
  for (int i = 0; i < 2; i++) {
    *out_operand = i;
    if (!lm_plan_strides(m, dot->in[i], s[i], &offsets))
      return false;
  }
  lm_strides_dense(m, dot->out[0]->type, s[2]);
  lm_plan_gemm g;
  // If both operands are dense, or the result is at fault, a copy would not help.
  if (lm_dot_gemm(m, dot, s[0], s[1], s[2], &g, out_operand) || *out_operand > 1)
    return true;
  return !is_alias(dot->in[*out_operand]->def);
}

static bool bias_fits(const lm_module *m, const lm_op *dot, const lm_plan_gemm *g) {
  const lm_value *bias = lm_dot_bias(dot);
  const lm_plan_extent *row = g->c_n == 1 ? &g->n : &g->m;
  return !bias ||
         (g->c_n != g->c_m && !row->n_dyn && row->fixed == lm_type_elements(m, bias->type) &&
          !lm_type_dynamic(m, bias->type));
}

bool lm_plan_gemm_from_dot(const lm_module *m, const lm_op *dot, lm_plan_gemm *out) {
  int64_t s[3][LM_RANK];
  int64_t offsets;
  for (int i = 0; i < 2; i++)
    if (!lm_plan_strides(m, dot->in[i], s[i], &offsets))
      return false;
  lm_strides_dense(m, dot->out[0]->type, s[2]);
  return lm_dot_gemm(m, dot, s[0], s[1], s[2], out, NULL);
}

bool lm_plan_gemm_of_kernel(const lm_module *m, const lm_op *kernel, lm_plan_gemm *out) {
  const lm_op *dot = lm_kernel_dot(kernel);
  int64_t s[3][LM_RANK];
  if (!dot)
    return false;
  lm_strides_dense(m, dot->in[LM_DOT_X]->type, s[0]);
  lm_strides_dense(m, dot->in[LM_DOT_W]->type, s[1]);
  lm_strides_dense(m, dot->out[0]->type, s[2]);
  if (!lm_dot_gemm(m, dot, s[0], s[1], s[2], out, NULL) || out->n_batch)
    return false;
  const lm_op *yield = kernel->body->last;
  for (uint32_t i = 0; i < yield->n_in; i++)
    out->stored |= yield->in[i] == dot->out[0];
  return true;
}

bool lm_plan_gemm_from_epilogue(const lm_module *m, const lm_op *dot, lm_plan_gemm *out) {
  return lm_plan_gemm_from_dot(m, dot, out) && !out->n_batch && bias_fits(m, dot, out);
}
