// target.h - the machine that a recipe is compiled for and runs on, with its code generator and its
// runtime.
#ifndef LM_DRIVER_TARGET_H
#define LM_DRIVER_TARGET_H
#include "compiler/plan/planner.h"
#include "runtime/hal/exec.h"

// text: "cpu"; "cuda", the GPU found; "native", that GPU or else the CPU; a machine of
// target/known.def such as "h100"; or an architecture such as "sm_90a", which is the GPU found if
// it has it, else a machine of known.def. LM_USER if it is none of these, LM_ENV for "cuda" without
// a driver or a GPU.
lm_status lm_target_find(const char *text, lm_target *out);
void lm_target_find_cpu(lm_target *out); // this processor
const lm_codegen *lm_target_codegen(const lm_target *t);
const lm_runtime *lm_target_runtime(const lm_target *t);
// For the planner, with the choices of the target's code generator.
lm_plan_options lm_target_options(const lm_target *t, bool tf32);
// The target with its peak for a dtype and its bandwidths, on a CPU measured on `threads` threads
// (0: all). tf32: as in lm_plan_options.
lm_target lm_target_measured(const lm_target *t, int threads, lm_dtype dtype, bool tf32);
// FLOP/s on operands of a dtype; 0 if unknown.
double lm_target_peak(const lm_target *t, int threads, lm_dtype dtype, bool tf32);
#endif
