// ir.h - the IR: modules of functions on tensors with named axes.
//
// A module is lowered through stages (graph -> step -> kernel). The data structure and its text
// form (.lmir) are the same at every stage; ops.def lists the operations that each stage allows,
// which the verifier checks. parse(print(m)) == m at every stage.
//
//   stage graph
//   axis b = 4, t = 64, d = 64, s = 64
//   param @layers.attn.wq : f32[layers, d, g, h, e] stacked 1
//   func @loss(%tok: int[b, t], …) -> (sum, weight) {
//     %x = gather %embed, %tok over(vocab) : f32[b, t, d]            loc(1:12:9)
//     %y = loop 24 over(layers) %i carry(%c = %x) {
//       %w = param @layers.attn.wq[%i * 1 + 0] : f32[d, g, h, e]
//       %q = dot %c, %w over(d) : f32[b, t, g, h, e]
//       … yield %n
//     } : f32[b, t, d]
//     return %a, %b
//   }
//
// All data structures are allocated in the module's arena. Axes are identified by their handle.
// Tensors are dense and row-major in the order of their axes, unless a plan assigns other strides.
#ifndef LM_IR_H
#define LM_IR_H
#include "contract/func.h"
#include "contract/mesh.h"
#include "contract/stage.h"
#include "runtime/base/diag.h"
#include "runtime/base/dtype.h"

typedef uint16_t lm_axis; // index into module.axes; 0 is no axis
enum {
  LM_EXTENTS = 8,      // run-time extents of a module
  LM_EXTENTS_GIVEN = 2 // the first ones, which lm_axes_extent leaves to the functions' arguments
};
// A run-time extent. of: k > 0: it is extent number k-1 times `times`, or if `most` is not 0 the
// lesser of `most` and extent number k-1; 0: it is given.
typedef struct lm_extent_info {
  int of;
  int64_t times, most;
} lm_extent_info;
typedef struct lm_axis_info {
  lm_sym name;   // unique in the module: "t", "t.1", "g@tp"
  int64_t size;  // dynamic: the capacity (strides use it); divided: of one part
  int dyn;       // 0: static; k > 0: extent number k-1, known at run time, <= size
  lm_axis whole; // divided axes: the axis of which each rank has a part; else 0
  uint8_t mesh;  // divided axes: the axis of the mesh that divides it, from 1; else 0
} lm_axis_info;

