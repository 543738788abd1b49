// kernels.h - compiles the generated kernels of a plan with the system's C compiler, unless they
// are cached, and loads them.
#ifndef LM_CPU_KERNELS_H
#define LM_CPU_KERNELS_H
#include "runtime/cpu/detect.h"
#include "runtime/cpu/exec.h"

typedef struct lm_kernels {
  lm_arena *arena;
  lm_kernel_fn **fn; // indexed as plan->kernels
  struct lm_kernel_unit *units;
  uint32_t n_units, cap_units; // loaded shared objects
  int compiled;                // kernels that were not in the cache
} lm_kernels;

enum {
  LM_KERNEL_FLAGS = 20
};
// Writes the compiler's flags, except for the optimization level, to `out` (LM_KERNEL_FLAGS
// pointers); returns the end of the written flags.
const char **lm_kernels_flags(const lm_cpu_info *cpu, const char **out);

// LM_ENV without a compiler or a cache folder. LM_BUG_STATUS if a kernel does not compile (LM_USER
// if its source is from options->load_dir), with the path of the saved source and the compiler's
// output.
lm_status lm_kernels_load(const lm_plan *plan, const lm_exec_options *options, int cores,
                          lm_kernels *out);
void lm_kernels_unload(lm_kernels *k);
#endif
