// decompose.c - lowers operations that kernels do not support to operations that they do.
//
// before: %i = argmax %x over(v)
// after:  %m = max %x over(v)   %r = select %x == %m, n - 1 - index, 0
//         %i = n - 1 - (max %r over(v))
// before: %z = scatter_add %u, %i over(v)            (no two elements of %u have one index)
// after:  %z = select clamped %i == iota(v), %u, 0
// before: %s = sum %x over(d) : bf16    (or f16)
// after:  the sum in f32, cast to bf16
// before: scan … { %z = dot %x, %w over(d) }          (scans are kernels)
// after:  scan … { %p = mul %x, %w   %z = sum %p over(d) }
// before: %p = part %x over(tp) (g) -> (g@tp)        (every rank has %x)
// after:  %p = gather %x, iota(g@tp) + rank * size over(g)
// before: %f = first %x over(dp)
// after:  %f = select rank == 0, %x, 0
// before: %s = sum %x over(k)                         (on a GPU, %x of a window with few taps k)
// after:  %a = slice %x (k) [0]   %b = slice %x (k) [1]   %s = add %a, %b
// before: %s = sum %x over(b, t)
// after:  %r = sum %x over(t)   %s = sum %r over(b)
//
// decompose_route.c lowers the operations of routing. The last rewrite makes a long sum a sum of
// rows that are contiguous in memory, followed by a sum of many rows, which pass fuse computes in
// chunks. Declines: sums with many results, and short sums. Cost: none besides the operations
// above.
#include "compiler/ops/interface.h"
#include "compiler/passes/fuse/fuse.h"
#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"

static lm_value *int_const(lm_rewrite *r, int64_t v) {
  return lm_emit_const(&r->b, lm_type_make(LM_INT, NULL, 0), (double)v);
}

static lm_value *iota(lm_rewrite *r, lm_axis a) {
  lm_type t = lm_type_make(LM_INT, &a, 1);
  return lm_emit(&r->b, LM_OP_IOTA, NULL, 0, NULL, &t);
}

// The row-major index over the axes `over` of x; *out_n is the number of elements along them.
static lm_value *row_major_index(lm_rewrite *r, lm_type x, const lm_attr *over, int64_t *out_n) {
  lm_value *sum = NULL;
  *out_n = 1;
  x.dtype = LM_INT;
  for (int i = 0; i < over->n_axes; i++) {
    int64_t size = lm_axis_size(r->b.m, over->axes[i]);
    lm_value *at = lm_cast_to(r, iota(r, over->axes[i]), x);
    sum = sum ? lm_emit2(&r->b, LM_OP_ADD, lm_emit2(&r->b, LM_OP_MUL, sum, int_const(r, size)), at)
              : at;
    *out_n *= size;
  }
  return sum;
}

static lm_value *argmax(lm_rewrite *r, lm_op *op) {
  lm_value *x = op->in[0];
  int64_t n;
  lm_value *best = lm_emit_reduce(&r->b, LM_OP_MAX, x, op->attr.axes, op->attr.n_axes);
  lm_value *here = lm_emit2(&r->b, LM_OP_EQ, x, best);
  lm_value *at = row_major_index(r, x->type, &op->attr, &n);
  lm_value *zero = int_const(r, 0);
  lm_value *from_last = lm_emit2(&r->b, LM_OP_SUB, int_const(r, n - 1), at);
  lm_value *rank = lm_emit_select(&r->b, here, from_last, zero);
  lm_value *first = lm_emit_reduce(&r->b, LM_OP_MAX, rank, op->attr.axes, op->attr.n_axes);
  return lm_emit2(&r->b, LM_OP_SUB, int_const(r, n - 1), first);
}

static lm_value *scatter(lm_rewrite *r, lm_op *op) {
  lm_type to = op->out[0]->type, whole = to;
  if (lm_dtype_is_half(to.dtype)) {
    to.dtype = LM_F32;
    lm_value *in[2] = {lm_emit_cast(&r->b, op->in[0], LM_F32), op->in[1]};
    lm_value *z = lm_emit(&r->b, LM_OP_SCATTER, in, 2, &op->attr, &to);
    return lm_emit_cast(&r->b, z, (lm_dtype)whole.dtype);
  }
  lm_axis v = op->attr.axes[0];
  if (!lm_type_subset(op->in[0]->type, to) || r->b.m->axes[v].dyn)
    return NULL;
  whole.dtype = LM_INT;
  lm_value *at = lm_cast_to(r, lm_emit_clamp(&r->b, op->in[1], lm_axis_size(r->b.m, v)), whole);
  lm_value *here = lm_emit2(&r->b, LM_OP_EQ, at, lm_cast_to(r, iota(r, v), whole));
  lm_value *zero = lm_emit_const(&r->b, lm_type_make((lm_dtype)to.dtype, NULL, 0), 0);
  return lm_emit_select(&r->b, here, lm_cast_to(r, op->in[0], to), zero);
}

