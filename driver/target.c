// target.c - see target.h.
#include "driver/target.h"

#include <string.h>

#include "codegen/cpu/cpu.h"
#include "codegen/cuda/cuda.h"
#include "runtime/cpu/detect.h"
#include "runtime/cpu/exec.h"
#include "runtime/cpu/gemm.h"
#include "runtime/cuda/compile.h"
#include "runtime/cuda/exec.h"

// Of processors that multiply bf16 in tiles: two cores have 4 MB of second-level cache at the
// least. Where there are many, all that a layer computes finds room in theirs, and some thousand
// rows are too few to share.
enum {
  SLAB = 4 << 20,
  FEW_PROCESSORS = 8
};

static lm_status gpu_find(lm_target *out) {
  lm_cuda_driver driver;
  lm_cuda_device device;
  LM_TRY(lm_cuda_device_find(&driver, &device));
  if (!device.arch)
    return lm_fail(LM_ENV, "%s has compute capability %d.%d, for which there is no code",
                   device.name, device.major, device.minor);
  *out = (lm_target){device.arch, device.peak_flops, device.bandwidth};
  return NULL;
}

static lm_status unknown(const char *text) {
  lm_buf known = {0};
  for (int i = 0; lm_cuda_archs[i]; i++)
    lm_buf_printf(&known, ", %s", lm_cuda_archs[i]);
  lm_status s = lm_fail(LM_USER, "--target is cpu, cuda, native%s, not '%s'", known.p, text);
  lm_buf_free(&known);
  return s;
}

lm_status lm_target_find(const char *text, lm_target *out) {
  *out = (lm_target){.arch = lm_cuda_arch_find(text)};
  if (!strcmp(text, "cpu"))
    return NULL;
  if (!strcmp(text, "cuda"))
    return gpu_find(out);
  if (!out->arch && strcmp(text, "native"))
    return unknown(text);
  lm_target here = {0};
  lm_status_free(gpu_find(&here));
  if (!out->arch || (here.arch && !strcmp(out->arch, here.arch)))
    *out = here;
  return NULL;
}

static lm_plan_target cpu_target(lm_module *m) {
  lm_plan_target out = lm_cpu_target(m);
  lm_cpu_info cpu;
  lm_cpu_detect(&cpu);
  bool tiles = lm_cpu_has_tiles(&cpu);
  lm_cpu_panels(lm_cpu_vector(&cpu), tiles, out.panel);
  out.slab = tiles && lm_cpu_processors() <= FEW_PROCESSORS ? SLAB : 0;
  return out;
}

lm_plan_target lm_target_plan(const lm_target *t, bool tf32, lm_module *m) {
  return t->arch ? lm_cuda_target(m, t->arch, tf32) : cpu_target(m);
}

lm_status lm_target_start(const lm_target *t, const lm_plan *plan, const lm_exec_options *o,
                          lm_exec **out) {
  return t->arch ? lm_cuda_exec_create(plan, t->arch, o, out) : lm_exec_create(plan, o, out);
}

double lm_target_peak(const lm_target *t, int threads, lm_dtype dtype) {
  return t->arch ? t->peak_flops : lm_cpu_peak(threads, dtype);
}

bool lm_target_roofline(const lm_target *t, int threads, lm_dtype dtype, lm_roofline *out) {
  if (!t->arch) {
    lm_cpu_roofline(threads, dtype, out);
    return true;
  }
  out->peak = t->peak_flops;
  for (int i = 0; i < LM_ROOFLINE_SIZES; i++)
    out->bandwidth[i] = t->bandwidth;
  return t->peak_flops > 0 && t->bandwidth > 0;
}

int64_t lm_target_workspace(const lm_target *t, const lm_plan *plan, const lm_exec_options *o) {
  return t->arch ? lm_cuda_workspace() : lm_exec_workspace(plan, o);
}
