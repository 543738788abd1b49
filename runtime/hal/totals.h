// totals.h - the scalars of a training step, added up and judged where they are: on a device
// without the host in between.
//
// After each micro-batch its scalar results are added to totals, in float64, in order of the runs.
// From the totals and the gradient's norm follows the scale of the gradient, an argument of the
// update (scale.h), which for a bad step is no number.
#ifndef LM_HAL_TOTALS_H
#define LM_HAL_TOTALS_H
#include "runtime/hal/exec.h"

typedef struct lm_scale_rule {
  int sum, weight; // by number of the function's results
  const lm_plan_port *norm,
      *scale;         // f32: a result that has been computed, an argument of the next run
  double clip, limit; // 0: none; INFINITY: none
} lm_scale_rule;

// totals[i] (+)= result i of f, which was just run, for those that are scalars. first: there are
// none before.
lm_status lm_totals_add(lm_exec *e, const lm_plan_func *f, bool first);
// What the next run, of the function that has the argument `scale`, gets for it.
lm_status lm_totals_scale(lm_exec *e, const lm_scale_rule *r);
// Waits; LM_TOTALS_MAX of them, zeros behind the last.
lm_status lm_totals_read(lm_exec *e, const double **out);
#endif