// The order in which the stages of a pipeline compute the micro-batches of a call.
typedef enum {
  LM_SCHEDULE_GPIPE,       // the forward passes of all, then the backward passes of all
  LM_SCHEDULE_ONE_F_ONE_B, // the backward pass of a micro-batch as soon as its loss is known
  LM_SCHEDULE_INTERLEAVED, // the same, with several stages on each rank
  LM_SCHEDULES
} lm_pipe_schedule;
extern const char *const lm_pipe_schedule_names[LM_SCHEDULES]; // "gpipe", "one_f_one_b", …
typedef struct lm_mesh_axis {
  lm_sym name; // "tp"
  int size;
  lm_loc loc; // of its entry in the recipe
  // Each rank along the axis has a part of the rows of a micro-batch: of the first axis of the
  // arguments of the losses, whatever its name.
  bool rows;
  // The same for the positions: the second axis of these arguments.
  bool positions;
  // > 0: the ranks are the stages of a pipeline, through which the rows of a call pass in so many
  // micro-batches, if that divides them. With `rows`, GPipe alone, a multiple of `size`: the rows
  // of all micro-batches are divided outside of the stages. Otherwise those of one micro-batch at a
  // time are, and the arguments of the losses are whole.
  int pipeline;
  lm_pipe_schedule schedule;
  // LM_SCHEDULE_INTERLEAVED: the stages of a rank, of which stage c * size + rank is number c.
  int chunks;
  // The axes along which `grouped_dot` has experts are divided.
  bool experts;
  // Of `positions`: the elements along them are in an order in which the part of each rank has as
  // many unmasked pairs of causal attention (compiler/passes/shard/shard_balance.c).
  bool balanced;
  // Of `positions`: attention passes blocks of keys and values from rank to rank (pass `ring`).
  bool ring;
  // The axes to divide, by name without a suffix ("g" for "g" and "g.1"), in order of preference;
  // pass `shard` divides them and sets n_shard to 0.
  struct lm_mesh_shard {
    lm_sym name;
    lm_loc loc;
  } * shard;
  uint32_t n_shard;
  // ZeRO: the stage of dividing parameters, gradients and optimizer states, which every rank along
  // the axis would have otherwise, among these ranks (pass shard). 1: the optimizer states; 2: also
  // the gradients; 3: also the parameters that are computed with. 0: none.
  int zero;
  bool reduce_bf16; // ranks send each other gradients of parameters in bf16 (pass reduce_bf16)
  bool library;     // MPI or NCCL makes the sums of floats, in its own order
  bool bucket;      // several parameters are one exchange (pass bucket)
  bool overlap;     // collectives along the axis run beside the computation (pass overlap)
} lm_mesh_axis;
// True if collectives of parameters and gradients beside each other are one exchange.
static inline bool lm_mesh_axis_buckets(const lm_mesh_axis *a) {
  return a->bucket && a->zero;
}
// True if a tick of the pipeline computes the whole model (shard_ticks.c).
static inline bool lm_mesh_axis_ticks(const lm_mesh_axis *a) {
  return a->pipeline && !a->rows;
}
// The stages of a rank.
static inline int lm_mesh_axis_chunks(const lm_mesh_axis *a) {
  return a->chunks ? a->chunks : 1;
}
// The ranks of a run. Each has one coordinate along each axis; coordinates are row-major over the
// axes in order, so ranks along the last axis are neighbours.
typedef struct lm_mesh {
  lm_mesh_axis axis[LM_MESH_AXES];
  int n; // 0: one rank
} lm_mesh;

#define LM_RANK 12                         // maximum axes of a tensor
#define LM_ELEMENTS_MAX ((int64_t)1 << 47) // elements of a tensor are below it
typedef struct lm_type {
  uint8_t dtype, rank;
  lm_axis axis[LM_RANK]; // unused entries are 0
} lm_type;

typedef struct lm_op lm_op;
typedef struct lm_region lm_region;
typedef struct lm_func lm_func;
typedef struct lm_module lm_module;
typedef struct lm_analysis lm_analysis;

typedef struct lm_value {
  lm_type type;
  lm_op *def;        // NULL: argument `index` of `region`
  lm_region *region; // the region that defines it
  uint32_t index;
  uint32_t id;  // unique in the module: printed, index of side tables
  lm_sym name;  // the name in the source, or NULL; printed as %name.id
  bool on_host; // a stack of a loop that the plan has in the host's memory; printed after its type
} lm_value;

typedef enum {
#define OP(E, ...) LM_OP_##E,
#include "compiler/ir/ops.def"
#undef OP
  LM_OPS
} lm_opcode;

// The largest number of indices of an access to a stacked global; each has two numbers in imm.
enum {
  LM_INDICES = 4
};

// Attributes; ops.def lists the attributes of each operation.
typedef struct lm_attr {
  lm_axis axes[LM_RANK], to[LM_RANK]; // e.g. dot: axes = over; view: axes -> to
  uint8_t n_axes, n_to;
  int64_t imm[2 * LM_INDICES];
  uint8_t n_imm; // e.g. slice: first, step; loop: trip count
  double num;    // const
  lm_sym sym;    // param, accum, append: global; call: function; emit: name
  uint8_t mesh;  // collectives, rank: the axis of the mesh, from 1
} lm_attr;

