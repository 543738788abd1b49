// pairs.h - two plans of one recipe side by side in one process: their functions run in turn, so
// what else the machine does falls on both. What `lmc bench --ablate` reports and max-autotune
// decides by.
#ifndef LMC_PAIRS_H
#define LMC_PAIRS_H
#include "driver/session.h"

typedef struct lm_step_times {
  double micro, norm, update;
} lm_step_times; // seconds, the best so far; 0: none

// The first micro-batch of the data where @micro of a started session finds it.
lm_status lm_step_batch(const lm_session *s);
// Runs each function of a step once. counts: whether it goes into t; the first run of a plan
// touches its memory.
lm_status lm_step_measure(const lm_session *s, bool counts, lm_step_times *t);
// How many times as fast second is as first: turns of both alternate, which comes first too. 0: it
// did not win every one of the comparisons by a margin that noise does not make; the first that it
// does not win is the last.
enum {
  LM_PAIR_COMPARISONS = 5
};
lm_status lm_pair_compare(lm_status (*turn)(void *plan, double *out_ms), void *first, void *second,
                          double *out);
double lm_step_ms(const lm_session *s,
                  const lm_step_times *t); // of a step of all its micro-batches
#endif
