// fuse_gemms.c - products of one input with several weights become one product with the weights
// side by side.
//
// before: %q = dot %x, %wq over(d) : f32[b, t, g, h, e]   %k = dot %x, %wk over(d) : f32[b, t, g,
// e] after:  %1 = view %wq (g, h, e) -> (side)   %2 = view %wk (g, e) -> (side.1)
//         %w = concat %1, %2 (side, side.1) -> (pack) : f32[d, pack]   %y = dot %x, %w over(d) :
//         f32[b, t, pack] %3 = slice %y (pack) -> (side) [0, 1]        %q = view %3 (side) -> (g,
//         h, e) %4 = slice %y (pack) -> (side.1) [24, 1]     %k = view %4 (side.1) -> (g, e)
//
// Queries, keys and values, gate and up: what they are called does not matter, only that they read
// the same and that each weight's own axes lie at the same place, next to each other. It runs
// before `grad`, which lays the cotangents of the slices side by side: that of x is one product
// over the joined axis, where there were as many as weights and a sum of them. The gradient of each
// weight stays a product of its own (vjp_concat), which reads its slice where it lies and is added
// to where the gradient lies. Parameters stay what they were: names, shapes, checkpoints, groups.
//
// Gained, of n products: x is read once and not n times, and so is its cotangent written and read;
// two times n - 1 launches. Paid: the weights are copied together once a change (pass copies); a
// slice that attention reads is copied, again backward (other kernels read slices where they lie);
// where cotangents come from kernels of their own, behind a norm or attention, one more lays them
// side by side. All is counted in bytes; lm_plan_target.launch says how many a launch takes as long
// as. Declines: where that does not pay, unless the pass is asked for; on targets for which
// launches cost nothing (a CPU without a matrix unit: side by side took 0.82 to 1.07 of the time
// apart forward, 1.00 to 1.49 for x's cotangent); weights that differ in layout, in what they share
// with x, or in what is to be kept of them; axes with an extent of run time; weights that depend on
// more than parameters. Cost: the bytes of the weights, held once more; linear, but for pairs of
// products in one region.
#include <string.h>

#include "compiler/ir/internal.h"
#include "compiler/passes/grad.h"
#include "compiler/passes/pass.h"
#include "compiler/plan/planner.h"

typedef struct member {
  lm_op *dot;
  int at, n;    // its weight's own axes: n of them from this position
  lm_axis side; // what they become
} member;

typedef struct pack {
  lm_module *m;
  lm_func *f;
  member of[LM_RANK];
  int n;
} pack;

// ---- which products

// x's own axes and the weight's share nothing but what is summed over; the weight's own are next to
// each other.
static bool member_of(const lm_module *m, lm_op *op, member *out) {
  if (op->code != LM_OP_DOT || lm_value_is_weight(op->in[0]) || !lm_value_is_weight(op->in[1]))
    return false;
  lm_type x = op->in[0]->type;
  lm_type w = op->in[1]->type;
  *out = (member){.dot = op, .at = -1};
  for (int i = 0; i < w.rank; i++) {
    if (lm_attr_has_axis(&op->attr, w.axis[i]))
      continue;
    if (lm_type_find(x, w.axis[i]) >= 0 || m->axes[w.axis[i]].dyn)
      return false;
    if (out->at < 0)
      out->at = i;
    if (i != out->at + out->n++)
      return false;
  }
  return out->n > 0 && op->out[0]->type.dtype == x.dtype;
}

// Type of the weight with `side` for its own axes.
static lm_type sided(const member *a, lm_axis side) {
  lm_type w = a->dot->in[1]->type, t = {.dtype = w.dtype};
  for (int i = 0; i < w.rank; i++) {
    if (i < a->at || i >= a->at + a->n)
      t.axis[t.rank++] = w.axis[i];
    else if (i == a->at)
      t.axis[t.rank++] = side;
  }
  return t;
}

