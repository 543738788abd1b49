// tune.h - measures which tiling and which implementation is fastest for each GEMM of a plan on
// this machine.
//
// The default of each distinct GEMM (gemm.c) is compared with a few other tile sizes, and a
// generated kernel with the library, in alternating runs on separate memory. An alternative is
// chosen only if it is faster by more than noise. A change between generated code and the library
// additionally requires that both results agree up to rounding.
#ifndef LM_CPU_TUNE_H
#define LM_CPU_TUNE_H
#include "runtime/cpu/gemm.h"

typedef struct lm_tune_options {
  int threads;
  lm_kernel_fn *const *kernels; // as the plan's
  double budget;                // seconds; GEMMs beyond it keep their defaults
  // Optional. left: estimated seconds.
  void (*progress)(void *user, int done, int all, double left);
  // For tests, both NULL otherwise: replace real runs (seconds of one run of g with the given
  // tile) and the clock.
  double (*run)(void *user, const lm_plan_gemm *g, lm_tile t);
  double (*now)(void *user);
  void *user;
} lm_tune_options;

// Writes a tiling for each distinct GEMM of fixed size that is large enough to run on several
// threads, most expensive first, in `a`: from `known`, or measured, or its default. *out_measured:
// number of GEMMs that were measured.
void lm_cpu_tune(lm_arena *a, const lm_plan *plan, const lm_tune_options *o,
                 const lm_gemm_tilings *known, lm_gemm_tilings *out, int *out_measured);
#endif
