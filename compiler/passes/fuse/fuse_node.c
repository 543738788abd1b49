// fuse_node.c - the facts that pass `fuse` needs about each operation: whether it is recomputed at
// every use, the axes that its kernel may be parallel over, and its dependences.
#include <string.h>
#include "compiler/ops/interface.h"
#include "compiler/passes/fuse/fuse.h"
#include "compiler/passes/rewrite.h"
#include "compiler/plan/planner.h"
#include "runtime/base/dtype.h"

// Bounds of a recomputation that is cheaper than storing and loading the value: operations per
// element, and bytes read per byte of the value.
enum {
  FREE_FLOPS = 6
};
static const double FREE_BYTES = 1.3;

lm_fuse_node *lm_fuse_node_of(const lm_fuse *s, const lm_value *v) {
  return v->def ? &s->nodes[v->def->mark] : NULL;
}

bool lm_fuse_stays(const lm_op *op) {
  return lm_op_recompute_class(op) == LM_RECOMPUTE_UNFUSED || lm_plan_pads_in_place(op);
}
bool lm_fuse_is_view(const lm_op *op) {
  return lm_op_has(op, LM_T_VIEW) && !lm_fuse_stays(op);
}

// ---- sets of axes as types

static lm_type without(lm_type t, lm_axis a) {
  int at = lm_type_find(t, a);
  if (at < 0)
    return t;
  memmove(t.axis + at, t.axis + at + 1, (size_t)(t.rank - at - 1) * sizeof *t.axis);
  t.axis[--t.rank] = 0;
  return t;
}

static lm_type without_all(lm_type t, const lm_axis *axes, int n) {
  for (int i = 0; i < n; i++)
    t = without(t, axes[i]);
  return t;
}

static void touch(lm_type *t, const lm_axis *axes, int n) {
  for (int i = 0; i < n; i++)
    if (lm_type_find(*t, axes[i]) < 0 && t->rank < LM_RANK)
      t->axis[t->rank++] = axes[i];
}

// ---- cones of recomputed operations

static void leaves_of(const lm_fuse *s, const lm_op *op, lm_type touched, lm_fuse_leaf *fn,
                      void *user) {
  for (uint32_t i = 0; i < op->n_in; i++) {
    lm_type t = touched;
    lm_type more = lm_op_touched_axes(op, i);
    touch(&t, more.axis, more.rank);
    lm_fuse_node *n = lm_fuse_node_of(s, op->in[i]);
    if (n && n->kind == LM_FUSE_REMAT)
      leaves_of(s, n->op, t, fn, user);
    else
      fn(user, op->in[i], t);
  }
}

void lm_fuse_leaves(const lm_fuse *s, const lm_op *op, lm_fuse_leaf *fn, void *user) {
  leaves_of(s, op, (lm_type){0}, fn, user);
}

// ---- recomputed operations

double lm_fuse_bytes_read(const lm_module *m, lm_type t, const lm_value *v) {
  double all = lm_type_traffic(m, v->type);
  double some = (double)lm_type_elements(m, t) * lm_dtype_bytes((lm_dtype)v->type.dtype);
  return all < some ? all : some;
}

bool lm_fuse_rounds(const lm_value *v) {
  return lm_op_is(v, LM_OP_CAST) && lm_op_is(v->def->in[0], LM_OP_UNROUNDED);
}

// x, if op reads `cast (unrounded x)`; else NULL.
static const lm_value *unrounded_operand(const lm_op *op) {
  for (uint32_t i = 0; i < op->n_in; i++)
    if (lm_fuse_rounds(op->in[i]))
      return op->in[i]->def->in[0]->def->in[0];
  return NULL;
}

bool lm_fuse_unrounded(const lm_fuse *s, const lm_op *op) {
  bool found = op->code == LM_OP_UNROUNDED;
  for (uint32_t i = 0; i < op->n_in && !found; i++) {
    const lm_fuse_node *n = lm_fuse_node_of(s, op->in[i]);
    found = n && n->kind == LM_FUSE_REMAT && lm_fuse_unrounded(s, n->op);
  }
  return found;
}

// An operation on an unrounded number x is recomputed where x is. So a sum of x and 0 is stored,
// and rounded, where x would be without the sum.
static lm_fuse_kind kind_of(const lm_fuse *s, const lm_fuse_node *n, double elements,
                            double bytes) {
  const lm_op *op = n->op;
  lm_recompute_class class = lm_op_recompute_class(op);
  bool identity = op->code == LM_OP_UNROUNDED && op->in[0]->type.dtype == LM_F32;
  if (class == LM_RECOMPUTE_FREE || identity || (op->n_out && lm_fuse_rounds(op->out[0])))
    return LM_FUSE_REMAT;
  if (class != LM_RECOMPUTE_CHEAP || op->code == LM_OP_UNROUNDED)
    return LM_FUSE_FUSED;
  const lm_value *x = unrounded_operand(op);
  if (x && x->def)
    return lm_fuse_node_of(s, x)->kind == LM_FUSE_REMAT ? LM_FUSE_REMAT : LM_FUSE_FUSED;
  bool cheap = n->flops <= FREE_FLOPS * elements && n->bytes <= FREE_BYTES * bytes;
  return cheap ? LM_FUSE_REMAT : LM_FUSE_FUSED;
}

