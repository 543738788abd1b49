// master.h - the update of parameters that are stored in bf16 (precision.master).
//
// An update is often smaller than half of the distance between two numbers of bf16, so rounding to
// nearest would lose it. The update rounds stochastically instead: x between the neighbours a < b
// becomes b with the probability (x - a) / (b - a), so that its mean is x. docs/numerics.md has the
// rule that gives the random bits.
#ifndef LM_LOWER_MASTER_H
#define LM_LOWER_MASTER_H
#include "dsl/lower/internal.h"

// The random numbers of the elements of one instance of a parameter.
typedef struct lm_master_draw {
  lm_sym name;        // of the parameter, without indices
  lm_value *step;     // int, from 1
  lm_value *instance; // int: the row-major index of the stacked axes
} lm_master_draw;

// x : f32, stochastically rounded to numbers of bf16, as f32. Its elements, in row-major order, are
// those of the parameter. A magnitude below 2^-126 becomes 0; infinities and NaN remain.
lm_value *lm_master_round(lm_elab *e, lm_value *x, const lm_master_draw *draw);
#endif
