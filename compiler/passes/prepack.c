// prepack.c - stores weights in the layout that the target's GEMM kernel reads; they are packed
// once per update instead of in each GEMM.
//
// before: %w = param @wq[%i] : f32[d, g, e]   %y = dot %x, %w over(d) : f32[b, t, g, e]
// after:  %1 = view %w (g, e) -> (panel, column) : f32[d, panel, column]
//         %2 = permute %1 : f32[panel, d, column]   %3 = cast %2 : f32[panel, d, column]
//         %4 = dot %x, %3 over(d) : f32[b, t, panel, column]
//         %y = view %4 (panel, column) -> (g, e) : f32[b, t, g, e]
//
// The axis order of a type is the memory layout of its tensor: [k, n] is row-major, [panel, k,
// column] consists of panels of a few columns, [panel, k, column, pair] of bf16 panels in which
// pairs along k are adjacent, as matrix units multiply them (lm_target_choices.panel). The cast to
// the same type is the copy; pass hoist_params moves it into @copies. In the plan such axes are
// merged again (lm_gemm_panels), and the GEMM kernel reads panels instead of packing them.
// Activations stay row-major, as kernels write them: no producer would write the packed form at a
// lower cost than the copy in the GEMM kernel, and matrix units read rows directly.
//
// Gain: each GEMM saves packing its weight, one read and one write per block of rows that a thread
// computes. Cost: the bytes of the weight for each layout, one forward and one for the data
// gradient, and packing them once per update. Declines: targets and programs for which this is not
// profitable (lm_panel_use), unless the pass is forced: with AVX2 training gains at most a few
// percent of the GEMM time for twice the bytes of the weights, whereas decoding reads panels up to
// twice as fast as rows; GEMMs that take several calls, weights whose axes are not adjacent or not
// a multiple of the panels, GEMMs that the target leaves to its library. Compile time: linear.
#include <string.h>

#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"
#include "compiler/plan/planner.h"

typedef struct run {
  int at, n; // n adjacent axes of a type, from index `at`
} run;

typedef struct packing {
  lm_module *m;
  const lm_target *target;
  const lm_codegen *codegen;
  lm_panel_use least; // of the target's panels
  lm_op *dot;
  run free, reduced;   // the axes of the weight
  int64_t n_cols, n_k; // their numbers of elements
  lm_target_panel panel;
} packing;

// ---- matching

// Finds the reduced axes of t, or the others; false if they are not adjacent.
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

// True if both operands have adjacent reduction axes in the same order.
static bool runs_find(packing *l) {
  run x;
  const lm_op *dot = l->dot;
  lm_type tx = dot->in[0]->type;
  lm_type tw = dot->in[1]->type;
  if (!run_find(dot, tw, false, &l->free) || !run_find(dot, tw, true, &l->reduced) ||
      !run_find(dot, tx, true, &x))
    return false;
  l->n_cols = run_size(l->m, tw, l->free);
  l->n_k = run_size(l->m, tw, l->reduced);
  return x.n == l->reduced.n &&
         !memcmp(tx.axis + x.at, tw.axis + l->reduced.at, (size_t)x.n * sizeof *tx.axis);
}

// True if the dot is one GEMM call with a row-major result for which the target has a kernel that
// reads panels.
static bool has_code(const packing *l) {
  lm_plan_gemm g;
  if (!lm_plan_gemm_from_dot(l->m, l->dot, &g) || g.n_batch || g.c_n != 1 ||
      g.n.fixed != l->n_cols || g.k.fixed != l->n_k)
    return false;
  g.b_columns = l->panel.columns;
  g.b_group = l->panel.group;
  return l->codegen->gemm_is_profitable && l->codegen->gemm_is_profitable(l->target, &g);
}

static bool packing_find(packing *l, lm_op *op) {
  l->dot = op;
  if (op->code != LM_OP_DOT || lm_value_is_weight(op->in[0]) || !lm_value_is_weight(op->in[1]))
    return false;
  l->panel = l->target->choices.panel[op->in[1]->type.dtype];
  if (!l->panel.columns || l->panel.use < l->least || !runs_find(l))
    return false;
  return l->n_cols % l->panel.n == 0 && l->n_k % l->panel.k == 0 && has_code(l);
}

