// walk.c - see walk.h.
#include "runtime/plan/walk.h"

#include <string.h>

void lm_plan_walk_open(const lm_plan *plan, lm_plan_walk *out) {
  size_t n = (size_t)plan->n_extents + LM_PLAN_DEPTH;
  *out = (lm_plan_walk){
      .plan = plan,
      .var = lm_calloc(n, sizeof *out->var),
  };
}

void lm_plan_walk_close(lm_plan_walk *w) {
  lm_free(w->var);
}

int lm_plan_bufs_max(const lm_plan *p) {
  int max = 1;
  for (int i = 0; i < p->n_funcs; i++)
    for (int j = 0; j < p->funcs[i].n_steps; j++)
      if (p->funcs[i].steps[j].n_bufs > max)
        max = p->funcs[i].steps[j].n_bufs;
  return max;
}

int64_t lm_plan_walk_offset(const lm_plan_walk *w, const lm_plan_buf *b) {
  return lm_plan_buf_offset(b, &w->plan->mesh, w->var + w->plan->n_extents);
}

bool lm_plan_walk_overwrites(const lm_plan_walk *w, const lm_plan_step *s) {
  const int64_t *index = w->var + w->plan->n_extents;
  if (!w->first || !s->initializes)
    return false;
  const lm_plan_buf *to = &s->bufs[s->n_read];
  for (int d = 0; d < LM_PLAN_DEPTH; d++) {
    bool moves = to->stride[d] && (!to->ring[d].slots || index[d] < to->ring[d].slots);
    if (index[d] && !moves)
      return false;
  }
  return true;
}

lm_status lm_plan_walk_extents(lm_plan_walk *w, const lm_plan_func *f, const int64_t *extents) {
  const lm_plan *p = w->plan;
  memset(w->var, 0, ((size_t)p->n_extents + LM_PLAN_DEPTH) * sizeof *w->var);
  for (int i = 0; i < p->n_extents; i++) {
    int of = extents ? p->extents[i].of : 0;
    w->var[i] = of        ? extents[of - 1] * p->extents[i].times
                : extents ? extents[i]
                          : p->extents[i].capacity;
    if (p->extents[i].capped && w->var[i] > p->extents[i].capacity)
      w->var[i] = p->extents[i].capacity;
    if (w->var[i] < 0 || w->var[i] > p->extents[i].capacity)
      return lm_fail(LM_BUG_STATUS, "%s: extent %s is %lld, planned for at most %lld", f->name,
                     p->extents[i].name, (long long)w->var[i], (long long)p->extents[i].capacity);
  }
  return NULL;
}

// Advances from a LOOP or END step. *out_loop: the loop, if an iteration of it begins, else NULL.
// *depth: of the loops around the next step. LOOP and END refer to each other, so no stack is
// needed.
static int loop_step(lm_plan_walk *w, const lm_plan_func *f, int pc, int *depth,
                     const lm_plan_step **out_loop) {
  const lm_plan_step *s = &f->steps[pc];
  const lm_plan_step *loop = s->kind == LM_STEP_LOOP ? s : &f->steps[s->match];
  int64_t *index = &w->var[w->plan->n_extents + s->depth];
  *index = s->kind == LM_STEP_LOOP ? 0 : *index + 1;
  *out_loop = *index < loop->count ? loop : NULL;
  *depth = s->depth + (*out_loop != NULL);
  if (*out_loop)
    return (s->kind == LM_STEP_LOOP ? pc : s->match) + 1;
  *index = 0;
  return loop->match + 1;
}

lm_status lm_plan_walk_run(lm_plan_walk *w, const lm_plan_func *f, const int64_t *extents,
                           lm_status (*step)(void *user, const lm_plan_step *s), void *user) {
  int depth = 0;
  LM_TRY(lm_plan_walk_extents(w, f, extents));
  for (int pc = 0; pc < f->n_steps;) {
    const lm_plan_step *s = &f->steps[pc];
    const lm_plan_step *loop = NULL;
    if (s->kind != LM_STEP_LOOP && s->kind != LM_STEP_END) {
      w->iteration = depth ? w->var[w->plan->n_extents + depth - 1] : 0;
      bool skipped = (s->kind == LM_STEP_FILL && s->initializes && !w->first) ||
                     !lm_plan_step_runs(s, w->iteration);
      if (!skipped)
        LM_TRY(step(user, s));
      pc++;
      continue;
    }
    pc = loop_step(w, f, pc, &depth, &loop);
    if (loop && loop->n_bufs)
      LM_TRY(step(user, loop));
  }
  return NULL;
}
