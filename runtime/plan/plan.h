// plan.h - a compiled program as plain data: what the compiler hands to a runtime. No IR, no
// backend.
//
// Memory is a few arenas, each one allocation whose size is known here. A buffer is a place in an
// arena; inside loops its address moves by a stride per iteration of each enclosing loop. A
// function is a list of steps, run in order.
//
// Parameters are laid out layer-major: a bucket holds everything of one iteration of a repetition,
// buckets of one repetition follow each other at constant stride, and every tensor starts at a
// multiple of LM_BLOCK elements, zeros behind it. Gradients and optimizer states use the same
// layout in arenas of their own, so an optimizer is one launch over all blocks.
#ifndef LM_PLAN_H
#define LM_PLAN_H
#include "runtime/base/base.h"

enum {
  LM_BLOCK = 1024,
  LM_PLAN_DEPTH = 4,
  LM_PLAN_ALIGN = 64,
  LM_PLAN_BATCH = 24 /* axes of any two operands */
};

typedef enum {
  LM_ARENA_PARAM, // f32 master weights
  LM_ARENA_GRAD,  // f32, same layout
  LM_ARENA_STATE, // f32, n_states times the layout, one after the other
  LM_ARENA_IO,    // arguments and results of functions
  LM_ARENA_WORK,  // activations, stashes, scratch: shared by all functions
  LM_ARENA_CACHE, // key/value caches and the like of decoding
  // made of parameters, to compute with: weights side by side; then bf16 copies in the parameters'
  // layout
  LM_ARENA_COPY,
  LM_ARENAS
} lm_arena_id;
extern const char *const lm_plan_arena_names[LM_ARENAS]; // as in the text of a plan

// Buffers of loops (stashes, carries) start anywhere a slot does: a step may rely on the alignment
// of an element only.
typedef struct lm_plan_buf {
  uint8_t arena;
  int live;                      // WORK: index into the function's live table; else -1
  int64_t offset;                // bytes
  int64_t stride[LM_PLAN_DEPTH]; // bytes an iteration of loop depth 0 (outermost), 1, …
  int64_t bytes;                 // from the first to the last byte that a step may touch
} lm_plan_buf;

typedef struct lm_plan_extent {
  int64_t fixed;
  int n_dyn;
  struct {
    int var;
  } dyn[4];
} lm_plan_extent; // fixed * product of var[…]
static inline int64_t lm_plan_extent_value(const lm_plan_extent *e, const int64_t *var) {
  int64_t n = e->fixed;
  for (int i = 0; i < e->n_dyn; i++)
    n *= var[e->dyn[i].var];
  return n;
}

// What a GPU's copy engine must know of a bf16 operand to bring boxes of it: the innermost dim,
// whose elements are neighbours, first. What of a box lies beyond the tensor is zeros. A box's
// lines of 64 elements are swizzled by 128 bytes.
enum {
  LM_PLAN_MAP_RANK = 4,
  LM_PLAN_MAPS = 8
};
typedef struct lm_plan_map {
  int buf; // of the step's
  struct {
    lm_plan_extent size;
    int64_t stride;
    int box;
  } dim[LM_PLAN_MAP_RANK]; // stride: bytes
} lm_plan_map;

// A generated kernel: void NAME(char *const *buf, const int64_t *var, int64_t lo, int64_t hi);
//   buf: operands, then results, then scratch, in the order of the step's bufs
//   var: run-time extents (n_extents of them), then the index of each enclosing loop
//   (LM_PLAN_DEPTH) lo, hi: the range of its parallel space to do; disjoint ranges may run at the
//   same time. Which elements belong to one place of that space depends on shapes alone, so the
//   number of threads never changes a bit.
// On a GPU: void NAME(buf[0], buf[1], …, the extents that it uses as int64_t, maps), ceil(space /
// per_block) blocks of `threads`.
typedef struct lm_plan_launch {
  int threads;       // of a block; 0: not for a GPU
  int64_t per_block; // places of the parallel space that a block does
  int64_t shared;    // bytes of dynamic shared memory
  uint32_t extents;  // which run-time extents it takes, as bits
  const struct lm_plan_map *maps;
  int n_maps;
  const char *note; // of its form, for who reads what was compiled; NULL: nothing
} lm_plan_launch;