static void classify(lm_fuse *s, lm_fuse_node *n) {
  const lm_op *op = n->op;
  lm_type t = op->n_out ? op->out[0]->type : (lm_type){0};
  n->kind = LM_FUSE_UNFUSED;
  if (lm_fuse_stays(op))
    return;
  double own = lm_type_traffic(s->m, t);
  n->flops = lm_op_info_of(op)->flops * (double)lm_type_elements(s->m, t);
  for (uint32_t i = 0; i < op->n_in; i++) {
    lm_fuse_node *from = lm_fuse_node_of(s, op->in[i]);
    bool recomputed = from && from->kind == LM_FUSE_REMAT;
    double part =
        recomputed &&
                (double)lm_type_elements(s->m, op->in[i]->type) > (double)lm_type_elements(s->m, t)
            ? (double)lm_type_elements(s->m, t) / (double)lm_type_elements(s->m, op->in[i]->type)
            : 1;
    n->flops += recomputed ? from->flops * part : 0;
    n->bytes += recomputed ? from->bytes * part : lm_fuse_bytes_read(s->m, t, op->in[i]);
  }
  n->kind = kind_of(s, n, (double)lm_type_elements(s->m, t), own);
}

// A value that is used outside of kernels is stored, so it is computed once; views of it are not
// copied.
static void demand(lm_fuse *s, lm_value *v) {
  lm_fuse_node *n = lm_fuse_node_of(s, v);
  if (!n || n->kind != LM_FUSE_REMAT)
    return;
  if (lm_fuse_is_view(n->op))
    demand(s, n->op->in[0]);
  else if (n->op->code != LM_OP_CONST)
    n->kind = LM_FUSE_FUSED;
}

// ---- axes that may be parallel

// Pads and concatenations are computed part by part, and views that split axes in nested loops, so
// their axes must be inner axes. The few taps of a window are decided at run time instead.
static void keep_inside(const lm_fuse *s, const lm_op *op, lm_type *allowed) {
  lm_type out = op->out[0]->type;
  bool gpu = s->target && s->target->kind == LM_TARGET_CUDA;
  bool rows = gpu && op->code == LM_OP_VIEW && op->attr.n_to == 1 &&
              out.axis[out.rank - 1] != op->attr.to[0];
  if (rows)
    return;
  bool window = op->code == LM_OP_WINDOW || op->code == LM_OP_UNWINDOW;
  bool splits =
      (lm_op_has(op, LM_T_ASSEMBLE) && !window) || (op->code == LM_OP_VIEW && op->attr.n_axes > 1);
  if (splits)
    *allowed = without_all(*allowed, op->attr.to, op->attr.n_to);
}

// True if op reads its operand as a whole: a view of a value in memory is the same memory under
// another type.
static bool reads_operand_whole(const lm_fuse *s, const lm_op *op) {
  if (op->code != LM_OP_VIEW)
    return false;
  const lm_value *v = op->in[0];
  while (v->def && lm_op_has(v->def, LM_T_ORDERED))
    v = v->def->in[0];
  lm_fuse_node *n = lm_fuse_node_of(s, v);
  return !n || n->kind != LM_FUSE_REMAT;
}

static void keep_cone_inside(const lm_fuse *s, const lm_op *op, lm_type *allowed) {
  for (uint32_t i = 0; i < op->n_in; i++) {
    lm_fuse_node *n = lm_fuse_node_of(s, op->in[i]);
    if (!n || n->kind != LM_FUSE_REMAT)
      continue;
    if (!reads_operand_whole(s, n->op))
      keep_inside(s, n->op, allowed);
    keep_cone_inside(s, n->op, allowed);
  }
}

lm_type lm_fuse_allowed_axes(const lm_fuse *s, const lm_fuse_node *n) {
  const lm_op *op = n->op;
  lm_type t = op->out[0]->type;
  if (n->chunk)
    t = lm_type_make(LM_F32, op->attr.axes, op->attr.n_axes);
  else if (op->code == LM_OP_SCATTER)
    for (int i = op->out[0]->type.rank - 1; i >= 0; i--) {
      lm_axis a = op->out[0]->type.axis[i];
      if (a == op->attr.axes[0] || lm_type_find(op->in[0]->type, a) < 0)
        t = without(t, a);
    }
  if (!reads_operand_whole(s, op))
    keep_inside(s, op, &t);
  keep_cone_inside(s, op, &t);
  return t;
}

// ---- column sums

static double axes_elements(const lm_module *m, const lm_attr *a) {
  double p = 1;
  for (int i = 0; i < a->n_axes; i++)
    p *= (double)lm_axis_size(m, a->axes[i]);
  return p;
}

