// analyze.c - passes `analyze` and `count`: record facts about the model in the module, change
// nothing.
//
// `analyze` runs once there are no calls, on operations as the user wrote them, whose locations its
// diagnostics name. `count` runs in front of `grad`, where attention is one operation and nothing
// is computed twice yet.
#include "compiler/analysis/analysis.h"
#include "compiler/passes/pass.h"

bool lm_pass_analyze(lm_module *m, const lm_pass_env *env) {
  lm_analysis_of_model(m);
  return true;
}

bool lm_pass_count(lm_module *m, const lm_pass_env *env) {
  lm_analysis_count(m);
  return true;
}
