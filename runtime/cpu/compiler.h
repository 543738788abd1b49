// compiler.h - the C compiler that compiles kernels.
#ifndef LM_CPU_COMPILER_H
#define LM_CPU_COMPILER_H
#include "runtime/base/cache.h"
#include "runtime/cpu/detect.h"

// Finds ${LMC_CC:-${CC:-cc}} in PATH: a program, optionally with arguments. LM_ENV if it does not
// exist or `--version` fails.
//
// The version is read from the cache, if it has the one of this file: GCC or Clang itself, the same
// inode, written and changed at the same times. Other programs, such as scripts and ccache, are
// asked each time. cache: NULL: the program is always asked.
lm_status lm_cpu_compiler_find(const lm_cache *cache, lm_cpu_info *out);
// The compiler's path and its arguments as the beginning of an argv; returns their number.
enum {
  LM_COMPILER_WORDS = 130 // the path, and the maximum number of words in compiler_words
};
int lm_cpu_compiler_call(const lm_cpu_info *cpu, lm_arena *a, const char *out[LM_COMPILER_WORDS]);
const char *lm_cpu_compiler_text(const lm_cpu_info *cpu, lm_arena *a); // for messages
#endif