// ---- long sums

static int64_t axes_elements(const lm_module *m, const lm_axis *a, int n) {
  int64_t p = 1;
  for (int i = 0; i < n; i++)
    p *= lm_axis_size(m, a[i]);
  return p;
}

// Splits the reduction axes into inner ones, which are last in memory and long enough for a loop,
// and outer ones. False if the sum needs no split.
static bool split_axes(const lm_module *m, const lm_op *op, lm_attr *outer, lm_attr *inner) {
  lm_type x = op->in[0]->type;
  *outer = *inner = (lm_attr){0};
  if (!lm_type_subset(lm_type_make(LM_F32, &x.axis[x.rank - 1], 1),
                      lm_type_make(LM_F32, op->attr.axes, op->attr.n_axes)))
    return false;
  for (int i = x.rank - 1; i >= 0; i--) {
    bool over = false;
    for (int j = 0; j < op->attr.n_axes; j++)
      over |= op->attr.axes[j] == x.axis[i];
    if (!over)
      continue;
    lm_attr *to = axes_elements(m, inner->axes, inner->n_axes) < LM_FUSE_ROW ? inner : outer;
    to->axes[to->n_axes++] = x.axis[i];
  }
  return outer->n_axes && axes_elements(m, outer->axes, outer->n_axes) > 1;
}

static bool in_scan(const lm_op *op) {
  return op->parent->owner && op->parent->owner->code == LM_OP_SCAN;
}

// What the machine asks for.
typedef struct machine {
  int points; // of a kernel that occupy it
  bool taps;  // sums over taps are sums of as many terms
} machine;

enum {
  TAPS = 8,
  DEPTH = 8 // operations behind a window
};

// True if x is computed from a window, whose taps are along the axis.
static bool has_taps(const lm_value *x, lm_axis axis, int depth) {
  const lm_op *op = x->def;
  if (!op || !depth)
    return false;
  if (op->code == LM_OP_WINDOW || op->code == LM_OP_UNWINDOW)
    return op->attr.to[1] == axis;
  bool found = false;
  for (uint32_t i = 0; lm_op_has(op, LM_T_ELEMENTWISE) && i < op->n_in; i++)
    found |= has_taps(op->in[i], axis, depth - 1);
  return found;
}

// A sum over the few taps of a convolution has a term for each, so that the kernel is elementwise
// and its threads compute vectors of channels.
static lm_value *sum_of_taps(lm_rewrite *r, const lm_op *op, lm_value *x) {
  lm_axis k = op->attr.axes[0];
  const machine *to = r->user;
  lm_value *all = NULL;
  int64_t n = lm_axis_size(r->b.m, k);
  if (!to->taps || in_scan(op))
    return NULL;
  if (op->attr.n_axes != 1 || n > TAPS)
    return NULL;
  if (!has_taps(x, k, DEPTH))
    return NULL;
  for (int i = 0; i < n; i++) {
    lm_attr tap = {
        .axes = {k},
        .n_axes = 1,
        .imm = {i, 1},
        .n_imm = 2,
    };
    lm_value *term = lm_emit(&r->b, LM_OP_SLICE, &x, 1, &tap, NULL);
    if (all)
      term = lm_emit2(&r->b, LM_OP_ADD, all, term);
    all = term;
  }
  return all;
}

static lm_value *sum(lm_rewrite *r, lm_op *op) {
  lm_attr outer, inner;
  if (op->parent->owner && lm_op_attends(op->parent->owner))
    return NULL; // attention kernels sum in f32 and round at the end
  const lm_module *m = r->b.m;
  lm_dtype half = (lm_dtype)op->out[0]->type.dtype;
  if (lm_dtype_is_half(half)) {
    lm_value *x = lm_emit_cast(&r->b, op->in[0], LM_F32);
    lm_value *taps = sum_of_taps(r, op, x);
    lm_value *all = taps ? taps : lm_emit(&r->b, LM_OP_SUM, &x, 1, &op->attr, NULL);
    return lm_emit_cast(&r->b, all, half);
  }
  const machine *to = r->user;
  lm_value *taps = sum_of_taps(r, op, op->in[0]);
  if (taps)
    return taps;
  bool many = lm_type_elements(m, op->out[0]->type) >= to->points;
  bool is_short = lm_type_elements(m, op->in[0]->type) <= LM_FUSE_MAX_SERIAL;
  if (in_scan(op) || many || is_short || !split_axes(m, op, &outer, &inner))
    return NULL;
  lm_value *row = lm_emit(&r->b, LM_OP_SUM, &op->in[0], 1, &inner, NULL);
  return lm_emit(&r->b, LM_OP_SUM, &row, 1, &outer, NULL);
}

