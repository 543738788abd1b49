// matmul.h - GEMMs by oneDNN's matmul primitives, each of which is generated for one shape, layout
// and type before anything runs.
//
// The primitives use the processor's bf16 instructions (AVX512-BF16, AMX). A primitive that the
// library would implement by its reference loops is not made. A primitive runs on one thread;
// several threads may run it at the same time.
#ifndef LM_CPU_MATMUL_H
#define LM_CPU_MATMUL_H
#include "runtime/cpu/gemm_call.h"

typedef struct lm_matmul lm_matmul;
typedef struct lm_matmuls lm_matmuls;

// NULL if the library has no engine for the processor.
lm_matmuls *lm_matmuls_create(int threads);
void lm_matmuls_destroy(lm_matmuls *all);
// Makes the primitive of C = A B (add: C += A B), unless it exists or oneDNN has no fast one. C has
// layout 'N'. Requires lm_onednn_begin, since a primitive is generated for the number of
// threads that is set at that time.
void lm_matmuls_add(lm_matmuls *all, const lm_gemm_shape *s, bool add);
// NULL if there is none.
lm_matmul *lm_matmuls_find(const lm_matmuls *all, const lm_gemm_shape *s, bool add);
// Maximum workspace of all primitives in bytes, aligned to 64.
int64_t lm_matmuls_workspace(const lm_matmuls *all);
// thread: 0 … threads - 1; concurrent calls must have different numbers.
void lm_matmul_run(const lm_matmuls *all, lm_matmul *x, int thread, const char *a, const char *b,
                   char *c, char *workspace);
#endif