typedef void lm_kernel_fn(char *const *buf, const int64_t *var, int64_t lo, int64_t hi);

typedef struct lm_plan_kernel {
  const char *name;   // symbol; equal text has equal names
  const char *source; // C text of this function alone
  const char *origin; // the source lines it came from: "llama.lm:10,12"
  lm_plan_launch launch;
} lm_plan_kernel;

// C[m, n] (+)= sum over k of A[m, k] * B[k, n], repeated over batch axes; sizes are extents,
// strides in elements. Sum axes come after the others. An axis of size 1 may have any stride.
typedef struct lm_plan_gemm {
  lm_plan_extent m, n, k;
  int64_t a_m, a_k, b_k, b_n, c_m, c_n; // one of each operand's two strides is 1
  // not 0: B is panels, [n / lines][k / group][lines][group]; b_n: places of a column, b_k:
  // b_lines. Code of the plan's own does it
  int b_lines, b_group;
  int n_batch;
  struct {
    lm_plan_extent size;
    int64_t a, b, c;
    bool sum;
  } batch[LM_PLAN_BATCH]; // sum: further
                          // contracted axes (C stride 0), in order
  bool accumulate;        // adds to what C holds
  bool residual, bias,
      gelu; // else C = gelu(sum + residual + bias) of those that there are: the residual
            // lies as C does, of the bias an element goes to each place of C's unit stride
  uint8_t dtype_ab, dtype_c; // lm_dtype
  int code;                  // 1 + the kernel that does tiles of it; 0: a library does
} lm_plan_gemm;

// A kernel of products on the CPU does a tile, rows lo … hi - 1 of it: C (+)= A B, in f32, for one
// place of all batch axes.
//   buf: A, B and C from the tile's first element on, scratch of LM_PRODUCT_SCRATCH bytes; where
//   the result is bf16, C is where
//        it is summed, and behind the scratch comes the result
//   var: columns of the tile, at most LM_PRODUCT_COLUMNS; elements from a row of C to the next;
//   whether it adds; from a row of a
//        result in bf16 to the next if sums end here, which are then rounded into it, else 0;
//        places of k; elements from a row of A to the next, and in k; from a column of B to the
//        next, and in k; whether B is panels (the strides of B are then not read)
// C's rows have unit stride: of a product whose C has unit stride along m, the transpose is
// computed, and A is B, B is A. However a product is cut into tiles, each of its elements is the
// same bits.
enum {
  LM_PRODUCT_COLUMNS = 1024,
  LM_PRODUCT_SCRATCH = 5 << 18
};

// A batch axis with its run-time size filled in; also a displacement of the operands along some, in
// elements.
typedef struct lm_plan_batch {
  int64_t size, a, b, c;
} lm_plan_batch;
static inline lm_plan_batch lm_plan_batch_axis(const lm_plan_gemm *g, int i, const int64_t *var) {
  return (lm_plan_batch){lm_plan_extent_value(&g->batch[i].size, var), g->batch[i].a, g->batch[i].b,
                         g->batch[i].c};
}
// The displacement at place `index` of the row-major product of n axes.
lm_plan_batch lm_plan_batch_place(const lm_plan_batch *axes, int n, int64_t index);

// Moves a tensor from one strided place to another; dim 0 is outermost, neighbouring dims are
// merged where they can be. Appending to a cache is a move whose destination starts at a position
// known at run time, read from an int in memory.
typedef struct lm_plan_move {
  int rank, element; // element: bytes
  struct {
    lm_plan_extent size;
    int64_t from, to;
  } dim[12];        // strides in bytes
  int at_dim;       // -1, or the dim that is displaced by bufs[1] places
  int64_t at_limit; // places of the destination along at_dim
} lm_plan_move;

