// schedule.c - selection of roots and passes.
#include <string.h>
#include "codegen/common/schedule.h"
#include "compiler/ops/interface.h"

bool lm_op_is_reduction(const lm_op *op) {
  return op->code == LM_OP_SUM || op->code == LM_OP_MAX || op->code == LM_OP_SCATTER;
}

const lm_op *lm_kernel_yield(const lm_op *kernel) {
  return kernel->body->last;
}

bool lm_kernel_result_summed(const lm_op *kernel, uint32_t i) {
  return kernel->attr.n_to && i >= kernel->attr.imm[0];
}

static bool axis_is_parallel(const lm_op *kernel, lm_axis a) {
  return lm_attr_has_axis(&kernel->attr, a);
}

bool lm_kernel_fits(const lm_module *m, const lm_op *kernel, uint32_t operand, uint32_t result) {
  lm_type x = kernel->in[operand]->type;
  lm_type y = kernel->out[result]->type;
  if (x.dtype != y.dtype || lm_type_dynamic(m, x) || lm_type_dynamic(m, y))
    return lm_type_equal(x, y);
  return lm_type_elements(m, x) == lm_type_elements(m, y);
}

lm_type lm_kernel_inner(const lm_op *kernel, lm_type t) {
  lm_type u = {.dtype = t.dtype};
  for (int i = 0; i < t.rank; i++)
    if (!axis_is_parallel(kernel, t.axis[i]))
      u.axis[u.rank++] = t.axis[i];
  return u;
}

// The inner axes that the root loops over.
static lm_type root_space(const lm_op *kernel, lm_root r) {
  const lm_op *op = r.v->def;
  return lm_kernel_inner(kernel,
                         op && !r.copy && lm_op_is_reduction(op) ? op->in[0]->type : r.v->type);
}

static lm_node *node_of(lm_schedule *s, const lm_value *v) {
  return v->def ? &s->nodes[v->def->mark] : NULL;
}

const lm_node *lm_schedule_node(const lm_schedule *s, const lm_value *v) {
  return node_of((lm_schedule *)s, v);
}

bool lm_schedule_writes(const lm_schedule *s, lm_root r, uint32_t i) {
  if (lm_kernel_yield(s->kernel)->in[i] != r.v)
    return false;
  const lm_node *n = lm_schedule_node(s, r.v);
  if (!n || !lm_op_is_reduction(n->op))
    return true;
  bool accumulator = n->held == LM_HELD_RESULT && n->slot == (int)i;
  return accumulator != r.copy;
}

bool lm_schedule_pass_writes(const lm_schedule *s, int pass, uint32_t i) {
  const lm_sched_pass *p = &s->passes[pass];
  bool writes = false;
  for (uint32_t k = 0; k < p->n_roots; k++)
    writes |= lm_schedule_writes(s, p->roots[k], i);
  return writes;
}

// True if op reads operand i at other indices than the current ones of the surrounding loops (the
// indices of its result, or of its operand for a reduction).
static bool reads_elsewhere(const lm_op *op, uint32_t i) {
  return !lm_op_is_reduction(op) && lm_op_touched_axes(op, i).rank;
}

// ---- roots

static void hold(lm_schedule *s, lm_node *n, lm_held how, int slot) {
  n->root = true;
  n->held = how;
  n->slot = how == LM_HELD_ROW ? s->n_rows++ : slot;
}

// A result holds its own value unless it is summed over points. A bf16 or f16 result is rounded,
// and so is a value read back from it; reductions therefore accumulate elsewhere.
static void keep_results(lm_schedule *s) {
  const lm_op *yield = lm_kernel_yield(s->kernel);
  for (uint32_t i = 0; i < yield->n_in; i++) {
    lm_node *n = node_of(s, yield->in[i]);
    if (!n)
      continue;
    n->root = true;
    if (n->held == LM_HELD_NOT && !lm_kernel_result_summed(s->kernel, i))
      hold(s, n, LM_HELD_RESULT, (int)i);
  }
}

