// fuse_group.c - assigns operations to kernels.
//
// The parallel axes of a group are axes that all its operations have and none of them reduces.
// Along these axes an operation reads the results of other operations of the group only at its
// own point. A point therefore depends on no other point, and values between operations of a
// group stay in registers or in a row buffer. Groups grow greedily, first along the dependences in
// program order, then between groups that read the same values. Two groups are not merged if the
// parallel axes would leave too few points for the work, or if an operation outside would have to
// run in between.
//
// A merge may prevent a better one, as that of the sums of rows with a later kernel that reads the
// sums alone prevents one with a kernel that reads the rows. So groups of a GPU also grow in
// another order: along dependences on few numbers last, and before that between groups that read
// the same large values. A region has that order if it moves clearly fewer bytes.
#include <string.h>
#include "compiler/passes/fuse/fuse.h"
#include "compiler/passes/rewrite.h"
#include "compiler/plan/cost.h"

static double type_elements(const lm_module *m, lm_type t) {
  return (double)lm_type_elements(m, t);
}

static bool is_gpu(const lm_fuse *s) {
  return s->target && s->target->kind == LM_TARGET_CUDA;
}

static lm_type intersect(lm_type a, lm_type b) {
  lm_type t = {0};
  for (int i = 0; i < a.rank; i++)
    if (lm_type_find(b, a.axis[i]) >= 0)
      t.axis[t.rank++] = a.axis[i];
  return t;
}

// ---- paths between groups

static uint32_t group_of(const lm_fuse *s, uint32_t node) {
  return s->nodes[node].group;
}

static bool search(lm_fuse *s, uint32_t group, uint32_t target) {
  if (group == target)
    return true;
  if (s->nodes[group].visit == s->visits)
    return false;
  s->nodes[group].visit = s->visits;
  for (uint32_t n = group; n; n = s->nodes[n].next)
    for (uint32_t i = 0; i < s->nodes[n].n_deps; i++)
      if (search(s, group_of(s, s->nodes[n].deps[i].from), target))
        return true;
  return false;
}

// True if `late` depends on `early` through an operation outside of both.
static bool path_around(lm_fuse *s, uint32_t early, uint32_t late) {
  s->visits++;
  s->nodes[late].visit = s->visits;
  for (uint32_t n = late; n; n = s->nodes[n].next)
    for (uint32_t i = 0; i < s->nodes[n].n_deps; i++) {
      uint32_t g = group_of(s, s->nodes[n].deps[i].from);
      if (g != early && g != late && search(s, g, early))
        return true;
    }
  return false;
}

// ---- merging

// Adds to t the axes that edges from group a to group b touch. False if one of the edges cannot be
// inside a kernel.
static bool touched_between(const lm_fuse *s, uint32_t a, uint32_t b, lm_type *t) {
  for (uint32_t n = b; n; n = s->nodes[n].next)
    for (uint32_t i = 0; i < s->nodes[n].n_deps; i++) {
      const lm_fuse_edge *e = &s->nodes[n].deps[i];
      if (group_of(s, e->from) != a)
        continue;
      if (s->nodes[e->from].op->code == LM_OP_SCATTER || s->nodes[e->from].chunk)
        return false;
      for (int k = 0; k < e->touched.rank; k++)
        if (lm_type_find(*t, e->touched.axis[k]) < 0 && t->rank < LM_RANK)
          t->axis[t->rank++] = e->touched.axis[k];
    }
  return true;
}

static bool has_column_sum(const lm_fuse *s, uint32_t g) {
  for (uint32_t n = g; n; n = s->nodes[n].next)
    if (s->nodes[n].chunk)
      return true;
  return false;
}

static bool scatters(const lm_fuse *s, uint32_t g) {
  return s->nodes[g].op->code == LM_OP_SCATTER;
}

// A copy of codes with another last axis, which a kernel of a GPU writes through a tile of them
// (codegen/cuda/transpose.c) if it has no reductions. A reduction has a row at a time, and would
// write single bytes a row apart.
static bool is_transposed_copy(const lm_fuse_node *n) {
  const lm_op *op = n->op;
  if (op->code != LM_OP_CAST || !lm_dtype_is_code((lm_dtype)op->out[0]->type.dtype) ||
      !lm_op_is(op->in[0], LM_OP_PERMUTE))
    return false;
  lm_type to = op->out[0]->type, from = op->in[0]->def->in[0]->type;
  return to.rank && to.axis[to.rank - 1] != from.axis[from.rank - 1];
}

