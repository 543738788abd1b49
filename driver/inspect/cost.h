// cost.h - FLOPs, bytes and launches of a plan's functions.
#ifndef LM_DRIVER_COST_H
#define LM_DRIVER_COST_H
#include "runtime/plan/plan.h"

// The cost of one call, with the iterations of all loops.
typedef struct lm_cost {
  double flops, bytes;
  int64_t launches;
} lm_cost;
lm_cost lm_cost_of(const lm_plan_func *f);
// The cost of a whole step: n_micro micro-batches, norm and update.
lm_cost lm_cost_of_step(const lm_plan *p, int64_t n_micro);
#endif
