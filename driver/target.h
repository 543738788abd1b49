// target.h - the machine that a recipe is compiled for and runs on: this CPU, or NVIDIA GPUs of one
// architecture.
#ifndef LM_DRIVER_TARGET_H
#define LM_DRIVER_TARGET_H
#include "compiler/plan/planner.h"
#include "runtime/cpu/roofline.h"
#include "runtime/hal/exec.h"

typedef struct lm_target {
  const char *arch;             // of a GPU: "sm_90a"; NULL: the CPU
  double peak_flops, bandwidth; // of the GPU found, per second; 0: unknown
} lm_target;

// text: "cpu", "cuda", "native", or an architecture such as "sm_90a". LM_USER if it is none of
// these, LM_ENV for "cuda" without a driver or a GPU.
lm_status lm_target_find(const char *text, lm_target *out);
lm_plan_target lm_target_plan(const lm_target *t, bool tf32,
                              lm_module *m); // tf32: as lm_exec_options
lm_status lm_target_start(const lm_target *t, const lm_plan *plan, const lm_exec_options *o,
                          lm_exec **out);
// FLOP/s on operands of a type, on a CPU measured on `threads` threads (0: all); 0 if unknown.
double lm_target_peak(const lm_target *t, int threads, lm_dtype dtype);
bool lm_target_roofline(const lm_target *t, int threads, lm_dtype dtype,
                        lm_roofline *out); // false if unknown
int64_t lm_target_workspace(const lm_target *t, const lm_plan *plan,
                            const lm_exec_options *o); // bytes that GEMMs need beyond the arenas
#endif