static void keep_reductions(lm_schedule *s) {
  for (uint32_t i = 0; i < s->n_nodes; i++) {
    lm_node *n = &s->nodes[i];
    if (!lm_op_is_reduction(n->op))
      continue;
    lm_type t = lm_kernel_inner(s->kernel, n->op->out[0]->type);
    bool in_result = n->held == LM_HELD_RESULT && !lm_dtype_is_half((lm_dtype)t.dtype);
    if (!t.rank)
      hold(s, n, LM_HELD_SCALAR, 0);
    else if (!in_result)
      hold(s, n, LM_HELD_ROW, 0);
  }
}

static void cost_nodes(lm_schedule *s) {
  for (uint32_t i = 0; i < s->n_nodes; i++) {
    lm_node *n = &s->nodes[i];
    n->cost = lm_op_info_of(n->op)->flops;
    for (uint32_t j = 0; j < n->op->n_in; j++) {
      const lm_node *from = node_of(s, n->op->in[j]);
      n->cost += from && !from->root ? from->cost : 1;
      int phase = from ? from->phase + lm_op_is_reduction(from->op) : 0;
      if (phase > n->phase)
        n->phase = phase;
    }
  }
}

typedef struct use {
  int phase;
  lm_type space;
  bool any;
  bool many;
  int elsewhere;
} use;

static void use_add(use *u, int phase, lm_type space) {
  if (u->any && (u->phase != phase || !lm_type_same_axes(u->space, space)))
    u->many = true;
  *u = (use){phase, space, true, u->many, u->elsewhere};
}

// True if the loops over `inner` do not enclose the other loops of the space, so that a value over
// `inner` is recomputed in each iteration of those.
static bool repeats(lm_type inner, lm_type space) {
  for (int i = 0; i < inner.rank; i++)
    if (i >= space.rank || inner.axis[i] != space.axis[i])
      return true;
  return false;
}

// Holds values in rows that are more expensive than a store and loads, if several passes use them,
// or one pass uses them at several indices or in loops that they do not vary in. Users precede the
// values that they use, so each node knows all roots that would evaluate it.
static void hold_expensive(lm_schedule *s) {
  enum {
    EXPENSIVE = 5,
    EXPENSIVE_ELSEWHERE = 12
  };
  use *uses = lm_calloc(s->n_nodes + 1, sizeof *uses);
  for (uint32_t i = s->n_nodes; i-- > 0;) {
    lm_node *n = &s->nodes[i];
    use *u = &uses[i];
    lm_type t = lm_kernel_inner(s->kernel, n->op->out[0]->type);
    bool recomputed = u->any && !u->elsewhere && t.rank < u->space.rank && repeats(t, u->space);
    bool expensive = ((u->many || recomputed) && n->cost > EXPENSIVE) ||
                     (u->elsewhere > 1 && n->cost > EXPENSIVE_ELSEWHERE);
    if (n->held == LM_HELD_NOT && expensive)
      hold(s, n, LM_HELD_ROW, 0);
    for (uint32_t j = 0; j < n->op->n_in; j++) {
      const lm_node *from = node_of(s, n->op->in[j]);
      if (!from)
        continue;
      use *v = &uses[from->op->mark];
      if (n->root)
        use_add(v, n->phase,
                lm_op_is_reduction(n->op) ? root_space(s->kernel, (lm_root){n->op->out[0], false})
                                          : t);
      else if (u->any) {
        use_add(v, u->phase, u->space);
        v->many |= u->many;
      }
      v->elsewhere += n->root                     ? reads_elsewhere(n->op, j)
                      : reads_elsewhere(n->op, j) ? 1
                                                  : u->elsewhere;
    }
  }
  lm_free(uses);
}

// ---- passes

// The minimum depth of a root, given by the values that its expression reads: values of other
// spaces, reductions and values read at other indices must be complete.
typedef struct reach {
  lm_schedule *s;
  lm_type space;
  uint8_t *seen;
  int depth;
} reach;

static void reach_walk(reach *r, const lm_value *v, bool elsewhere) {
  lm_node *n = node_of(r->s, v);
  if (!n || r->seen[n->op->mark] & (elsewhere ? 2 : 1))
    return;
  r->seen[n->op->mark] |= elsewhere ? 2 : 1;
  if (!n->root) {
    for (uint32_t i = 0; i < n->op->n_in; i++)
      reach_walk(r, n->op->in[i], elsewhere || reads_elsewhere(n->op, i));
    return;
  }
  bool complete = elsewhere || lm_op_is_reduction(n->op) ||
                  !lm_type_same_axes(root_space(r->s->kernel, (lm_root){v, false}), r->space);
  int depth = r->s->passes[n->pass].depth + complete;
  if (depth > r->depth)
    r->depth = depth;
}

