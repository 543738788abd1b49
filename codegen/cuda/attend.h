// attend.h - what the parts of the generator of attention share while one kernel is written.
//
// A block goes over tiles of scores: `rows` places of one axis, which it owns, by `cols` places of
// the other, in turn. Forward and for sums over s the rows are places of t, for sums over t places
// of s. A warp has 16 rows; fragments are as tile.cuh says: element [n][2 r + c] of a thread is row
// lm_frag_row(r), column lm_frag_col(n, c).
#ifndef LM_CODEGEN_CUDA_ATTEND_H
#define LM_CODEGEN_CUDA_ATTEND_H
#include "codegen/common/attend.h"
#include "codegen/common/gen.h"
#include "codegen/cuda/cuda.h"

enum {
  CUDA_POOL_MOST = 96 << 10, // bytes of shared memory that every architecture gives a block
  CUDA_GROUP_ROWS = 128,     // of a block whose products are warpgroups'
};

typedef struct cuda_attend {
  lm_gen g; // for its arena, names and extents
  lm_attend_spec f;
  bool half;            // tiles are bf16; else f32
  const char *products; // BF16, TF32: on tensor cores; F32
  bool groups;          // products are warpgroups'
  const char *note;     // for the launch
  const lm_value *score;
  double scale; // the form's score is scale times this one
  int rows, cols, threads;
  lm_axis row, col;        // axes that rows and columns are places of
  int64_t pool, pool_most; // bytes of shared memory of this section, of any
  lm_buf declare;          // of arrays in shared memory and of registers
  lm_buf place, by_row, by_pair, by_col,
      by_element; // statements where the axes that they depend on are set; a pair of columns
  const char *
      *name; // by value id: text that stands for the value where it is used, NULL if not yet
  const lm_value **local;
  uint32_t n_local, cap_local; // values whose text ends with the loops over a tile
  int n_names;
  bool *has_tile; // by operand
  lm_plan_map maps[LM_PLAN_MAPS];
  int n_maps; // of operands that the copy engine brings
} cuda_attend;

// ---- attend_tile.c: elements of the region, tiles of operands
const char *cuda_attend_value(cuda_attend *e, const lm_value *v);
// v as c > 0 times another value, which is returned; v and c = 1 where it is no such product.
const lm_value *cuda_attend_unscaled(const lm_value *v, double *out_c);
const char *cuda_attend_inside(cuda_attend *e);                // of a column; NULL: all are
const char *cuda_attend_coordinate(cuda_attend *e, lm_axis a); // of an outer axis
// "0 + i_b * 64 + …": place of an element of type t in memory, but for own axes.
void cuda_attend_offset(cuda_attend *e, lm_buf *b, lm_type t, const char *at_row,
                        const char *at_col);
// Own axes' part of it, from the text of an element's number among them.
void cuda_attend_own_offset(cuda_attend *e, lm_buf *b, lm_type t, const lm_attend_axes *own,
                            const char *flat);
// for (n) for (c) for (r) with what was written to by_pair, by_col and by_element, then `body`;
// forgets all three.
void cuda_attend_loops(cuda_attend *e, lm_buf *b, const char *body);
void cuda_attend_rows(cuda_attend *e, lm_buf *b); // the loop over r that fills by_row's arrays
int64_t cuda_attend_width(int64_t n);             // padded
int64_t cuda_attend_pitch(const cuda_attend *e, int64_t n);
const char *cuda_attend_pool(cuda_attend *e, const char *type, int bytes, const char *prefix,
                             int number, int64_t n);
// Operand k's places row0.. (or col0..) of its axis: b<k>, one row for each.
void cuda_attend_fill(cuda_attend *e, lm_buf *b, uint32_t k, const lm_attend_axes *own);
void cuda_attend_fills_wait(cuda_attend *e, lm_buf *b);
// to[n] += rows of operand x times rows of operand y, which have the axes of rows and of columns.
void cuda_attend_product(cuda_attend *e, lm_buf *b, const char *to, uint32_t x, uint32_t y,
                         int64_t width);
