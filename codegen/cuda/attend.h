// attend.h - state of the attention generator for one kernel.
//
// A block iterates over tiles of scores: `rows` positions of one axis, which it owns, by `cols`
// positions of the other axis. In the forward pass and for sums over s the rows are positions of t,
// for sums over t positions of s. A warp has 16 rows. Fragments are laid out as in tile.cuh:
// element [n][2 r + c] of a thread is in row lm_frag_row(r) and column lm_frag_col(n, c).
#ifndef LM_CODEGEN_CUDA_ATTEND_H
#define LM_CODEGEN_CUDA_ATTEND_H
#include "codegen/common/attend_value.h"
#include "codegen/common/gen.h"
#include "codegen/cuda/cuda.h"
#include "codegen/cuda/emit.h"

enum {
  CUDA_MAX_POOL = 96 << 10,  // bytes of shared memory that every architecture gives a block
  CUDA_WARPGROUP_ROWS = 128, // rows per block, with wgmma
  CUDA_WARPGROUP_COLS = 64,  // columns of a tile of the backward pass, or twice as many
};

typedef struct cuda_attend {
  lm_gen g; // for its arena, names and extents
  lm_attend_spec f;
  lm_dtype half;          // of the tiles: LM_BF16 or LM_F16; LM_F32 (0): they are f32
  const char *gemm_kind;  // suffix of the GEMM macros: all but F32 use tensor cores
  bool warpgroups;        // uses wgmma
  const char *note;       // for the launch
  const int64_t **stride; // of the operands in memory, in elements
  // Of the results that are parts of a concatenation; NULL: dense.
  const int64_t **result_stride;
  const lm_value *score;
  double scale; // the score is `scale` times this value
  int rows, cols, threads;
  int64_t pool, max_pool; // bytes of shared memory of this section, maximum of all sections
  lm_buf declare;         // declarations of arrays in shared memory and of registers
  // Statements at the level of the axes that they depend on; by_pair is for a pair of columns.
  lm_buf point, by_row, by_pair, by_col, by_element;
  lm_attend_values values; // their statements go to the buffers above
  bool *has_tile;          // by operand
  bool *held;              // by operand: threads hold the tile of their rows in registers
  lm_plan_map maps[LM_PLAN_MAPS];
  int n_maps; // tensor maps of operands that TMA copies
  const lm_target *target;
  double instructions; // of epilogues, of all lanes
  // With wgmma: the text of the producer and of the consumers, section by section.
  lm_buf producer, consumer;
  int n_sections;
  int slots;     // of the rows of the section's items
  int64_t items; // of all sections so far
} cuda_attend;

// ---- attend_tile.c: elements of the region, tiles of operands
void cuda_attend_values(cuda_attend *e); // sets e->values, without the axes of rows and columns
// Factors v into c > 0 times another value, which is returned; returns v with c = 1 if v is not
// such a product.
const lm_value *cuda_attend_unscaled(const lm_value *v, double *out_c);
// The condition that a column is inside its axis; NULL if all are.
const char *cuda_attend_inside(cuda_attend *e);
// "0 + i_b * 64 + ...": the offset of an element of type t in memory, without channel axes; of a
// dense tensor if stride is NULL.
void cuda_attend_offset(cuda_attend *e, lm_buf *b, lm_type t, const int64_t *stride,
                        const char *at_row, const char *at_col);
// The offset along channel axes, from the text of an element's number among them.
void cuda_attend_channel_offset(cuda_attend *e, lm_buf *b, lm_type t, const int64_t *stride,
                                const lm_attend_axes *channels, const char *flat);
// Writes for (n) for (c) for (r) with the statements in by_pair, by_col and by_element, then
// `body`; empties all three.
void cuda_attend_loops(cuda_attend *e, lm_buf *b, const char *body);
void cuda_attend_rows(cuda_attend *e, lm_buf *b); // the loop over r that fills the arrays of by_row
int64_t cuda_attend_width(int64_t n);             // padded to a multiple of 16
int64_t cuda_attend_widest(const lm_attend_spec *f); // elements of a head
int64_t cuda_attend_pitch(const cuda_attend *e, int64_t n);
const char *cuda_attend_pool(cuda_attend *e, const char *type, int bytes, const char *prefix,
                             int number, int64_t n);
