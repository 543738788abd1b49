// analyze.c - passes `analyze` and `count`: record facts about the model in the module; the IR does
// not change.
//
// `analyze` runs after `inline`, on operations as the user wrote them, because its diagnostics name
// their locations. `count` runs before `grad`, when attention is one operation and nothing is
// recomputed yet.
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
