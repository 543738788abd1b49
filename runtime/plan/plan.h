// plan.h - a compiled program as plain data: the interface between the compiler and the runtime. It
// depends on neither the IR nor a backend.
//
// Memory consists of a few arenas, each one allocation whose size the plan gives. A buffer is a
// range of an arena; inside loops its address advances by a stride per iteration of each enclosing
// loop, or cycles through the slots of a ring. A function is a list of steps that run in order. A
// collective begins in one step and ends in another, and the steps between run meanwhile.
//
// An arena may be in the host's memory while the device computes. No step uses it but copies, which
// begin and end as collectives do: on lane 0 to the device, on lane 1 to the host.
//
// A parameter is a tensor of the model, whose elements are in one or more pieces of memory. By
// default it is one dense piece. Parameters are laid out layer-major: those of one iteration of a
// loop over layers are together, the iterations follow each other at a constant stride, and every
// tensor is padded with zeros to a multiple of LM_BLOCK elements. Gradients and optimizer states
// have the same layout in their own arenas, so an optimizer is one launch over all blocks.
#ifndef LM_PLAN_H
#define LM_PLAN_H
#include "contract/collective.h"
#include "contract/dtype.h"
#include "contract/func.h"
#include "contract/mesh.h"
#include "contract/scales.h"
#include "runtime/base/base.h"

enum {
  LM_PLAN_DEPTH = 6,    // maximum depth of nested loops
  LM_PLAN_ALIGN = 64,   // bytes, of arenas and of buffers outside of loops
  LM_PLAN_HANDLES = 64, // of the collectives of a function
  // Of collectives: 0, in the order of the steps, and two for each axis of the mesh.
  LM_PLAN_LANES = 1 + 2 * LM_MESH_AXES,
  LM_PLAN_BATCH = 24, // maximum batch axes of a GEMM: all axes of two operands
  LM_PLAN_RANK = 12   // maximum axes of a tensor
};
static inline int64_t lm_plan_aligned(int64_t bytes) {
  return (bytes + LM_PLAN_ALIGN - 1) / LM_PLAN_ALIGN * LM_PLAN_ALIGN;
}

// Slots that the iterations of a loop cycle through.
typedef struct lm_plan_ring {
  int slots, ahead; // slots > 0: iteration i uses slot (i + ahead) mod slots
  // per > 0: slot ((by * i + ahead + by_rank * coordinate) mod slots) / per, with the coordinate of
  // the rank along axis `mesh`, from 1.
  int by, by_rank, per, mesh;
} lm_plan_ring;
// The number of slots that differ.
static inline int lm_plan_ring_size(const lm_plan_ring *r) {
  return r->per ? r->slots / r->per : r->slots;
}

// Only the alignment of an element is guaranteed: the buffers of loops (stashes, carries) start at
// any multiple of their slot's size.
typedef struct lm_plan_buf {
  uint8_t arena;
  int live;                      // WORK: index into the function's live table; else -1
  int64_t offset;                // bytes
  int64_t stride[LM_PLAN_DEPTH]; // bytes per iteration of loop depth 0 (outermost), 1, …
  // slots > 0: the stride is multiplied by the slot instead of the iteration.
  lm_plan_ring ring[LM_PLAN_DEPTH];
  int64_t bytes; // from the first to the last byte that a step may access
} lm_plan_buf;

// A size: fixed times the product of the run-time extents var[…].
typedef struct lm_plan_extent {
  int64_t fixed;
  int n_dyn;
  struct {
    int var;
  } dyn[4];
} lm_plan_extent;
static inline int64_t lm_plan_extent_value(const lm_plan_extent *e, const int64_t *var) {
  int64_t n = e->fixed;
  for (int i = 0; i < e->n_dyn; i++)
    n *= var[e->dyn[i].var];
  return n;
}

// The tensor map of a bf16 operand, with which a GPU's copy engine (TMA) loads boxes of it. The
// innermost dim, whose stride is one element, comes first. Elements of a box outside of the tensor
// are zeros. Lines of 64 elements are swizzled by 128 bytes.
enum {
  LM_PLAN_MAP_RANK = 4,
  LM_PLAN_MAPS = 8
};
typedef struct lm_plan_map {
  int buf; // index into the step's buffers
  struct {
    lm_plan_extent size;
    int64_t stride; // bytes
    int box;        // elements
  } dim[LM_PLAN_MAP_RANK];
} lm_plan_map;