static bool fits(const member *a, const member *b) {
  const lm_op *x = a->dot;
  const lm_op *y = b->dot;
  if (x->in[0] != y->in[0] || x->keep != y->keep || x->attr.n_axes != y->attr.n_axes)
    return false;
  for (int i = 0; i < x->attr.n_axes; i++)
    if (!lm_attr_has_axis(&y->attr, x->attr.axes[i]))
      return false;
  return lm_type_equal(sided(a, 0), sided(b, 0));
}

// The first product and what fits it of those behind it, in order.
static bool pack_find(pack *p, lm_op *first) {
  p->n = 0;
  if (!member_of(p->m, first, &p->of[0]))
    return false;
  p->n = 1;
  for (lm_op *op = first->next; op && p->n < LM_RANK; op = op->next)
    if (op->code == LM_OP_DOT && op->in[0] == first->in[0] && member_of(p->m, op, &p->of[p->n]))
      p->n += fits(&p->of[0], &p->of[p->n]);
  return p->n > 1;
}

// ---- whether it pays

enum {
  VIEWED = 1,
  FOLLOWS = 2
}; // op->mark: the product under views; computed from it place by place
enum {
  COPIED = 1,
  APART = 2
}; // attention reads it; its cotangent is made by a kernel that sums more than places

static int fate_of(const lm_op *dot) {
  int fate = 0;
  for (lm_op *op = dot->parent->first; op != dot; op = op->next)
    op->mark = 0;
  for (lm_op *op = dot->next; op; op = op->next) {
    uint32_t traits = lm_op_info_of(op)->traits, in = 0;
    for (uint32_t i = 0; i < op->n_in; i++) {
      const lm_op *def = op->in[i]->def;
      if (def && def->parent == op->parent)
        in |= def == dot ? VIEWED | FOLLOWS : def->mark;
    }
    if (lm_op_attends(op) && in & VIEWED)
      fate |= COPIED;
    if ((lm_op_attends(op) || traits & LM_T_REDUCE) && in & FOLLOWS)
      fate |= APART;
    bool moves = traits & LM_T_VIEW;
    op->mark = moves ? in : traits & LM_T_ELEMENTWISE ? in & FOLLOWS : 0;
  }
  return fate;
}

// Bytes gained less bytes paid. Where there is a derivative, what is moved forward is moved
// backward as well; cotangents of which some have kernels of their own are laid side by side by one
// more. Weights are laid side by side once a change (pass copies), which counts where parameters
// change. `launch`: bytes that a launch is worth; once: pass copies is on.
static bool pays(const pack *p, double launch, bool once) {
  double x = lm_type_traffic(p->m, p->of[0].dot->in[0]->type), w = launch, y = 0, gain;
  int trains = lm_func_is_loss(p->f);
  int ways = 1 + trains;
  int fates = 0;
  gain = (p->n - 1) * (x + launch) + trains * (p->n - 1) * (2 * x + launch);
  for (int i = 0; i < p->n; i++) {
    const lm_op *dot = p->of[i].dot;
    int fate = fate_of(dot);
    if (fate & COPIED)
      gain -= ways * (2 * lm_type_traffic(p->m, dot->out[0]->type) + launch);
    w += 2 * lm_type_traffic(p->m, dot->in[1]->type);
    y += lm_type_traffic(p->m, dot->out[0]->type);
    fates |= fate;
  }
  if (trains && fates & APART)
    gain -= 2 * y + launch;
  return gain > w * (once ? trains : ways);
}

static bool wanted(const pack *p, const lm_pass_env *env) {
  const lm_plan_target *target = env ? env->target : NULL;
  if (!target || lm_pass_is_forced(env, "fuse_gemms"))
    return true;
  return target->launch > 0 &&
         pays(p, (double)target->launch, !lm_pass_is_off(env, "hoist_params"));
}

// ---- writing

// What a weight is made of moves in front of `at`, if it stands behind it in the same region.
static void raise(lm_op *at, lm_value *v) {
  lm_op *op = v->def;
  if (!op || op->parent != at->parent)
    return;
  for (const lm_op *before = at->prev; before; before = before->prev)
    if (before == op)
      return;
  for (uint32_t i = 0; i < op->n_in; i++)
    raise(at, op->in[i]);
  lm_op_remove(op);
  lm_op_insert_before(at, op);
}

