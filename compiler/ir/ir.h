// ir.h - the one IR: modules of functions over tensors whose axes have names.
//
// A module moves through stages (graph -> step -> kernel); the data structure and its text (.lmir)
// stay the same, the verifier's table says which operations each stage may hold. parse(print(m)) ==
// m at every stage.
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
// Everything lives in the module's arena. Axes are identified by handle: two axes of one module
// with the same handle are the same axis. Tensors are dense, row-major in the order of their axes,
// unless a plan says otherwise.
#ifndef LM_IR_H
#define LM_IR_H
#include "runtime/base/diag.h"
#include "runtime/base/dtype.h"

static inline bool lm_dtype_is_float(lm_dtype t) {
  return t <= LM_F64;
}

typedef uint16_t lm_axis; // index into module.axes; 0 is no axis
typedef struct lm_axis_info {
  lm_sym name;  // unique in the module: "t", "t.1"
  int64_t size; // dynamic: the capacity (strides use it)
  int dyn;      // 0: static; k > 0: extent number k-1, known at run time, <= size
} lm_axis_info;

#define LM_RANK 12
#define LM_ELEMENTS_MAX ((int64_t)1 << 47) // of a tensor: fewer
typedef struct lm_type {
  uint8_t dtype, rank;
  lm_axis axis[LM_RANK];
} lm_type; // unused axis entries are 0

typedef struct lm_op lm_op;
typedef struct lm_region lm_region;
typedef struct lm_func lm_func;
typedef struct lm_module lm_module;
typedef struct lm_analysis lm_analysis;

typedef struct lm_value {
  lm_type type;
  lm_op *def;        // NULL: argument `index` of `region`
  lm_region *region; // where it is visible from
  uint32_t index;
  uint32_t id; // unique in the module: print name, index of side tables
  lm_sym name; // what the source called it, or NULL; printed as %name.id
} lm_value;

typedef enum {
#define OP(E, ...) LM_OP_##E,
#include "compiler/ir/ops.def"
#undef OP
  LM_OPS
} lm_opcode;

// Attributes; ops.def says which of them an operation uses, and how they print.
typedef struct lm_attr {
  lm_axis axes[LM_RANK], to[LM_RANK]; // e.g. dot: axes = over; view: axes -> to
  uint8_t n_axes, n_to;
  int64_t imm[8];
  uint8_t n_imm; // e.g. slice: first, step; loop: count
  double num;    // const
  lm_sym sym;    // param, accum, append: global; call: function; emit: name
} lm_attr;

// Whether the backward pass finds a value where the forward pass left it, or computes it again.
// Printed behind the types.
typedef enum {
  LM_REMAT_AUTO,
  LM_REMAT_SAVE,
  LM_REMAT_RECOMPUTE,
  LM_REMATS
} lm_remat;
extern const char *const lm_remat_names[LM_REMATS]; // "", "save", "again"

struct lm_op {
  lm_opcode code;
  uint8_t keep; // lm_remat
  lm_loc loc;
  lm_op *prev, *next;
  lm_region *parent;
  uint32_t n_in, n_out;
  lm_value **in;
  lm_value **out;
  lm_attr attr;
  lm_region *body; // loop, kernel, attend
  uint32_t mark;   // scratch for passes
};

struct lm_region {
  lm_op *first, *last;
  lm_value **args;
  // func: its parameters; loop: index (int), then the carried values; kernel: one per operand.
  // Values of outer regions are visible in loops, not in kernels.
  uint32_t n_args;
  lm_op *owner; // NULL for a function's body
  lm_func *func;
};

struct lm_func {
  lm_sym name;
  lm_region *body; // args[i]->name is the name of parameter i; ends with `return`
  lm_sym *out_names;
  uint32_t n_out; // names of the results
  lm_module *module;
  lm_func *next;
};

typedef enum {
  LM_GLOBAL_PARAM,
  LM_GLOBAL_CACHE,
  LM_GLOBAL_MADE, // of parameters: the result of @copies that has its name
  LM_GLOBAL_KINDS,
} lm_global_kind;
extern const char *const lm_global_names[LM_GLOBAL_KINDS]; // "param", "cache", "made"

typedef struct lm_global {
  lm_global_kind kind;
  lm_sym name;  // path without indices: "layers.attn.wq"
  lm_type type; // with its n_stack leading axes, one for each enclosing repetition
  int n_stack;
  lm_sym *paths; // logical names, one per index of the stack: "layers.17.attn.wq";
                 // lm_global_add makes room, and fills in a name that is not stacked
  lm_init *init; // one per path; lm_global_add: zeros
  int64_t n_paths;
  lm_loc loc;
} lm_global;

typedef enum {
  LM_STAGE_GRAPH,
  LM_STAGE_STEP,
  LM_STAGE_KERNEL,
  LM_STAGES
} lm_stage;

struct lm_module {
  lm_ctx *ctx;
  lm_arena *arena; // the context's
  lm_stage stage;
  lm_axis_info *axes;
  uint32_t n_axes, cap_axes; // [0] unused
  lm_global *globals;
  uint32_t n_globals, cap_globals;
  lm_func *funcs, **funcs_tail;
  uint32_t n_values;
  struct lm_analysis *analysis; // compiler/analysis/analysis.h; NULL before pass analyze
};

