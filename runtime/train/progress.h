// progress.h - the status line of a run: rewritten in place on a terminal, else a plain line now
// and then.
#ifndef LM_TRAIN_PROGRESS_H
#define LM_TRAIN_PROGRESS_H
#include <stdio.h>

#include "runtime/train/trainer.h"

// Steps from `first` on take so many operations for each token, until the next stage.
typedef struct lm_progress_stage {
  int64_t first;
  double flops_per_token;
} lm_progress_stage;

typedef struct lm_progress {
  FILE *to; // NULL: silent
  bool terminal;
  int64_t steps; // the last step of the run
  const lm_progress_stage *stages;
  int n_stages;      // in order, from the first step on; none: MFU is not shown
  double peak_flops; // for MFU; 0: not shown
  int64_t memory;    // bytes planned; 0: not shown
  // kept by the functions below
  int64_t first;        // the step before the first of this process
  double started, last; // lm_now() at the start, and when the last step ended
  double rate;          // tokens a second, smoothed
  double step_seconds;  // smoothed
  bool open;            // a line stands unfinished on the terminal
} lm_progress;

void lm_progress_start(lm_progress *p, int64_t first);
void lm_progress_step(lm_progress *p, int64_t step,
                      const lm_step_result *r); // after every step; updates the rates
void lm_progress_say(lm_progress *p, const char *fmt, ...) LM_PRINTF(2, 3); // a line of its own
void lm_progress_pause(
    lm_progress *p); // what follows, until the next step, is not counted as training
void lm_progress_end(lm_progress *p);
#endif
