// analysis.h - facts about a model that passes `analyze` and `count` record in the module.
//
// Diagnostics and reports use them. They describe the model before differentiation and remain valid
// while later passes transform the module.
#ifndef LM_ANALYSIS_H
#define LM_ANALYSIS_H
#include "compiler/analysis/flops.h"
#include "compiler/analysis/id_limits.h"
#include "compiler/analysis/row_mix.h"

struct lm_analysis {
  // Recorded by `analyze`.
  lm_limits limits;
  lm_row_mix row_mix;
  lm_weight_gemms gemms;
  // Recorded by `count`, per function.
  lm_model_flops *flops;
  uint32_t n_flops, cap_flops;
};

void lm_analysis_of_model(lm_module *m); // the body of pass `analyze`
void lm_analysis_count(lm_module *m);    // the body of pass `count`
// Returns the recorded facts; LM_BUG if `analyze` has not run.
const lm_analysis *lm_analysis_of(const lm_module *m);
// FLOPs of a training micro-batch with this loss (see flops.h); 0 if the module has no such
// function.
double lm_analysis_flops(const lm_module *m, lm_func_id loss, int64_t seq);
#endif
