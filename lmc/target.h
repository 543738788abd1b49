// target.h - what a recipe is compiled for and runs on: this machine's processor, or NVIDIA GPUs of one architecture.
#ifndef LMC_TARGET_H
#define LMC_TARGET_H
#include "compiler/plan/planner.h"
#include "runtime/hal/exec.h"

typedef struct lm_target {
  const char *arch;                    // of a GPU: "sm_90a"; NULL: the processor
} lm_target;

// --target: cpu, native or an architecture. LM_USER for what is none of these.
lm_status lm_target_find(const char *text, lm_target *out);
lm_plan_target lm_target_plan(const lm_target *t, lm_module *m);
lm_status lm_target_start(const lm_target *t, const lm_plan *plan, const lm_exec_options *o, lm_exec **out);
#endif
