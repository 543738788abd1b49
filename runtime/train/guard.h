// guard.h - handles bad steps: steps whose loss or gradient is not finite, or whose loss is far
// above the losses before it.
//
//   - A bad step is skipped: its batch updates nothing, and the run continues with the next batch.
//   - After more than `skip` bad steps in a row, the run rolls back to the newest checkpoint and
//     continues with the batch after the bad ones.
//   - After more than `rollback` rollbacks without a new checkpoint, or if there is no checkpoint,
//     the run stops.
//
// A step whose gradient overflows at a loss scale that can be halved (loss_scale.h) is skipped and
// counted too, and neither begins nor ends a series of bad steps. Nor does an empty step: one whose
// weights sum to 0 or less, which is skipped and counted.
//
// The verdict depends only on the results of the steps, and the guard's state is part of a
// checkpoint, so that equal runs give equal bits.
#ifndef LM_TRAIN_GUARD_H
#define LM_TRAIN_GUARD_H
#include "runtime/train/trainer.h"

typedef struct lm_guard_options {
  int64_t skip, rollback;
  double spike; // a loss above `spike` times the recent mean is bad; 0: no limit
} lm_guard_options;

typedef struct lm_guard {
  double mean;       // moving average of the losses of good steps, over about fifty steps
  int64_t seen;      // number of good steps
  int64_t bad;       // current number of bad steps in a row
  int64_t skipped;   // bad steps of the whole run
  int64_t empty;     // empty steps of the whole run
  int64_t overflows; // steps of the whole run that were skipped to halve the loss scale
  int64_t rollbacks; // to the newest checkpoint since it was saved
  int64_t shift;     // batches that rollbacks skipped: step s uses batch s - 1 + shift
} lm_guard;

typedef enum {
  LM_GUARD_EMPTY,
  LM_GUARD_OVERFLOW,
  LM_GUARD_GOOD,
  LM_GUARD_SKIP,
  LM_GUARD_ROLLBACK
} lm_guard_verdict;

// A loss above the result is bad; INFINITY: no limit.
double lm_guard_limit(const lm_guard *g, const lm_guard_options *o);
// Updates the guard with the result of a step. *out_why is the reason why the step is bad; NULL if
// it is good, empty or an overflow.
lm_guard_verdict lm_guard_judge(lm_guard *g, const lm_guard_options *o, const lm_step_result *r,
                                const char **out_why);
// Updates the guard that was loaded from the checkpoint of step `saved` after step `failed` failed,
// so that the run continues after the bad batches. `then` is the guard before the checkpoint was
// loaded.
void lm_guard_rollback(lm_guard *g, const lm_guard *then, int64_t saved, int64_t failed);
#endif