// ---- rewriting

// v with a run of its axes split into (outer, inner), where inner has `inner` elements, or merged
// into one axis. Sets *to to the view.
static lm_value *run_split(packing *l, lm_builder *b, lm_value *v, run r, const char *const *names,
                           int64_t inner, lm_attr *to) {
  int64_t size = run_size(l->m, v->type, r);
  *to = (lm_attr){
      .n_axes = (uint8_t)r.n,
      .n_to = 1,
  };
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

// The packed weight; sets the views of its free axes and of its reduction axes.
static lm_value *weight_pack(packing *l, lm_builder *b, lm_attr *free, lm_attr *reduced) {
  static const char *const columns[] = {"panel", "column"}, *const depths[] = {"k", "pair"};
  run summed;
  lm_value *w = run_split(l, b, l->dot->in[1], l->free, columns, l->panel.columns, free);
  run_find(l->dot, w->type, true, &summed);
  w = run_split(l, b, w, summed, depths, l->panel.group, reduced);
  lm_axis order[] = {free->to[0], reduced->to[0], free->to[1], reduced->to[1]};
  w = lm_emit_permute(b, w, order, free->n_to + reduced->n_to);
  return lm_emit(b, LM_OP_CAST, &w, 1, NULL, &w->type);
}

static lm_attr inverse(const lm_attr *view) {
  lm_attr a = {
      .n_axes = view->n_to,
      .n_to = view->n_axes,
  };
  memcpy(a.axes, view->to, sizeof a.axes);
  memcpy(a.to, view->axes, sizeof a.to);
  return a;
}

// The use of panels that is enough for this module. A module that decodes and does not train runs
// nothing else of consequence.
static lm_panel_use least_use(const lm_module *m, const lm_pass_env *env) {
  if (lm_pass_is_forced(env, "prepack"))
    return LM_PANEL_NOWHERE;
  bool decodes = lm_func_get(m, LM_FUNC_DECODE, 0) && !lm_func_get(m, LM_FUNC_UPDATE, 0);
  return decodes ? LM_PANEL_IN_DECODING : LM_PANEL_ALWAYS;
}

static lm_value *prepack_rule(lm_rewrite *r, lm_op *dot) {
  const lm_pass_env *env = r->user;
  packing l = {
      .m = r->b.m, .target = env->target, .codegen = env->codegen, .least = least_use(r->b.m, env)};
  lm_attr free, reduced;
  if (!packing_find(&l, dot))
    return NULL;
  lm_builder b = r->b;
  b.remat = LM_REMAT_AUTO;
  lm_value *w = weight_pack(&l, &b, &free, &reduced);
  lm_value *x = dot->in[0];
  lm_type t = dot->out[0]->type;
  t.rank -= free.n_axes;
  memset(t.axis + t.rank, 0, (LM_RANK - t.rank) * sizeof *t.axis);
  memcpy(t.axis + t.rank, free.to, free.n_to * sizeof *t.axis);
  t.rank += free.n_to;
  if (!lm_attr_has_axis(&dot->attr, reduced.to[0]))
    x = lm_emit(&b, LM_OP_VIEW, &x, 1, &reduced, NULL);
  lm_attr sum = {.n_axes = reduced.n_to}, back = inverse(&free);
  memcpy(sum.axes, reduced.to, sizeof sum.axes);
  b.remat = dot->remat;
  lm_value *y = lm_emit(&b, LM_OP_DOT, (lm_value *[]){x, w}, 2, &sum, &t);
  return lm_emit(&r->b, LM_OP_VIEW, &y, 1, &back, NULL);
}

bool lm_pass_prepack(lm_module *m, const lm_pass_env *env) {
  if (!env || !env->target || !env->codegen)
    return true;
  for (lm_func *f = m->funcs; f; f = f->next)
    lm_rewrite_func(f, prepack_rule, (void *)(uintptr_t)env);
  return true;
}
