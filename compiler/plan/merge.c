// merge.c - makes one launch of several short steps that do not depend on each other.
//
// before: 5 kernel k1 packed … -> k        6 copy k at -> cache     7 copy v at -> cache
//         8 copy pos at -> cache           9 kernel k2 packed … -> q
// after:  5 kernel m1 packed … v pos at -> cache cache cache q
//
// The blocks of the launch are those of its parts, side by side, so that parts run at the same
// time. A kernel's result that is only appended to a KV cache is written there by the kernel.
//
// A step joins the first one of a launch, and thus passes the steps between them, if it depends on
// none of these. Steps are merged if a launch is much of their time, of sizes that are known.
// Numerics: none, as the operations are the same.
#include <stdlib.h>
#include <string.h>

#include "compiler/plan/cost.h"
#include "compiler/plan/internal.h"

enum {
  WINDOW = 16,     // steps from the first to the last of a launch
  PART = 8,        // of a step's time
  PER_ELEMENT = 16 // instructions of a copy
};

typedef struct launch {
  lm_merge_part part[LM_MERGE_PARTS];
  int step[LM_MERGE_PARTS];
  int n;
} launch;

typedef struct merger {
  planner *p;
  bool *taken; // by step: it is a part of an earlier step
} merger;

// ---- which steps

static bool is_fixed(const lm_plan_move *m) {
  for (int i = 0; i < m->rank; i++)
    if (m->dim[i].size.n_dyn)
      return false;
  return true;
}

static double elements_of(const lm_plan_move *m) {
  double n = 1;
  for (int i = 0; i < m->rank; i++)
    n *= (double)m->dim[i].size.fixed;
  return n;
}

// True if a launch and the gap behind it are at least an eighth of the step's time.
static bool is_short(const planner *p, const lm_plan_step *s, double instructions) {
  const lm_target *t = &p->o->target;
  lm_cost_kernel k = {
      .bytes = (double)s->moved,
      .instructions = instructions,
  };
  return lm_target_bandwidth(t) > 0 && t->units &&
         lm_cost_of_kernel(t, &k).seconds < PART * (t->rates.launch + t->rates.gap);
}

static bool fits(const planner *p, const pstep *x) {
  const lm_plan_step *s = &x->step;
  if (s->kind == LM_STEP_COPY)
    return is_fixed(s->move) && is_short(p, s, elements_of(s->move) * PER_ELEMENT);
  if (s->kind != LM_STEP_KERNEL || s->space.n_dyn || s->attend || s->gemm || x->accum)
    return false;
  return p->codegen->may_merge(p->codes[s->kernel]) && is_short(p, s, s->instructions);
}

// ---- dependences

bool lm_steps_depend(const planner *p, const pstep *a, const pstep *b) {
  for (int i = 0; i < a->step.n_bufs; i++)
    for (int k = 0; k < b->step.n_bufs; k++) {
      bool writes = i >= a->step.n_read || k >= b->step.n_read;
      if (writes && lm_refs_meet(p, a->loop, &a->refs[i], &b->refs[k]))
        return true;
    }
  return false;
}

// ---- results that are only appended

int lm_storage_uses(const planner *p, const storage *s) {
  int n = 0;
  for (uint32_t i = 0; i < p->n_steps; i++)
    for (int b = 0; b < p->steps[i].step.n_bufs; b++)
      n += lm_storage_resolve(p->steps[i].refs[b].at).at == s;
  return n;
}

// The elements are as far apart in the cache as in the result.
static bool is_shift(const lm_plan_move *m) {
  for (int i = 0; i < m->rank; i++)
    if (m->dim[i].from != m->dim[i].to)
      return false;
  return m->at_dim >= 0;
}

// The buffer of `from` that the append reads, if nothing else does; -1: none.
static int appended(const planner *p, const pstep *from, const pstep *append) {
  const ref *x = &append->refs[0];
  if (from->step.kind != LM_STEP_KERNEL || append->step.kind != LM_STEP_COPY ||
      !is_shift(append->step.move))
    return -1;
  int end = from->step.n_read + from->step.n_write;
  for (int i = from->step.n_read; i < end; i++) {
    const ref *r = &from->refs[i];
    bool same = r->at == x->at && r->offset == x->offset && r->bytes == x->bytes;
    if (same && r->at->arena == LM_ARENA_WORK && !r->at->into && lm_storage_uses(p, r->at) == 2)
      return i;
  }
  return -1;
}