static bool is_reduction(const lm_fuse_node *n) {
  return n->op->code == LM_OP_SUM || n->op->code == LM_OP_MAX;
}

static bool any_of(const lm_fuse *s, uint32_t g, bool (*is)(const lm_fuse_node *n)) {
  bool found = false;
  for (uint32_t n = g; n && !found; n = s->nodes[n].next)
    found = is(&s->nodes[n]);
  return found;
}

// True if one of the groups has such a copy and the other one a reduction.
static bool writes_apart(const lm_fuse *s, uint32_t a, uint32_t b) {
  if (!is_gpu(s))
    return false;
  return (any_of(s, a, is_transposed_copy) && any_of(s, b, is_reduction)) ||
         (any_of(s, b, is_transposed_copy) && any_of(s, a, is_reduction));
}

// Sets the parallel axes of the merged group. A group with column sums keeps its own.
static bool merged_axes(const lm_fuse *s, uint32_t a, uint32_t b, lm_type *out) {
  lm_type touched = {0};
  if (!touched_between(s, a, b, &touched) || !touched_between(s, b, a, &touched))
    return false;
  lm_type x = s->nodes[a].allowed;
  lm_type y = s->nodes[b].allowed;
  *out = lm_type_without(x.rank >= y.rank ? intersect(x, y) : intersect(y, x), touched);
  bool fixed_a = has_column_sum(s, a);
  bool fixed_b = has_column_sum(s, b);
  return (!fixed_a || lm_type_same_axes(*out, x)) && (!fixed_b || lm_type_same_axes(*out, y));
}

static double fewer(double n, double most) {
  return n < most ? n : most;
}

// Parallel workers of a kernel: its points, where points along the innermost axis are SIMD lanes of
// one worker.
static double workers(const lm_fuse *s, lm_type parallel, lm_axis innermost) {
  double lanes = lm_type_find(parallel, innermost) < 0 ? 1 : (double)lm_axis_size(s->m, innermost);
  double points = type_elements(s->m, parallel);
  return fewer(points / fewer(lanes, LM_FUSE_ROW), lm_fuse_points(s->target));
}

typedef struct largest {
  const lm_value *v;
  int64_t elements;
} largest;

static void larger(void *user, lm_value *v, lm_type touched) {
  largest *l = user;
  const lm_module *m = v->region->func->module;
  int64_t n = lm_type_elements(m, v->type);
  if (n > l->elements)
    *l = (largest){v, n};
}

// The largest value that a group reads.
static const lm_value *largest_operand(const lm_fuse *s, uint32_t group) {
  largest l = {0};
  for (uint32_t n = group; n; n = s->nodes[n].next)
    lm_fuse_leaves(s, s->nodes[n].op, larger, &l);
  return l.v;
}

// True if one kernel is not slower than two that exchange values through memory. Times are in
// elements per worker.
static bool is_profitable(const lm_fuse *s, uint32_t a, uint32_t b, lm_type parallel) {
  const lm_fuse_node *x = &s->nodes[a];
  const lm_fuse_node *y = &s->nodes[b];
  lm_axis innermost = x->widest >= y->widest ? x->innermost : y->innermost;
  double one = (x->work + y->work) / workers(s, parallel, innermost);
  double two = x->work / workers(s, x->allowed, x->innermost) +
               y->work / workers(s, y->allowed, y->innermost);
  return one <= two + LM_FUSE_LAUNCH;
}

// True if two groups read one large value, as the sums of its rows and of its columns do, and the
// points of both occupy a GPU, whose thread groups share a point.
static bool read_one_value(const lm_fuse *s, uint32_t a, uint32_t b, lm_type parallel) {
  const lm_fuse_node *x = &s->nodes[a];
  const lm_fuse_node *y = &s->nodes[b];
  double points = type_elements(s->m, parallel);
  if (!is_gpu(s) || points < lm_fuse_points(s->target))
    return false;
  if (x->widest < points * LM_FUSE_ROW || x->widest != y->widest)
    return false;
  const lm_value *v = largest_operand(s, a);
  return v && v == largest_operand(s, b);
}

static void join(lm_fuse *s, uint32_t a, uint32_t b, lm_type parallel) {
  uint32_t last = a;
  while (s->nodes[last].next)
    last = s->nodes[last].next;
  s->nodes[last].next = b;
  for (uint32_t n = b; n; n = s->nodes[n].next)
    s->nodes[n].group = a;
  s->nodes[a].allowed = parallel;
  s->nodes[a].n_group += s->nodes[b].n_group;
  s->nodes[a].work += s->nodes[b].work;
  if (s->nodes[b].widest <= s->nodes[a].widest)
    return;
  s->nodes[a].widest = s->nodes[b].widest;
  s->nodes[a].innermost = s->nodes[b].innermost;
}