// True if op is a sum of many rows: the innermost axis is not reduced, so one point per row is not
// profitable.
static bool sums_many_rows(const lm_fuse *s, const lm_op *op) {
  const lm_module *m = s->m;
  if (op->code != LM_OP_SUM)
    return false;
  lm_type x = op->in[0]->type;
  double rows = axes_elements(m, &op->attr);
  double kept = (double)lm_type_elements(m, op->out[0]->type);
  for (int i = 0; i < op->attr.n_axes; i++)
    if (op->attr.axes[i] == x.axis[x.rank - 1])
      return false;
  return (double)lm_type_elements(m, x) > LM_FUSE_MAX_SERIAL && rows >= lm_fuse_chunks(s->target) &&
         kept <= 16 * LM_FUSE_MAX_CHUNKED_SUMS &&
         (kept < LM_FUSE_MAX_CHUNKED_SUMS || rows >= 16 * lm_fuse_chunks(s->target));
}

// Equal numbers of chunks share an axis, so that the kernels that add them are identical.
static lm_axis chunk_axis(lm_module *m, lm_type x, int64_t n) {
  return lm_axis_shared(m, LM_SYM(m->ctx, "chunk"), n, x);
}

static void chunk_sums(lm_fuse *s) {
  for (uint32_t i = 1; i < s->n; i++) {
    lm_op *op = s->nodes[i].op;
    if (!sums_many_rows(s, op))
      continue;
    double rows = axes_elements(s->m, &op->attr);
    double chunks = rows / 8 < lm_fuse_chunks(s->target) ? rows / 8 : lm_fuse_chunks(s->target);
    s->nodes[i].chunk = chunk_axis(s->m, op->in[0]->type, (int64_t)chunks);
  }
}

// ---- dependences

typedef struct collect {
  lm_fuse *s;
  lm_fuse_node *n;
  lm_region *region;
} collect;

static void dep_add(void *user, lm_value *v, lm_type touched) {
  collect *c = user;
  if (!v->def || v->region != c->region)
    return;
  LM_PUSH(c->s->arena, c->n->deps, c->n->n_deps, c->n->cap_deps) =
      (lm_fuse_edge){v->def->mark, touched};
}

// A loop depends on the values that its body uses.
static void deps_of_body(collect *c, const lm_region *r) {
  for (const lm_op *op = r->first; op; op = op->next) {
    lm_fuse_leaves(c->s, op, dep_add, c);
    if (op->code == LM_OP_LOOP)
      deps_of_body(c, op->body);
  }
}

void lm_fuse_deps_find(lm_fuse *s, lm_fuse_node *n) {
  collect c = {s, n, n->op->parent};
  n->n_deps = 0;
  lm_fuse_leaves(s, n->op, dep_add, &c);
  if (n->op->code == LM_OP_LOOP)
    deps_of_body(&c, n->op->body);
}

void lm_fuse_walk(lm_region *r, void (*fn)(lm_op *op, void *user), void *user) {
  for (lm_op *op = r->first; op; op = op->next) {
    fn(op, user);
    if (op->code == LM_OP_LOOP)
      lm_fuse_walk(op->body, fn, user);
  }
}

static void count(lm_op *op, void *user) {
  op->mark = (*(uint32_t *)user)++;
}
static void enter(lm_op *op, void *user) {
  ((lm_fuse *)user)->nodes[op->mark].op = op;
}

static void note_size(const lm_fuse *s, lm_fuse_node *n, lm_type t) {
  if ((double)lm_type_elements(s->m, t) <= n->widest)
    return;
  n->widest = (double)lm_type_elements(s->m, t);
  n->innermost = t.rank ? t.axis[t.rank - 1] : 0;
}

// A gather reads only as many elements of its table as its result has.
static void weigh(const lm_fuse *s, lm_fuse_node *n) {
  note_size(s, n, n->op->out[0]->type);
  for (uint32_t i = 0; n->op->code != LM_OP_GATHER && i < n->op->n_in; i++)
    note_size(s, n, n->op->in[i]->type);
  n->work = n->widest;
}

void lm_fuse_nodes_make(lm_fuse *s) {
  s->n = 1;
  lm_fuse_walk(s->f->body, count, &s->n);
  s->nodes = LM_NEW_N(s->arena, lm_fuse_node, s->n);
  lm_fuse_walk(s->f->body, enter, s);
  for (uint32_t i = 1; i < s->n; i++)
    classify(s, &s->nodes[i]);
  for (uint32_t i = s->n - 1; i > 0; i--)
    if (s->nodes[i].kind == LM_FUSE_UNFUSED)
      for (uint32_t j = 0; j < s->nodes[i].op->n_in; j++)
        demand(s, s->nodes[i].op->in[j]);
  chunk_sums(s);
  for (uint32_t i = 1; i < s->n; i++) {
    lm_fuse_node *n = &s->nodes[i];
    lm_fuse_deps_find(s, n);
    n->group = i;
    n->n_group = 1;
    if (n->kind != LM_FUSE_FUSED)
      continue;
    n->allowed = lm_fuse_allowed_axes(s, n);
    weigh(s, n);
  }
}