// ---- a launch

// All appends of a launch have one limit, which one block checks.
static bool same_limit(const launch *l, const lm_plan_move *m) {
  for (int i = 0; i < l->n; i++) {
    const lm_plan_move *x = l->part[i].move;
    if (!x || x->at_dim < 0)
      continue;
    return x->at_limit == m->at_limit &&
           x->dim[x->at_dim].size.fixed == m->dim[m->at_dim].size.fixed;
  }
  return true;
}

static bool passes_between(const merger *g, const launch *l, int step) {
  const planner *p = g->p;
  for (int i = l->step[0] + 1, k = 1; i < step; i++) {
    bool is_part = k < l->n && l->step[k] == i;
    k += is_part;
    if (!is_part && !g->taken[i] && lm_steps_depend(p, &p->steps[i], &p->steps[step]))
      return false;
  }
  return true;
}

static void part_add(const merger *g, launch *l, int step) {
  const lm_plan_step *s = &g->p->steps[step].step;
  bool copies = s->kind == LM_STEP_COPY;
  l->step[l->n] = step;
  l->part[l->n++] = (lm_merge_part){
      .kernel = copies ? NULL : g->p->codes[s->kernel],
      .points = s->space.fixed,
      .move = copies ? s->move : NULL,
      .n_bufs = s->n_bufs,
      .appended = -1,
  };
}

// The step writes the cache instead, and reads the position.
static void append_take(const merger *g, lm_merge_part *part, int step, const pstep *append,
                        int buf) {
  pstep *s = &g->p->steps[step];
  ref *refs = LM_NEW_N(g->p->arena, ref, s->step.n_bufs + 1);
  int n = s->step.n_read;
  memcpy(refs, s->refs, (size_t)n * sizeof *refs);
  refs[n] = append->refs[1];
  memcpy(refs + n + 1, s->refs + n, (size_t)(s->step.n_bufs - n) * sizeof *refs);
  refs[buf + 1] = append->refs[2];
  s->refs = refs;
  s->step.n_bufs++;
  s->step.n_read++;
  part->n_bufs++;
  part->move = append->step.move;
  part->at = n;
  part->appended = buf + 1;
}

static bool step_join(merger *g, launch *l, int step) {
  planner *p = g->p;
  const pstep *x = &p->steps[step];
  bool appends = x->step.kind == LM_STEP_COPY && x->step.move->at_dim >= 0;
  if (!passes_between(g, l, step) || (appends && !same_limit(l, x->step.move)))
    return false;
  int from = -1, buf = -1;
  for (int i = 0; i < l->n; i++) {
    if (!lm_steps_depend(p, &p->steps[l->step[i]], x))
      continue;
    buf = from < 0 && !l->part[i].move ? appended(p, &p->steps[l->step[i]], x) : -1;
    if (buf < 0)
      return false;
    from = i;
  }
  if (from >= 0)
    append_take(g, &l->part[from], l->step[from], x, buf);
  else if (l->n == LM_MERGE_PARTS)
    return false;
  else
    part_add(g, l, step);
  return true;
}

static launch launch_from(merger *g, int first) {
  planner *p = g->p;
  launch l = {0};
  part_add(g, &l, first);
  for (int i = first + 1; i < (int)p->n_steps && i < first + WINDOW; i++) {
    lm_step_kind kind = p->steps[i].step.kind;
    if (p->steps[i].loop != p->steps[first].loop || kind == LM_STEP_LOOP || kind == LM_STEP_END ||
        kind == LM_STEP_START || kind == LM_STEP_WAIT)
      break;
    if (!g->taken[i] && fits(p, &p->steps[i]))
      g->taken[i] = step_join(g, &l, i);
  }
  return l;
}

// ---- the merged step