// Merges into the group with the smaller number, which keeps the program order unless a dependence
// decides.
static bool try_join(lm_fuse *s, uint32_t a, uint32_t b) {
  lm_type parallel;
  if (a == b || s->nodes[a].op->parent != s->nodes[b].op->parent)
    return false;
  if (scatters(s, a) || scatters(s, b) || writes_apart(s, a, b))
    return false;
  if (s->nodes[a].n_group + s->nodes[b].n_group > LM_FUSE_OPS)
    return false;
  if (!merged_axes(s, a, b, &parallel))
    return false;
  if (!is_profitable(s, a, b, parallel) && !read_one_value(s, a, b, parallel))
    return false;
  if (path_around(s, a, b) || path_around(s, b, a))
    return false;
  join(s, a < b ? a : b, a < b ? b : a, parallel);
  return true;
}

static bool is_fused(const lm_fuse *s, uint32_t n) {
  return s->nodes[n].kind == LM_FUSE_FUSED;
}

typedef enum {
  IN_ORDER,
  THIN_LAST,
} order;

// True if v is few numbers beside the largest value that the group of one of the nodes reads.
static bool is_thin(const lm_fuse *s, const lm_value *v, uint32_t a, uint32_t b) {
  enum {
    FEW = 16
  };
  double n = FEW * type_elements(s->m, v->type);
  return n <= s->nodes[group_of(s, a)].widest || n <= s->nodes[group_of(s, b)].widest;
}

static void join_along(lm_fuse *s, order o) {
  for (uint32_t n = 1; n < s->n; n++) {
    if (!is_fused(s, n))
      continue;
    for (uint32_t i = 0; i < s->nodes[n].n_deps; i++) {
      uint32_t from = s->nodes[n].deps[i].from;
      bool waits =
          o == THIN_LAST && is_fused(s, from) && is_thin(s, s->nodes[from].op->out[0], from, n);
      if (is_fused(s, from) && !waits)
        try_join(s, group_of(s, from), group_of(s, n));
    }
  }
}

// ---- groups with common operands

typedef struct reader {
  lm_fuse *s;
  order order;
  uint32_t node;
  uint32_t *last; // by value id: the last reader
} reader;

// True if two groups that read v may be merged. A point of a GPU's kernel is computed by many
// threads, so that it may be a row of points of the other group.
static bool fits(const reader *r, const lm_value *v, uint32_t other) {
  const lm_fuse *s = r->s;
  lm_type x = s->nodes[group_of(s, other)].allowed;
  lm_type y = s->nodes[group_of(s, r->node)].allowed;
  if (r->order == IN_ORDER)
    return lm_type_same_axes(x, y);
  return !is_thin(s, v, other, r->node) && (lm_type_subset(x, y) || lm_type_subset(y, x));
}

// Groups that read a common value become one: the value is read once, and one launch is saved.
static void join_reader(void *user, lm_value *v, lm_type touched) {
  reader *r = user;
  lm_fuse *s = r->s;
  if (!v->type.rank && s->nodes[r->node].op->out[0]->type.rank)
    return;
  uint32_t other = r->last[v->id];
  uint32_t me = group_of(s, r->node);
  bool near = other && s->nodes[other].op->parent == s->nodes[r->node].op->parent;
  if (near && fits(r, v, other))
    try_join(s, group_of(s, other), me);
  r->last[v->id] = r->node;
}

static void join_siblings(lm_fuse *s, order o) {
  uint32_t *last = lm_calloc(s->m->n_values + 1, sizeof *last);
  for (uint32_t n = 1; n < s->n; n++) {
    reader r = {s, o, n, last};
    if (is_fused(s, n))
      lm_fuse_leaves(s, s->nodes[n].op, join_reader, &r);
  }
  lm_free(last);
}

// ---- values used outside of their kernel

typedef struct need {
  lm_fuse *s;
  uint32_t group;
} need;

static void need_leaf(void *user, lm_value *v, lm_type touched) {
  const need *u = user;
  lm_fuse_node *n = lm_fuse_node_of(u->s, v);
  if (n && n->kind == LM_FUSE_FUSED && n->group != u->group)
    n->needed = true;
}

