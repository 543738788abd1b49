// detect.h - the processor and the C compiler, for `lmc doctor` and for the keys of cached kernels.
#ifndef LM_CPU_DETECT_H
#define LM_CPU_DETECT_H
#include "runtime/base/base.h"
#include "runtime/base/dtype.h"
#include "target/target.h"

typedef struct lm_cpu_info {
  int cores;                  // that the process may use
  char model[128];            // "AMD EPYC 9B14"
  char isa[64];               // extensions that the generated code uses: "avx2 fma", "neon bf16"
  char march[32];             // the compiler's -march; empty if LMC_CPU is invalid
  uint64_t features;          // hash of the model and of all its flags
  char compiler[512];         // absolute path; empty if there is none
  char compiler_words[256];   // arguments after the path in LMC_CC or CC, as gcc in "ccache gcc"
  char compiler_version[256]; // first line of its --version
  char onednn[32];            // "2.6.3"
} lm_cpu_info;

// Fills in everything but the compiler, which costs a process. LMC_CPU (level.h) restricts the
// instructions of generated code, and of oneDNN if this is called before oneDNN computes anything.
void lm_cpu_detect(lm_cpu_info *out);
// LM_ENV if LMC_CPU names no level, or one that the processor does not support.
lm_status lm_cpu_march_check(const lm_cpu_info *cpu);
// True if the processor multiplies bf16 and GEMMs use that: AVX512-BF16 or AMX, in oneDNN too, or
// FEAT_BF16 of aarch64, in generated code.
bool lm_cpu_has_bf16(void);
// True if generated GEMM kernels are faster than oneDNN on processors of this kind, in the forms
// that codegen/cpu/gemm.c takes. Measured: with AVX2, AVX-512 and AVX512-BF16. Assumed: with AMX,
// where oneDNN repacks both operands in every call, and on aarch64, for which Debian's oneDNN has
// only its reference GEMM.
bool lm_cpu_prefers_code(const lm_cpu_info *cpu, lm_dtype operands);
// Vector width of generated code in floats; 0 if the processor is unknown.
int lm_cpu_vector(const lm_cpu_info *cpu);
// How generated code multiplies matrices of bf16; AMX only if the system permits it.
lm_matrix_unit lm_cpu_matrix_unit(const lm_cpu_info *cpu);
// This processor as a target, without figures that must be measured.
void lm_cpu_target_find(lm_target *out);
// A remark about lmc on this architecture, which doctor prints after isa; "" if there is none.
const char *lm_cpu_remark(void);
// Requests permission to use AMX; without it, the first AMX instruction kills the process. False
// if the system refuses.
bool lm_cpu_tiles_ask(void);
// The functions of tiles that lmc contains for these instructions (codegen/cpu/prelude/tiles.h):
// returns the number of the set, and the set in *out; 0 and NULL if there is none.
int lm_cpu_tiles(const lm_cpu_info *cpu, const void **out);
#endif