static lm_value *side_of(pack *p, lm_builder *b, member *a) {
  lm_value *w = a->dot->in[1];
  lm_attr v = {.n_axes = (uint8_t)a->n, .n_to = 1};
  int64_t size = 1;
  memcpy(v.axes, w->type.axis + a->at, (size_t)a->n * sizeof *v.axes);
  for (int i = 0; i < a->n; i++)
    size *= lm_axis_size(p->m, v.axes[i]);
  if (a->n == 1) {
    a->side = v.axes[0];
    return w;
  }
  a->side = v.to[0] = lm_axis_add(p->m, LM_SYM(p->m->ctx, "side"), size, 0);
  return lm_emit(b, LM_OP_VIEW, &w, 1, &v, NULL);
}

// What stands for the product of a, whose places along the packed axis begin at `first`.
static lm_value *part_of(lm_builder *b, const member *a, lm_value *y, lm_axis axis, int64_t first) {
  lm_attr cut = {
      .axes = {axis}, .n_axes = 1, .to = {a->side}, .n_to = 1, .imm = {first, 1}, .n_imm = 2};
  lm_attr v = {.axes = {a->side}, .n_axes = 1, .n_to = (uint8_t)a->n};
  memcpy(v.to, a->dot->in[1]->type.axis + a->at, (size_t)a->n * sizeof *v.to);
  b->loc = a->dot->loc;
  lm_value *z = lm_emit(b, LM_OP_SLICE, &y, 1, &cut, NULL);
  if (a->n > 1)
    z = lm_emit(b, LM_OP_VIEW, &z, 1, &v, NULL);
  z->name = a->dot->out[0]->name;
  return z;
}

static void pack_write(pack *p) {
  lm_module *m = p->m;
  lm_op *first = p->of[0].dot;
  lm_builder b = {m, first->parent, first, first->loc};
  lm_value *side[LM_RANK];
  lm_attr join = {.n_axes = (uint8_t)p->n, .n_to = 1};
  int64_t size = 0;
  uint32_t n_values = m->n_values;
  lm_value **stand = lm_calloc((size_t)n_values + 1, sizeof *stand);
  for (int i = 0; i < p->n; i++)
    raise(first, p->of[i].dot->in[1]);
  for (int i = 0; i < p->n; i++) {
    side[i] = side_of(p, &b, &p->of[i]);
    join.axes[i] = p->of[i].side;
    size += lm_axis_size(m, p->of[i].side);
  }
  join.to[0] = lm_axis_add(m, LM_SYM(m->ctx, "pack"), size, 0);
  lm_value *w = lm_emit(&b, LM_OP_CONCAT, side, (uint32_t)p->n, &join, NULL);
  b.keep = first->keep;
  lm_value *y = lm_emit_dot(&b, first->in[0], w, first->attr.axes, first->attr.n_axes);
  b.keep = LM_REMAT_AUTO;
  for (int64_t i = 0, at = 0; i < p->n; at += lm_axis_size(m, p->of[i++].side))
    stand[p->of[i].dot->out[0]->id] = part_of(&b, &p->of[i], y, join.to[0], at);
  for (int i = 0; i < p->n; i++)
    lm_op_remove(p->of[i].dot);
  lm_func_substitute(p->f, stand, n_values);
  lm_free(stand);
}

static void pack_region(pack *p, lm_region *r, const lm_pass_env *env) {
  for (lm_op *op = r->first, *next; op; op = next) {
    next = op->next;
    if (op->code == LM_OP_LOOP)
      pack_region(p, op->body, env);
    if (!pack_find(p, op) || !wanted(p, env))
      continue;
    lm_op *before = op->prev;
    pack_write(p);
    next = before ? before->next : r->first;
  }
}

bool lm_pass_fuse_gemms(lm_module *m, const lm_pass_env *env) {
  for (lm_func *f = m->funcs; f; f = f->next)
    pack_region(&(pack){.m = m, .f = f}, f->body, env);
  return true;
}
