// timeline.h - what happened when: spans on a few rows, for profiles. Those who work add to it; lmc
// reads it.
#ifndef LM_TIMELINE_H
#define LM_TIMELINE_H
#include "runtime/base/base.h"

typedef enum {
  LM_ROW_RUN,  // training steps, evaluations
  LM_ROW_FUNC, // functions of the plan
  LM_ROW_STEP, // steps of functions: kernels, products, moves
  LM_ROW_DATA, // rows read and packed
  LM_ROW_SAVE, // checkpoints
  // a row for each thread: its shares of steps, and how long it waited for the others
  LM_ROW_THREAD,
  LM_ROWS
} lm_timeline_row;

// name lives as long as the timeline; what: the lm_plan_step of LM_ROW_STEP, else NULL. Seconds of
// lm_now().
typedef struct lm_span {
  const char *name;
  const void *what;
  double start, end;
  lm_timeline_row row;
  int64_t number;
  int thread;
} lm_span;

typedef struct lm_timeline {
  lm_arena *arena;
  uint32_t most; // spans that are kept; later ones are counted only
  lm_span *spans;
  uint32_t n_spans, cap_spans;
  int64_t left_out;
  bool threads; // rows of threads are wanted
} lm_timeline;

// NULL stands for nobody who looks: 0, and nothing is added.
static inline double lm_timeline_now(const lm_timeline *t) {
  return t ? lm_now() : 0;
}
void lm_timeline_span(lm_timeline *t, lm_span s);
// A span that began at `start` and ends now. number: which step, row or micro-batch; -1: it has
// none.
void lm_timeline_add(lm_timeline *t, lm_timeline_row row, const char *name, const void *what,
                     int64_t number, double start);
#endif