// How the backward pass obtains the value: automatic choice, stash, or recomputation. With the flag
// OFFLOAD a stash of the value is in the host's memory. Printed after the types.
typedef enum {
  LM_REMAT_AUTO,
  LM_REMAT_SAVE,
  LM_REMAT_RECOMPUTE,
  LM_REMATS,
  LM_REMAT_OFFLOAD = 4
} lm_remat;
extern const char *const lm_remat_names[LM_REMATS]; // "", "save", "recompute"
static inline lm_remat lm_remat_choice(int remat) {
  return (lm_remat)(remat & ~LM_REMAT_OFFLOAD);
}

struct lm_op {
  lm_opcode code;
  uint8_t remat; // lm_remat, and LM_REMAT_OFFLOAD
  lm_loc loc;
  lm_op *prev, *next;
  lm_region *parent;
  uint32_t n_in, n_out;
  lm_value **in;
  lm_value **out;
  lm_attr attr;
  lm_region *body; // loop, scan, kernel, attend
  uint32_t mark;   // temporary data of a pass
};

struct lm_region {
  lm_op *first, *last;
  lm_value **args;
  // func: its parameters; loop: the index (int), then the carries; others: one per operand. Values
  // of outer regions are visible in loops, not in other regions.
  uint32_t n_args;
  lm_op *owner; // NULL for a function's body
  lm_func *func;
};

struct lm_func {
  lm_sym name;
  lm_func_key key; // of the name; its id is LM_FUNCS if contract/functions.def has none such
  lm_region *body; // args[i]->name is the name of parameter i; ends with `return`
  lm_sym *out_names;
  lm_mesh_set *out_partial; // by result: its value is the sum over these axes; NULL: none
  uint32_t n_out;           // names of the results
  lm_module *module;
  lm_func *next;
};

typedef enum {
  LM_GLOBAL_PARAM,
  LM_GLOBAL_CACHE,
  LM_GLOBAL_DERIVED, // computed from parameters: the result of @copies of the same name
  LM_GLOBAL_FIXED,   // a frozen parameter: of any dtype, without gradient
  LM_GLOBAL_PACKED,  // trained parameters side by side in memory, under one type
  LM_GLOBAL_STATE,   // an optimizer state of one parameter, or a state of none, of any axes
  LM_GLOBAL_TERMS,   // the term of a gradient that one rank computes (pass reduce_once)
  LM_GLOBAL_KINDS,
} lm_global_kind;
extern const char *const lm_global_names[LM_GLOBAL_KINDS]; // "param", "cache", …

typedef struct lm_global {
  lm_global_kind kind;
  lm_sym name;  // path without indices: "layers.attn.wq"
  lm_type type; // the n_stack leading axes are the stacked ones, one per enclosing repetition
  int n_stack;
  // Logical names, one per index of the stacked axes before they were divided:
  // "layers.17.attn.wq". lm_global_add allocates them, and sets the name of a global without
  // stacked axes.
  lm_sym *paths;
  lm_init *init; // one per path; initially zeros
  int64_t n_paths;
  // packed: its parameters, in order, and the axis along which their elements are side by side. The
  // axes of a member that it replaces are adjacent.
  lm_sym *members;
  uint32_t n_members;
  lm_axis along;
  int added; // 1 + the number of the edit of the model that adds it: weights of its base lack it
  // state: its parameter or NULL, and whether it begins with the parameter's value instead of
  // `init`. That of a parameter has the parameter's stacked axes; index i of the innermost one is
  // `first` + i of the parameter's.
  lm_sym of;
  bool is_param;
  int64_t first;
  // A parameter that is a state of a block: what accum adds to its gradient is no derivative, and
  // @after_step assigns it, not @update.
  bool untrained;
  // Parameters: the gradient is the sum of what accum adds on the ranks along these axes.
  lm_mesh_set partial;
  bool whole; // parameters: ZeRO does not divide it
  lm_loc loc;
} lm_global;

// True for a parameter, trained or frozen. Only trained ones have gradients and optimizer states.
static inline bool lm_global_is_weight(const lm_global *g) {
  return g->kind == LM_GLOBAL_PARAM || g->kind == LM_GLOBAL_FIXED;
}