void lm_fuse_needs(lm_fuse *s) {
  for (uint32_t i = 1; i < s->n; i++)
    s->nodes[i].needed = false;
  for (uint32_t i = 1; i < s->n; i++) {
    lm_fuse_node *n = &s->nodes[i];
    need u = {s, n->kind == LM_FUSE_FUSED ? n->group : 0};
    if (n->kind != LM_FUSE_REMAT)
      lm_fuse_leaves(s, n->op, need_leaf, &u);
  }
}

// The axes are in the order of the operation with the most axes.
lm_type lm_fuse_parallel_axes(const lm_fuse *s, uint32_t group) {
  lm_type allowed = s->nodes[group].allowed;
  lm_type best = allowed;
  int rank = 0;
  for (uint32_t n = group; n; n = s->nodes[n].next) {
    const lm_op *op = s->nodes[n].op;
    for (uint32_t i = 0; i <= op->n_in; i++) {
      lm_type t = i < op->n_in ? op->in[i]->type : op->out[0]->type;
      if (t.rank <= rank || !lm_type_subset(allowed, t))
        continue;
      rank = t.rank;
      best = intersect(t, allowed);
    }
  }
  return best;
}

// ---- the better order

typedef struct moved {
  lm_fuse *s;
  uint32_t group;
  uint32_t *seen; // by value id: the last group that reads it
  double bytes;
} moved;

static void read_leaf(void *user, lm_value *v, lm_type touched) {
  moved *x = user;
  const lm_fuse_node *n = lm_fuse_node_of(x->s, v);
  bool own = n && n->kind == LM_FUSE_FUSED && n->group == x->group;
  if (own || x->seen[v->id] == x->group)
    return;
  x->seen[v->id] = x->group;
  x->bytes += lm_type_traffic(x->s->m, v->type);
}

static void move_group(moved *x, uint32_t group) {
  const lm_fuse *s = x->s;
  x->group = group;
  for (uint32_t n = group; n; n = s->nodes[n].next) {
    const lm_op *op = s->nodes[n].op;
    if (!is_fused(s, n))
      continue;
    lm_fuse_leaves(s, op, read_leaf, x);
    if (s->nodes[n].needed)
      x->bytes += lm_type_traffic(s->m, op->out[0]->type);
  }
}

// The bytes that the kernels of each region move, at the first node of the region.
static double *bytes_of_regions(lm_fuse *s, const uint32_t *first) {
  double *bytes = LM_NEW_N(s->arena, double, s->n);
  moved x = {
      .s = s,
      .seen = lm_calloc(s->m->n_values + 1, sizeof *x.seen),
  };
  lm_fuse_needs(s);
  for (uint32_t n = 1; n < s->n; n++) {
    if (!is_fused(s, n) || group_of(s, n) != n)
      continue;
    x.bytes = 0;
    move_group(&x, n);
    bytes[first[n]] += x.bytes;
  }
  lm_free(x.seen);
  return bytes;
}

// For each node, the first node of its region.
static uint32_t *first_of_regions(const lm_fuse *s) {
  uint32_t *first = LM_NEW_N(s->arena, uint32_t, s->n);
  for (uint32_t n = 1; n < s->n; n++)
    first[n] = s->nodes[n].op->parent->first->mark;
  return first;
}

static void join_all(lm_fuse *s, order o) {
  join_along(s, o);
  join_siblings(s, o);
  if (o == THIN_LAST)
    join_along(s, IN_ORDER);
}

// True if the other order saves enough. Later passes expect the kernels of the program's order:
// steps share a launch, and GEMMs of few rows compute the norms in front of them. So that order
// stays where the saved bytes take less time than a launch, as in decoding.
static bool saves(const lm_fuse *s, double in_order, double other) {
  static const double SHARE = 0.03;
  double saved = in_order - other;
  return saved > SHARE * in_order && saved > lm_cost_launch_bytes(s->target);
}

void lm_fuse_group(lm_fuse *s) {
  size_t size = s->n * sizeof *s->nodes;
  lm_fuse_node *apart = LM_NEW_N(s->arena, lm_fuse_node, s->n);
  memcpy(apart, s->nodes, size);
  join_all(s, IN_ORDER);
  if (!is_gpu(s))
    return;
  const uint32_t *first = first_of_regions(s);
  const double *in_order = bytes_of_regions(s, first);
  lm_fuse_node *other = s->nodes;
  s->nodes = apart;
  join_all(s, THIN_LAST);
  const double *thin_last = bytes_of_regions(s, first);
  for (uint32_t n = 1; n < s->n; n++)
    if (!saves(s, in_order[first[n]], thin_last[first[n]]))
      s->nodes[n] = other[n];
}
