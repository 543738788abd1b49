// paired_timing.h - compares two plans of one recipe in one process. Their steps alternate, so
// other load of the machine slows both. `lmc bench --ablate` reports the ratio, max-autotune
// decides by it.
#ifndef LM_DRIVER_PAIRED_TIMING_H
#define LM_DRIVER_PAIRED_TIMING_H
#include "driver/execute.h"

typedef struct lm_step_times {
  lm_shortest micro, norm, update;
} lm_step_times;

// Copies the first micro-batch of the data to the inputs of @micro.
lm_status lm_step_batch(const lm_execution *x, lm_data *data);
// Calls each function of a step once. counts: whether t records it; the first call of a plan does
// not count, since it faults its memory in.
lm_status lm_step_measure(const lm_execution *x, bool counts, lm_step_times *t);
// *out: the speedup of `second` over `first`. Their steps alternate, and so does which of them
// begins. 0 if `second` did not win every comparison by a margin above the noise; the comparison
// that it loses is the last one.
enum {
  LM_PAIR_COMPARISONS = 5
};
lm_status lm_pair_compare(lm_status (*step)(void *plan, double *out_ms), void *first, void *second,
                          double *out);
// True if several calls of each function that was measured took nearly as little as its shortest.
bool lm_step_is_confirmed(const lm_step_times *t);
// Milliseconds of a step with all its micro-batches, of the shortest calls.
double lm_step_ms(const lm_execution *x, const lm_step_times *t);
#endif