// True for a parameter that the optimizer updates.
static inline bool lm_global_is_updated(const lm_global *g) {
  return g->kind == LM_GLOBAL_PARAM && !g->untrained;
}

static inline lm_dtype lm_global_gradient_dtype(const lm_global *g) {
  return lm_dtype_is_half(g->type.dtype) ? LM_F32 : (lm_dtype)g->type.dtype;
}

// True if it has a gradient: parameters that are trained, alone or packed, and states of blocks.
static inline bool lm_global_is_trained(const lm_global *g) {
  return g->kind == LM_GLOBAL_PARAM || g->kind == LM_GLOBAL_PACKED;
}

// What pass causal has shown of the operations that relate positions: no position depends on a
// later one or on another document.
typedef struct lm_causality {
  int relations, proved; // such operations of the logits; those proved for every position
  int64_t positions;     // of the row on which the others were checked
  lm_loc checked;        // the first of the others
} lm_causality;

struct lm_module {
  lm_ctx *ctx;
  lm_arena *arena; // the context's
  lm_stage stage;
  lm_dtype real; // the type by which pass precision replaced `real`; LM_REAL: it has not run
  lm_axis_info *axes;
  uint32_t n_axes, cap_axes; // [0] unused
  lm_extent_info extents[LM_EXTENTS];
  // The blocks of all parameters, the first axis of the arguments of @update that are memory of
  // parameters, gradients and optimizer states. The planner settles its size. 0: there is none.
  lm_axis blocks;
  lm_mesh mesh;
  lm_global *globals;
  uint32_t n_globals, cap_globals;
  lm_func *funcs, **funcs_tail;
  uint32_t n_values;
  struct lm_analysis *analysis; // compiler/analysis/analysis.h; NULL before pass analyze
  lm_causality causality;       // of pass causal
};

