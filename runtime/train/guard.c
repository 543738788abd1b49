// guard.c - see guard.h.
#include "runtime/train/guard.h"

#include <math.h>

enum {
  MEAN_OVER = 50, // steps of the moving average
  MEAN_MIN = 20   // good steps that are needed before a loss can be a spike
};

double lm_guard_limit(const lm_guard *g, const lm_guard_options *o) {
  return o->spike > 0 && g->seen >= MEAN_MIN ? o->spike * g->mean : INFINITY;
}

static const char *fault_of(const lm_guard *g, const lm_guard_options *o, const lm_step_result *r) {
  if (isnan(r->loss))
    return "the loss is not a number";
  if (isinf(r->loss))
    return "the loss is infinite";
  if (isnan(r->grad_norm))
    return "the gradient's norm is not a number";
  if (isinf(r->grad_norm))
    return "the gradient's norm is infinite";
  return r->loss > lm_guard_limit(g, o) ? "the loss is far above the losses before it" : NULL;
}

lm_guard_verdict lm_guard_judge(lm_guard *g, const lm_guard_options *o, const lm_step_result *r,
                                const char **out_why) {
  *out_why = NULL;
  if (r->weight <= 0)
    return LM_GUARD_EMPTY;
  if (r->overflow) {
    g->overflows++;
    return LM_GUARD_OVERFLOW;
  }
  *out_why = fault_of(g, o, r);
  if (*out_why) {
    g->skipped++;
    return ++g->bad > o->skip ? LM_GUARD_ROLLBACK : LM_GUARD_SKIP;
  }
  g->bad = 0;
  if (g->seen < MEAN_OVER)
    g->seen++;
  g->mean += (r->loss - g->mean) / (double)g->seen;
  return LM_GUARD_GOOD;
}

void lm_guard_rollback(lm_guard *g, const lm_guard *then, int64_t saved, int64_t failed) {
  g->shift = then->shift + failed - saved;
  g->skipped = then->skipped;
  g->empty = then->empty;
  g->overflows = then->overflows;
  g->rollbacks = then->rollbacks + 1;
  g->bad = 0;
}
