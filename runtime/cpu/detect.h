// detect.h - what this machine has, for `lmc doctor` and as part of the key of cached kernels.
#ifndef LM_CPU_DETECT_H
#define LM_CPU_DETECT_H
#include "runtime/base/base.h"

typedef struct lm_cpu_info {
  int cores;                           // that the process may use
  char model[128];                     // "AMD EPYC 9B14"
  char isa[64];                        // "avx2 fma", "avx512 vnni bf16 amx": what the generated code profits from
  uint64_t features;                   // hash of the model and of all its flags
  char compiler[512];                  // absolute path; empty if there is none
  char compiler_version[256];          // first line of its --version
  char onednn[32];                     // "2.6.3"
} lm_cpu_info;

void lm_cpu_detect(lm_cpu_info *out);
// ${LMC_CC:-${CC:-cc}} looked up in PATH; LM_ENV if there is none or it can't be asked its version.
lm_status lm_cpu_compiler_find(lm_cpu_info *out);
#endif