// A generated kernel. On the CPU: void NAME(char *const *buf, const int64_t *var, int64_t lo,
// int64_t hi);
//   buf: operands, results and workspaces, in the order of the step's bufs
//   var: run-time extents (n_extents), then the index of each enclosing loop (LM_PLAN_DEPTH)
//   lo, hi: the range of the parallel space to compute; disjoint ranges may run at the same time.
//     The mapping from elements to points of that space depends on shapes alone, so results are
//     bitwise independent of the number of threads.
// On a GPU: void NAME(buf[0], buf[1], …, the addresses of the extents that it uses, each an int64_t
// in the device's memory, so that a recorded launch runs with others, maps), launched with
// ceil(space / per_block) blocks of `threads` threads. The kernel of a GEMM computes all of it,
// with `blocks` blocks; if the GEMM accumulates, the last parameter, an int32_t, is whether it adds
// to C.
typedef struct lm_plan_launch {
  int threads;       // per block; 0: not for a GPU
  int64_t per_block; // points of the parallel space per block
  int64_t blocks;    // of a GEMM
  bool adds;         // its last parameter is whether it adds to its result
  // It appends to KV caches: its last parameters are the address of two int32_t that receive the
  // number of the step and the position if that is outside of a cache, and that number.
  bool appends;
  bool early;       // may begin before the kernel in front of it has ended
  int64_t shared;   // bytes of dynamic shared memory
  uint32_t extents; // bit mask of the run-time extents that it takes
  const struct lm_plan_map *maps;
  int n_maps;
  int unroll;       // iterations that a thread runs at a time, for cost reports; 0: one
  int64_t waits;    // how often a thread waits for its loads, for cost reports; 0: few times
  const char *note; // optional: a remark on the kernel's form for reports
} lm_plan_launch;

typedef void lm_kernel_fn(char *const *buf, const int64_t *var, int64_t lo, int64_t hi);

typedef struct lm_plan_kernel {
  const char *name;   // symbol; equal text has equal names
  const char *source; // C text of this function alone
  const char *origin; // the source lines it came from: "llama.lm:10,12"
  lm_plan_launch launch;
} lm_plan_kernel;

// C[m, n] (+)= sum over k of A[m, k] * B[k, n], for every point of the batch axes. Sizes are
// extents, strides are in elements. Summed batch axes come last. An axis of size 1 may have any
// stride.
typedef struct lm_plan_gemm {
  lm_plan_extent m, n, k;
  int64_t a_m, a_k, b_k, b_n, c_m, c_n; // one of each operand's two strides is 1
  // b_columns != 0: B is prepacked in panels, [n / columns][k / group][columns][group], b_n is the
  // stride of a column and b_k is b_columns. Only the plan's own kernels read that layout.
  int b_columns, b_group;
  int n_batch;
  struct {
    lm_plan_extent size;
    int64_t a, b, c;
    bool sum; // a further reduction axis, whose stride in C is 0
  } batch[LM_PLAN_BATCH];
  // count > 0: a GEMM for each group of rows, side by side along m or, if `sums`, along k. The
  // operand after B holds the rows of each group, int32, which are m.fixed or k.fixed in total; b
  // and c are the strides of B and C from group to group.
  struct {
    int count;
    bool sums;
    int64_t b, c;
  } groups;
  bool accumulate; // adds to C
  bool aligned;    // A and B begin at multiples of 16 bytes; for the choice of a kernel
  // Epilogue, not with `accumulate`: C = gelu(sum + residual + bias), of which the enabled parts
  // are computed. The residual has C's layout; the bias is indexed along C's axis of unit stride.
  bool residual, bias, gelu;
  bool stored;               // of a KERNEL: C is one of its results; else the input of gelu is
  uint8_t dtype_ab, dtype_c; // lm_dtype
  // A and B are codes, of dtype_ab and dtype_b; the operands after B are what the elements of A and
  // of B are multiplied by, of the kinds `scales` (lm_scales). fast: sums may be in the narrower
  // accumulators of tensor cores.
  bool scaled, fast;
  uint8_t scales[2];
  uint8_t dtype_b;
  int code; // 1 + index of the kernel that computes its tiles; 0: a library does
} lm_plan_gemm;