// ---- types and axes (types.c)
lm_module *lm_module_create(lm_ctx *c);
// A new axis; if the name is taken, ".1", ".2", … is appended. Sizes are positive.
lm_axis lm_axis_add(lm_module *m, lm_sym name, int64_t size, int dyn);
lm_axis lm_axis_find(const lm_module *m, lm_sym name); // 0 if there is none
lm_axis lm_axis_shared(lm_module *m, lm_sym name, int64_t size,
                       lm_type but); // one of that name and size that `but` lacks; else new
static inline int64_t lm_axis_size(const lm_module *m, lm_axis a) {
  return m->axes[a].size;
}
lm_type lm_type_make(lm_dtype dtype, const lm_axis *axes, int n);
bool lm_type_equal(lm_type a, lm_type b);
int lm_type_find(lm_type t, lm_axis a);                  // position, -1 if absent
bool lm_type_subset(lm_type a, lm_type b);               // every axis of a is in b
int64_t lm_type_elements(const lm_module *m, lm_type t); // at capacity
static inline double lm_type_traffic(const lm_module *m,
                                     lm_type t) { // bytes, as costs count them: no size overflows
  return (double)lm_type_elements(m, t) * lm_dtype_bytes((lm_dtype)t.dtype);
}
static inline bool lm_attr_has_axis(const lm_attr *a, lm_axis axis) {
  for (int i = 0; i < a->n_axes; i++)
    if (a->axes[i] == axis)
      return true;
  return false;
}
bool lm_type_dynamic(const lm_module *m, lm_type t);
void lm_type_print(const lm_module *m, lm_type t, lm_buf *out); // "f32[b, t, d]", scalars "f32"
lm_global *lm_global_add(lm_module *m, lm_global_kind kind, lm_sym name, lm_type type, int n_stack);
// What a template such as "layers.#.attn.wq" says for place i of the stack: each # is the index
// along one stacked axis. NULL if it does not have n_stack of them.
lm_sym lm_path_fill(const lm_module *m, const lm_global *g, const char *template, int64_t i);
lm_global *lm_global_find(lm_module *m, lm_sym name); // pointers move when globals are added

// ---- build (build.c). The shape rule of ops.def computes result types; a violated rule is an
// LM_BUG, as the checker has refused such programs before. `type` is used by operations whose
// result is not implied (const, cast, expand, …).
typedef struct lm_builder {
  lm_module *m;
  lm_region *at;
  lm_op *before /* NULL: at the end */;
  lm_loc loc;
  uint8_t keep;
} lm_builder;
lm_func *lm_func_add(lm_module *m, lm_sym name);
lm_func *lm_func_find(lm_module *m, const char *name);
void lm_func_remove(lm_module *m, lm_func *f);
lm_value *lm_arg_add(lm_module *m, lm_region *r, lm_type type, lm_sym name);
lm_op *lm_emit_op(lm_builder *b, lm_opcode code, lm_value *const *in, uint32_t n_in,
                  const lm_attr *attr, const lm_type *type);
lm_value *lm_emit(lm_builder *b, lm_opcode code, lm_value *const *in, uint32_t n_in,
                  const lm_attr *attr, const lm_type *type);
lm_value *lm_emit1(lm_builder *b, lm_opcode code, lm_value *x);
lm_value *lm_emit2(lm_builder *b, lm_opcode code, lm_value *x, lm_value *y);
lm_value *lm_emit_const(lm_builder *b, lm_type type, double v); // any shape: filled
lm_value *lm_emit_cast(lm_builder *b, lm_value *x,
                       lm_dtype t); // x itself when already of that type
lm_value *lm_emit_select(lm_builder *b, lm_value *c, lm_value *x, lm_value *y);
lm_value *lm_emit_clamp(lm_builder *b, lm_value *index, int64_t n); // the nearest of 0, …, n - 1
lm_value *lm_emit_reduce(lm_builder *b, lm_opcode sum_or_max, lm_value *x, const lm_axis *over,
                         int n); // x itself for n = 0
lm_value *lm_emit_dot(lm_builder *b, lm_value *x, lm_value *w, const lm_axis *over, int n);
lm_value *lm_emit_expand(lm_builder *b, lm_value *x,
                         lm_type to); // to: x's axes in x's order plus new ones anywhere
lm_value *lm_emit_permute(lm_builder *b, lm_value *x, const lm_axis *order, int n);
// loop: creates the op with region args (index, carries); the builder then stands inside. End
// yields and steps out.
lm_op *lm_loop_begin(lm_builder *b, int64_t count, lm_axis axis, lm_value *const *carry,
                     uint32_t n_carry);
void lm_loop_end(lm_builder *b, lm_op *loop, lm_value *const *next, uint32_t n_next,
                 lm_value *const *stacked, uint32_t n_stacked);
