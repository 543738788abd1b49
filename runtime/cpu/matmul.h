// matmul.h - products by oneDNN's matmul primitives: generated for one shape, layout and type each,
// before anything runs.
//
// They are what multiplies bf16 with the processor's own instructions (AVX512-BF16, AMX). Those
// that the library would do by its reference loops are not made. Executed on one thread each; any
// number of threads may do so at the same time.
#ifndef LM_CPU_MATMUL_H
#define LM_CPU_MATMUL_H
#include "runtime/cpu/gemm_call.h"

typedef struct lm_matmul lm_matmul;
typedef struct lm_matmuls lm_matmuls;

// NULL if the library has no engine for the processor.
lm_matmuls *lm_matmuls_create(int threads);
void lm_matmuls_destroy(lm_matmuls *all);
// Makes the primitive of C = A B, or C += A B, unless it is there or there is no fast one. C is in
// form 'N'. Must run after lm_gemm_call_one_thread, since primitives are made for the number of
// threads of that setting.
void lm_matmuls_add(lm_matmuls *all, const lm_gemm_shape *s, bool add);
const lm_matmul *lm_matmuls_find(const lm_matmuls *all, const lm_gemm_shape *s,
                                 bool add); // NULL if there is none
// Bytes of scratch that a run of any of them may need, aligned to 64.
int64_t lm_matmuls_workspace(const lm_matmuls *all);
// thread: 0 … threads - 1, no two at the same time.
void lm_matmul_run(const lm_matmuls *all, const lm_matmul *x, int thread, const char *a,
                   const char *b, char *c, char *scratch);
// "brg:avx512_core_amx", …: by what the library does it.
const char *lm_matmul_name(const lm_matmul *x);
#endif