// The operands of a GEMM of codes that hold the scales.
enum {
  LM_GEMM_SCALE_A = 2,
  LM_GEMM_SCALE_B = 3
};

// A GEMM of few rows, or of a number of rows that is known only at run time, as in decoding. A
// target that has a kernel for it always uses that kernel, so that the bits of a row do not depend
// on the rows that are computed with it.
enum {
  LM_GEMM_FEW_ROWS = 16
};
static inline bool lm_plan_gemm_any_rows(const lm_plan_gemm *g) {
  return g->m.n_dyn || g->m.fixed <= LM_GEMM_FEW_ROWS || (g->groups.count && !g->groups.sums);
}

// A CPU kernel of a GEMM computes rows lo … hi - 1 of a tile: C (+)= A B in f32, at one point of
// all batch axes.
//   buf: A, B and C from the first element of the tile, and a workspace of LM_GEMM_KERNEL_WORKSPACE
//        bytes. If the result is bf16, C holds the f32 sums and the result follows the workspace.
//   var: [0] columns of the tile, at most LM_GEMM_KERNEL_COLUMNS
//        [1] row stride of C
//        [2] whether to add to C
//        [3] row stride of a bf16 result if the sums are complete after this call and are to be
//            rounded into it, else 0
//        [4] size of k
//        [5], [6] strides of A in m and k
//        [7], [8] strides of B in n and k
//        [9] whether B is in panels, in which case its strides are not read
//        [10] the size of k by which its blocks are chosen: that of k, or LM_GEMM_KERNEL_LONG_K
//             if k is known only at run time, so that further elements that are zero change no
//             bits
// Rows of C have unit stride; if C has unit stride along m instead, the transpose is computed with
// A and B exchanged. Every element has the same bits for every tiling.
enum {
  LM_GEMM_KERNEL_COLUMNS = 1024,
  LM_GEMM_KERNEL_LONG_K = 1 << 20, // a multiple of the longest block of every processor
  LM_GEMM_KERNEL_WORKSPACE = 5 << 18
};

// A batch axis with its run-time size filled in; also the offsets of the operands at a point of the
// batch axes, in elements.
typedef struct lm_plan_batch {
  int64_t size, a, b, c;
} lm_plan_batch;
static inline lm_plan_batch lm_plan_batch_axis(const lm_plan_gemm *g, int i, const int64_t *var) {
  return (lm_plan_batch){lm_plan_extent_value(&g->batch[i].size, var), g->batch[i].a, g->batch[i].b,
                         g->batch[i].c};
}
// The offsets at the point with row-major `index` of n axes.
lm_plan_batch lm_plan_batch_at(const lm_plan_batch *axes, int n, int64_t index);

// Copies a tensor between two strided layouts; dim 0 is the outermost, adjacent dims are merged
// where possible. Appending to a KV cache is a move whose destination starts at a position that is
// read at run time from an int in memory.
typedef struct lm_plan_move {
  int rank;
  int element; // bytes
  struct {
    lm_plan_extent size;
    int64_t from, to; // strides in bytes
  } dim[LM_PLAN_RANK];
  int at_dim;       // the dim whose start in the destination is the value in bufs[1]; -1: none
  int64_t at_limit; // size of the destination along at_dim
} lm_plan_move;

// Sizes of an attention at capacity, for cost reports: t queries by s keys at each of `points`
// points (rows, heads), scores from GEMMs of the width qk, which is summed over all of them, values
// of the width v at key_points points (rows, heads of keys). causal: the mask hides about half of
// the pairs. epilogue: the bytes that kernels in its region read; instructions: theirs.
typedef struct lm_plan_attend {
  int64_t points, t, s, qk, v, key_points;
  bool causal, backward;
  lm_dtype dtype; // of the operands
  int64_t epilogue;
  double instructions;
} lm_plan_attend;

