// rank_sums.h - numbers of the ranks, added in their order.
#ifndef LM_TRAIN_RANK_SUMS_H
#define LM_TRAIN_RANK_SUMS_H
#include "runtime/comm/comm.h"
#include "runtime/hal/totals.h"

// Replaces each of n numbers by the sum, in float64, of those of the ranks along the axes of the
// mesh in partial[i]; ranks that differ along other axes have equal ones. `what` names the call in
// messages.
lm_status lm_rank_numbers_add(lm_comm *c, const char *what, const lm_plan *plan,
                              const lm_mesh_set *partial, size_t n, double *x);
// Replaces the executor's totals of `micro` (totals.h), which are in the host's memory, and *tokens
// by the sums over the ranks.
lm_status lm_rank_totals_add(lm_comm *c, lm_exec *e, const lm_plan *plan, const lm_plan_func *micro,
                             int64_t *tokens);
// LM_ENV unless all ranks have the same parameters, as their updates are the same: a machine
// computes wrongly.
lm_status lm_rank_params_compare(lm_comm *c, lm_exec *e, const lm_plan *plan);
#endif
