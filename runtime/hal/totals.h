// totals.h - sums of the scalar results of a training step, computed where the results are: on a
// device this needs no synchronization with the host.
//
// After each micro-batch its scalar results are added to the totals, in float64, in order of the
// runs. The totals and the gradient's norm determine the scale of the gradient (scale.h), which is
// an argument of the update; it is NaN for a step that must be skipped.
#ifndef LM_HAL_TOTALS_H
#define LM_HAL_TOTALS_H
#include "runtime/hal/exec.h"

typedef struct lm_scale_rule {
  int sum, weight;           // indices of the function's results
  const lm_plan_port *norm;  // f32, a result that has been computed
  const lm_plan_port *scale; // f32, an argument of the next run
  double loss_scale;         // factor of the gradients; 1: none
  double clip, limit;        // 0: no clipping; INFINITY: no limit
} lm_scale_rule;

// Adds every scalar result i of f, which has just run, to totals[i]. first: the totals are zeroed
// before.
lm_status lm_totals_add(lm_exec *e, const lm_plan_func *f, bool first);
// Computes r->scale for the next run.
lm_status lm_totals_scale(lm_exec *e, const lm_scale_rule *r);
// Waits. *out has LM_TOTALS_MAX values, zeros after the last result.
lm_status lm_totals_read(lm_exec *e, const double **out);
// Gives e->totals, which the caller has changed, to the next lm_totals_scale.
lm_status lm_totals_write(lm_exec *e);
#endif
