// prepack.c - a weight lies as the target's code of products reads it, laid out once a change and
// not in each product.
//
// before: %w = param @wq[%i] : f32[d, g, e]   %y = dot %x, %w over(d) : f32[b, t, g, e]
// after:  %1 = view %w (g, e) -> (panel, line) : f32[d, panel, line]   %2 = permute %1 : f32[panel,
// d, line]
//         %3 = cast %2 : f32[panel, d, line]
//         %4 = dot %x, %3 over(d) : f32[b, t, panel, line]             %y = view %4 (panel, line)
//         -> (g, e) : f32[b, t, g, e]
//
// A layout is the order of a type's axes, so a type says how its tensor lies in memory: [k, n] in
// rows, [panel, k, line] in panels of so many lines, [panel, place, line, pair] in panels of bf16
// whose pairs along k a matrix unit multiplies (lm_plan_target.panel). The cast to its own type is
// where the copy is made; pass copies moves it into @copies. In the plan such axes are one again
// (lm_gemm_panels), and the product's code reads panels in place of making them. The activations
// are rows, as kernels write them: what code for vectors has to copy of these (product.c) no
// producer would write for less, and code for a matrix unit reads rows as they are.
//
// Gained: of each product, the panels of its weight, a read and a write of it for each stretch of
// rows that a thread computes. Paid: the bytes of the weight for each layout, forward and data
// gradient one each, and writing them once a change. Declines: where that is not usual
// (lm_plan_panel), unless it is asked for: measured with AVX2 it gains at most a few hundredths of
// the products' time for twice the bytes of the weights; products that are no single call, weights
// whose axes are no whole panels or not next to each other, products that the target leaves to its
// library. Cost: linear.
#include <string.h>

#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"
#include "compiler/plan/planner.h"

typedef struct run {
  int at, n;
} run; // neighbouring axes of a type: n of them from a position

typedef struct laying {
  lm_module *m;
  const lm_plan_target *target;
  bool asked;
  lm_op *dot;
  run own, over;         // of the weight: its own axes, those that are summed
  int64_t lines, places; // how many in all
  lm_plan_panel panel;
} laying;

// ---- which products

// The axes of t that are (not) summed, if they are next to each other.
static bool run_find(const lm_op *dot, lm_type t, bool summed, run *out) {
  *out = (run){-1, 0};
  for (int i = 0; i < t.rank; i++) {
    if (lm_attr_has_axis(&dot->attr, t.axis[i]) != summed)
      continue;
    if (out->at < 0)
      out->at = i;
    if (i != out->at + out->n++)
      return false;
  }
  return out->n > 0;
}

static int64_t run_size(const lm_module *m, lm_type t, run r) {
  int64_t n = 1;
  for (int i = 0; i < r.n; i++)
    n *= lm_axis_size(m, t.axis[r.at + i]);
  return n;
}

// Both operands have the summed axes in one order, next to each other.
static bool runs_find(laying *l) {
  run x;
  const lm_op *dot = l->dot;
  lm_type tx = dot->in[0]->type;
  lm_type tw = dot->in[1]->type;
  if (!run_find(dot, tw, false, &l->own) || !run_find(dot, tw, true, &l->over) ||
      !run_find(dot, tx, true, &x))
    return false;
  l->lines = run_size(l->m, tw, l->own);
  l->places = run_size(l->m, tw, l->over);
  return x.n == l->over.n &&
         !memcmp(tx.axis + x.at, tw.axis + l->over.at, (size_t)x.n * sizeof *tx.axis);
}

// One call with its result in rows, for which the target has code that reads panels.
static bool has_code(const laying *l) {
  lm_plan_gemm g;
  const lm_plan_target *t = l->target;
  if (!lm_plan_gemm_from_dot(l->m, l->dot, &g) || g.n_batch || g.c_n != 1 ||
      g.n.fixed != l->lines || g.k.fixed != l->places)
    return false;
  g.b_lines = l->panel.lines;
  g.b_group = l->panel.group;
  return t->product_is_worth && t->product_is_worth(&g);
}

