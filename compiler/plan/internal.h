// internal.h - data structures of the planner.
//
// Planning a function is one walk over its operations. Every value has a location: a view of a
// storage. Steps refer to locations. Addresses are known only at the end, when storages with
// disjoint lifetimes have been packed. Until then a storage may be placed inside another one (a
// stacked result, a carry, an argument), so that a step writes to the final location directly.
#ifndef LM_COMPILER_PLAN_INTERNAL_H
#define LM_COMPILER_PLAN_INTERNAL_H
#include "compiler/plan/planner.h"
#include "runtime/base/diag_code.h"
#include "runtime/base/dtype.h"

// ---- layout.c: the layout of globals

// The location of a tensor that no other contains: its type, the offset of its first element in
// the arena and the strides of its stacked axes, in bytes. Its other axes are dense.
typedef struct lm_layout_location {
  lm_arena_id arena;
  lm_dtype dtype;
  int64_t offset, stride[LM_RANK];
} lm_layout_location;
// grad, copy: of a parameter; `copy` has the parameter in 16 bits (bf16 or f16), if the module has
// such copies.
typedef struct lm_layout_global {
  lm_layout_location value, grad, copy;
} lm_layout_global;
// Blocks of which the gradients are sums over the ranks along the same axes of the mesh.
typedef struct lm_layout_region {
  lm_mesh_set partial;
  int64_t first, n; // blocks
} lm_layout_region;
typedef struct lm_layout {
  lm_layout_global *globals; // by index in module.globals
  lm_layout_region *regions; // in order; together all blocks
  int n_regions;
  int64_t blocks; // of all parameters, and of padding up to whole chunks
  int64_t used;   // blocks without that padding
  int64_t chunk;  // blocks that @update computes at a time; 0: all (chunks.c)
  int64_t param_bytes;
  int64_t cache_bytes;
  int64_t derived_bytes; // the `derived` globals precede the 16-bit copies in the arena of copies
  int64_t fixed_bytes;   // of the frozen parameters
  int64_t state_bytes;   // of the `state` globals, without those in the arena of small states
  int64_t small_bytes;   // of the latter
  int64_t terms_bytes;   // of the `terms` globals, behind the gradients of the parameters
} lm_layout;

// Where states or parameters are in the host's memory, @update computes chunks of blocks.
void lm_layout_make(const lm_module *m, const lm_plan_options *o, lm_arena *arena, lm_layout *out);

// ---- view.c: strides of views; all in elements

void lm_strides_dense(const lm_module *m, lm_type t, int64_t *stride);
bool lm_strides_are_dense(const lm_module *m, lm_type t, const int64_t *stride);
// Computes the strides of the result of permute, rename, view or slice from the operand's. False if
// the result has no strides.
bool lm_view_strides(const lm_module *m, const lm_op *op, const int64_t *in, int64_t *out,
                     int64_t *out_offset);
// The inverse: the strides of the operand for given strides of the result. Not for slices.
bool lm_view_invert(const lm_module *m, const lm_op *op, const int64_t *out, int64_t *in);

// ---- gemm.c: a dot as a GEMM

// Describes a dot as a GEMM, given the strides of the two operands and the result, in elements.
// False (with a form for plain loops) if no choice of axes gives every matrix a unit stride;
// *out_operand (optional) is then the matrix at fault: 0, 1, or 2 for the result.
bool lm_dot_gemm(const lm_module *m, const lm_op *dot, const int64_t *x, const int64_t *w,
                 const int64_t *z, lm_plan_gemm *out, int *out_operand);

// If the second operand of a GEMM with a dense result is packed in panels p, merges the axes that
// packing split. False if it is not packed.
bool lm_gemm_panels(lm_plan_gemm *g, lm_target_panel p);

// ---- storage.c: storages, their lifetimes and offsets

typedef struct storage {
  struct storage *next;
  uint8_t arena;
  int64_t offset, bytes; // offset: computed by packing in WORK and STASH, else given
  int depth;             // loops around it; its contents persist over iterations of inner loops
  uint32_t last_use;     // number of the last operation that uses a value in it
  struct storage *into;  // the storage that contains it, at into_offset + into_loop · loop indices
  int64_t into_offset, into_loop[LM_PLAN_DEPTH];
  int64_t slot; // STASH: bytes of an element of the stack
  const char *label;
  int first, last; // its lifetime, in steps
  int live;        // index in the function's table
} storage;