// The buffers of a kind of each part, in order: 0 read, 1 written, 2 workspaces.
static int refs_add(const merger *g, launch *l, int kind, ref *to, int n) {
  for (int i = 0; i < l->n; i++) {
    const pstep *s = &g->p->steps[l->step[i]];
    int ends[] = {0, s->step.n_read, s->step.n_read + s->step.n_write, s->step.n_bufs};
    for (int b = ends[kind]; b < ends[kind + 1]; b++) {
      l->part[i].buf[b] = n;
      to[n++] = s->refs[b];
    }
  }
  return n;
}

static const char *label_of(const merger *g, const launch *l) {
  const char *first = g->p->steps[l->step[0]].step.label;
  return lm_arena_printf(g->p->arena, "%s and %d more", first, l->n - 1);
}

static void step_make(merger *g, launch *l) {
  planner *p = g->p;
  pstep s = p->steps[l->step[0]];
  int all = 0;
  s.step = (lm_plan_step){
      .kind = LM_STEP_KERNEL,
      .label = s.step.label,
  };
  for (int i = 0; i < l->n; i++) {
    const lm_plan_step *x = &p->steps[l->step[i]].step;
    l->part[i].buf = LM_NEW_N(p->arena, int, x->n_bufs);
    s.step.moved += x->moved;
    s.step.flops += x->flops;
    s.step.again += x->again;
    s.step.instructions +=
        x->kind == LM_STEP_COPY ? elements_of(x->move) * PER_ELEMENT : x->instructions;
    s.step.move = s.step.move || !l->part[i].move || l->part[i].move->at_dim < 0 ? s.step.move
                                                                                 : l->part[i].move;
    all += x->n_bufs;
  }
  s.refs = LM_NEW_N(p->arena, ref, all + 1);
  s.step.n_read = refs_add(g, l, 0, s.refs, 0);
  s.step.n_write = refs_add(g, l, 1, s.refs, s.step.n_read) - s.step.n_read;
  s.step.n_bufs = refs_add(g, l, 2, s.refs, s.step.n_read + s.step.n_write);
  lm_kernel_code code;
  p->codegen->merge(l->part, l->n, p->arena, &code);
  s.step.space = code.space;
  s.step.kernel = lm_kernel_find(p, s.op, &code);
  if (l->n > 1)
    s.step.label = label_of(g, l);
  p->steps[l->step[0]] = s;
}

void lm_steps_merge(planner *p) {
  if (!p->codegen->merge)
    return;
  merger g = {p, LM_NEW_N(p->arena, bool, p->n_steps + 1)};
  for (int i = 0; i < (int)p->n_steps; i++) {
    if (g.taken[i] || !fits(p, &p->steps[i]))
      continue;
    launch l = launch_from(&g, i);
    if (l.n > 1 || l.part[0].appended >= 0)
      step_make(&g, &l);
  }
  lm_steps_remove(p, g.taken);
}

// ---- kernels that no step runs any more

void lm_kernels_prune(lm_plan *plan) {
  int *to = lm_calloc((size_t)plan->n_kernels + 1, sizeof *to);
  int n = 0;
  for (int f = 0; f < plan->n_funcs; f++)
    for (int i = 0; i < plan->funcs[f].n_steps; i++) {
      int k = lm_plan_step_kernel(&plan->funcs[f].steps[i]);
      if (k >= 0)
        to[k] = 1;
    }
  for (int k = 0; k < plan->n_kernels; k++)
    if (to[k]) {
      plan->kernels[n] = plan->kernels[k];
      to[k] = n++;
    }
  plan->n_kernels = n;
  for (int f = 0; f < plan->n_funcs; f++)
    for (int i = 0; i < plan->funcs[f].n_steps; i++) {
      lm_plan_step *s = &plan->funcs[f].steps[i];
      if (s->kind == LM_STEP_KERNEL)
        s->kernel = to[s->kernel];
      else if (s->kind == LM_STEP_GEMM && s->gemm->code)
        s->gemm->code = 1 + to[s->gemm->code - 1];
    }
  lm_free(to);
}
