// walk.h - the steps of a plan's function in the order in which they run: what every backend's exec
// is built on.
#ifndef LM_PLAN_WALK_H
#define LM_PLAN_WALK_H
#include "runtime/plan/plan.h"

typedef struct lm_plan_walk {
  const lm_plan *plan;
  int64_t *var; // run-time extents, then the index of each enclosing loop
} lm_plan_walk;

void lm_plan_walk_open(const lm_plan *plan, lm_plan_walk *out);
void lm_plan_walk_close(lm_plan_walk *w);
// Hands every step but LOOP and END to `step`, as often as it runs; at the start of each iteration
// also a LOOP that has a buffer for its index. extents: NULL: at capacity. Ends with the first
// status of `step`.
lm_status lm_plan_walk_run(lm_plan_walk *w, const lm_plan_func *f, const int64_t *extents,
                           lm_status (*step)(void *user, const lm_plan_step *s), void *user);
int64_t lm_plan_walk_offset(const lm_plan_walk *w,
                            const lm_plan_buf *b); // in its arena, in the present iterations
static inline int32_t lm_plan_walk_index(const lm_plan_walk *w, const lm_plan_step *loop) {
  return (int32_t)w->var[w->plan->n_extents + loop->depth];
}
int lm_plan_bufs_most(const lm_plan *p); // of any step
#endif