typedef enum {
  LM_STEP_KERNEL,
  LM_STEP_GEMM,
  // begins a loop of `count` iterations that ends at the matching LM_STEP_END; bufs[0] is optional,
  // an int that receives the index of the iteration
  LM_STEP_LOOP,
  LM_STEP_END,
  LM_STEP_COPY,  // bufs[0] -> the last buffer, by `move`; the optional one between is the position
  LM_STEP_FILL,  // fills `bytes` of bufs[0] with `pattern` of `element` bytes
  LM_STEP_ADD,   // bufs[1] += bufs[0], f32, by `move`
  LM_STEP_START, // begins the collective or copy `comm` on bufs, after all earlier steps
  // ends it, with the same buffers: until then no step writes the memory that the collective reads,
  // and none touches that of its results
  LM_STEP_WAIT
} lm_step_kind;
enum {
  LM_STEP_KINDS = LM_STEP_WAIT + 1
};

// The ranks that run the plan, each of which computes a part. All have the same plan; `at` alone
// differs. Ranks along the last axis are neighbours.
typedef struct lm_plan_mesh {
  int n; // 0: one process
  struct {
    const char *name; // "tp"
    int size;
    bool rows;      // each coordinate has a part of the rows of a micro-batch
    bool positions; // the same of the positions of its rows
    // Of `size` times 2 chunks of the positions, coordinate r has chunk r and the r-th last one.
    bool balanced;
    int at; // the coordinate of this rank (lm_plan_mesh_place)
    // In the arena IO: an int that holds the coordinate, which the executor writes; -1: no step
    // reads it.
    int64_t rank;
  } axis[LM_MESH_AXES];
} lm_plan_mesh;

// What multiplies the stride in iteration i of the loop of the ring.
static inline int64_t lm_plan_ring_slot(const lm_plan_ring *r, const lm_plan_mesh *m, int64_t i) {
  int64_t turned = r->per ? (int64_t)r->by_rank * m->axis[r->mesh - 1].at : 0;
  int64_t at = (r->per ? r->by * i : i) + r->ahead + turned;
  return r->slots ? at % r->slots / (r->per ? r->per : 1) : i;
}
// The offset in the arena, in the iterations index[LM_PLAN_DEPTH] of the enclosing loops, on a rank
// of this mesh.
static inline int64_t lm_plan_buf_offset(const lm_plan_buf *b, const lm_plan_mesh *m,
                                         const int64_t *index) {
  int64_t offset = b->offset;
  for (int d = 0; d < LM_PLAN_DEPTH; d++)
    offset += b->stride[d] * lm_plan_ring_slot(&b->ring[d], m, index[d]);
  return offset;
}

// A collective of the ranks of a group: 0 are all ranks, k those along axis k of the mesh, from 1,
// that agree in their other coordinates. START and WAIT have equal handles: those of a function
// that are under way differ. slots > 0: the handle is `handle` + (iteration of the innermost loop +
// ahead) mod slots. A copy has a kind, a lane and a handle only. tensors > 1: a bucket of as many
// collectives (contract/collective.h), whose operands are the step's first buffers, and whose
// results are the next ones; `count` is of all.
typedef struct lm_plan_comm {
  lm_coll_kind kind;
  lm_coll_op op; // of all_reduce and reduce_scatter
  lm_dtype dtype;
  int64_t count; // elements, see contract/collectives.def
  int group, lane, peer;
  int handle, slots, ahead;
  int tensors;
} lm_plan_comm;
static inline int lm_plan_comm_handle(const lm_plan_comm *c, int64_t iteration) {
  return c->handle + (c->slots ? (int)((iteration + c->ahead) % c->slots) : 0);
}
extern const char *const lm_step_names[LM_STEP_KINDS]; // as in the text of a plan