// Fills b<k> with the positions of operand k from row0 (or col0) on, one row for each.
void cuda_attend_fill(cuda_attend *e, lm_buf *b, uint32_t k, const lm_attend_axes *channels);
void cuda_attend_fills_wait(cuda_attend *e, lm_buf *b);
// With wgmma, "b1" or "b1 + slot * 8192": the rows of an item of operand k.
const char *cuda_attend_rows_at(cuda_attend *e, uint32_t k, int64_t width);
// to[n] += rows of operand x times rows of operand y; x has the axis of rows, y the axis of
// columns.
void cuda_attend_dot(cuda_attend *e, lm_buf *b, const char *to, uint32_t x, uint32_t y,
                     int64_t width);
// With wgmma: waits until the n named GEMMs are complete and at most `left` later ones are in
// flight.
void cuda_attend_gemms_wait(cuda_attend *e, lm_buf *b, int left, int n, const char *const *to,
                            const int64_t *width);
// Packs z as an operand of cuda_attend_weighted. All tiles are packed before the first GEMM.
void cuda_attend_pack(cuda_attend *e, lm_buf *b, const char *z);
void cuda_attend_weighted(cuda_attend *e, lm_buf *b, const char *to, const char *z, uint32_t k,
                          int64_t width);
// Stores row `row` of result i if `inside`: the fragments x of row r, each followed by `scale`.
void cuda_attend_row_store(cuda_attend *e, lm_buf *b, uint32_t i, const lm_attend_axes *channels,
                           const char *x, const char *scale, const char *inside);
// True if channel axes are contiguous and positions begin at multiples of n elements.
bool cuda_attend_in_runs(lm_type t, const lm_attend_axes *channels, int n);
// Skips tiles that the block map says are masked. `full`: the tile needs no mask.
void cuda_attend_map_check(cuda_attend *e, lm_buf *b);
const char *cuda_attend_extent(cuda_attend *e, lm_axis a);
bool cuda_attend_has(lm_type t, lm_axis a);

// ---- attend_forward.c
int64_t cuda_attend_forward(cuda_attend *e, lm_buf *b); // returns the number of blocks
void cuda_attend_section_begin(cuda_attend *e, bool rows_are_s);
// Appends the declarations, then the text.
void cuda_attend_section_put(cuda_attend *e, const lm_buf *tile, lm_buf *out);
// Decodes item `at` of a section into row0 and the point of the given axes. Returns the number of
// items: of blocks, or with wgmma of what blocks take one after another.
int64_t cuda_attend_rows_begin(cuda_attend *e, lm_buf *b, const lm_axis *axes, int n,
                               int64_t points);

// Parts of the forward pass, in order: the rows of the block (returns the number of items); empty
// sums; x = scores, then weights; o rescaled to the new maximum; o and lse.
int64_t cuda_attend_forward_begin(cuda_attend *e, lm_buf *b);
void cuda_attend_sums_begin(lm_buf *b, long long width);
// x = score / scale; very low where masked, -inf beyond the axis.
void cuda_attend_scores(cuda_attend *e, lm_buf *b);
// The condition that the tile has masked or outside elements; NULL if none can have.
const char *cuda_attend_in_part(cuda_attend *e);
// Leaves in `change` the factor by which o must be rescaled.
void cuda_attend_softmax(cuda_attend *e, lm_buf *b);
void cuda_attend_rescale(lm_buf *b, long long width);
const char *cuda_attend_log2(const cuda_attend *e); // the factor of x in exponents of 2
void cuda_attend_results(cuda_attend *e, lm_buf *b);

// ---- attend_warpgroups.c
// The tiles of an operand.
typedef struct cuda_attend_side {
  uint32_t k;
  const lm_attend_axes *channels;
} cuda_attend_side;
typedef struct cuda_attend_work {
  cuda_attend_side row[4], col[4];
  int n_row, n_col; // operands of an item's rows, operands that arrive tile by tile
  // Copies of an item's rows in shared memory: with two, those of the next item arrive early.
  int slots;
  // The operands of columns arrive in n_streams streams of equal numbers of operands; each stream
  // has its own barriers.
  int n_streams;
  const char *loops;
  int n_loops; // around the tiles of columns
  // Additional work of the producer's warp for each tile.
  const char *per_tile;
  // Text of both roles: row0 and the point of item `at`. n: the number of items.
  const char *decode;
  int64_t n;
  // Text of the consumer warpgroups: before the loops, then when the item's rows are there; inside
  // the loops; for each tile; after all.
  const char *first, *held, *rows, *tile, *last;
  bool holds_all; // nothing reads the rows in shared memory after `held`
} cuda_attend_work;
// Adds an operand unless it is already there.
void cuda_attend_work_side(cuda_attend_side *to, int *n, uint32_t k,
                           const lm_attend_axes *channels);