typedef struct location {
  storage *at;
  int64_t offset, loop[LM_PLAN_DEPTH]; // bytes; bytes per iteration of each loop
  int64_t stride[LM_RANK];             // elements
  // What selects the slot of loop `cycle_depth`, instead of the iteration; NULL: nothing.
  const lm_op *cycle;
  int cycle_depth;
} location;

typedef struct ref {
  storage *at;
  int64_t offset, loop[LM_PLAN_DEPTH], bytes;
  lm_plan_ring ring[LM_PLAN_DEPTH]; // slots > 0: loop[d] is the stride of a ring (lm_plan_buf.ring)
} ref;
typedef struct pstep {
  lm_plan_step step;
  ref *refs;
  int loop; // the innermost LOOP step around it, or -1
  lm_op *op;
  const lm_op *accum; // whose gradient the step adds to, or NULL
} pstep;

// A loop that is being walked.
typedef struct frame {
  lm_op *op;
  int step;                 // its LOOP step
  storage **carry, **stack; // carry: its storage, or the stack whose slots it uses
  bool *slots;              // the carry is slot i of a stack of count + 1 slots
  storage *index;           // of the loop index; NULL unless it is needed in memory
} frame;

// Gradients that @reduce adds by one collective: `bytes` from `offset` on; or by `count`, one for
// each layer of a stack, which are `bytes` apart.
typedef struct region_part {
  int64_t offset, bytes, count;
} region_part;
// The sum of a part over the ranks along an axis of the mesh. In bf16, the kernel `narrow` rounds
// the rank's own, and the kernel `widen` stores the sum; in f32: NULL.
typedef struct region_sum {
  region_part part;
  int axis;
  lm_op *narrow, *widen;
} region_sum;

// The steps of a @micro, and their storages, of which last.c makes @micro_last.
typedef struct draft {
  const lm_plan_func *micro;
  pstep *steps;
  uint32_t n_steps;
  storage *storages;
} draft;

typedef struct planner {
  lm_module *m;
  const lm_plan_options *o;
  const lm_codegen *codegen;
  lm_arena *arena;
  lm_plan *plan;
  lm_layout layout;
  storage *fixed[LM_ARENAS]; // one per arena with a given layout
  int64_t io_bytes;
  bool has_gradients, has_copies;
  region_sum *sums; // of @reduce
  uint32_t n_sums, cap_sums;
  bool cuts; // the regions are added in parts
  draft *drafts;
  uint32_t n_drafts, cap_drafts;
  lm_sym *states;
  uint32_t n_states, cap_states;
  uint32_t cap_kernels;
  const lm_kernel_code **codes; // by kernel
  uint32_t n_codes, cap_codes;
  // State of the current function.
  lm_func *f;
  location *locations;       // by value id; at is NULL if the value has none
  uint32_t *last_use, *uses; // by value id; last_use includes the uses of views of the value
  bool *in_memory;           // by value id: some use needs its address
  pstep *steps;
  uint32_t n_steps, cap_steps;
  frame frames[LM_PLAN_DEPTH];
  int depth;
  storage *storages;
  int64_t stash_bytes; // of the arena STASH, once it is packed
  bool failed;
} planner;

// ---- location.c
// True if the current function writes the cache: a value that it recalls has to be copied.
bool lm_cache_is_written(const planner *p, lm_sym cache);

#define LM_PLAN_ERROR(p, op, code, ...) lm_plan_error(p, op, LM_DIAGNOSTIC(code, ##__VA_ARGS__))
void lm_plan_error(planner *p, const lm_op *op, lm_diag_id id, const char *fmt, ...)
    LM_PRINTF(4, 5);
int64_t lm_type_bytes(const planner *p, lm_type t);
location *lm_value_location(planner *p, lm_value *v); // LM_BUG if it has none
location lm_location_dense(const planner *p, storage *at, lm_type t);
// The bytes of a tensor of type t at a location, as one range of its storage.
ref lm_location_ref(const planner *p, const location *at, lm_type t);
void lm_location_set(planner *p, lm_value *v, location at);
// Moves `at` to index first + step * i of an axis of `size` elements, `stride` bytes apart. imm:
// first, step.
void lm_location_index(planner *p, lm_op *op, lm_value *i, const int64_t *imm, int64_t size,
                       int64_t stride, location *at);