static int depth_of(lm_schedule *s, lm_root root) {
  reach r = {s, root_space(s->kernel, root), lm_calloc(s->n_nodes + 1, 1), 0};
  const lm_op *op = root.v->def;
  if (root.copy)
    reach_walk(&r, root.v, false);
  else
    for (uint32_t i = 0; op && i < op->n_in; i++)
      reach_walk(&r, op->in[i], reads_elsewhere(op, i));
  lm_free(r.seen);
  return r.depth;
}

static int pass_for(lm_schedule *s, lm_root root) {
  lm_type space = root_space(s->kernel, root);
  int depth = depth_of(s, root);
  for (uint32_t i = 0; i < s->n_passes; i++)
    if (s->passes[i].depth == depth && lm_type_same_axes(s->passes[i].space, space))
      return (int)i;
  LM_PUSH(s->arena, s->passes, s->n_passes, s->cap_passes) = (lm_sched_pass){
      .space = space,
      .depth = depth,
  };
  return (int)s->n_passes - 1;
}

static void root_add(lm_schedule *s, lm_root root) {
  int at = pass_for(s, root);
  lm_sched_pass *p = &s->passes[at];
  LM_PUSH(s->arena, p->roots, p->n_roots, p->cap_roots) = root;
  if (root.v->def && !root.copy)
    node_of(s, root.v)->pass = at;
}

static bool needs_copy(const lm_schedule *s, const lm_value *v) {
  for (uint32_t i = 0; i < lm_kernel_yield(s->kernel)->n_in; i++)
    if (lm_schedule_writes(s, (lm_root){v, true}, i))
      return lm_op_is_reduction(v->def);
  return false;
}

static void sort_passes(lm_schedule *s) {
  for (uint32_t i = 1; i < s->n_passes; i++) {
    lm_sched_pass p = s->passes[i];
    uint32_t j = i;
    for (; j > 0 && s->passes[j - 1].depth > p.depth; j--)
      s->passes[j] = s->passes[j - 1];
    s->passes[j] = p;
  }
  for (uint32_t i = 0; i < s->n_passes; i++)
    for (uint32_t j = 0; j < s->passes[i].n_roots; j++) {
      lm_root r = s->passes[i].roots[j];
      if (r.v->def && !r.copy)
        node_of(s, r.v)->pass = (int)i;
    }
}

static bool yielded_before(const lm_op *yield, uint32_t i) {
  for (uint32_t j = 0; j < i; j++)
    if (yield->in[j] == yield->in[i])
      return true;
  return false;
}

lm_schedule *lm_schedule_make(const lm_module *m, const lm_op *kernel, bool keep, lm_arena *arena) {
  lm_schedule *s = LM_NEW(arena, lm_schedule);
  *s = (lm_schedule){
      .m = m,
      .kernel = kernel,
      .arena = arena,
  };
  uint32_t n = 0;
  for (lm_op *op = kernel->body->first; op != kernel->body->last; op = op->next)
    op->mark = n++;
  s->nodes = LM_NEW_N(arena, lm_node, n + 1);
  s->n_nodes = n;
  for (lm_op *op = kernel->body->first; op != kernel->body->last; op = op->next)
    s->nodes[op->mark].op = op;
  keep_results(s);
  keep_reductions(s);
  cost_nodes(s);
  if (keep)
    hold_expensive(s);
  for (uint32_t i = 0; i < n; i++) {
    const lm_value *v = s->nodes[i].op->out[0];
    if (!s->nodes[i].root)
      continue;
    root_add(s, (lm_root){v, false});
    if (needs_copy(s, v))
      root_add(s, (lm_root){v, true});
  }
  const lm_op *yield = lm_kernel_yield(kernel);
  for (uint32_t i = 0; i < yield->n_in; i++)
    if (!yield->in[i]->def && !yielded_before(yield, i))
      root_add(s, (lm_root){yield->in[i], false});
  sort_passes(s);
  return s;
}