// ---- types and axes (types.c)
lm_module *lm_module_create(lm_ctx *c);
// A new axis; if the name is taken, ".1", ".2", … is appended. Sizes are positive.
lm_axis lm_axis_add(lm_module *m, lm_sym name, int64_t size, int dyn);
lm_axis lm_axis_find(const lm_module *m, lm_sym name); // 0 if there is none
// `dyn` of an axis that has one element for each point of n axes: 0 if none of them is dynamic, -1
// if two are, or if the module has too many extents.
int lm_axes_extent(lm_module *m, const lm_axis *axes, int n);
// The number of the extent that is the lesser of `most` and the given extent number `of`; -1 if the
// module has too many extents.
int lm_extent_most(lm_module *m, int of, int64_t most);
// The axis of one part of `whole` when the ranks along a mesh axis (from 1) divide it evenly:
// always the same for the same two. It is named whole@mesh. LM_BUG if the size does not divide.
lm_axis lm_axis_part(lm_module *m, lm_axis whole, int mesh);
lm_mesh_set lm_axis_divided_by(const lm_module *m, lm_axis a); // the axes of the mesh that do
lm_mesh_set lm_type_divided_by(const lm_module *m, lm_type t);
lm_type lm_type_whole(const lm_module *m, lm_type t); // the type before any axis was divided
// The length of an axis' name without a suffix: of "g" in "g.1", "g@tp".
size_t lm_axis_base_length(const char *name);
int lm_mesh_find(const lm_module *m, const char *name); // from 1; 0 if there is none
int lm_mesh_ranks(const lm_module *m);                  // the sizes multiplied
// The coordinate of a rank along axis `mesh` (from 1), and the distance of the ranks of
// neighbouring coordinates.
int lm_mesh_coordinate(const lm_module *m, int rank, int mesh);
int lm_mesh_stride(const lm_module *m, int mesh);
// An axis of this name and size that `except` lacks; created if there is none.
lm_axis lm_axis_shared(lm_module *m, lm_sym name, int64_t size, lm_type except);
static inline int64_t lm_axis_size(const lm_module *m, lm_axis a) {
  return m->axes[a].size;
}
lm_type lm_type_make(lm_dtype dtype, const lm_axis *axes, int n);
lm_type lm_type_inner(lm_type t, int n); // t without its first n axes
// t behind the axis `front`; t has fewer than LM_RANK axes.
lm_type lm_type_stacked(lm_axis front, lm_type t);
lm_type lm_type_without(lm_type t, lm_type axes); // t without the axes that `axes` has
bool lm_type_equal(lm_type a, lm_type b);
int lm_type_find(lm_type t, lm_axis a);                  // index, -1 if absent
bool lm_type_subset(lm_type a, lm_type b);               // every axis of a is in b
bool lm_type_same_axes(lm_type a, lm_type b);            // in any order
int64_t lm_type_elements(const lm_module *m, lm_type t); // at capacity
// Bytes at capacity, as a double that cannot overflow.
static inline double lm_type_traffic(const lm_module *m, lm_type t) {
  return (double)lm_type_elements(m, t) * lm_dtype_bytes((lm_dtype)t.dtype);
}
// The bytes of the operands and results of op, as a kernel of op alone reads and writes them.
static inline double lm_op_traffic(const lm_module *m, const lm_op *op) {
  double bytes = 0;
  for (uint32_t i = 0; i < op->n_in; i++)
    bytes += lm_type_traffic(m, op->in[i]->type);
  for (uint32_t i = 0; i < op->n_out; i++)
    bytes += lm_type_traffic(m, op->out[i]->type);
  return bytes;
}
static inline bool lm_attr_has_axis(const lm_attr *a, lm_axis axis) {
  for (int i = 0; i < a->n_axes; i++)
    if (a->axes[i] == axis)
      return true;
  return false;
}
// All blocks: the axis of blocks, and an axis of LM_BLOCK elements.
lm_type lm_type_blocks(lm_module *m, lm_dtype dtype);
bool lm_type_is_blocks(const lm_module *m, lm_type t);
bool lm_type_dynamic(const lm_module *m, lm_type t);
void lm_type_print(const lm_module *m, lm_type t, lm_buf *out); // "f32[b, t, d]", scalars "f32"
lm_global *lm_global_add(lm_module *m, lm_global_kind kind, lm_sym name, lm_type type, int n_stack);
// Expands a template such as "layers.#.attn.wq" for element i of the stacked axes: each # becomes
// the index along one of them. NULL if the template does not have n_stack of them.
lm_sym lm_path_fill(const lm_module *m, const lm_global *g, const char *template, int64_t i);
// Indices of the stacked axes; fewer than paths if an axis of the mesh divides a stacked one.
int64_t lm_global_instances(const lm_module *m, const lm_global *g);
lm_global *lm_global_find(lm_module *m, lm_sym name); // pointers move when globals are added
// The packed global that has g as a member, or NULL; *out_first is the index of its first element
// along that global's axis.
const lm_global *lm_global_pack(const lm_module *m, const lm_global *g, int64_t *out_first);
// The elements of a member along the axis of its packed global.
int64_t lm_global_packed_size(const lm_module *m, const lm_global *packed, const lm_global *g);
// The optimizer states of a parameter at the indices of an operation, in the order of the module;
// returns their number. `out` has space for m->n_globals or is NULL.
uint32_t lm_global_states(const lm_module *m, const lm_global *g, const lm_attr *indices,
                          const lm_global **out);
// The strides in memory of the axes of g that are not stacked, in elements; returns the offset of
// its first element from the beginning of its packed global.
int64_t lm_global_strides(const lm_module *m, const lm_global *g, int64_t *out);
// The rows, of the first axis that is not stacked, for which a parameter has memory. Behind the
// rows of a large table are rows of zeros up to a multiple of 64, also in gradients and optimizer
// states.
int64_t lm_global_stored_rows(const lm_module *m, const lm_global *g);
// The elements of these rows, for one index of the stacked axes.
int64_t lm_global_stored_elements(const lm_module *m, const lm_global *g);
// The blocks of these elements, and those of all parameters for all indices.
int64_t lm_global_blocks(const lm_module *m, const lm_global *g);
int64_t lm_module_blocks(const lm_module *m);