typedef enum {
  LM_STEP_KERNEL,
  LM_STEP_GEMM,
  // begins; `count` iterations, ends at the matching LM_STEP_END. bufs[0], if there is one, is an
  // int that holds the index of the iteration
  LM_STEP_LOOP,
  LM_STEP_END,
  LM_STEP_COPY, // bufs[0] -> the last of bufs, as `move` says; between them, if so, the position
  LM_STEP_FILL, // bufs[0]: `bytes` filled with `pattern`, of `element` bytes
  LM_STEP_ADD,  // bufs[1] += bufs[0], f32, as `move` says
} lm_step_kind;

typedef struct lm_plan_step {
  lm_step_kind kind;
  int kernel;           // KERNEL: index into kernels
  lm_plan_extent space; // KERNEL: size of the parallel space
  lm_plan_gemm *gemm;
  lm_plan_move *move; // COPY, ADD
  int64_t count;      // LOOP
  int depth;          // LOOP, END: which loop index it is
  int match;          // LOOP: the step of its END; END: of its LOOP
  int64_t bytes;
  uint64_t pattern;
  int element; // FILL
  lm_plan_buf *bufs;
  int n_bufs; // GEMM: A, B, residual, bias, then C and, where it is kept, what gelu is taken of
  // bufs read, then bufs written; the rest is scratch. What a step adds to is in the second group
  int n_read, n_write;
  int64_t flops, moved; // for cost reports, at capacity
  const char *label;    // IR operation and source line, for profiles and messages
} lm_plan_step;

typedef struct lm_plan_port { // argument or result of a function, dense
  const char *name;
  lm_plan_buf buf;
  uint8_t dtype; // lm_dtype
  int rank;
  int64_t shape[12];
} lm_plan_port;

// A stretch of the work arena and the steps between which it is taken (both included).
typedef struct lm_plan_live {
  int64_t offset, bytes;
  int first, last;
  const char *label;
} lm_plan_live;

typedef struct lm_plan_func {
  const char *name; // micro, norm, rates, update, copies, eval, apply, prefill, decode
  lm_plan_step *steps;
  int n_steps;
  lm_plan_port *in, *out;
  int n_in, n_out;
  int64_t work_bytes; // peak of the work arena in this function
  lm_plan_live *live;
  int n_live;
  const struct lm_plan_func
      *copies;         // makes the copies of parameters that this one reads; NULL: it reads none
  bool changes_params; // copies are to be made anew
} lm_plan_func;

// A parameter by its logical name; offsets are in elements of the PARAM arena (the same in GRAD and
// each STATE).
typedef struct lm_plan_param {
  const char *path; // "layers.17.attn.wq"
  int64_t offset, elements;
  int rank;
  int64_t shape[12]; // one layer's, without stacked axes
  uint8_t init;
  double init_a, init_b; // lm_init
} lm_plan_param;

typedef struct lm_plan {
  int64_t arena_bytes[LM_ARENAS];
  int n_blocks; // of LM_BLOCK elements in PARAM
  int n_states;
  lm_plan_param *params;
  int n_params;
  const char *prelude; // C text in front of the kernels
  lm_plan_kernel *kernels;
  int n_kernels;
  lm_plan_func *funcs;
  int n_funcs;
  int n_extents;
  struct {
    const char *name;
    int64_t capacity;
  } extents[16];
} lm_plan;

const lm_plan_func *lm_plan_func_find(const lm_plan *p, const char *name); // NULL if absent
void lm_plan_copies_bind(lm_plan *p); // fills in what functions say of copies, from their steps
const lm_plan_port *lm_plan_port_find(const lm_plan_func *f, const char *name, bool result);
// A plan from that text, in `a`: kernels without source, parameters without shapes; printing it
// gives the text again. LM_USER names the first line that is none of a plan.
lm_status lm_plan_parse(lm_arena *a, const char *text, size_t n, lm_plan **out);
void lm_plan_print(const lm_plan *p,
                   lm_buf *out); // readable: arenas, parameters, steps with buffers, peak
// Runs f on shadow memory: every byte of the work arena that is read was last written through the
// same stretch, every buffer lies in its arena. Appends what is wrong to `why`; true if all is
// well. Takes time like one run of f.
bool lm_plan_check(const lm_plan *p, const lm_plan_func *f, lm_buf *why);
#endif
