// kernels.h - the generated kernels of a plan as functions: compiled by the system's C compiler
// unless cached, loaded.
#ifndef LM_CPU_KERNELS_H
#define LM_CPU_KERNELS_H
#include "runtime/cpu/detect.h"
#include "runtime/cpu/exec.h"

typedef struct lm_kernels {
  lm_arena *arena;
  lm_kernel_fn **fn; // as plan->kernels
  struct lm_kernel_unit *units;
  uint32_t n_units, cap_units; // shared objects that are loaded
  int compiled;                // kernels that were not in the cache
} lm_kernels;

// What a compiler is told on any machine, but for the level of optimization: written to `out`,
// whose place behind them is returned.
enum {
  LM_KERNEL_FLAGS = 20
};
const char **lm_kernels_flags(const lm_cpu_info *cpu, const char **out);

// No compiler, no cache folder: LM_ENV. A kernel that does not compile: LM_BUG_STATUS (LM_USER
// where its text came from options->load_dir), with the path of the saved source and the compiler's
// words.
lm_status lm_kernels_load(const lm_plan *plan, const lm_exec_options *options, int cores,
                          lm_kernels *out);
void lm_kernels_unload(lm_kernels *k);
#endif