// Warpgroups do the products meanwhile: until the n named ones are done, and at most `left` asked
// for later are not.
void cuda_attend_products_wait(cuda_attend *e, lm_buf *b, int left, int n, const char *const *to,
                               const int64_t *width);
void cuda_attend_pack(cuda_attend *e, lm_buf *b,
                      const char *z); // before weighted, once; all that there are before the first
void cuda_attend_weighted(cuda_attend *e, lm_buf *b, const char *to, const char *z, uint32_t k,
                          int64_t width);
// Result i's row `row`, if `inside`: x's fragments of row r, each followed by `scale`.
void cuda_attend_row_store(cuda_attend *e, lm_buf *b, uint32_t i, const lm_attend_axes *own,
                           const char *x, const char *scale, const char *inside);
// Own axes are a run of memory, and places begin at multiples of n elements.
bool cuda_attend_in_runs(lm_type t, const lm_attend_axes *own, int n);
void cuda_attend_map_check(cuda_attend *e,
                           lm_buf *b); // leaves out what the map says; full: no mask
const char *cuda_attend_extent(cuda_attend *e, lm_axis a);
bool cuda_attend_has(lm_type t, lm_axis a);

// ---- attend.c
void cuda_attend_section_begin(cuda_attend *e, bool rows_are_s);
void cuda_attend_section_put(cuda_attend *e, const lm_buf *tile,
                             lm_buf *out); // declarations, then the text
// From block `at` of a section: its row0 and its place of those axes. Returns the number of blocks.
int64_t cuda_attend_rows_begin(cuda_attend *e, lm_buf *b, const lm_axis *axes, int n,
                               int64_t places);

// Forward: where the block's rows lie; sums of nothing; x = scores, then weights; o scaled to the
// new maximum; o and lse.
int64_t cuda_attend_forward_begin(cuda_attend *e, lm_buf *b); // returns the number of blocks
void cuda_attend_sums_begin(lm_buf *b, long long width);
void cuda_attend_scores(
    cuda_attend *e,
    lm_buf *b); // x = score / scale; very low where the mask hides, -inf beyond the axis
const char *
cuda_attend_in_part(cuda_attend *e); // a condition: the tile has something to hide; NULL: none has
void cuda_attend_softmax(cuda_attend *e, lm_buf *b); // leaves what o is to be scaled by
void cuda_attend_rescale(lm_buf *b, long long width);
const char *cuda_attend_log2(const cuda_attend *e); // what x is multiplied by in exponents of 2
void cuda_attend_results(cuda_attend *e, lm_buf *b);

// ---- attend_groups.c
typedef struct cuda_attend_side {
  uint32_t k;
  const lm_attend_axes *own;
} cuda_attend_side; // an operand's tiles
typedef struct cuda_attend_work {
  cuda_attend_side row[4], col[4];
  int n_row, n_col; // that the block keeps, that come tile by tile
  int n_streams;    // that a tile's columns come in, as many to each; each has phases of its own
  const char *loops;
  int n_loops;        // around the tiles of columns
  const char *beside; // what the third group does for each tile
  const char *first, *rows, *tile,
      *last; // the other two: before the loops, within them, for each tile, after all
} cuda_attend_work;
void cuda_attend_work_side(cuda_attend_side *to, int *n, uint32_t k,
                           const lm_attend_axes *own); // adds it, once
void cuda_attend_groups_pools(cuda_attend *e,
                              const cuda_attend_work *w); // before other pools of the section
void cuda_attend_groups_put(cuda_attend *e, lm_buf *b, const cuda_attend_work *w);
const char *
cuda_attend_groups_tile_why(cuda_attend *e, uint32_t k,
                            const lm_attend_axes *own); // not fit; NULL: wgmma can read it
const char *cuda_attend_groups_forward_why(cuda_attend *e);
int64_t cuda_attend_groups_forward(cuda_attend *e, lm_buf *b); // returns the number of blocks

// ---- attend_vjp.c
int64_t cuda_attend_backward(cuda_attend *e,
                             lm_buf *b); // of all sections; returns the number of blocks
const char *cuda_attend_groups_backward_why(cuda_attend *e);
#endif
