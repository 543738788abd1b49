// detect.h - what this machine has, for `lmc doctor` and as part of the key of cached kernels.
#ifndef LM_CPU_DETECT_H
#define LM_CPU_DETECT_H
#include "runtime/base/base.h"
#include "runtime/base/dtype.h"

typedef struct lm_cpu_info {
  int cores;          // that the process may use
  char model[128];    // "AMD EPYC 9B14"
  char isa[64];       // "avx2 fma", "avx512 vnni bf16 amx": what the generated code profits from
  char march[32];     // what code is generated for: "native", or what LMC_CPU names; empty if that
                      // can't be
  uint64_t features;  // hash of the model and of all its flags
  char compiler[512]; // absolute path; empty if there is none
  char compiler_words[256]; // what follows the path in LMC_CC or CC, as gcc in "ccache gcc"; blanks
                            // separate
  char compiler_version[256]; // first line of its --version
  char onednn[32];            // "2.6.3"
} lm_cpu_info;

// All but the compiler, which takes a process to ask. LMC_CPU=x86-64-v2, -v3 or -v4 leaves the rest
// of the processor unused, by generated code and by oneDNN alike; the latter only if this comes
// before its first product.
void lm_cpu_detect(lm_cpu_info *out);
lm_status lm_cpu_march_check(
    const lm_cpu_info *cpu); // LM_ENV if LMC_CPU is none of those, or more than there is
// Whether products of bf16 are instructions of this processor (AVX512-BF16 or AMX), and oneDNN uses
// them.
bool lm_cpu_has_bf16(void);
// Whether generated code of products beats oneDNN on processors of this kind: measured with AVX2,
// without AVX-512; and known of the matrix unit, where oneDNN lays out both operands anew in each
// call.
bool lm_cpu_prefers_code(const lm_cpu_info *cpu, lm_dtype operands);
// Floats of a vector of generated code; 0: of a processor that is not known.
int lm_cpu_vector(const lm_cpu_info *cpu);
bool lm_cpu_has_tiles(const lm_cpu_info *cpu); // a matrix unit for bf16 that the system lets us use
int lm_cpu_processors(void); // that the machine has, whichever of them the process may use
// Asks the system for the processor's matrix unit (AMX), without which code for it is killed; false
// if it gives none.
bool lm_cpu_tiles_ask(void);
// ${LMC_CC:-${CC:-cc}}, a program or several words of which the first is one, looked up in PATH;
// LM_ENV if there is none or it can't be asked its version.
lm_status lm_cpu_compiler_find(lm_cpu_info *out);
// The path and the words behind it as the first arguments of a call; returns how many they are.
enum {
  LM_COMPILER_WORDS = 130
}; // as many as compiler_words can hold, and the path
int lm_cpu_compiler_call(const lm_cpu_info *cpu, lm_arena *a, const char *out[LM_COMPILER_WORDS]);
const char *lm_cpu_compiler_text(const lm_cpu_info *cpu, lm_arena *a); // for messages
#endif
