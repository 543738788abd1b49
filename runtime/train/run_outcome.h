// run_outcome.h - what a run says at its end.
#ifndef LM_TRAIN_RUN_OUTCOME_H
#define LM_TRAIN_RUN_OUTCOME_H
#include "runtime/train/run.h"

// steps: of the run. saved: the last step has a checkpoint. stop: the reason of early stopping.
void lm_run_outcome_say(lm_progress *p, const lm_run_outcome *x, int64_t steps, bool saved,
                        const char *stop);
#endif
