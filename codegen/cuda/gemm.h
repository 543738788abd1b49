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
//
// Ranges of heads of which the kernel computes different results are sections:
//
//   a dot of [16384, 1280], norms of the (4, 3) queries in columns to 767 and of the (4) keys in
//   columns to 1023: a section of 12 heads of 64 columns, and one of 4. The other columns are
//   stored, if the dot is.
#ifndef LM_CODEGEN_CUDA_GEMM_H
#define LM_CODEGEN_CUDA_GEMM_H
#include "codegen/cuda/emit.h"
#include "compiler/ir/dot.h"

enum {
  CUDA_GEMM_ROWS = 128, // of a tile
  CUDA_GEMM_COLUMNS = 256,
  CUDA_GEMM_QUAD = 4, // threads that have the columns of a row
  CUDA_GEMM_SECTIONS = 4,
  CUDA_GEMM_OPS = 256, // limit of the body of a kernel that has heads
  // cuda_gemm.of
  CUDA_GEMM_APART = -1, // an operation that does not depend on the dot
  CUDA_GEMM_WIDE = -2   // one that has, as the dot, columns of several sections, or of none
};

// Columns from `first` on of which the kernel computes results. heads: the axes of their heads
// (dtype is unused), none if they are elements of a row.
typedef struct cuda_gemm_section {
  int64_t first, columns;
  lm_type heads;
} cuda_gemm_section;

typedef struct cuda_gemm {
  lm_plan_gemm g;
  int rows;        // axes of the rows
  int64_t columns; // that the epilogue loops over
  int parts;       // of the dot's columns
  int panel;       // columns of each part in a tile
  bool by_k;       // k is contiguous in B, else its columns
  int64_t head;    // columns of a head; 0: the kernel has no heads
  int64_t unit;    // columns of the narrowest part of a head; without heads: `columns`
  // The sections, in order; without heads: one, of all columns. of: by operation of the body, the
  // number of its section, or one of the numbers below.
  cuda_gemm_section section[CUDA_GEMM_SECTIONS];
  int n_sections;
  int8_t of[CUDA_GEMM_OPS];
  // Of groups of rows: the operand that has the rows of each.
  const char *counts;
  int width; // columns of a tile
  // The GEMMs of a launch of several (joined.c), of which g is the first; n_joined = 0: g alone.
  const lm_plan_gemm *joined;
  int n_joined;
  // The sums of a thread: an array, and a constant factor, "" or " * c". ends: a tile may have rows
  // that are not its own, from `row_end` on.
  const char *registers, *factor;
  bool ends;
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
// Statements that store the sums of a tile, or add them to its elements if the kernel's parameter
// `adds` says so. to: the first row of the result; pitch, columns: of the result.
void cuda_ring_store(const cuda_gemm *x, const char *to, const char *pitch, const char *columns,
                     lm_buf *b);

// ---- gemm_axes.c
// The axes of t behind those of the rows, whether or not it has rows. False if it has only some of
// the rows' axes, or run-time extents.
bool cuda_gemm_rest(const lm_module *m, const cuda_gemm *x, const lm_op *kernel, lm_type t,
                    lm_type *out);
// The same; false, too, if t has no rows, which a result has.
bool cuda_gemm_result(const lm_module *m, const cuda_gemm *x, const lm_op *kernel, lm_type t,
                      lm_type *rest);
// The product of the sizes of t's axes.
int64_t cuda_gemm_size(const lm_module *m, lm_type t);
// True if the first axes of the rest are those of the section's heads. A section of more than one
// head may have no axes of heads: then false.
bool cuda_gemm_has_heads(const cuda_gemm *x, const cuda_gemm_section *s, lm_type rest);
// The axes within a head. False if the value has only some axes of the heads.
bool cuda_gemm_within_head(const cuda_gemm *x, const cuda_gemm_section *s, lm_type rest,
                           lm_type *out);
// ---- gemm_form.c
bool cuda_gemm_make(const lm_module *m, const lm_op *kernel, cuda_gemm *out);
// A kernel whose first operation rounds its first operand, the sums of attention's tiles: the last
// axes of the sums, which are heads, are columns, the `rows` axes before them are rows. A tile has
// one head.
bool cuda_gemm_of_sums(const lm_module *m, const lm_op *kernel, int rows, cuda_gemm *out);

// ---- gemm_sections.c
// True if a value has more axes than rows and columns, or is a sum.
bool cuda_gemm_may_have_heads(const lm_module *m, const cuda_gemm *x, const lm_op *kernel);
// Chooses heads and sections. False if the kernel has other forms.
bool cuda_gemm_sections_make(const lm_module *m, const lm_op *kernel, cuda_gemm *x);
// The section of a value of the body; NULL: it is of none, or of several.
const cuda_gemm_section *cuda_gemm_section_of(const cuda_gemm *x, const lm_op *kernel,
                                              const lm_value *v);
bool cuda_gemm_is_wide(const cuda_gemm *x, const lm_op *kernel, const lm_value *v);

// ---- gemm_epilogue.c
// The operations of the kernel on the sums in registers; NULL if they read other sums than those
// of the same row, head and pair. Sets e->gemm.
const char *cuda_gemm_epilogue(cuda_emit *e, const cuda_gemm *x);
// The declarations of a thread's sums over rows, of the results that a kernel sums over its points:
// w<i>[n][c] is the sum of columns 8 n + 2 (lane % 4) + c of a head, of result i.
void cuda_gemm_sums_declare(const cuda_gemm *x, const lm_op *kernel, lm_buf *b);
#endif
