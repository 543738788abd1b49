// emit.h - state of the CUDA generator for one kernel.
#ifndef LM_CODEGEN_CUDA_EMIT_H
#define LM_CODEGEN_CUDA_EMIT_H
#include "codegen/common/gen.h"
#include "codegen/cuda/cuda.h"

enum {
  CUDA_WARP = 32,
  CUDA_SECTOR = 32,        // bytes that memory and caches move at once
  CUDA_THREADS = 256,      // threads of a block, unless a point needs more
  CUDA_ROWS_THREADS = 512, // limit for a block whose team has sums of many columns
  CUDA_MAX_THREADS = 1024,
  // Limit in bytes for rows in shared memory, and for sums in arrays that the kernel declares.
  // Larger rows are in the workspace, larger sums in the pool, whose size the launch gives.
  CUDA_MAX_SHARED = 40 << 10,
  CUDA_UNROLLED = 8,       // iterations of a loop of a thread without a team that run at a time
  CUDA_SCAN_AHEAD = 32,    // limit for the positions of a scan whose slices are loaded at a time
  CUDA_MAX_LOCAL = 128,    // limit in elements for a row in a thread's local array
  CUDA_SUM_REGISTERS = 40, // limit for the sums over points that a thread has in registers
};

typedef enum {
  CUDA_FLAT,
  CUDA_TEAM
} cuda_form;
typedef enum {
  CUDA_ROW_LOCAL,
  CUDA_ROW_SHARED,
  CUDA_ROW_WORKSPACE
} cuda_row_kind;

// A root of the pass that is being written.
typedef struct cuda_root {
  const lm_value *v;
  bool copy, reduces;
  const char *acc; // name of a reduction's scalar
} cuda_root;

// A stage is a group of a pass's loops that run as one; level k is the body of stage k - 1.
// Strided: over the threads of a team, or over the grid. Vector: unrolled over the elements of a
// vector. Unrolled: over the rows of a tile that a thread has.
// lanes: of a strided stage in a pass of thread groups within a team (cuda_emit.group): the thread
// groups, or the threads of one; 0: all threads of the team.
typedef struct cuda_stage {
  bool strided, vector, unrolled;
  int lanes;
} cuda_stage;

// A loop over the grid. Passes without reductions are independent, so loops with equal heads are
// one loop, whose bodies share loads and subexpressions.
typedef struct cuda_flat_loop {
  const char *head;
  lm_buf bodies;
  double elements; // trip count times the width of a vector
  int width;
  double *counted; // instructions by operation, the most of a body
} cuda_flat_loop;

// A loop over the lanes of a team, if each lane has the same elements of a row at every point.
typedef struct cuda_rounds {
  const char *head;  // the text up to the loop's body; for sums over points
  const char *index; // its variable: lane + round * team
  int n;             // iterations of a lane; 0: they are many, or differ, or are over several axes
  bool indexed;      // arrays have elements for each iteration, so all iterations are unrolled
} cuda_rounds;

// The sums of a result that a loop adds to in registers.
typedef struct cuda_sum_part {
  uint32_t result;
  int64_t elements;  // of all lanes
  const char *name;  // of the array of a thread's sums
  int n;             // its elements
  const char *store; // the text that writes them to the team's set
} cuda_sum_part;

// A vector of an operand at an index, which loops over the lanes of a team read (kept.c).
typedef struct cuda_kept {
  const char *base, *index;
  int64_t all;           // elements of all lanes
  int width, elements;   // of a vector, of a lane
  bool of_point;         // each point reads another one
  int uses, uses_before; // loops that read it, in this attempt and in the one before
  const char *name;      // of the array that has it; NULL: none yet
} cuda_kept;

// Vectors of neighbouring elements in an array of a thread.
typedef struct cuda_loaded {
  const char *from, *name;
  int n;
} cuda_loaded;

// What search.c asks for instead of the rules of shape.c and order.c.
typedef struct cuda_wish {
  int next; // CUDA_FLAT: 1 + the loop that shall be next to the last one; 0: the rule
  // CUDA_TEAM: a thread for each point, of which neighbouring threads have neighbours along that
  // parallel axis
  bool alone;
  int fastest;
  // CUDA_TEAM: a team is a block of so many threads, and vectors have at most so many elements; 0:
  // the rule
  int threads, width;
} cuda_wish;