static bool laying_find(laying *l, lm_op *op) {
  l->dot = op;
  if (op->code != LM_OP_DOT || lm_value_is_weight(op->in[0]) || !lm_value_is_weight(op->in[1]))
    return false;
  l->panel = l->target->panel[op->in[1]->type.dtype];
  if (!l->panel.lines || !(l->panel.usual || l->asked) || !runs_find(l))
    return false;
  return l->lines % l->panel.n == 0 && l->places % l->panel.k == 0 && has_code(l);
}

// ---- writing

// v with a run of its axes as (outer, inner), inner of so many places, or as one axis: all of it in
// `to`, and how many these are.
static lm_value *run_split(laying *l, lm_builder *b, lm_value *v, run r, const char *const *names,
                           int64_t inner, lm_attr *to) {
  int64_t size = run_size(l->m, v->type, r);
  *to = (lm_attr){.n_axes = (uint8_t)r.n, .n_to = 1};
  memcpy(to->axes, v->type.axis + r.at, (size_t)r.n * sizeof *to->axes);
  if (inner > 1)
    to->to[to->n_to++] = lm_axis_shared(l->m, LM_SYM(l->m->ctx, names[1]), inner, (lm_type){0});
  else if (r.n == 1) {
    to->to[0] = to->axes[0];
    return v;
  }
  to->to[0] = lm_axis_shared(l->m, LM_SYM(l->m->ctx, names[0]), size / inner, (lm_type){0});
  return lm_emit(b, LM_OP_VIEW, &v, 1, to, NULL);
}

// In panels, with the splits of its own axes and of those that are summed.
static lm_value *weight_lay(laying *l, lm_builder *b, lm_attr *own, lm_attr *over) {
  static const char *const lines[] = {"panel", "line"}, *const places[] = {"place", "pair"};
  run summed;
  lm_value *w = run_split(l, b, l->dot->in[1], l->own, lines, l->panel.lines, own);
  run_find(l->dot, w->type, true, &summed);
  w = run_split(l, b, w, summed, places, l->panel.group, over);
  lm_axis order[] = {own->to[0], over->to[0], own->to[1], over->to[1]};
  w = lm_emit_permute(b, w, order, own->n_to + over->n_to);
  return lm_emit(b, LM_OP_CAST, &w, 1, NULL, &w->type);
}

static lm_attr turned(const lm_attr *view) {
  lm_attr a = {.n_axes = view->n_to, .n_to = view->n_axes};
  memcpy(a.axes, view->to, sizeof a.axes);
  memcpy(a.to, view->axes, sizeof a.to);
  return a;
}

static lm_value *lay_rule(lm_rewrite *r, lm_op *dot) {
  const lm_pass_env *env = r->user;
  laying l = {.m = r->b.m, .target = env->target, .asked = lm_pass_is_forced(env, "prepack")};
  lm_attr own, over;
  if (!laying_find(&l, dot))
    return NULL;
  lm_builder b = r->b;
  b.keep = LM_REMAT_AUTO;
  lm_value *w = weight_lay(&l, &b, &own, &over);
  lm_value *x = dot->in[0];
  lm_type t = dot->out[0]->type;
  t.rank -= own.n_axes;
  memset(t.axis + t.rank, 0, (LM_RANK - t.rank) * sizeof *t.axis);
  memcpy(t.axis + t.rank, own.to, own.n_to * sizeof *t.axis);
  t.rank += own.n_to;
  if (!lm_attr_has_axis(&dot->attr, over.to[0]))
    x = lm_emit(&b, LM_OP_VIEW, &x, 1, &over, NULL);
  lm_attr sum = {.n_axes = over.n_to}, back = turned(&own);
  memcpy(sum.axes, over.to, sizeof sum.axes);
  b.keep = dot->keep;
  lm_value *y = lm_emit(&b, LM_OP_DOT, (lm_value *[]){x, w}, 2, &sum, &t);
  return lm_emit(&r->b, LM_OP_VIEW, &y, 1, &back, NULL);
}

bool lm_pass_prepack(lm_module *m, const lm_pass_env *env) {
  if (!env || !env->target)
    return true;
  for (lm_func *f = m->funcs; f; f = f->next)
    lm_rewrite_func(f, lay_rule, (void *)(uintptr_t)env);
  return true;
}