typedef struct lm_plan_step {
  lm_step_kind kind;
  int kernel;           // KERNEL: index into kernels
  lm_plan_extent space; // KERNEL: size of the parallel space
  // GEMM; KERNEL: the GEMM that its kernel begins with, for cost reports, or NULL; joined > 0: as
  // many, which its kernel computes, with the buffers A and B of each, and C of each
  lm_plan_gemm *gemm;
  int joined;
  // COPY, ADD; KERNEL: an append to a KV cache that its kernel computes too, or NULL
  lm_plan_move *move;
  lm_plan_comm *comm; // START, WAIT
  int64_t count;      // LOOP: trip count
  // Other kinds, in a loop: the step runs in iterations from … end - 1 of the innermost loop; end =
  // 0: up to the last one.
  int64_t from, end;
  int depth;     // LOOP, END: index of the loop's variable
  int match;     // LOOP: index of its END step; END: of its LOOP step
  int64_t bytes; // FILL, and the next two
  uint64_t pattern;
  int element;
  // GEMM: A, B, residual, bias, C and, if it is stored, the input of gelu; with groups A, B, the
  // rows of each group, C
  lm_plan_buf *bufs;
  int n_bufs;
  // The first n_read buffers are read, the next n_write are written or added to, the rest are
  // workspaces.
  int n_read, n_write;
  int64_t flops, moved; // FLOPs and bytes at capacity, for cost reports
  // Instructions of the generated code at capacity, of all lanes; KERNEL: sizes of an attention.
  double instructions;
  // Bytes at capacity that pass through a cache besides: those that further blocks read again, and
  // those of sectors of which accesses use a part.
  double again;
  const lm_plan_attend *attend; // NULL: another kernel
  double multiplied;            // FLOPs of the dots in a kernel that mixes (lm_kernel_mix); 0: none
  const char *label;            // IR operation and source line, for profiles and messages
  // In a run that takes the gradients as zeros (lm_exec_run_first): a GEMM that accumulates, or an
  // ADD, is the first step to touch its elements of the gradients and writes all of them, so it
  // overwrites them in iteration 0 of the loops that do not move its result. A FILL clears
  // gradients that no such step overwrites, and is skipped in other runs.
  bool initializes;
} lm_plan_step;
// True if the step begins or ends a copy between host and device.
static inline bool lm_plan_step_copies(const lm_plan_step *s) {
  return (s->kind == LM_STEP_START || s->kind == LM_STEP_WAIT) && s->comm->kind == LM_COLL_COPY;
}
// The collectives that the step begins or ends, and the `count` of number i of them.
static inline int lm_plan_comm_tensors(const lm_plan_comm *c) {
  return c->tensors > 1 ? c->tensors : 1;
}
int64_t lm_plan_comm_count(const lm_plan_step *s, int i);
// Of an exchange of rows: those that buffer `buf` of the step has space for.
int64_t lm_plan_comm_rows(const lm_plan_step *s, int buf);
// The generated kernel that computes the step; -1: none does.
static inline int lm_plan_step_kernel(const lm_plan_step *s) {
  return s->kind == LM_STEP_KERNEL ? s->kernel : s->kind == LM_STEP_GEMM ? s->gemm->code - 1 : -1;
}

// An argument or a result of a function, dense.
typedef struct lm_plan_port {
  const char *name;
  lm_port_id id; // LM_PORTS: the program names it
  lm_port_role role;
  int state; // STATE: the number of the optimizer state
  // A result whose value is the sum of those of the ranks along these axes of the mesh.
  lm_mesh_set partial;
  lm_plan_buf buf;
  uint8_t dtype; // lm_dtype
  int rank;
  int64_t shape[LM_PLAN_RANK];  // of this rank's part
  lm_mesh_set by[LM_PLAN_RANK]; // the axes of the mesh that divide the dim
} lm_plan_port;

// A range of the work arena and the steps during which it is in use (both included).
typedef struct lm_plan_live {
  int64_t offset, bytes;
  int first, last;
  const char *label;
} lm_plan_live;

typedef struct lm_plan_func {
  const char *name;
  lm_func_key key; // of the name
  int64_t every;   // of the extra gradient: it runs in steps 1, 1 + every, …; 0: in each step
  lm_plan_step *steps;
  int n_steps;
  lm_plan_port *in, *out;
  int n_in, n_out;
  int64_t work_bytes; // peak of the work arena in this function
  lm_plan_live *live;
  int n_live;
  // The function that makes the copies of parameters that this one reads; NULL if it reads none.
  const struct lm_plan_func *copies;
  // The function that completes them after an update that has made a part; NULL if none is needed.
  const struct lm_plan_func *packs;
  bool changes_params; // invalidates the copies
  bool makes_copies;   // all of them but what `packs` makes, of the parameters that it changes
  bool initializes;    // some step initializes gradients (see lm_plan_step)
} lm_plan_func;

// A box of a parameter, or of this rank's part of one: its element at the indices first[d] + i[d],
// where 0 <= i[d] < size[d], is the element offset + sum over d of i[d] * stride[d] of the
// parameter's arena; of a trained one, of GRAD, of each STATE and of PARAM, but where PARAM has
// parameters of f32 and then of 16 bits: there lm_tensor_runs gives the address.
typedef struct lm_plan_piece {
  int64_t offset;
  int64_t first[LM_PLAN_RANK], size[LM_PLAN_RANK], stride[LM_PLAN_RANK];
} lm_plan_piece;