// The array in shared memory that has the rows of a GEMM's operand A (prologue.c).
#define CUDA_A_ROWS "a_rows"

typedef struct cuda_emit {
  lm_gen g;
  // NULL; or the name of an array in shared memory that receives the result, of all points, which
  // one block computes.
  const char *rows;
  // A scan, or NULL. `g.kernel` is then one position of it, at whose points single threads work.
  const lm_op *scan;
  bool carries_in_registers; // of a scan
  cuda_wish wish;
  lm_op flat; // CUDA_FLAT: the kernel with no parallel axes
  cuda_form form;
  int team, teams;  // threads per thread group; thread groups per block
  int *width;       // by pass: elements of a vector, 1: none
  int *tile;        // by pass: bytes of a row of its tile (transpose.c), 0: none
  int *group;       // by pass: threads of a team that sum one kept point together, 0: the rule
  bool *transposed; // by result: it is written through a tile
  int n_tiles;
  bool parallel_merge[LM_RANK]; // parallel axis i is merged with the next
  int fastest;                  // the parallel axis that varies fastest from point to point
  // the pass that is being written
  cuda_root roots[64];
  int n_roots;
  cuda_stage stages[3];
  int n_stages;
  int stage_of[LM_GEN_LOOPS];
  uint16_t vector;     // variable of the vector loop, 0: none
  cuda_loaded *loaded; // in the body that is being written
  uint32_t n_loaded, cap_loaded;
  cuda_rounds rounds; // of stage 0
  bool online;        // computes the maximum of the pass before it too (online.c)
  // of a GEMM's epilogue (gemm_epilogue.c)
  const struct cuda_gemm *gemm;
  struct cuda_gemm_loops *gemm_loops;
  bool gemm_fails; // it read a sum that the thread does not have there
  // state of the whole kernel
  // CUDA_FLAT: the loops of all passes, by head
  cuda_flat_loop *loops;
  uint32_t n_loops, cap_loops;
  int *sum_width;           // by result: the vector width that permutes its sums in shared memory
  cuda_sum_part *sum_parts; // sums in registers
  uint32_t n_sum_parts, cap_sum_parts;
  cuda_kept *kept; // vectors of operands
  uint32_t n_kept, cap_kept;
  int kept_registers; // of a thread, for those that have arrays, and for sums
  double partial;     // bytes at capacity of sectors that accesses move and do not use (sectors.c)
  int64_t shared;     // bytes of shared memory that the kernel declares
  int64_t max_pool;   // limit in bytes of the pool
  int64_t workspace[LM_KERNEL_WORKSPACES];
  int n_workspaces;
} cuda_emit;

// ---- code.c: kernels as structures
typedef struct cuda_param {
  const char *type, *name; // "const float *LM_RESTRICT ", "a0"
} cuda_param;

// A kernel. `arrays` and `body` are statements: declarations of arrays, and the rest, which uses
// the variables `block` and `grid`, the number of its block and of all blocks.
typedef struct lm_kernel_body {
  lm_arena *arena;
  cuda_param *params; // the step's buffers, in order
  uint32_t n_params, cap_params;
  uint32_t extents;        // bit mask of the run-time extents, whose addresses are parameters too
  const char *last_params; // others behind them, each with ", " before it; NULL: none
  const char *arrays, *body;
  int threads;      // of a block
  bool whole_block; // these threads wait for each other, or share memory
  bool paired;      // registers leave room for two blocks on a multiprocessor
  bool read_only;   // it begins when the kernel in front has ended, so operands are constants
} cuda_code;

// The blocks that the statements of a kernel are within another one. all: all of them, one
// after another, with a barrier behind each; else one, of that number.
typedef struct cuda_blocks {
  bool all;
  const char *block, *grid;
} cuda_blocks;

