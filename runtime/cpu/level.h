// level.h - a processor by its architecture (level_x86_64.c, level_aarch64.c), for detect.c.
//
// A level is a value of LMC_CPU: the instructions that generated code and oneDNN may use. Level 0
// is "native", all of the processor.
#ifndef LM_CPU_LEVEL_H
#define LM_CPU_LEVEL_H
#if !defined(__x86_64__) && !defined(__aarch64__)
#error "lmc runs on x86-64 and aarch64"
#endif
#include <string.h>

#include "runtime/cpu/detect.h"

// NULL if there is no such level.
const char *lm_cpu_level_name(int level);
bool lm_cpu_level_is_supported(int level);
// Restricts oneDNN, if it has computed nothing yet.
void lm_cpu_level_limit(int level);
// Fills in model and features, and isa and march as the level allows; with level -1 it allows none.
void lm_cpu_level_read(int level, lm_cpu_info *out);
// As lm_cpu_has_bf16, at a level to which oneDNN is restricted.
bool lm_cpu_level_has_bf16(int level);

// True if `names`, which are separated by blanks, contain `name`.
static inline bool lm_cpu_isa_has(const char *names, const char *name) {
  size_t n = strlen(name);
  for (const char *p = names; (p = strstr(p, name)); p += n)
    if ((p == names || p[-1] == ' ') && (p[n] == ' ' || !p[n]))
      return true;
  return false;
}
#endif