// A parameter by its path. Its pieces contain each element once; of a divided parameter, each
// element of this rank's part.
typedef struct lm_plan_param {
  const char *path; // "layers.17.attn.wq"
  int64_t elements;
  int rank;
  int64_t shape[LM_PLAN_RANK]; // of one layer, without stacked axes
  uint8_t by[LM_PLAN_RANK];    // the axis of the mesh that divides the dim, from 1; 0: none
  // The axis of the mesh along which the ranks of one coordinate alone have the parameter, from 1;
  // 0: all have it, or parts of it.
  uint8_t stages;
  int stage; // that coordinate
  const lm_plan_piece *pieces;
  int n_pieces;
  uint8_t init; // lm_init_kind
  double init_a, init_b;
  uint8_t dtype; // lm_dtype; F32 or BF16 in PARAM
  // PARAM; FIXED: a frozen parameter, which has neither gradient nor states; STATE: an optimizer
  // state
  uint8_t arena;
  bool added; // by an edit of the model: the weights that the model is `from` lack it
  // Of an optimizer state: the path of the parameter whose value it begins with; NULL: `init`.
  const char *value_of;
} lm_plan_param;

// A tensor that belongs to a parameter: its value (PARAM, also of a frozen parameter), its gradient
// (GRAD) or the optimizer state of a number (STATE). Gradients and states are f32.
typedef struct lm_plan_tensor {
  const lm_plan_param *param;
  lm_port_role role;
  int state;
} lm_plan_tensor;
static inline lm_dtype lm_plan_tensor_dtype(lm_plan_tensor t) {
  return t.role == LM_ROLE_PARAM ? (lm_dtype)t.param->dtype : LM_F32;
}

// Elements first … first + n - 1 of a tensor, in row-major order, at `offset` bytes of an arena.
typedef struct lm_tensor_run {
  lm_arena_id arena;
  int64_t offset, first, n;
} lm_tensor_run;

typedef struct lm_plan {
  lm_plan_mesh mesh;
  int64_t arena_bytes[LM_ARENAS];
  bool on_host[LM_ARENAS]; // the arena is in the host's memory, the device's copies of it in WORK
  int n_blocks;            // of LM_BLOCK elements in PARAM, and in GRAD
  int n_states;            // that have the layout of GRAD, one behind another
  lm_plan_param *params;   // trained
  int n_params;
  lm_plan_param *frozen;
  int n_frozen;
  lm_plan_param *states; // of optimizers that update one parameter at a time: "m.layers.17.attn.wq"
  int n_own_states;
  const char *prelude; // C text that precedes the kernels
  lm_plan_kernel *kernels;
  int n_kernels;
  lm_plan_func *funcs;
  int n_funcs;
  int n_extents;
  struct {
    const char *name;
    int64_t capacity;
    // k > 0: it is not given, but extent k - 1 times `times`, or if `capped` the lesser of its
    // capacity and extent k - 1
    int of;
    int64_t times;
    bool capped;
  } extents[16];
} lm_plan;

