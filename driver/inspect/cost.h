// cost.h - what a plan's functions cost.
#ifndef LMC_COST_H
#define LMC_COST_H
#include "runtime/plan/plan.h"

// Of one run, loops counted as often as they turn.
typedef struct lm_cost {
  double flops, bytes;
  int64_t launches;
} lm_cost;
lm_cost lm_cost_of(const lm_plan_func *f);
// Of a whole step: n_micro micro-batches, norm, update.
lm_cost lm_cost_of_step(const lm_plan *p, int64_t n_micro);
#endif
