// target.c - see target.h.
#include "driver/target.h"

#include <stdlib.h>
#include <string.h>

#include "codegen/cpu/cpu.h"
#include "codegen/cuda/cuda.h"
#include "runtime/cpu/detect.h"
#include "runtime/cpu/exec.h"
#include "runtime/cuda/compile.h"
#include "runtime/cuda/exec.h"

static const struct {
  const lm_codegen *codegen;
  const lm_runtime *runtime;
} backends[LM_TARGET_KINDS] = {[LM_TARGET_CPU] = {&lm_cpu_codegen, &lm_cpu_runtime},
                               [LM_TARGET_CUDA] = {&lm_cuda_codegen, &lm_cuda_runtime}};

const lm_codegen *lm_target_codegen(const lm_target *t) {
  return backends[t->kind].codegen;
}

const lm_runtime *lm_target_runtime(const lm_target *t) {
  return backends[t->kind].runtime;
}

static lm_status unknown(const char *text) {
  enum {
    FIRST = 80 // compute capability
  };
  lm_buf names = {0};
  for (int i = 0; lm_cuda_archs[i]; i++)
    lm_buf_printf(&names, ", %s", lm_cuda_archs[i]);
  for (int i = 0; lm_target_name(i); i++)
    lm_buf_printf(&names, ", %s", lm_target_name(i));
  bool old = !strncmp(text, "sm_", 3) && atoi(text + 3) > 0 && atoi(text + 3) < FIRST;
  lm_status s = lm_fail(LM_USER, "--target is cpu, cuda, native%s, not '%s'%s", names.p, text,
                        old ? ": kernels need the bf16 and the asynchronous copies of "
                              "compute capability 8.0"
                            : "");
  lm_buf_free(&names);
  return s;
}

// Replaces t by the GPU of this machine if it runs the code of t: it may have less shared memory.
static void here_prefer(lm_target *t) {
  lm_target here;
  lm_status none = lm_cuda_runtime.find(&here);
  if (!none && !strcmp(here.arch, t->arch))
    *t = here;
  lm_status_free(none);
}

void lm_target_find_cpu(lm_target *out) {
  lm_cpu_target_find(out);
}

lm_status lm_target_find(const char *text, lm_target *out) {
  if (!strcmp(text, "cpu"))
    return lm_cpu_runtime.find(out);
  if (!strcmp(text, "cuda"))
    return lm_cuda_runtime.find(out);
  if (!strcmp(text, "native")) {
    lm_status none = lm_cuda_runtime.find(out);
    lm_status_free(none);
    return none ? lm_cpu_runtime.find(out) : NULL;
  }
  if (!lm_target_known(text, out))
    return unknown(text);
  if (!strcmp(out->arch, text))
    here_prefer(out);
  return NULL;
}

lm_plan_options lm_target_options(const lm_target *t, bool tf32) {
  lm_plan_options o = {
      .target = *t,
      .codegen = lm_target_codegen(t),
      .tf32 = tf32,
  };
  o.codegen->choose(&o.target);
  return o;
}

static void tf32_use(lm_target *t) {
  if (t->peak_tf32 > 0)
    t->math[LM_F32].peak = t->peak_tf32;
}

lm_target lm_target_measured(const lm_target *t, int threads, lm_dtype dtype, bool tf32) {
  lm_target all = *t;
  lm_target_runtime(t)->measure(&all, threads, dtype);
  if (tf32)
    tf32_use(&all);
  return all;
}

double lm_target_peak(const lm_target *t, int threads, lm_dtype dtype, bool tf32) {
  lm_target all = *t;
  if (tf32)
    tf32_use(&all);
  return lm_target_runtime(t)->peak(&all, threads, dtype);
}