cuda_code *cuda_code_make(lm_arena *arena, int threads);
void cuda_code_param(cuda_code *c, const char *type, const char *name);
// A pointer that is only read, or is written.
void cuda_operand_add(cuda_code *c, lm_dtype t, bool may_alias, const char *name);
void cuda_result_add(cuda_code *c, lm_dtype t, const char *name);
// Takes over both texts. arrays: optional.
void cuda_code_body(cuda_code *c, lm_buf *arrays, lm_buf *body);
// The kernel as statements of another one, with arguments for its parameters.
void cuda_code_put(const cuda_code *c, const char *const *args, const cuda_blocks *at, lm_buf *b);
// The kernel as a function: name, source, threads and extents of `out`.
void cuda_code_render(const cuda_code *c, const char *prefix, lm_arena *arena, lm_kernel_code *out);

// ---- attend.c
// Operand k of an attend or attend_vjp need not be dense: its tiles are copied from where its views
// are, whose positions begin at multiples of 16 bytes.
bool cuda_attend_reads_strided(const lm_op *attend, uint32_t k);
bool cuda_attends(const lm_module *m, const lm_op *op); // for lm_codegen
int64_t cuda_attend_chunks(const lm_target *t, const lm_op *vjp, const lm_op *kernel); // the same
bool cuda_attend_emit(const lm_plan_options *o, const lm_op *attend, lm_arena *arena,
                      lm_kernel_code *out);

// ---- parts.c: results that are parts of a concatenation
bool cuda_part_of(const lm_op *op, uint32_t r, lm_plan_part *out);
bool cuda_writes_strided(const lm_op *op, uint32_t r); // for lm_codegen
// The strides of each result, in elements; NULL: it is dense.
const int64_t **cuda_part_strides(const lm_op *op, lm_arena *arena);
// The elements of the tensor that result r is in.
int64_t cuda_result_span(const lm_module *m, const lm_op *op, uint32_t r);

// ---- strides.c: operands of kernels that copy tiles, in elements
void cuda_dense_strides(const lm_module *m, lm_type t, int64_t *out);
// True if tiles of v can be copied in vectors through the views that define it: elements along the
// last axis are contiguous, and rows begin at multiples of 8 elements.
bool cuda_tile_views(const lm_module *m, const lm_value *v, int64_t *out);
// The strides at which a kernel reads v: those of its views if it copies tiles of v in vectors and
// can, else of a dense tensor.
void cuda_tile_strides(const lm_module *m, const lm_value *v, bool copied, int64_t *out);

// ---- attempt.c, search.c: a generator with all passes written. rows: cuda_emit.rows.
cuda_emit *cuda_emit_shaped(const lm_plan_options *o, const lm_op *kernel, const char *rows,
                            const cuda_wish *wish, lm_arena *arena); // in a shape that is asked for
cuda_emit *cuda_emit_make(const lm_plan_options *o, const lm_op *kernel, const char *rows,
                          lm_arena *arena);
// Bytes of dynamic shared memory for a pool, which leave a kilobyte for the other arrays of a
// block.
int64_t cuda_max_pool(const lm_target *t);

// ---- shape.c: form, team, vectors
void cuda_shape_begin(cuda_emit *e, const lm_target *t, const lm_module *m, const lm_op *kernel,
                      lm_arena *arena); // before the first attempt
void cuda_shape_choose(cuda_emit *e);   // from the accesses of the first attempts
void cuda_shape_merge(cuda_emit *e);    // from the accesses of the attempt after that

// ---- lanes.c: loops over the threads of a team
// The number of a thread among those of a strided stage.
const char *cuda_lane_of(const cuda_emit *e, int k);
// The iterations of each lane in a loop over the lanes of a team, or at most one; 0 if they differ
// or are many.
int cuda_team_rounds(const cuda_emit *e, int k);
// Registers for the vectors that a thread loads in a pass.
int cuda_loaded_registers(const cuda_emit *e, int pass);
// The number of the iteration of stage 0, as an index of an array in registers.
const char *cuda_round_index(cuda_emit *e);
// The head of a loop over the lanes of a team. If every lane has the same few iterations, their
// number is a constant: the loop is then unrolled, and the loads of all iterations are in flight
// together, or those of two if they are large and not `whole`. Without an iteration for every lane
// it is a condition.
void cuda_team_head(cuda_emit *e, int k, const char *name, const char *count, bool whole,
                    lm_buf *out);