// The location of a global's tensor, of which `whole` is the location, at the indices that are the
// first operands of op. t has the stacked axes that have no index.
location lm_location_of_global(planner *p, lm_op *op, const lm_layout_location *whole, lm_type t);
// The same for an optimizer state of the parameter that op names.
location lm_location_of_state(planner *p, lm_op *op, const lm_global *state, lm_type t);

// ---- storage.c

storage *lm_storage_new(planner *p, int64_t bytes, int depth, const char *label);
// A stack of `count` elements of `slot` bytes in the arena STASH, without memory for the last
// LM_STASH_RESIDENT elements: these stay in the device's memory until the backward loop.
storage *lm_stash_new(planner *p, int64_t slot, int64_t count, const char *label);
// The outermost storage that contains s, and the location of s in it.
ref lm_storage_resolve(storage *s);
// The same of a reference.
ref lm_ref_resolve(const ref *r);
// True if two references may overlap. loop: the LOOP step of which both are in one iteration, and
// in one of all loops around it; -1: references that move in a loop are assumed to overlap.
bool lm_refs_meet(const planner *p, int loop, const ref *a, const ref *b);
// Makes the steps that compute `v` write to `to` directly instead of copying at the end of the
// region. False if the previous contents of `to` may be read after v is first written, or if v
// shares its storage with another value. since: the first step that may read the previous contents;
// -1: none.
bool lm_storage_claim(planner *p, lm_value *v, const location *to, int since, lm_op *at);
// The bytes of a resolved reference in all iterations of the LOOP step and of those around it.
ref lm_ref_span(const planner *p, int loop, ref r);
// Sets the lifetimes and offsets of all storages in the arenas WORK and STASH, and stash_bytes.
void lm_storage_pack(planner *p, lm_plan_func *out);

// ---- steps.c: adding steps

// The location of v, or of a dense copy if v is a view that is not dense.
location lm_value_dense(planner *p, lm_value *v, lm_op *op);
// Sets the location of v, in a new storage.
location lm_result_locate(planner *p, lm_value *v, lm_op *op);
pstep *lm_step_add(planner *p, lm_step_kind kind, lm_op *op, int n_bufs);
// Begin and end a loop that is none of the module, at depth 0. op: for labels.
void lm_step_loop_begin(planner *p, lm_op *op, int64_t count);
void lm_step_loop_end(planner *p, lm_op *op);
void lm_step_copy(planner *p, lm_op *op, lm_type t, const location *from, const location *to,
                  bool add);
void lm_step_append(planner *p, lm_op *op, lm_type t, const location *from, const location *to,
                    int axis, int64_t limit, const location *at);
void lm_step_fill(planner *p, lm_op *op, lm_type t, double value, const location *to);
void lm_step_kernel(planner *p, lm_op *op);
bool lm_kernel_omits(const planner *p, const lm_op *op, uint32_t buffer); // lm_codegen.omits
void lm_step_dot(planner *p, lm_op *op);
// An operation on rows that are sorted by group.
void lm_step_grouped(planner *p, lm_op *op);
// Generates the kernels of GEMMs. To be called when the steps are final.
void lm_steps_code(planner *p);
// The index of the kernel in the plan, to which it is added if no kernel has its name.
int lm_kernel_find(planner *p, const lm_op *op, const lm_kernel_code *code);
// True if the kernel that computes the accumulated value adds it.
bool lm_step_accumulates(const planner *p, const lm_op *accum);
// Makes the GEMM that computes the accumulated value add to `to`. False if it cannot.
bool lm_step_dot_accumulate(planner *p, lm_op *accum, const location *to);

// ---- part.c

// LM_BUG unless the parts of the concatenation are written to its result.
void lm_concat_check(planner *p, const lm_op *concat);

// ---- ports.c

void lm_arguments_locate(planner *p, lm_plan_func *out);
location *lm_results_locate(planner *p, lm_plan_func *out); // of all results

