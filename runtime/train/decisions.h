// decisions.h - what the host decides in a step of a run, and acts on. One function makes all of
// them (run.c), at three moments of a step: whatever depends on this process alone, such as a
// signal or a disk, has an effect on training only through them.
#ifndef LM_TRAIN_DECISIONS_H
#define LM_TRAIN_DECISIONS_H
#include "runtime/train/guard.h"

typedef enum {
  LM_AT_RESULT, // after the result of the step: verdict, why, evaluate
  LM_AT_END,    // after evaluations and samples, and before the first step: the next four
  LM_AT_SAVE    // before a checkpoint: not_finite
} lm_moment;

typedef struct lm_decisions {
  lm_guard_verdict verdict;
  const char *why;        // why the step is bad; NULL: it is not
  bool evaluate;          // some evaluation is due
  int interrupted;        // the signal that ends the run; 0: none
  bool over;              // this step is the last one, also by a signal or early stopping
  bool save;              // a checkpoint is due
  bool written;           // that in the background is written, on all ranks
  const char *not_finite; // a parameter that is no longer finite; NULL: none
} lm_decisions;
#endif
