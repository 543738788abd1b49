// analysis.h - facts about a model that passes `analyze` and `count` record in the module.
//
// They serve diagnostics and reports, describe the model before it is differentiated, and stay with
// the module while later passes change it.
#ifndef LM_ANALYSIS_H
#define LM_ANALYSIS_H
#include "compiler/analysis/flops.h"
#include "compiler/analysis/id_limits.h"
#include "compiler/analysis/row_mix.h"

struct lm_analysis {
  lm_limits limits; // by `analyze`, as are the next two
  lm_rows rows;
  lm_weight_products products;
  lm_model_flops *flops;
  uint32_t n_flops, cap_flops; // by `count`: of each function
};

void lm_analysis_of_model(lm_module *m); // what pass `analyze` does
void lm_analysis_count(lm_module *m);    // what pass `count` does
// The results; a module on which `analyze` has not run is a bug.
const lm_analysis *lm_analysis_of(const lm_module *m);
// FLOPs of a training micro-batch by a loss, 0 if the module has no such function: see flops.h.
double lm_analysis_flops(const lm_module *m, const char *loss);
#endif
