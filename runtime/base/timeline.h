// timeline.h - a trace for profiles: named spans of time, in rows. Training, the executors and the
// data loader add spans; lmc writes them out.
#ifndef LM_TIMELINE_H
#define LM_TIMELINE_H
#include "runtime/base/base.h"

typedef enum {
  LM_ROW_RUN,    // training steps, evaluations
  LM_ROW_FUNC,   // functions of the plan
  LM_ROW_STEP,   // steps of functions: kernels, GEMMs, moves
  LM_ROW_DATA,   // training rows that are read and packed
  LM_ROW_SAVE,   // checkpoints
  LM_ROW_THREAD, // one row per thread: its shares of steps, and its waiting times
  LM_ROWS
} lm_timeline_row;

// name must live as long as the timeline. what: the lm_plan_step for LM_ROW_STEP, NULL for the
// other rows. start, end: seconds of lm_now(). number: of the step, row or micro-batch; -1 if there
// is none.
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
  uint32_t max; // spans that are kept; further ones are only counted
  lm_span *spans;
  uint32_t n_spans, cap_spans;
  int64_t left_out; // number of spans beyond `max`
  bool threads;     // also record LM_ROW_THREAD
} lm_timeline;

// 0 without a timeline. All functions accept NULL and then record nothing.
static inline double lm_timeline_now(const lm_timeline *t) {
  return t ? lm_now() : 0;
}
void lm_timeline_span(lm_timeline *t, lm_span s);
// Adds a span from `start` to now.
void lm_timeline_add(lm_timeline *t, lm_timeline_row row, const char *name, const void *what,
                     int64_t number, double start);
#endif
