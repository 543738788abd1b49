// gemm_call.h - one GEMM on one thread, by oneDNN's f32 GEMM.
//
// Operands are packed if the library does not support them (bf16 is widened to f32, which is exact;
// rows without unit stride are gathered) or if their rows are a multiple of 4 KiB apart: those fall
// into the same sets of the L1 cache, and the library then runs at half its speed. Operands too
// large for the packing buffers are not packed for the latter reason.
#ifndef LM_CPU_GEMM_CALL_H
#define LM_CPU_GEMM_CALL_H
#include <stdbool.h>
#include <stdint.h>

#include "runtime/base/dtype.h"

// C[m, n] = A[m, k] B[k, n]; strides in elements.
typedef struct lm_gemm_shape {
  int64_t m, n, k, a_m, a_k, b_k, b_n, c_m, c_n;
  uint8_t ab, cc; // lm_dtype of A and B, of C
} lm_gemm_shape;

// A matrix in the library's terms. trans 'N': rows have unit stride and are ld elements apart; 'T':
// columns are; 0: neither.
typedef struct lm_gemm_layout {
  char trans;
  int64_t ld;
} lm_gemm_layout;
typedef struct lm_gemm_layouts {
  lm_gemm_layout a, b, c;
} lm_gemm_layouts;
lm_gemm_layouts lm_gemm_layouts_find(const lm_gemm_shape *s);

enum {
  LM_GEMM_TILE = 512,  // maximum rows, and columns, of a GEMM with packed operands
  LM_GEMM_PANEL = 256, // elements along k that are packed at a time
  LM_GEMM_GAP = 16,    // padding between packed rows, in floats
};
typedef struct lm_gemm_workspace {
  float a[(LM_GEMM_TILE + LM_GEMM_GAP) * (LM_GEMM_PANEL + LM_GEMM_GAP)];
  float b[(LM_GEMM_TILE + LM_GEMM_GAP) * (LM_GEMM_PANEL + LM_GEMM_GAP)];
  float c[LM_GEMM_TILE * LM_GEMM_TILE]; // f32 sums of a tile that C itself cannot hold
} lm_gemm_workspace;

// True if an operand has to be packed; m and n must then be at most LM_GEMM_TILE.
bool lm_gemm_packs(const lm_gemm_shape *s);
// Called by each thread before its first call: warms up the library's allocations.
void lm_gemm_call_thread_begin(void);
// A and B are f32 or bf16; C is f32 with layout 'N'.
void lm_gemm_call(const lm_gemm_shape *s, const char *a, const char *b, float *c, bool add,
                  lm_gemm_workspace *workspace);

// Copy between a tile of C, in its type and strides, and dense f32 rows of s->n elements.
void lm_gemm_tile_load(const lm_gemm_shape *s, const char *c, float *tile);
void lm_gemm_tile_store(const lm_gemm_shape *s, const float *tile, char *c);
#endif
