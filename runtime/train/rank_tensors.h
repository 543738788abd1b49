// rank_tensors.h - collects whole tensors of which each rank has a part.
#ifndef LM_TRAIN_RANK_TENSORS_H
#define LM_TRAIN_RANK_TENSORS_H
#include "runtime/comm/comm.h"
#include "runtime/hal/exec.h"

typedef struct lm_rank_tensors {
  lm_comm *comm; // NULL: one process
  lm_exec *exec;
  const lm_plan *plan;
} lm_rank_tensors;

// Sets `out` of rank `to` to elements first … first + n - 1 of x, in its type. All ranks call it,
// with the same arguments but `out`, which only rank `to` uses. A part that `to` lacks is sent by
// the rank that has it and is closest: the one with the coordinates of `to` along the axes of the
// mesh that do not divide x.
lm_status lm_rank_tensor_collect(const lm_rank_tensors *t, lm_plan_tensor x, int64_t first,
                                 int64_t n, int to, void *out);
#endif