// ---- build (build.c). The shape rule of ops.def computes result types; an invalid operation is an
// LM_BUG, because the checker rejects such programs. `type` is the result type of operations that
// need one (const, cast, expand, …).
typedef struct lm_builder {
  lm_module *m;
  lm_region *at;
  lm_op *before /* NULL: at the end */;
  lm_loc loc;
  uint8_t remat;
} lm_builder;
lm_func *lm_func_add(lm_module *m, lm_sym name);
// The function of a symbol of the program; lm_func_get: the one of functions.def. NULL if there is
// none.
lm_func *lm_func_find(const lm_module *m, const char *name);
lm_func *lm_func_get(const lm_module *m, lm_func_id id, int64_t seq);
lm_func *lm_func_get_key(const lm_module *m, lm_func_key key);
lm_func *lm_func_add_key(lm_module *m, lm_func_key key);
void lm_func_remove(lm_module *m, lm_func *f);
lm_value *lm_arg_add(lm_module *m, lm_region *r, lm_type type, lm_sym name);
// Emit an operation and its results: lm_emit_op returns the operation, the others its only result.
lm_op *lm_emit_op(lm_builder *b, lm_opcode code, lm_value *const *in, uint32_t n_in,
                  const lm_attr *attr, const lm_type *type);
lm_value *lm_emit(lm_builder *b, lm_opcode code, lm_value *const *in, uint32_t n_in,
                  const lm_attr *attr, const lm_type *type);
lm_value *lm_emit1(lm_builder *b, lm_opcode code, lm_value *x);
lm_value *lm_emit2(lm_builder *b, lm_opcode code, lm_value *x, lm_value *y);
lm_value *lm_emit_const(lm_builder *b, lm_type type, double v); // broadcast to any shape
lm_value *lm_emit_cast(lm_builder *b, lm_value *x, lm_dtype t); // x itself if it has dtype t
lm_value *lm_emit_select(lm_builder *b, lm_value *c, lm_value *x, lm_value *y);
lm_value *lm_emit_clamp(lm_builder *b, lm_value *index, int64_t n); // clamps to 0 … n - 1
// x itself if n = 0.
lm_value *lm_emit_reduce(lm_builder *b, lm_opcode sum_or_max, lm_value *x, const lm_axis *over,
                         int n);
lm_value *lm_emit_dot(lm_builder *b, lm_value *x, lm_value *w, const lm_axis *over, int n);
// to: x's axes in x's order, and new axes anywhere.
lm_value *lm_emit_expand(lm_builder *b, lm_value *x, lm_type to);
lm_value *lm_emit_permute(lm_builder *b, lm_value *x, const lm_axis *order, int n);
// Views: axis `whole` of x as two, or two neighbouring axes as one. whole = outer * inner elements.
lm_value *lm_emit_split(lm_builder *b, lm_value *x, lm_axis whole, lm_axis outer, lm_axis inner);
lm_value *lm_emit_join(lm_builder *b, lm_value *x, lm_axis outer, lm_axis inner, lm_axis whole);
// lm_loop_begin creates the operation with its region arguments (index, carries) and moves the
// builder inside; lm_loop_end emits the yield and moves the builder after the loop.
lm_op *lm_loop_begin(lm_builder *b, int64_t count, lm_axis axis, lm_value *const *carry,
                     uint32_t n_carry);
void lm_loop_end(lm_builder *b, lm_op *loop, lm_value *const *next, uint32_t n_next,
                 lm_value *const *stacked, uint32_t n_stacked);
