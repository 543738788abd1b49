// tune.h - measures how the products of a plan are best cut into tiles on this machine, and by
// whose code.
//
// The default of each distinct product (gemm.c) against a few other tiles, and against the library
// if the default is code of its own, in turn, on memory of its own. Another is taken only if it is
// faster by a margin that noise does not make, and code in place of the library, or the library in
// place of code, only if both come to the same result.
#ifndef LM_CPU_TUNE_H
#define LM_CPU_TUNE_H
#include "runtime/cpu/gemm.h"

typedef struct lm_tune_options {
  int threads;
  lm_kernel_fn *const *kernels; // as the plan's, whose products may have code
  double budget;                // seconds; what it does not reach keeps the default
  void (*progress)(void *user, int done, int all,
                   double left); // left: seconds, guessed. May be NULL
  // In place of real runs and the real clock, for tests; NULL: these. Seconds of one run of g in
  // such tiles.
  double (*run)(void *user, const lm_plan_gemm *g, lm_tile t);
  double (*now)(void *user);
  void *user;
} lm_tune_options;

// A cut for each distinct product of fixed size that is worth sharing between threads: from
// `known`, else measured, else its default. The heaviest first. In `a`. *out_measured: how many
// were measured now.
void lm_cpu_tune(lm_arena *a, const lm_plan *plan, const lm_tune_options *o,
                 const lm_gemm_tilings *known, lm_gemm_tilings *out, int *out_measured);
#endif