// results of a loop: its final carries, then the stacked values with the loop axis in front
// kernel: as loop; the region's arguments stand for the operands
lm_op *lm_kernel_begin(lm_builder *b, const lm_attr *attr, lm_value *const *in, uint32_t n_in);
void lm_kernel_end(lm_builder *b, lm_op *kernel, lm_value *const *results, uint32_t n);
// attend and attend_vjp: as kernel; in attend_vjp the region's first argument, of type *cotangent,
// goes before the others
lm_op *lm_attend_begin(lm_builder *b, const lm_attr *attr, lm_value *const *in, uint32_t n_in,
                       const lm_type *cotangent);
void lm_attend_end(lm_builder *b, lm_op *attend, lm_value *const *yields, uint32_t n);
// One more stacked result of a finished loop: v, a value of its body. Gives the loop an axis if it
// has none.
lm_value *lm_loop_stack(lm_module *m, lm_op *loop, lm_value *v);
void lm_op_remove(lm_op *op); // unlinks; its values must be unused
void lm_op_insert_before(lm_op *at, lm_op *op);

// Visit every operation of a region in order, regions inside after their owner. `fn` may remove the
// op it is given.
void lm_region_walk(lm_region *r, void (*fn)(lm_op *op, void *user), void *user);
// Replace uses throughout a function: map[id] != NULL stands for value id (chains are followed).
void lm_func_substitute(lm_func *f, lm_value *const *map, uint32_t n_map);
// Copies op and its regions to where the builder stands. map, by value id (room for module.n_values
// as it was before the first copy): what stands for each value; NULL is the value itself. The
// copies' results are entered.
lm_op *lm_op_clone(lm_builder *b, const lm_op *op, lm_value **map);
lm_func *lm_func_clone(const lm_func *f, lm_sym name);
// A hash of what f computes (digest.c): equal for programs that differ in names, order or form
// alone. Calls must be inlined.
uint64_t lm_func_digest(const lm_func *f);
uint32_t *lm_func_uses(const lm_func *f); // by value id; lm_free it

// ---- text (print.c, parse.c) and verification (verify.c)
void lm_module_print(const lm_module *m, lm_buf *out);
void lm_func_print(const lm_func *f, lm_buf *out);
void lm_op_print(const lm_op *op, lm_buf *out);         // one line, without its region
lm_module *lm_module_parse(lm_ctx *c, uint16_t source); // NULL with diagnostics
// Checks structure, types by the shape rules, dominance, and what the stage allows. Appends what is
// wrong to `out`; true if all is well.
bool lm_module_verify(const lm_module *m, lm_buf *out);

// ---- the table (ops.c)
enum {
  LM_A_AXES = 1,
  LM_A_TO = 2,
  LM_A_IMM = 4,
  LM_A_NUM = 8,
  LM_A_SYM = 16,
  LM_A_BODY = 32
};
enum {
  LM_T_ELEMENTWISE = 1, // result[i] depends on operand[i] alone
  LM_T_VIEW = 2,        // moves no data if the consumer takes strides
  LM_T_EFFECT = 4,      // keep, and keep in order
  LM_T_COMMUTE = 8,
  LM_T_REDUCE = 16,
  LM_T_STRUCT = 32,    // control: loop, yield, return, call, kernel
  LM_T_TYPED = 64,     // the result type is given, not implied
  LM_T_MOVE = 128,     // each element of the result is an element of the first operand
  LM_T_ORDERED = 256,  // a move that keeps the row-major order: the same memory under another type
  LM_T_ASSEMBLE = 512, // the operands next to each other, or an operand between zeros
  LM_T_SOURCE = 1024,  // no element of the result is computed from an operand; operands are indices
  LM_T_INDEXED = 2048, // the second operand holds positions along the attributes' axes
  LM_T_PRODUCT = 4096, // a matrix product of the first two operands
  LM_T_LINEAR = 8192,  // linear in all operands together (select: in its two branches)
  LM_T_BILINEAR = 16384,     // linear in either of its two operands
  LM_T_LINEAR_FIRST = 32768, // linear in the first operand alone
};
enum {
  LM_IN_GRAPH = 1,
  LM_IN_STEP = 2,
  LM_IN_KERNEL = 4 /* at top level of the kernel stage */,
  LM_IN_BODY = 8 /* inside a kernel */
};
typedef struct lm_grad lm_grad;
typedef struct lm_op_info {
  const char *name;
  int n_in, n_out; // -1: any number
  uint32_t attrs, traits, stages;
  // Result types of op (op->in, attr set; out[0] holds the type given, which LM_T_TYPED checks).
  // False with a reason appended to why.
  bool (*shape)(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why);
  void (*vjp)(lm_grad *g, lm_op *op); // see lm_op_derivative
  double flops;                       // per result element (reductions: per operand element)
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
static inline bool lm_op_attends(const lm_op *op) {
  return op->code == LM_OP_ATTEND || op->code == LM_OP_ATTEND_VJP;
}
bool lm_value_is_weight(const lm_value *v); // a parameter, or it in another type or layout
// Its region sees its arguments alone, no values of the regions around it.
static inline bool lm_op_isolated(const lm_op *op) {
  return op->code == LM_OP_KERNEL || lm_op_attends(op);
}
#endif