// Must precede other pools of the section.
void cuda_attend_warpgroups_pools(cuda_attend *e, const cuda_attend_work *w);
// Threads hold the rows of the first n operands, from which cuda_attend_dot then multiplies.
void cuda_attend_rows_hold(cuda_attend *e, lm_buf *b, const cuda_attend_work *w, int n);
// Adds a section to both roles; the consumers' is `consumer`, or if NULL the usual one.
void cuda_attend_warpgroups_add(cuda_attend *e, const cuda_attend_work *w, const lm_buf *consumer);
// Writes the kernel of all sections; returns the number of blocks.
int64_t cuda_attend_warpgroups_put(cuda_attend *e, lm_buf *b, bool per_tile);
// Why wgmma cannot read the tiles of operand k; NULL if it can.
const char *cuda_attend_warpgroups_tile_why(cuda_attend *e, uint32_t k,
                                            const lm_attend_axes *channels);
const char *cuda_attend_warpgroups_forward_why(cuda_attend *e);
int64_t cuda_attend_warpgroups_forward(cuda_attend *e, lm_buf *b); // returns the number of blocks

// ---- attend_epilogue.c
// The epilogue of sum s, whose array in registers is `sums`, times `factor`: "" or " * c".
void cuda_attend_epilogue(cuda_attend *e, lm_buf *b, const lm_attend_sum *s, const char *sums,
                          const char *factor);
// The number of partial sums of each sum over points in `kernel` if it becomes an epilogue; 0: the
// generator does not support it as an epilogue.
int64_t cuda_attend_epilogue_chunks(cuda_attend *e, const lm_op *kernel);
// True if the sum's epilogue sums over its points, by blocks: `chunk` is the number of the block.
bool cuda_attend_sums_points(const lm_attend_sum *s);

// ---- attend_query.c: values of a query, named neg_lse (-lse), delta (the sum of do * o) and share
// If rows are queries: in registers, computed by the four lanes of a row together.
void cuda_attend_query_rows(cuda_attend *e, lm_buf *b);
// If columns are queries: in shared memory, four lanes for each column.
void cuda_attend_query_cols(cuda_attend *e, lm_buf *b);
// Declares the values of a column in by_col, if columns are queries.
void cuda_attend_query_col(cuda_attend *e);

// ---- attend_strides.c: operands in memory
void cuda_attend_operands_add(const lm_op *op, cuda_code *c); // as parameters
// The strides of each operand, in elements.
const int64_t **cuda_attend_strides(const lm_module *m, const lm_op *op, lm_arena *arena);
// The stride of the axes from..to - 1 of operand k as one axis; 0 if they have one element.
int64_t cuda_attend_unit(const cuda_attend *e, uint32_t k, int from, int to);

// ---- attend_split.c: one query
bool cuda_attend_is_split(const lm_attend_spec *f);
// Why there is no kernel for one query; NULL if there is.
const char *cuda_attend_split_why(const lm_attend_spec *f);
// The kernel that combines the chunks. rows: cuda_emit.rows, without the parameter of lse.
cuda_code *cuda_attend_combine(cuda_attend *e, const char *rows, lm_arena *arena,
                               double *out_instructions);
// wide: offsets in memory need 64 bits.
void cuda_attend_split_emit(cuda_attend *e, bool wide, lm_arena *arena, lm_kernel_code *out);

// ---- attend.c
// A generator of attention without a form; false if `op` has no specification, and *why says so.
bool cuda_attend_make(const lm_plan_options *o, const lm_op *op, lm_arena *temporary,
                      cuda_attend *out, lm_buf *why);
void cuda_attend_free(cuda_attend *e);

// ---- attend_vjp.c
// Writes all sections; returns the number of blocks.
int64_t cuda_attend_backward(cuda_attend *e, lm_buf *b);
const char *cuda_attend_warpgroups_backward_why(cuda_attend *e);
#endif
