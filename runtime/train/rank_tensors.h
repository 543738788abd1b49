// rank_tensors.h - whole tensors of which each rank has a part, for rank 0, which writes them.
//
// The ranks go through the same tensors in the same order, in chunks of LM_ST_CHUNK bytes. Rank 0
// takes each chunk when it writes it; the others follow. If rank 0 stops before the end, as on a
// full disk, it goes through the rest without writing.
#ifndef LM_TRAIN_RANK_TENSORS_H
#define LM_TRAIN_RANK_TENSORS_H
#include "runtime/comm/comm.h"
#include "runtime/hal/exec.h"

typedef struct lm_rank_tensors {
  lm_comm *comm; // NULL: one process
  lm_exec *exec;
  const lm_plan *plan;
  const lm_plan_tensor *v;
  size_t n;
  size_t tensor; // the next chunk
  int64_t at;
} lm_rank_tensors;

// Sets `out` to elements first … first + n - 1 of x, in its type: the next chunk. It has space for
// whole words of 4 bytes.
lm_status lm_rank_tensors_take(lm_rank_tensors *t, const lm_plan_tensor *x, int64_t first,
                               int64_t n, void *out);
// Goes through the chunks that are left.
lm_status lm_rank_tensors_finish(lm_rank_tensors *t);
#endif