// NULL if absent. The second takes the name in the plan's text.
const lm_plan_func *lm_plan_func_get(const lm_plan *p, lm_func_id id, int64_t seq);
const lm_plan_func *lm_plan_func_get_key(const lm_plan *p, lm_func_key key);
const lm_plan_func *lm_plan_func_extra(const lm_plan *p, lm_func_id id);
const lm_plan_func *lm_plan_func_find(const lm_plan *p, const char *name);
// Sets the coordinates of this rank, from its number among all ranks.
void lm_plan_mesh_place(lm_plan *p, int rank);
const char *lm_plan_group_name(const lm_plan *p, int group); // "tp"; "all" for group 0
int lm_plan_mesh_ranks(const lm_plan *p);
// "4 ranks (dp 2, tp 2)"; "" for one process.
const char *lm_plan_mesh_text(lm_arena *a, const lm_plan *p);
// True if a rank of this number has coordinate 0 along the axes that are not in `set`: the ranks
// for which it is true have all terms of a value that is a sum along `set`.
bool lm_plan_mesh_counts(const lm_plan *p, int rank, lm_mesh_set set);
// The parts in which the rows of a micro-batch are divided; *out_part: the number of this rank's.
int lm_plan_parts(const lm_plan *p, int *out_part);
// The same of what the axes in `set` divide.
int lm_plan_parts_of(const lm_plan *p, lm_mesh_set set, int *out_part);
lm_mesh_set lm_plan_rows(const lm_plan *p);      // the axes that divide rows
lm_mesh_set lm_plan_positions(const lm_plan *p); // those that divide positions
// The trained parameter of a path, or NULL.
const lm_plan_param *lm_plan_param_find(const lm_plan *p, const char *path);
// Bytes of the arenas in the device's memory, or in the host's beside it.
int64_t lm_plan_arenas(const lm_plan *p, bool on_host);
// True if it begins copies between host and device.
bool lm_plan_copies(const lm_plan_func *f);
// True if it has a collective, or one of the functions that make the copies that it reads has.
bool lm_plan_exchanges(const lm_plan_func *f);
// LM_BUG_STATUS if a function has a collective, which an executor of one process cannot run.
lm_status lm_plan_of_one_process(const lm_plan *p);
// Computes `copies`, `packs`, `changes_params`, `makes_copies` and `initializes` of all functions
// from their steps.
void lm_plan_funcs_bind(lm_plan *p);
static inline bool lm_plan_step_runs(const lm_plan_step *s, int64_t iteration) {
  return iteration >= s->from && (!s->end || iteration < s->end);
}
// Executions of step i in one run of f: the product of the trip counts of the loops around it,
// without the iterations in which it does not run.
int64_t lm_plan_step_times(const lm_plan_func *f, int i);
// Bytes that step i does not move in each of *out_times executions if the run takes the gradients
// as zeros. Negative for a FILL: it moves bytes only in such runs, and `moved` excludes it.
int64_t lm_plan_step_saved(const lm_plan_func *f, int i, int64_t *out_times);
// NULL if absent. The second takes the name in the plan's text.
const lm_plan_port *lm_plan_port_get(const lm_plan_func *f, lm_port_id id, bool result);
const lm_plan_port *lm_plan_port_find(const lm_plan_func *f, const char *name, bool result);
// True if this rank has the parameter, or a part of it.
bool lm_plan_param_is_here(const lm_plan *p, const lm_plan_param *x);
// The axes of the mesh along which ranks have other parts of a parameter, or lack it, and those for
// any parameter.
lm_mesh_set lm_plan_param_set(const lm_plan_param *x);
lm_mesh_set lm_plan_divided(const lm_plan *p);
// Calls fn for each run of contiguous memory of elements first … first + n - 1 of a tensor, a piece
// after the other, without the elements that only other ranks have. Returns the first status that
// is not NULL.
typedef lm_status lm_tensor_run_fn(void *user, const lm_tensor_run *r);
lm_status lm_tensor_runs(const lm_plan *p, lm_plan_tensor t, int64_t first, int64_t n,
                         lm_tensor_run_fn *fn, void *user);
int64_t lm_piece_end(const lm_plan_param *x, const lm_plan_piece *piece); // after the last element
// Reads the text that lm_plan_print writes, into `a`. Kernels have no source and parameters of one
// dense piece no shapes; printing gives the same text again. LM_USER with the line number of the
// first mistake.
lm_status lm_plan_parse(lm_arena *a, const char *text, size_t n, lm_plan **out);
// Prints arenas, parameters, steps with their buffers, and peaks.
void lm_plan_print(const lm_plan *p, lm_buf *out);
// Runs f on shadow memory and checks that every byte of the work arena that is read was last
// written through the same range, that every buffer is within its arena, and that no step touches
// the memory of a collective that is under way. Appends the errors to `why`; returns true if there
// are none. Visits every byte that f accesses, in every iteration.
bool lm_plan_check(const lm_plan *p, const lm_plan_func *f, lm_buf *why);
// Checks the collectives of a function in the plans of all ranks, by number, each of which is
// placed (lm_plan_mesh_place): the ranks of every group start the same sequence, of the same
// tensors in memory, every message that is sent is received, and no ranks wait for each other.
// Appends the errors to `why`; returns true if there are none.
bool lm_plan_check_mesh(const lm_plan *const *plans, const char *func, lm_buf *why);
#endif
