// gemm.h - a GEMM by warpgroups with the rest of its kernel in the epilogue: the form of the
// kernel, which gemm.c, gemm_ring.c and gemm_epilogue.c write.
//
// The columns of a tile are those of one range of the kernel's columns, for each part of the dot's
// result that the kernel reads, so that a thread has all elements that it needs:
//
//   a dot of [16384, 4096], silu(columns to 2047) * columns from 2048 on: `columns` is 2048, the
//   dot has two parts of them, and the tile at column 384 has columns 384 to 511 and 2432 to 2559.
//   x[i] are columns 384 + 8 i on, x[16 + i] columns 2432 + 8 i on.
//
// A thread has two rows, r = 0 and 1, 8 apart, and of each 8 columns two neighbours, c = 0 and 1:
// the layout of accumulators (mma.cuh). Its loads and stores are pairs of elements. The four
// threads of a row have all columns of the tile.
//
// Sums over columns are over heads, whose columns are all in one tile:
//
//   a dot of [16384, (4, 3, 64)], sums over 64: `heads` are the axes of 4 and 3, `head` is 64, and
//   a tile has four heads, hh = 0 to 3. x[8 hh + i] are columns 64 hh + 8 i on of the tile.
//
// `unit` is the narrowest part of a head that the kernel reads: 32 where it rotates one half of a
// head by the other one. An iteration of the loop over pairs has a pair of each part.
#ifndef LM_CODEGEN_CUDA_GEMM_H
#define LM_CODEGEN_CUDA_GEMM_H
#include "codegen/cuda/emit.h"
#include "compiler/ir/dot.h"

enum {
  CUDA_GEMM_ROWS = 128, // of a tile
  CUDA_GEMM_COLUMNS = 256,
  CUDA_GEMM_QUAD = 4 // threads that have the columns of a row
};

typedef struct cuda_gemm {
  lm_plan_gemm g;
  int rows;        // axes of the rows
  int64_t columns; // that the epilogue loops over
  int parts;       // of the dot's columns
  int panel;       // columns of each part in a tile
  bool by_k;       // k is contiguous in B, else its columns
  lm_type heads;   // axes of the heads (dtype is unused)
  int64_t head;    // columns of a head; 0: the kernel has no heads
  int64_t unit;    // columns of the narrowest part of a head; without heads: `columns`
  // Of groups of rows: the operand that has the rows of each.
  const char *counts;
} cuda_gemm;

// ---- gemm_ring.c
bool cuda_ring_fits(const lm_target *t);
int cuda_ring_threads(void);
// The statements of the kernel. results: those on the sums of a tile, x, with row0, col0 and, with
// groups of rows, row_end.
void cuda_ring_put(const cuda_gemm *x, const char *results, lm_buf *b);
// True if TMA copies the operands of these grouped GEMMs, whose sizes make tiles worthwhile.
bool cuda_ring_copies(const lm_plan_gemm *g);
lm_plan_launch cuda_ring_launch(const cuda_gemm *x, const lm_target *t, lm_arena *arena);

// ---- gemm_form.c

// The axes of t behind those of the rows, whether or not it has rows. False if it has only some of
// the rows' axes, or run-time extents.
bool cuda_gemm_rest(const lm_module *m, const cuda_gemm *x, const lm_op *kernel, lm_type t,
                    lm_type *out);
// True if the first axes of the rest are those of the heads.
bool cuda_gemm_has_heads(const cuda_gemm *x, lm_type rest);
// The product of the sizes of t's axes.
int64_t cuda_gemm_size(const lm_module *m, lm_type t);
bool cuda_gemm_make(const lm_module *m, const lm_op *kernel, cuda_gemm *out);

// ---- gemm_epilogue.c
// The operations of the kernel on the sums in registers; NULL if they read other sums than those
// of the same row, head and pair. Sets e->gemm.
const char *cuda_gemm_epilogue(cuda_emit *e, const cuda_gemm *x);
#endif
