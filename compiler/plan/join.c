// join.c - makes one launch of GEMMs that add to gradients, so that the tiles of all of them fill
// the multiprocessors of a GPU evenly.
//
// before: 24 gemm m=2048 n=768 k=16384 accumulate h dy -> dw2      25 kernel … dy … -> dp
//         27 gemm m=768 n=4096 k=16384 accumulate x dp -> dw1
// after:  25 kernel … dy … -> dp
//         27 kernel j1 over 132 h dy x dp -> dw2 dw1
//
// A GEMM waits for the last one of its launch, past steps that neither write its operands nor touch
// its gradient; its operands stay in memory until then. Of the GEMMs of equal k behind the first
// one, those up to the one are taken with which the launch saves the most time by the cost model.
// Numerics: the order of the sums is that of the kernel instead of the library's.
#include <string.h>

#include "compiler/ir/dot.h"
#include "compiler/plan/cost.h"
#include "compiler/plan/internal.h"

typedef struct launch {
  int step[LM_JOINED];
  int n;
  double saved; // seconds
} launch;

typedef struct joiner {
  planner *p;
  bool *gone; // by step: it is part of a launch that a later step begins
} joiner;

// ---- which steps

// The pairs of elements that a thread stores.
static bool in_pairs(const ref *c) {
  int64_t all = c->offset;
  for (int d = 0; d < LM_PLAN_DEPTH; d++)
    all |= c->loop[d];
  return all % (2 * (int64_t)sizeof(float)) == 0;
}

static const ref *result_of(const pstep *s) {
  return &s->refs[s->step.n_read];
}

static bool fits(const planner *p, const pstep *s) {
  return s->step.kind == LM_STEP_GEMM && s->accum &&
         p->codegen->joins(&p->o->target, s->step.gemm) && in_pairs(result_of(s));
}

// True if both overwrite their gradients in the same iterations.
static bool begin_alike(const pstep *a, const pstep *b) {
  const ref *x = result_of(a);
  const ref *y = result_of(b);
  for (int d = 0; d < LM_PLAN_DEPTH; d++)
    if (!x->loop[d] != !y->loop[d] || x->ring[d].slots || y->ring[d].slots)
      return false;
  return a->step.initializes == b->step.initializes;
}

static bool may_join(const pstep *a, const pstep *b) {
  return a->step.gemm->k.fixed == b->step.gemm->k.fixed && begin_alike(a, b);
}

// A step that no GEMM passes: of another loop, or one that a collective may run beside.
static bool ends(const planner *p, int first, int i) {
  lm_step_kind kind = p->steps[i].step.kind;
  return p->steps[i].loop != p->steps[first].loop || kind == LM_STEP_LOOP || kind == LM_STEP_END ||
         kind == LM_STEP_START || kind == LM_STEP_WAIT;
}

// True if step i neither changes operands of the GEMMs nor uses their results.
static bool is_passed(const joiner *j, const launch *l, int i) {
  for (int k = 0; k < l->n && !j->gone[i]; k++)
    if (lm_steps_depend(j->p, &j->p->steps[l->step[k]], &j->p->steps[i]))
      return false;
  return true;
}

// ---- a launch

static double saved_by(const joiner *j, const launch *l) {
  const planner *p = j->p;
  const lm_target *t = &p->o->target;
  lm_cost_gemm all[LM_JOINED];
  double library = -t->rates.gap;
  for (int i = 0; i < l->n; i++) {
    all[i] = lm_cost_gemm_of(p->plan, &p->steps[l->step[i]].step);
    library += lm_cost_of_gemm(t, &all[i]).seconds + t->rates.gap;
  }
  return library - lm_cost_of_joined(t, all, l->n, NULL).seconds;
}

static launch launch_from(const joiner *j, int first) {
  launch l = {
      .step = {first},
      .n = 1,
  };
  launch best = l;
  best.saved = saved_by(j, &l);
  for (int i = first + 1; i < (int)j->p->n_steps && l.n < LM_JOINED; i++) {
    const pstep *s = &j->p->steps[i];
    if (ends(j->p, first, i) || !is_passed(j, &l, i))
      break;
    if (j->gone[i] || !fits(j->p, s) || !may_join(&j->p->steps[first], s))
      continue;
    l.step[l.n++] = i;
    l.saved = saved_by(j, &l);
    if (l.saved > best.saved)
      best = l;
  }
  return best;
}

// A and B of each GEMM, then C of each.
static void refs_add(const planner *p, const launch *l, pstep *out) {
  out->refs = LM_NEW_N(p->arena, ref, 3 * l->n);
  for (int i = 0; i < l->n; i++) {
    const pstep *s = &p->steps[l->step[i]];
    out->refs[2 * i] = s->refs[LM_DOT_X];
    out->refs[2 * i + 1] = s->refs[LM_DOT_W];
    out->refs[2 * l->n + i] = *result_of(s);
  }
  out->step.n_read = 2 * l->n;
  out->step.n_write = l->n;
  out->step.n_bufs = 3 * l->n;
}

static void step_make(joiner *j, const launch *l) {
  planner *p = j->p;
  pstep out = p->steps[l->step[0]];
  lm_kernel_code code;
  lm_plan_gemm *all = LM_NEW_N(p->arena, lm_plan_gemm, l->n);
  out.step.kind = LM_STEP_KERNEL;
  out.step.moved = out.step.flops = 0;
  for (int i = 0; i < l->n; i++) {
    const lm_plan_step *s = &p->steps[l->step[i]].step;
    all[i] = *s->gemm;
    out.step.moved += s->moved;
    out.step.flops += s->flops;
  }
  refs_add(p, l, &out);
  p->codegen->join(p->o, all, l->n, p->arena, &code);
  out.step.gemm = all;
  out.step.joined = l->n;
  out.step.space = code.space;
  out.step.kernel = lm_kernel_find(p, out.op, &code);
  if (l->n > 1)
    out.step.label = lm_arena_printf(p->arena, "%s and %d more", out.step.label, l->n - 1);
  for (int i = 0; i < l->n; i++)
    j->gone[l->step[i]] = i + 1 < l->n;
  p->steps[l->step[l->n - 1]] = out;
}

void lm_steps_join(planner *p) {
  const lm_target *t = &p->o->target;
  if (!p->codegen->joins || p->o->less_memory || !t->units || !(lm_target_bandwidth(t) > 0))
    return;
  joiner j = {p, LM_NEW_N(p->arena, bool, p->n_steps + 1)};
  for (int i = 0; i < (int)p->n_steps; i++) {
    if (j.gone[i] || !fits(p, &p->steps[i]))
      continue;
    launch l = launch_from(&j, i);
    if (l.saved > 0)
      step_make(&j, &l);
  }
  lm_steps_remove(p, j.gone);
}