// ---- load.c: loads of vectors
// True if at = rest + the vector's variable, where rest is a multiple of the vector's width.
bool cuda_in_vectors(const cuda_emit *e, const lm_ix *at, lm_ix *out_rest);
const char *cuda_printed(const cuda_emit *e, const lm_ix *ix);
bool cuda_load(lm_gen *g, const char *base, lm_type t, const lm_ix *at,
               lm_gen_text *out); // for lm_gen_target

// ---- nest.c: one pass
void cuda_pass_emit(cuda_emit *e, int pass);
// Stores x to element ix of result i, of type t. In the innermost level, elements of the vector
// loop are stored together.
void cuda_store(cuda_emit *e, uint32_t i, lm_type t, const lm_ix *ix, const char *x, int level);
void cuda_flat_begin(cuda_emit *e); // forgets the loops of the previous attempt
void cuda_flat_put(const cuda_emit *e, lm_buf *b);
void cuda_flat_free(cuda_emit *e);
// Declares variables that decode `from`, a number below the product of the extents; the last varies
// fastest.
typedef struct cuda_axis {
  uint16_t var;
  const char *extent;
} cuda_axis;
// "n0 * 32": the product of the extents.
const char *cuda_axes_product(cuda_emit *e, const cuda_axis *axes, int n);
void cuda_decode(cuda_emit *e, const cuda_axis *axes, int n, const char *from, lm_buf *b);
void cuda_team_sync(const cuda_emit *e, lm_buf *b);

// ---- transpose.c: codes that are written through a tile in shared memory
// Sets the loops of the pass, if it writes codes along another axis than the one of its loads.
bool cuda_transpose_choose(cuda_emit *e, int pass);
// Sets the stages of such a pass; false: it is another one.
bool cuda_transpose_stages(cuda_emit *e);
bool cuda_transpose_merges(const cuda_emit *e, int pass, int loop); // whether a loop may merge
// Stores code x to element `at` of result r; false if it is no result that goes through a tile.
bool cuda_transpose_store(cuda_emit *e, uint32_t r, const lm_ix *at, const char *x);
void cuda_transpose_declare(cuda_emit *e, lm_buf *b); // the tiles

// ---- online.c: softmax
// True if the pass is a maximum that the next pass, a sum of exponentials, computes too.
bool cuda_online_is(const cuda_emit *e, int pass);
void cuda_online_leaf(cuda_emit *e); // instead of the terms of both reductions
// A thread's term of the sum, after the maximum of the team is known.
const char *cuda_online_sum(const cuda_emit *e);

// ---- count.c
double cuda_lanes(const lm_gen *g, int level); // for lm_gen_target
// Threads over which the iterations of a strided stage are distributed.
int cuda_stage_lanes(const cuda_emit *e, int k);
// The product of the current ranges of a stage's loops, at capacity.
double cuda_trips(const cuda_emit *e, int k);
// Ends a body of a loop over the grid: operations that an earlier body of the loop has computed are
// not computed again.
void cuda_count_shared(cuda_emit *e, cuda_flat_loop *l);
// Counts the loop of stage k, whose counter is decoded into the indices of `axes` axes.
void cuda_count_loop(cuda_emit *e, int k, int axes, int unrolled);
// True if a thread for each kept point takes less time than the team for each, one after the other:
// as many steps as summed points, whose accesses are apart, against a reduction over the team for
// each kept point.
bool cuda_kept_are_many(const cuda_emit *e, double kept, double summed);

// ---- order.c
// The index of result r, which a pass writes, by the variables of the pass.
lm_ix cuda_result_index(cuda_emit *e, int pass, uint32_t r);
// Chooses the parallel axis that varies fastest, from the accesses of an attempt.
void cuda_order_choose(cuda_emit *e);
// Sets the parallel axes in the order in which points are numbered; returns how many there are.
int cuda_order(const cuda_emit *e, int *order);

// ---- sectors.c
// Counts in e->partial the bytes of sectors that an access to memory at a level moves and does not
// use. at: of the element, with the variable of the vector loop.
void cuda_count_sectors(cuda_emit *e, lm_dtype t, const lm_ix *at, int level, bool stores);

