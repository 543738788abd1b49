// gemm_loop.h - a reference GEMM, for types that the library does not support.
#ifndef LM_CPU_GEMM_LOOP_H
#define LM_CPU_GEMM_LOOP_H
#include "runtime/cpu/gemm_call.h"
// Sums each element over k in order, in double.
void lm_gemm_loop(const lm_gemm_shape *s, const char *a, const char *b, char *c, bool add);
#endif
