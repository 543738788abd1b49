// gpu_run.h - included before a test of kernels: the test then runs them on this machine's GPU,
// three times, the second and third time as a graph. scripts/gpu-check runs these programs; the
// build has no test that needs a GPU.
#ifndef LM_TESTS_CUDA_GPU_RUN_H
#define LM_TESTS_CUDA_GPU_RUN_H
#define LM_TESTS_CUDA_SIMT_RUN_H // replaces simt_run.h
#include "codegen/cuda/cuda.h"
#include "runtime/cuda/exec.h"
#include "tests/runtime/check.h"

static inline const lm_cuda_device *gpu(void) {
  static lm_cuda_driver driver;
  static lm_cuda_device device;
  void *context;
  if (*device.target.arch)
    return &device;
  CHECK_OK(lm_cuda_device_find(0, &driver, &device));
  CHECK_OK(lm_cuda_check(&driver, driver.cuDevicePrimaryCtxRetain(&context, device.number), "%s",
                         device.name)); // lives longer than many small plans
  return &device;
}

static inline lm_status gpu_create(const lm_plan *plan, const lm_exec_options *o, lm_exec **out) {
  return lm_cuda_exec_create(plan, gpu()->target.arch, 0, o, out);
}
static inline lm_plan_options gpu_options(void) {
  lm_plan_options o = lm_cuda_options(NULL, false);
  o.target = gpu()->target;
  o.codegen->choose(&o.target);
  return o;
  // Attention has special code on some architectures.
}

#define RUN_OPTIONS gpu_options
#define RUN_IS_GPU true
#define simt_options_of lm_cuda_options
#define RUN_HAS(name) (!strcmp(gpu()->target.arch, name))
#define RUN_CREATE gpu_create
#define RUN_PREPARE(plan, arena) ((void)0)
#define RUN_TIMES 3
#define RUN_BEFORE(time) ((void)0)
#define RUN_AFTER(name) ((void)0)
#define RUN_THREADS 0
#define RUN_ERROR(dtype, error) ((void)0)
#define RUN_SLACK 4
#endif