// ---- rows.c: rows that passes hold, sums over points
int64_t cuda_points(const cuda_emit *e); // points of the parallel axes, at capacity
lm_gen_text cuda_held(lm_gen *g, const lm_value *v, const lm_ix *ix); // for lm_gen_target
// Stores x, in the type of memory, to an element of a result, or of `rows`.
void cuda_element_put(cuda_emit *e, uint32_t result, const char *index, const char *x, int level);
void cuda_row_put(cuda_emit *e, int level, const lm_value *v, const lm_ix *ix, const char *x);
void cuda_sum_add(cuda_emit *e, int level, uint32_t result, lm_type t, const lm_ix *ix,
                  const char *x);
bool cuda_holds_rows(const cuda_emit *e);
void cuda_rows_declare(cuda_emit *e, lm_buf *head, lm_buf *in_place);
// Bytes of the pool that holds the sums; 0 if they are in declared arrays, or in the results.
int64_t cuda_sums_pool(const cuda_emit *e);
// True if registers shall leave room for two blocks on a multiprocessor.
bool cuda_is_paired(const cuda_emit *e);
// True if shared memory can hold a set of the sums for each team of a block.
bool cuda_sums_fit(const cuda_emit *e, int teams);
void cuda_sums_begin(cuda_emit *e, lm_buf *b);
void cuda_sums_finish(cuda_emit *e, lm_buf *b);

// ---- kept.c: vectors of operands in registers
void cuda_kept_begin(cuda_emit *e);     // of an attempt, with the sums of the one before
bool cuda_kept_any(const cuda_emit *e); // whether another attempt could keep some
// Loads the vector base[index], of type t, in the loops of a level, or finds it in registers;
// returns the array that has it. at: its first element, with the variable of the vector loop.
const char *cuda_vector_load(cuda_emit *e, const char *base, const char *index, lm_type t,
                             const lm_ix *at, int level);

// ---- scan.c: the loop over positions, carries in registers
void cuda_scan_put(cuda_emit *e, lm_buf *b);
int64_t cuda_scan_waits(const cuda_emit *e);            // for loads, of a thread
bool cuda_scan_omits(const lm_op *op, uint32_t buffer); // lm_codegen.omits
void cuda_scan_params(const lm_op *s, cuda_code *c);
bool cuda_carry_is(const cuda_emit *e, uint32_t i); // operand or result i is one in a register
// False if base[at] is no carry in a register.
bool cuda_carry_load(cuda_emit *e, const char *base, lm_type t, const lm_ix *at, lm_gen_text *out);

// ---- scatter.c: scatter-add into the rows of a table
bool cuda_scatter_fits(const lm_module *m, const lm_op *kernel);
bool cuda_scatter_adds(const lm_op *kernel, uint32_t r); // for lm_codegen
cuda_code *cuda_scatter_emit(const lm_target *t, const lm_op *kernel, lm_arena *temporary,
                             lm_arena *arena, lm_kernel_code *out);

// ---- route.c: sorting ids by group
cuda_code *cuda_route_emit(const lm_op *op, lm_arena *arena, lm_kernel_code *out);

// ---- grouped.c: grouped GEMMs; false if the form is unsupported
bool cuda_grouped_emit(const lm_plan_options *o, const lm_plan_gemm *g, bool any_rows,
                       lm_arena *arena, lm_kernel_code *out);

// ---- grouped_ring.c: the same by warpgroups
bool cuda_grouped_ring_emit(const lm_plan_options *o, const lm_plan_gemm *g, lm_arena *arena,
                            lm_kernel_code *out);

// ---- prologue.c: a kernel that each block of a GEMM of few rows computes
typedef struct cuda_prologue {
  const cuda_code *code; // its blocks, one after another, store all rows, dense, in CUDA_A_ROWS
  int64_t blocks;
  double instructions;
} cuda_prologue;
// False if the kernel's result is not operand A, dense, or needs more shared memory than that.
bool cuda_prologue_make(const lm_plan_options *o, const lm_op *kernel, const lm_plan_gemm *g,
                        int64_t max_shared, lm_arena *arena, cuda_prologue *out);

// ---- few_rows.c: GEMMs of at most eight rows
bool cuda_few_rows_fits(const lm_plan_gemm *g);
// kernel: computes operand A, or NULL. False if such a kernel is unsupported.
bool cuda_few_rows_emit(const lm_plan_options *o, const lm_plan_gemm *g, const lm_op *kernel,
                        lm_arena *arena, lm_kernel_code *out);