// ---- dots in scans

// x with the axes that only w has behind its own.
static lm_type factor_axes(lm_type x, lm_type w) {
  for (int i = 0; i < w.rank && x.rank < LM_RANK; i++)
    if (lm_type_find(x, w.axis[i]) < 0)
      x.axis[x.rank++] = w.axis[i];
  return x;
}

static lm_value *dot(lm_rewrite *r, lm_op *op) {
  if (!in_scan(op))
    return NULL;
  lm_value *x = lm_emit_cast(&r->b, op->in[0], LM_F32), *w = lm_emit_cast(&r->b, op->in[1], LM_F32);
  lm_type space = factor_axes(x->type, w->type);
  bool nested = lm_type_subset(w->type, x->type) || lm_type_subset(x->type, w->type);
  lm_value *terms = lm_emit2(&r->b, LM_OP_MUL, nested ? x : lm_emit_expand(&r->b, x, space), w);
  lm_value *sum = lm_emit_reduce(&r->b, LM_OP_SUM, terms, op->attr.axes, op->attr.n_axes);
  lm_type to = op->out[0]->type;
  return lm_emit_cast(&r->b, lm_emit_permute(&r->b, sum, to.axis, to.rank), (lm_dtype)to.dtype);
}

// ---- parts of values that every rank has

static lm_value *rank_of(lm_rewrite *r, const lm_op *op) {
  return lm_emit(&r->b, LM_OP_RANK, NULL, 0, &(lm_attr){.mesh = op->attr.mesh}, NULL);
}

static lm_value *part(lm_rewrite *r, lm_op *op) {
  lm_axis own = op->attr.to[0];
  lm_type to = op->out[0]->type;
  lm_value *size = int_const(r, lm_axis_size(r->b.m, own));
  lm_value *first = lm_emit2(&r->b, LM_OP_MUL, rank_of(r, op), size);
  lm_value *in[2] = {op->in[0], lm_emit2(&r->b, LM_OP_ADD, iota(r, own), first)};
  lm_attr over = {
      .axes = {op->attr.axes[0]},
      .n_axes = 1,
  };
  return lm_emit_permute(&r->b, lm_emit(&r->b, LM_OP_GATHER, in, 2, &over, NULL), to.axis, to.rank);
}

static lm_value *first(lm_rewrite *r, lm_op *op) {
  lm_dtype t = (lm_dtype)op->out[0]->type.dtype;
  lm_value *coordinate = int_const(r, 0);
  lm_value *is_first = lm_emit2(&r->b, LM_OP_EQ, rank_of(r, op), coordinate);
  lm_value *zero = lm_emit_const(&r->b, lm_type_make(t, NULL, 0), 0);
  return lm_emit_select(&r->b, is_first, op->in[0], zero);
}

static lm_value *decompose_rule(lm_rewrite *r, lm_op *op) {
  switch (op->code) {
  case LM_OP_ARGMAX: return argmax(r, op);
  case LM_OP_TOP_K:
  case LM_OP_GROUP_ROWS:
  case LM_OP_UNGROUP_ROWS: return lm_decompose_route(r, op);
  case LM_OP_SCATTER: return scatter(r, op);
  case LM_OP_SUM: return sum(r, op);
  case LM_OP_DOT: return dot(r, op);
  case LM_OP_PART: return part(r, op);
  case LM_OP_FIRST: return first(r, op);
  default: return NULL;
  }
}

bool lm_pass_decompose(lm_module *m, const lm_pass_env *env) {
  machine to = {
      .points = lm_fuse_points(env->target),
      .taps = env->target && env->target->kind == LM_TARGET_CUDA,
  };
  for (lm_func *f = m->funcs; f; f = f->next) {
    lm_rewrite_func(f, lm_decompose_best, &to);
    lm_rewrite_func(f, decompose_rule, &to);
  }
  return true;
}
