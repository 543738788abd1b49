// simt_run.h - in front of a test of kernels: it runs them as CUDA under the shim instead, under every schedule.
#ifndef LM_TESTS_CUDA_SIMT_RUN_H
#define LM_TESTS_CUDA_SIMT_RUN_H
#include <stdio.h>
#include <stdlib.h>
#include "tests/cuda/simt.h"

static inline void simt_clean(const char *name) {
  char *found = simt_report_take();
  if (!found) return;
  fprintf(stderr, "%s:\n%s", name, found);
  exit(1);
}

// SHOW_KERNELS in the environment: prints them.
static inline void simt_prepare(lm_plan *plan, lm_arena *arena) {
  simt_plan_prepare(plan, arena);
  for (int i = 0; getenv("SHOW_KERNELS") && i < plan->n_kernels; i++) printf("%s\n", plan->kernels[i].source);
}

#define RUN_TARGET simt_target
#define RUN_HAS(name) true
#define RUN_PREPARE simt_prepare
#define RUN_TIMES SIMT_SCHEDULES
#define RUN_BEFORE(time) simt_schedule_set((simt_schedule)(time))
#define RUN_AFTER(name) simt_clean(name)
#define RUN_THREADS 1
#define RUN_SLACK 4
#endif
