// gemm_call.h - one product of matrices on one thread, by oneDNN's f32 GEMM.
//
// What the library cannot take is packed: bf16 is widened to f32, which is exact, rows without unit
// stride are gathered, and so are rows a multiple of 4 KiB apart. These fall into the same sets of
// the first cache; the library then runs at half its speed unless tiles are too large to spread.
#ifndef LM_CPU_GEMM_CALL_H
#define LM_CPU_GEMM_CALL_H
#include <stdbool.h>
#include <stdint.h>

#include "runtime/base/dtype.h"

typedef struct lm_gemm_shape { // C[m, n] = A[m, k] B[k, n]; strides in elements
  int64_t m, n, k, a_m, a_k, b_k, b_n, c_m, c_n;
  uint8_t ab, cc; // lm_dtype of A and B, of C
} lm_gemm_shape;

// A matrix as the library takes it: 'N' rows of unit stride ld apart, 'T' the same of its
// transpose; 0: neither.
typedef struct lm_gemm_layout {
  char trans;
  int64_t ld;
} lm_gemm_layout;
typedef struct lm_gemm_layouts {
  lm_gemm_layout a, b, c;
} lm_gemm_layouts;
lm_gemm_layouts lm_gemm_layouts_find(const lm_gemm_shape *s);

enum {
  LM_GEMM_TILE = 512,  // most rows, and columns, of a product with packed operands
  LM_GEMM_PANEL = 256, // so many places of k are packed at a time
  LM_GEMM_GAP = 16,    // what parts packed rows, in floats
};
typedef struct lm_gemm_workspace {
  float a[(LM_GEMM_TILE + LM_GEMM_GAP) * (LM_GEMM_PANEL + LM_GEMM_GAP)];
  float b[(LM_GEMM_TILE + LM_GEMM_GAP) * (LM_GEMM_PANEL + LM_GEMM_GAP)];
  float c[LM_GEMM_TILE * LM_GEMM_TILE]; // sums of a tile that C cannot hold itself
} lm_gemm_workspace;

// Whether an operand has to be packed: m and n are then at most LM_GEMM_TILE.
bool lm_gemm_packs(const lm_gemm_shape *s);
// The library then uses no threads of its own in the calling thread, neither to make primitives nor
// to run them.
void lm_gemm_call_one_thread(void);
// in each thread once, before its calls: what the library takes and gives back is taken once
void lm_gemm_call_thread_begin(void);
// A and B are f32 or bf16, C is f32 in form 'N'.
void lm_gemm_call(const lm_gemm_shape *s, const char *a, const char *b, float *c, bool add,
                  lm_gemm_workspace *scratch);

// Between a tile of C in its own type and strides, and rows of s->n floats.
void lm_gemm_tile_load(const lm_gemm_shape *s, const char *c, float *tile);
void lm_gemm_tile_store(const lm_gemm_shape *s, const float *tile, char *c);
#endif
