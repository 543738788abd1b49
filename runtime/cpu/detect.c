// detect.c - see detect.h.
#include "runtime/cpu/detect.h"

#include "runtime/base/processors.h"

#include <dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/cpu/level.h"
#include "runtime/cpu/process.h"

static const char *level_name(void) {
  const char *name = getenv("LMC_CPU");
  return name && *name ? name : lm_cpu_level_name(0);
}

// -1 if there is none of that name.
static int level_find(const char *name) {
  for (int i = 0; lm_cpu_level_name(i); i++)
    if (!strcmp(name, lm_cpu_level_name(i)))
      return i;
  return -1;
}

// The level that LMC_CPU names, to which oneDNN is restricted; -1 if it is not one of this
// processor.
static int level_choose(void) {
  int level = level_find(level_name());
  if (level < 0 || !lm_cpu_level_is_supported(level))
    return -1;
  lm_cpu_level_limit(level);
  return level;
}

lm_status lm_cpu_march_check(const lm_cpu_info *cpu) {
  if (cpu->march[0])
    return NULL;
  if (level_find(level_name()) >= 0)
    return lm_fail(LM_ENV, "LMC_CPU is %s, which this processor does not support", level_name());
  lm_buf names = {0};
  for (int i = 0; lm_cpu_level_name(i); i++)
    lm_buf_printf(&names, "%s%s",
                  !i                         ? ""
                  : lm_cpu_level_name(i + 1) ? ", "
                                             : " or ",
                  lm_cpu_level_name(i));
  lm_status s = lm_fail(LM_ENV, "LMC_CPU is '%s'; expected %s", level_name(), names.p);
  lm_buf_free(&names);
  return s;
}

bool lm_cpu_has_bf16(void) {
  return lm_cpu_level_has_bf16(level_choose()); // before the first query, which fixes oneDNN's ISA
}

void lm_cpu_detect(lm_cpu_info *out) {
  *out = (lm_cpu_info){.cores = lm_processors()};
  const dnnl_version_t *v = dnnl_version();
  snprintf(out->onednn, sizeof out->onednn, "%d.%d.%d", v->major, v->minor, v->patch);
  lm_cpu_level_read(level_choose(), out);
}

void lm_cpu_target_find(lm_target *out) {
  lm_cpu_info cpu;
  lm_cpu_detect(&cpu);
  *out = lm_target_any(LM_TARGET_CPU);
  snprintf(out->name, sizeof out->name, "cpu");
  snprintf(out->title, sizeof out->title, "%.*s", (int)sizeof out->title - 1, cpu.model);
  out->is_here = true;
  out->units = (int)sysconf(_SC_NPROCESSORS_CONF); // also those that the process may not use
  out->memory = lm_memory_of_machine();
  out->vector = lm_cpu_vector(&cpu);
  out->matrix = lm_cpu_matrix_unit(&cpu);
  out->math[LM_BF16].native = lm_cpu_has_bf16();
}
