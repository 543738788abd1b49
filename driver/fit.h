// fit.h - the choice of a micro-batch, and of stashes that are recomputed or offloaded to the
// host's memory, with which a plan fits the memory.
#ifndef LM_DRIVER_FIT_H
#define LM_DRIVER_FIT_H
#include "driver/compile.h"

typedef struct lm_fit {
  int recomputed,
      candidates;  // stashes that are recomputed to fit, and how many could be, or offloaded
  int offloaded;   // stashes that are offloaded to the host's memory to fit
  int64_t freed;   // bytes of stashes that were asked of pass recompute
  int64_t natural; // bytes of the plan that recomputes and offloads none of them
  double slowdown; // predicted time of a step, relative to that plan
  int64_t memory;  // bytes that the machine could allocate; 0: that was not asked
} lm_fit;

// Compiles with the spec, and with other micro-batches and fewer stashes until the plan fits the
// memory limit. *out is the plan that was chosen, and its run and its spec say with which
// micro-batch. A budget of the recipe that cannot be met is error E210. Changes nothing but the
// results. most: a limit in bytes, of a recipe without a budget; 0: what the machine has.
lm_status lm_fit_find(const lm_project *p, const lm_compile_spec *spec, int64_t most,
                      lm_fit *out_choice, lm_compiled *out);
// "2 of 9 stashed values are recomputed and 3 are in the host's memory"; NULL if none are.
const char *lm_fit_text(lm_arena *a, const lm_fit *fit);
#endif