// The results of a loop are its final carries, then the stacked values with the loop axis in front.
// Kernels are built in the same way; their region has one argument per operand.
lm_op *lm_kernel_begin(lm_builder *b, const lm_attr *attr, lm_value *const *in, uint32_t n_in);
void lm_kernel_end(lm_builder *b, lm_op *kernel, lm_value *const *results, uint32_t n);
// attend and attend_vjp are built like kernels; the first argument of attend_vjp's region is the
// score's cotangent, of type *cotangent.
lm_op *lm_attend_begin(lm_builder *b, const lm_attr *attr, lm_value *const *in, uint32_t n_in,
                       const lm_type *cotangent);
void lm_attend_end(lm_builder *b, lm_op *attend, lm_value *const *yields, uint32_t n);
// Adds v, a value of the loop's body, as a stacked result of a complete loop. Gives the loop an
// axis if it has none.
lm_value *lm_loop_stack(lm_module *m, lm_op *loop, lm_value *v);
void lm_op_remove(lm_op *op); // unlinks; its values must be unused
void lm_op_insert_before(lm_op *at, lm_op *op);

// Visits every operation of a region in order, nested regions after their owner. `fn` may remove
// the operation that it is given.
void lm_region_walk(lm_region *r, void (*fn)(lm_op *op, void *user), void *user);
// The number of operations with this opcode that access the symbol, nested regions included.
int lm_region_count(const lm_region *r, lm_opcode code, lm_sym sym);
// Replaces uses in a function: map[id] != NULL is the replacement of value id (chains are
// followed).
void lm_func_substitute(lm_func *f, lm_value *const *map, uint32_t n_map);
// Copies op and its regions to the builder's position. map, by value id (with the size of
// module.n_values before the first copy): the replacement of each value, or NULL; the results of
// the copies are added.
lm_op *lm_op_clone(lm_builder *b, const lm_op *op, lm_value **map);
lm_func *lm_func_clone(const lm_func *f, lm_sym name);
// A hash of the computation of f (digest.c): equal for programs that differ in names, statement
// order or form only. Calls must be inlined.
uint64_t lm_func_digest(const lm_func *f);
uint32_t *lm_func_uses(const lm_func *f); // number of uses by value id; free with lm_free

// ---- text (print.c, parse.c) and verification (verify.c)
void lm_module_print(const lm_module *m, lm_buf *out);
void lm_op_print(const lm_op *op, lm_buf *out);         // one line, without its region
lm_module *lm_module_parse(lm_ctx *c, uint16_t source); // NULL with diagnostics
// Checks structure, types by the shape rules, dominance, and the operations that the stage allows.
// Appends the errors to `out`; true if there are none.
bool lm_module_verify(const lm_module *m, lm_buf *out);

