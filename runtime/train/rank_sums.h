// rank_sums.h - the results of the ranks of a step, added in their order.
#ifndef LM_TRAIN_RANK_SUMS_H
#define LM_TRAIN_RANK_SUMS_H
#include "runtime/comm/comm.h"
#include "runtime/hal/totals.h"

typedef struct lm_rank_results {
  const lm_plan_func *micro;
  const char *const *equal; // its results that all ranks have, and that are taken once
  int n_equal;
} lm_rank_results;

// Replaces the executor's totals (totals.h), which are in the host's memory, and *tokens by the
// sums over the ranks, in float64.
lm_status lm_rank_totals_add(lm_comm *c, lm_exec *e, const lm_rank_results *x, int64_t *tokens);
// Replaces the gradients of all parameters by their sums over the ranks.
lm_status lm_rank_gradients_add(lm_comm *c, lm_exec *e, const lm_plan *plan);
// LM_ENV unless all ranks have the same parameters, as their updates are the same: a machine
// computes wrongly.
lm_status lm_rank_params_compare(lm_comm *c, lm_exec *e, const lm_plan *plan);
#endif
