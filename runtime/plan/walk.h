// walk.h - iterates over the steps of a plan's function in the order of execution. Every backend's
// executor is built on it.
#ifndef LM_PLAN_WALK_H
#define LM_PLAN_WALK_H
#include "runtime/plan/plan.h"

typedef struct lm_plan_walk {
  const lm_plan *plan;
  int64_t *var;      // run-time extents, then the index of each enclosing loop
  bool first;        // the run takes the gradients as zeros
  int64_t iteration; // of the innermost loop around the current step
} lm_plan_walk;

void lm_plan_walk_open(const lm_plan *plan, lm_plan_walk *out);
void lm_plan_walk_close(lm_plan_walk *w);
// Calls `step` for every execution of every step in the iterations in which it runs, except LOOP
// and END, and at the start of each iteration for a LOOP that has a buffer for its index. A FILL
// that initializes gradients is left out unless w->first. extents: optional, default the
// capacities. Returns the first status of `step` that is not NULL.
lm_status lm_plan_walk_run(lm_plan_walk *w, const lm_plan_func *f, const int64_t *extents,
                           lm_status (*step)(void *user, const lm_plan_step *s), void *user);
// Sets w->var to the extents of a run, as lm_plan_walk_run does, and all indices of loops to 0.
lm_status lm_plan_walk_extents(lm_plan_walk *w, const lm_plan_func *f, const int64_t *extents);
// The buffer's offset in its arena, in bytes, in the current iterations.
int64_t lm_plan_walk_offset(const lm_plan_walk *w, const lm_plan_buf *b);
static inline int32_t lm_plan_walk_index(const lm_plan_walk *w, const lm_plan_step *loop) {
  return (int32_t)w->var[w->plan->n_extents + loop->depth];
}
// The step overwrites the gradients to which it adds in other runs or iterations.
bool lm_plan_walk_overwrites(const lm_plan_walk *w, const lm_plan_step *s);
int lm_plan_bufs_max(const lm_plan *p); // maximum number of buffers of a step
#endif
