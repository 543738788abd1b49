// target.c - see target.h.
#include "lmc/target.h"

#include <string.h>

#include "codegen/cpu/cpu.h"
#include "codegen/cuda/cuda.h"
#include "runtime/cpu/exec.h"
#include "runtime/cuda/compile.h"

lm_status lm_target_find(const char *text, lm_target *out) {
  *out = (lm_target){0};
  if (!strcmp(text, "cpu") || !strcmp(text, "native")) return NULL;
  out->arch = lm_cuda_arch_find(text);
  if (out->arch) return NULL;
  lm_buf known = {0};
  for (int i = 0; lm_cuda_archs[i]; i++) lm_buf_printf(&known, ", %s", lm_cuda_archs[i]);
  lm_status s = lm_fail(LM_USER, "--target is cpu, native%s, not '%s'", known.p, text);
  lm_buf_free(&known);
  return s;
}

lm_plan_target lm_target_plan(const lm_target *t, lm_module *m) { return t->arch ? lm_cuda_target(m) : lm_cpu_target(m); }

lm_status lm_target_start(const lm_target *t, const lm_plan *plan, const lm_exec_options *o, lm_exec **out) {
  return lm_exec_create(plan, o, out);
}