// ---- chunks.c

// True if @update can compute some blocks at a time: it consists of kernels of which each block of
// the results depends on that block of the operands alone.
bool lm_chunks_fit(const lm_module *m);
// True of a kernel of which each block of the results depends on that block of the operands alone.
bool lm_chunks_has(const lm_module *m, const lm_op *op);
// How many results of the current function, the first ones, are computed in chunks.
uint32_t lm_chunks_results(const planner *p);
// Sets `chunk` and pads `blocks`.
void lm_chunks_divide(lm_layout *out);
// Begin and end the loop over the chunks around the steps of the current function, whose arguments
// and n results have locations.
void lm_chunks_begin(planner *p, location *const *results, uint32_t n);
void lm_chunks_end(planner *p);

// ---- prologue.c

// Lets GEMMs of few rows compute their operand A. To be called when the steps are final.
void lm_steps_prologues(planner *p);

// ---- rewrite.c: changes of the list of steps of the current function

// Steps that are to replace those of the function.
typedef struct step_list {
  pstep *v;
  uint32_t n, cap;
} step_list;
// Appends a copy of s, whose `loop` and `match` need no value.
pstep *lm_steps_push(const planner *p, step_list *list, const pstep *s);
void lm_steps_replace(planner *p, const step_list *list);
// Sets `loop` of all steps, and `match` of LOOP and END, from the order of the steps.
void lm_steps_nest(planner *p);
// Removes the steps that are `gone`.
void lm_steps_remove(planner *p, const bool *gone);

// ---- join.c

// Makes one launch of GEMMs that add to gradients. To be called when the steps are final.
void lm_steps_join(planner *p);

// ---- merge.c

// True if one of the steps, which are in the same loop, writes what the other one uses.
bool lm_steps_depend(const planner *p, const pstep *a, const pstep *b);

// Makes one launch of short steps that do not depend on each other. To be called when the steps are
// final.
void lm_steps_merge(planner *p);
int lm_storage_uses(const planner *p, const storage *s); // references of all steps
// Removes the kernels that no step runs.
void lm_kernels_prune(lm_plan *plan);

// ---- offload.c

// Gives the steps that use the host's memory slots of the device's, and adds the copies. To be
// called when the steps are final.
void lm_steps_offload(planner *p);
int lm_handles_count(const planner *p); // the first handle that no collective or copy has

// ---- bucket.c

// Makes one step of sums, or of gathers, beside each other along axes with the flag `bucket`. To be
// called before lm_steps_merge, so that this does not merge the copies that move.
void lm_steps_bucket(planner *p);

// ---- overlap.c

// Lets collectives along axes with the flag `overlap` run beside the steps that do not need them.
// To be called behind lm_steps_merge and before lm_steps_offload.
void lm_steps_overlap(planner *p);
// The lane of collectives of a group that begin when their operands are there.
int lm_overlap_lane(int group);

// ---- last.c

// Keeps the steps of a @micro, which are final, if the target can add gradients beside its kernels.
void lm_last_keep(planner *p);
// Puts the steps of @reduce, which are those of the current function, between those of a @micro.
// False: nothing would run beside them.
bool lm_last_join(planner *p, const draft *d);

// ---- collective.c

void lm_step_collective(planner *p, lm_op *op);
// How a sum of this type over ranks along an axis of the mesh is made.
lm_coll_op lm_sum_kind(const planner *p, int axis, lm_dtype t);
void lm_rank_locate(planner *p, lm_op *op); // of `rank`

// ---- reduce.c

// A function @reduce, if gradients are added and the module has none; else NULL. To be called
// behind the functions that compute gradients.
lm_func *lm_reduce_func(planner *p);
// Makes the operations of @reduce that no pass has made; lm_reduce_steps adds their steps. p->cuts:
// in parts, so that the gradients of a layer can be added while others are computed.
void lm_reduce_begin(planner *p, lm_func *f);
void lm_reduce_steps(planner *p);

// ---- first.c

// Finds the steps that overwrite gradients in the first micro-batch, when the steps are final.
void lm_steps_initialize(planner *p);

// ---- walk.c

void lm_func_walk(planner *p);
#endif
