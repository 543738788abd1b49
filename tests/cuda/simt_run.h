// simt_run.h - included before a test of kernels: the test then runs them as CUDA under the shim,
// under every schedule.
#ifndef LM_TESTS_CUDA_SIMT_RUN_H
#define LM_TESTS_CUDA_SIMT_RUN_H
#include <stdio.h>
#include <stdlib.h>
#include "tests/cuda/simt.h"

static inline void simt_clean(const char *name) {
  char *found = simt_report_take();
  if (!found)
    return;
  fprintf(stderr, "%s:\n%s", name, found);
  exit(1);
}

// Statistics of a test, printed when it ends.
static struct {
  int plans, kernels;
  double worst[LM_DTYPES];
} simt_seen;

static inline void simt_error(lm_dtype t, double error) {
  if (error > simt_seen.worst[t])
    simt_seen.worst[t] = error;
}

static inline void simt_tell(void) {
  printf("%d kernels of %d modules, %lld launches under %d schedules; worst error",
         simt_seen.kernels, simt_seen.plans, (long long)simt_kernels_run(), SIMT_SCHEDULES);
  for (int t = 0; t < LM_DTYPES; t++)
    if (simt_seen.worst[t] > 0)
      printf(" %s %.1e", lm_dtype_name((lm_dtype)t), simt_seen.worst[t]);
  printf("\n");
}

// SHOW_KERNELS in the environment: prints the kernels.
static inline void simt_prepare(lm_plan *plan, lm_arena *arena) {
  simt_plan_prepare(plan, arena);
  if (!simt_seen.plans++)
    atexit(simt_tell);
  simt_seen.kernels += plan->n_kernels;
  for (int i = 0; getenv("SHOW_KERNELS") && i < plan->n_kernels; i++)
    printf("%s\n", plan->kernels[i].source);
}

// A test may define an architecture, and the number of its multiprocessors.
#ifndef SIMT_ARCH
#define SIMT_ARCH NULL
#define SIMT_UNITS 0
#endif
static inline lm_plan_options simt_run_options(void) {
  lm_plan_options o = simt_options_of(SIMT_ARCH, false);
  o.target.units = SIMT_UNITS ? SIMT_UNITS : o.target.units;
  return o;
}
#define RUN_OPTIONS simt_run_options
#define RUN_IS_GPU true
#define RUN_HAS(name) true
#define RUN_PREPARE simt_prepare
#define RUN_TIMES SIMT_SCHEDULES
#define RUN_BEFORE(time) simt_schedule_set((simt_schedule)(time))
#define RUN_AFTER(name) simt_clean(name)
#define RUN_THREADS 1
#define RUN_ERROR(dtype, error) simt_error(dtype, error)
#define RUN_SLACK 4
#endif
