// progress.h - the status line of a run: rewritten on a terminal; elsewhere a new line from time to
// time.
#ifndef LM_TRAIN_PROGRESS_H
#define LM_TRAIN_PROGRESS_H
#include <stdio.h>

#include "runtime/train/trainer.h"

// Cost of the steps from `first` until the next stage, in floating-point operations per token.
typedef struct lm_progress_stage {
  int64_t first;
  double flops_per_token;
} lm_progress_stage;

typedef struct lm_progress {
  FILE *to; // NULL: silent
  bool terminal;
  int64_t steps; // the last step of the run
  const lm_progress_stage *stages;
  int n_stages;      // sorted; 0: MFU is not shown
  double peak_flops; // of the machine, per second, for MFU; 0: MFU is not shown
  int64_t memory;    // planned bytes; 0: not shown
  // private
  int64_t first;        // the step before the first of this process
  double started, last; // lm_now() at the start, and when the last step ended
  double rate;          // tokens per second, smoothed
  double step_seconds;  // smoothed
  bool open;            // the last line on the terminal is incomplete
} lm_progress;

void lm_progress_start(lm_progress *p, int64_t first);
// Call after every step.
void lm_progress_step(lm_progress *p, int64_t step, const lm_step_result *r);
void lm_progress_say(lm_progress *p, const char *fmt, ...)
    LM_PRINTF(2, 3); // prints a separate line
// Excludes the time until the next step from the rates.
void lm_progress_pause(lm_progress *p);
void lm_progress_end(lm_progress *p);
#endif
