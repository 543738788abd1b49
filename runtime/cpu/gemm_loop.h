// gemm_loop.h - the plain product, for types that the library has no call for.
#ifndef LM_CPU_GEMM_LOOP_H
#define LM_CPU_GEMM_LOOP_H
#include "runtime/cpu/gemm_call.h"

// Each element is summed over k in order, in double.
void lm_gemm_loop(const lm_gemm_shape *s, const char *a, const char *b, char *c, bool add);
#endif