// ---- the table (ops.c)
// The attributes that an operation has: fields of lm_attr, and lm_op.body.
enum {
  LM_A_AXES = 1,
  LM_A_TO = 2,
  LM_A_IMM = 4,
  LM_A_NUM = 8,
  LM_A_SYM = 16,
  LM_A_BODY = 32,
  LM_A_MESH = 64
};
enum {
  LM_T_ELEMENTWISE = 1, // result[i] depends on operand[i] only
  LM_T_VIEW = 2,        // moves no data if the consumer supports strides
  LM_T_EFFECT = 4,      // must be kept, and kept in order
  LM_T_COMMUTE = 8,
  LM_T_REDUCE = 16,
  LM_T_STRUCT = 32,    // control: loop, yield, return, call, kernel
  LM_T_TYPED = 64,     // the result type is given, not inferred
  LM_T_MOVE = 128,     // each element of the result is an element of the first operand
  LM_T_ORDERED = 256,  // a move that keeps the row-major order: the same memory under another type
  LM_T_ASSEMBLE = 512, // concatenation or padding
  LM_T_SOURCE = 1024,  // no element of the result is computed from an operand; operands are indices
  LM_T_INDEXED = 2048, // the second operand holds positions along the attributes' axes
  LM_T_DOT = 4096,     // a dot of the first two operands
  LM_T_LINEAR = 8192,  // linear in all operands together (select: in its two branches)
  LM_T_BILINEAR = 16384,     // linear in either of its two operands
  LM_T_LINEAR_FIRST = 32768, // linear in the first operand only
  LM_T_COLLECTIVE = 65536,   // exchanges data between the ranks along an axis of the mesh
  LM_T_GROUPED = 131072,     // runs over rows that are sorted by group: computed once
};
// How pass `shard` divides an operation, and how the states of its operands give the states of its
// results (compiler/passes/shard/mesh_state.h).
typedef enum {
  LM_FACTOR_MAP,   // along an axis that operands and result share; operands that lack it are whole
  LM_FACTOR_SUM,   // the same; along an axis that is summed the result is partial
  LM_FACTOR_MAX,   // the same, with a maximum of the ranks' maxima
  LM_FACTOR_INDEX, // the same; along the indexed axis each rank has a part of the table
  LM_FACTOR_MOVE,  // the same; an axis of the attributes may be divided if its counterpart is
  LM_FACTOR_WHOLE, // the same, except along the axes of the attributes
  LM_FACTOR_ROWS,  // random numbers: by the number of the row
  LM_FACTOR_STATE, // globals: as the global is divided
  LM_FACTOR_ROUTE, // rows that are sorted by group (compiler/passes/shard/shard_route.c)
  LM_FACTOR_SCAN,  // a loop over positions: along axes that its region computes independently
  LM_FACTOR_FLOW,  // control: by its operands
  LM_FACTOR_NONE,  // is not divided: created by `shard` or after it
} lm_factor;
enum {
  LM_IN_GRAPH = 1,
  LM_IN_STEP = 2,
  LM_IN_KERNEL = 4 /* at top level of the kernel stage */,
  LM_IN_BODY = 8 /* inside a kernel */
};
typedef struct lm_op_info {
  const char *name;
  int n_in, n_out; // -1: any number
  uint32_t attrs, traits, stages;
  lm_factor factor;
  double flops; // per result element (reductions: per operand element)
  const char *doc;
} lm_op_info;
extern const lm_op_info lm_op_table[LM_OPS];
static inline const lm_op_info *lm_op_info_of(const lm_op *op) {
  return &lm_op_table[op->code];
}
// @name[indices]: a pair (first, step) in imm for each index along a stacked axis.
static inline bool lm_op_info_indexed(const lm_op_info *i) {
  return i->attrs & LM_A_SYM && i->attrs & LM_A_IMM;
}
static inline bool lm_op_ends_region(const lm_op *op) {
  return op->code == LM_OP_YIELD || op->code == LM_OP_RETURN;
}
// True if iteration i of the loop stores its stacked results in slot (trip count - 1 - i).
static inline bool lm_loop_is_reversed(const lm_op *loop) {
  return loop->attr.n_imm > 1 && loop->attr.imm[1];
}
// The value of a `cycle` for the operand i, on the rank of this coordinate; and how many it has.
static inline int64_t lm_cycle_at(const lm_op *op, int64_t i, int64_t rank) {
  const int64_t *imm = op->attr.imm;
  return (imm[0] + imm[1] * i + imm[2] * rank) % imm[3] / imm[4];
}
static inline int64_t lm_cycle_count(const lm_op *op) {
  return op->attr.imm[3] / op->attr.imm[4];
}
static inline bool lm_op_attends(const lm_op *op) {
  return op->code == LM_OP_ATTEND || op->code == LM_OP_ATTEND_VJP;
}
bool lm_value_is_weight(const lm_value *v); // a parameter, or a cast or view of one
// True if the region of op can use its arguments only, not values of outer regions.
static inline bool lm_op_isolated(const lm_op *op) {
  return op->code == LM_OP_KERNEL || op->code == LM_OP_SCAN || lm_op_attends(op);
}
#endif
