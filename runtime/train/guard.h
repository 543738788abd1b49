// guard.h - what becomes of a step that went wrong: one whose loss or gradient is not finite, or
// whose loss is far above those before it.
//
//   a bad step       its batch is left out: nothing is updated, the run goes on with the next batch
//   more of them in a row than `skip`   back to the newest checkpoint, and on from the batch behind
//   the bad ones more returns than `rollback` without a new checkpoint, or nothing to return to the
//   run stops
//
// A step whose weights sum to 0 or less has nothing to learn from. It is left out and counted, and
// says nothing about the run: it neither begins nor ends a series of bad steps.
//
// The judgement depends on losses alone, and its state is part of a checkpoint: the same run gives
// the same bits.
#ifndef LM_TRAIN_GUARD_H
#define LM_TRAIN_GUARD_H
#include "runtime/train/trainer.h"

typedef struct lm_guard_options {
  int64_t skip, rollback;
  double spike; // a loss above so many times the recent mean is bad; 0: none is
} lm_guard_options;

typedef struct lm_guard {
  double mean;
  int64_t seen;    // of the losses of good steps: over about the last fifty; how many there were
  int64_t bad;     // bad steps in a row, up to now
  int64_t skipped; // bad steps of the whole run
  int64_t empty;   // steps of the whole run whose weights sum to 0 or less: left out, but not bad
  int64_t returns; // to the newest checkpoint, since it was made
  int64_t shift;   // batches left out by returns: step s takes batch s - 1 + shift
} lm_guard;

typedef enum {
  LM_GUARD_GOOD,
  LM_GUARD_SKIP,
  LM_GUARD_ROLLBACK
} lm_guard_verdict;

// A loss above it is bad; INFINITY: none is.
double lm_guard_limit(const lm_guard *g, const lm_guard_options *o);
// Takes the result of a step's gradients into account. *out_why: what is wrong with it, NULL if
// nothing.
lm_guard_verdict lm_guard_judge(lm_guard *g, const lm_guard_options *o, const lm_step_result *r,
                                const char **out_why);
// After the checkpoint of step `saved` was loaded in place of step `failed`: `then` is the guard as
// it was just before. *g, as loaded, goes on behind the batches that failed.
void lm_guard_rollback(lm_guard *g, const lm_guard *then, int64_t saved, int64_t failed);
#endif
