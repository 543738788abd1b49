// mix.h - kernels that compute a factor of their dot, weights, in registers (pass mix_kernels): the
// form of the kernel, which mix.c and mix_value.c write.
//
//   y = dot(w, x) over columns        w: [points, head, row, column], elementwise
//
// A block has a point of the kernel's parallel axes, all rows and columns, and walks along the
// heads. Where w depends on another dot, of rows and columns, tensor cores compute its tile first.
// Sums of elements over columns have a number for each row, sums over rows one for each column, and
// sums over heads are a tile, which is in registers until the block has walked along all of them.
//
// A warp has 16 rows and all columns, in the layout of tile.cuh: element [n][2 * r + c] of a thread
// is in row lm_frag_row(r) and column lm_frag_col(n, c).
#ifndef LM_CODEGEN_CUDA_MIX_H
#define LM_CODEGEN_CUDA_MIX_H
#include "codegen/cuda/emit.h"
#include "compiler/ir/dot.h"

enum {
  CUDA_MIX_SUMS = 8,
  CUDA_MIX_MOST = 128 // rows, columns, channels
};

// Which position an axis of rows or columns has in the text.
typedef enum cuda_mix_at {
  CUDA_MIX_NONE,
  CUDA_MIX_ROW, // that of an element of the tile
  CUDA_MIX_COL,
  CUDA_MIX_THREAD // one for each thread
} cuda_mix_at;

typedef enum cuda_mix_kind {
  CUDA_MIX_OF_ROWS, // a sum over columns
  CUDA_MIX_OF_COLS,
  CUDA_MIX_OF_HEADS
} cuda_mix_kind;

typedef struct cuda_mix_sum {
  const lm_op *op;
  cuda_mix_kind kind;
} cuda_mix_sum;

typedef struct cuda_mix {
  const lm_module *m;
  const lm_op *kernel, *mix, *scores; // scores: NULL: none
  const lm_value *weights;
  lm_axis row, col, head;
  int64_t rows, cols, heads, points;
  int64_t channels, score_channels; // of the dots
  // The operands of the dots: x of the mix, and the rows and columns of the scores.
  uint32_t x, score_row, score_col;
  cuda_mix_sum sum[CUDA_MIX_SUMS];
  int n_sums;
} cuda_mix;

// ---- mix_form.c
bool cuda_mix_make(const lm_module *m, const lm_op *kernel, cuda_mix *out);
// True if the axis is one of rows, columns, heads or points.
bool cuda_mix_is_of_block(const cuda_mix *x, lm_axis a);
bool cuda_mix_has(lm_type t, lm_axis a);
// The strides of operand k, in elements: of its views, if the kernel reads it through them, else of
// a dense tensor.
void cuda_mix_strides(const cuda_mix *x, uint32_t k, int64_t *out);
// The value that a result, or a factor of a dot, is behind permutations.
const lm_value *cuda_mix_unpermuted(const lm_value *v);

// ---- mix_value.c

// A written value: the text of v with its axes of rows and columns at the given positions.
typedef struct cuda_mix_memo {
  const lm_value *v;
  cuda_mix_at row, col;
  const char *text;
  int scope; // of the elements or threads for which it was written; 0: any
  struct cuda_mix_memo *next;
} cuda_mix_memo;

typedef struct cuda_mix_text {
  const cuda_mix *x;
  lm_gen g; // for its arena and names
  cuda_mix_memo *memo;
  int scope, n_names;
  int64_t pool;
  // Statements: declarations; for a point; for a head; for each row of a thread, of a point and of
  // a head; that fill columns in shared memory, of a point and of a head; for pairs of columns,
  // columns, elements; for threads.
  lm_buf declare, point, head, rows, head_rows, fill, head_fill, pair, column, element, thread;
  double counted; // instructions of all lanes of a block that are in no loop over heads
  double counted_heads;
} cuda_mix_text;

const char *cuda_mix_value(cuda_mix_text *e, const lm_value *v, cuda_mix_at row, cuda_mix_at col);
// "0 + i_b * 64 + …": the offset of an element of t without the axes that are not of the block;
// stride: NULL: of a dense tensor.
void cuda_mix_offset(cuda_mix_text *e, lm_buf *b, lm_type t, const int64_t *stride,
                     const char *at_row, const char *at_col);
const char *cuda_mix_coordinate(cuda_mix_text *e, lm_axis a);
const char *cuda_mix_pool(cuda_mix_text *e, const char *type, int bytes, const char *name,
                          int64_t n);
// The number of a sum.
int cuda_mix_sum_of(const cuda_mix *x, const lm_op *op);
#endif