// ---- gemm.c: GEMMs by warpgroups, with the rest of a kernel in the epilogue
bool cuda_gemm_is_supported(const lm_target *t, const lm_op *kernel); // for lm_codegen
void cuda_gemm_emit(const lm_plan_options *o, const lm_op *kernel, lm_arena *arena,
                    lm_kernel_code *out);

// ---- merge.c: several steps in one launch; for lm_codegen
bool cuda_may_merge(const lm_kernel_code *k);
void cuda_merge(const lm_merge_part *parts, int n, lm_arena *arena, lm_kernel_code *out);

// ---- joined.c, for lm_codegen
bool cuda_joins(const lm_target *t, const lm_plan_gemm *g);
void cuda_join(const lm_plan_options *o, const lm_plan_gemm *g, int n, lm_arena *arena,
               lm_kernel_code *out);

// ---- small_gemm.c: GEMMs of the library, and those that are not
bool lm_cuda_gemm_is_profitable(const lm_target *t, const lm_plan_gemm *g);
bool lm_cuda_gemm_emit(const lm_plan_options *o, const lm_plan_gemm *g, bool any_rows,
                       lm_arena *arena, lm_kernel_code *out);
bool lm_cuda_gemm_of_emit(const lm_plan_options *o, const lm_plan_gemm *g, const lm_op *kernel,
                          lm_arena *arena, lm_kernel_code *out);
bool lm_cuda_epilogue_is_supported(const lm_plan_gemm *g);
bool lm_cuda_scales(const lm_target *t, const lm_plan_gemm *g);

// ---- chain.c: scans whose region has GEMMs
bool cuda_chain_is_supported(const lm_target *t, const lm_op *scan); // for lm_codegen
bool cuda_chain_reads_strided(const lm_op *scan, uint32_t i);        // the same
void cuda_chain_emit(const lm_plan_options *o, const lm_op *scan, lm_arena *arena,
                     lm_kernel_code *out);

// ---- mix.c: kernels that compute a factor of their dot
bool cuda_mix_is_supported(const lm_target *t, const lm_op *kernel); // for lm_codegen
bool cuda_mix_sizes(int64_t rows, int64_t channels);                 // the same
bool cuda_mix_reads_strided(const lm_op *kernel, uint32_t i);        // the same
void cuda_mix_emit(const lm_plan_options *o, const lm_op *kernel, lm_arena *arena,
                   lm_kernel_code *out);

// ---- states.c: scans that multiply at each position
bool cuda_states_fits(const lm_op *scan);                             // of this form
bool cuda_states_is_supported(const lm_target *t, const lm_op *scan); // for lm_codegen
bool cuda_states_reads_strided(const lm_op *scan, uint32_t i);        // the same
void cuda_states_emit(const lm_plan_options *o, const lm_op *scan, lm_arena *arena,
                      lm_kernel_code *out);

// ---- kernel.c; these two for lm_codegen
bool cuda_kernel_emit(const lm_plan_options *o, const lm_op *kernel, lm_arena *arena,
                      lm_kernel_code *out);
bool cuda_kernel_in_place(const lm_plan_options *o, const lm_op *kernel, uint32_t operand,
                          uint32_t result);
cuda_code *cuda_emit_code(cuda_emit *e, lm_arena *arena);

// ---- emit.c
const lm_gen_target *cuda_gen_target(const lm_target *t, const lm_module *m, const lm_op *kernel);
// The operands and results. may_alias: whether a result may overlap an operand; NULL: none does.
void cuda_params(lm_gen *e, bool (*may_alias)(void *user, uint32_t operand), void *user,
                 cuda_code *c);
// False if an operand, a result or a value of the region has an axis whose size is known at run
// time only.
bool cuda_sizes_known(const lm_module *m, const lm_op *op);
// The product of the sizes of n axes.
lm_plan_extent cuda_extent_product(const lm_module *m, const lm_axis *axes, int n);
// A size as an expression of the run-time extents that it needs.
const char *cuda_extent_text(const lm_plan_extent *x, lm_arena *arena);
uint32_t cuda_extent_mask(const lm_plan_extent *x); // those of a size
#endif
