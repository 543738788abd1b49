// elab.h - elaboration: runs the declarations of a program over typed tensors and emits graph IR on
// the way.
//
// One evaluator does the checking and the lowering. With `b` set it emits; without it (definitions
// that no recipe reaches) it only checks, sizes being symbolic. An error is reported once, its
// value is V_ERROR, and whatever meets a V_ERROR stays silent, so one mistake makes one message.
//
// Axes are objects of a scope: two tensors share an axis when they share the object. Calls bind the
// callee's names to the caller's axes; where a name already stands for an axis of the instance (`d`
// of a block), the argument is renamed to it on the way in and back on the way out.
#ifndef LM_ELAB_H
#define LM_ELAB_H
#include "compiler/ir/ir.h"
#include "dsl/syntax/program.h"
#include "dsl/elab/size.h"

typedef struct lm_elab lm_elab;
typedef struct el_inst el_inst;

typedef struct el_axis {
  lm_sym name;
  lm_size size;
  lm_axis ir;   // 0 until it stands in an emitted type, or while only checking
  int dyn;      // as in lm_axis_info
  bool opaque;  // stands for the unknown axes of a row (definitions only)
  bool element; // numbers the elements of all parameters, of which an optimizer sees one
} el_axis;

typedef struct el_axes {
  el_axis **v;
  uint32_t n, cap;
} el_axes;

// Kinds of numbers: `real` is the precision the recipe chooses; NUM is what adapts (literals,
// sizes, iota).
typedef enum {
  K_REAL,
  K_F32,
  K_INT,
  K_BOOL,
  K_NUM
} el_kind;

typedef enum {
  V_ERROR, // reported already, or unknown while only checking
  V_NUM,   // number known at compile time: size (if has_size) or num; known = false: some number
  V_BOOL,  // known at compile time: num != 0
  V_STRING,
  V_QUANTITY,
  V_PATTERN,
  V_TENSOR,
  V_TUPLE,
  V_RECORD, // Batch
  V_AXES,   // an axis or a list of axes
  V_INST,   // an instance of a block
  V_INSTS,  // sub xs[i < n]
} el_vkind;

typedef struct el_index {
  lm_value *loop;
  int64_t first, step;
} el_index; // place in a stack: first + step * loop
typedef struct el_bind el_bind;
// an instance at its places; `over`: its parameters that follow the index, as scalars of the loop
typedef struct el_ref {
  el_inst *inst;
  int n;
  el_index at[4];
  el_bind *over;
} el_ref;

typedef struct el_val {
  el_vkind k;
  lm_loc loc;  // where it was bound, for messages
  lm_sym name; // what it is called there, or NULL
  bool known, has_size;
  lm_size size;
  double num;
  lm_sym text; // text: strings, units, patterns
  el_kind kind;
  el_axes axes;
  lm_value *v; // TENSOR; AXES: axes
  struct el_val *items;
  uint32_t n; // TUPLE, RECORD (item names in `names`)
  const lm_sym *names;
  el_ref ref; // INST, INSTS (ref.inst: the first variant)
  struct el_insts *insts;
} el_val;

struct el_bind {
  lm_sym name;
  el_val val;
  bool settable;
  el_bind *up, *hides /* of that name, before it */;
};
typedef struct el_slot {
  lm_sym name;
  el_bind *last;
} el_slot;
typedef struct el_names {
  el_bind *last;
  uint32_t n;
  el_slot *index;
  uint32_t cap, used;
} el_names;
typedef struct el_axis_bind {
  lm_sym name;
  el_axis *axis;
  struct el_axis_bind *up;
} el_axis_bind;
typedef struct el_row {
  lm_sym name;
  el_axes axes;
  struct el_row *up;
} el_row;

typedef struct el_frame {
  struct el_frame *up; // the caller
  const char *what;    // "Attn.apply", "rope"
  lm_loc called_at;
  const lm_file *file; // whose names are visible
  el_ref *self;        // the instance whose method runs, or NULL
  el_names names;
  el_axis_bind *axes;
  el_row *rows;
  el_kind real; // what `real` means here
  el_axes live; // axes that may meet here: names of new IR axes avoid theirs
  bool has_result;
  el_val result;
} el_frame;

typedef struct el_param {
  lm_sym name;
  el_axes axes;
  el_kind kind;
  lm_loc loc;
  lm_sym global;
} el_param;

// sub xs[index < n]: an instance for every i, all with the same parameters' shapes. `follows[k]`:
// argument k takes many values and so is computed in the loop instead of making loops of their own.
typedef struct el_insts {
  int64_t n;
  el_inst **of;
  lm_sym index;
  const ast_member *member;
  bool *follows;
} el_insts;

struct el_inst {
  ast_decl *decl;
  const lm_file *file;
  lm_sym path; // "layers.attn": without indices; "" for the model
  int n_stack;
  int64_t stack[4], place[4];
  lm_sym stack_name[4]; // repetitions around it and its place in them
  const ast_expr *call; // the expression that made it
  lm_loc at;            // where it was instantiated
  el_inst *owner;
  el_names vals; // parameters and dims as values
  el_axis_bind *axes;
  el_param *params;
  uint32_t n_params, cap_params;
  struct el_sub {
    lm_sym name;
    lm_loc loc;
    el_inst *one;
    el_insts *many;
  } * subs;
  uint32_t n_subs, cap_subs;
  bool broken;
};

typedef enum {
  EL_TRAIN,
  EL_EVAL,
  EL_DECODE,
  EL_UPDATE /* optimizer and schedule */
} el_mode;

typedef struct el_library_call el_library_call;

struct lm_elab {
  lm_ctx *c;
  lm_arena *a;
  lm_program *prog;
  lm_module *m; // NULL while only checking
  lm_builder b;
  el_mode mode;
  lm_dtype compute; // what K_REAL is in the IR
  el_frame *frame;
  uint32_t depth, budget; // of calls; of evaluated expressions
  bool exhausted;         // the budget is spent, and that is reported
  uint32_t guarded,
      dead; // branches of `select` around: any, and those that are not taken (select.c)
  lm_value *step, *row, *layer,
      *at;          // scalars of the function being made: for rng; first place of the cache
  lm_axis position; // axis t of the function being made: what history follows
  int64_t capacity;
  int history_dyn; // EL_DECODE: places of a cache, and the extent that says how many are filled
  uint32_t n_sites, n_caches;
  uint64_t seed;
  el_library_call *library; // library calls made so far, by signature
  uint32_t n_library;
  bool in_library,
      library_failed; // inside a library function of its own; it needs what only the caller has
  struct {
    lm_value *index;
    int64_t count;
    lm_sym name;
    const void *over;
  } loops[4];
  int n_loops; // over: el_insts or ast_stmt
  const void **unrolled;
  uint32_t n_unrolled, cap_unrolled; // of the same kind; see unroll.c
  bool again;                        // the function being made has to be made again
  struct el_remats *keeps;           // remat.c; NULL: nothing is asked for
  // Metrics: their value leaves the loops around it stacked, and is named by its places in them:
  // name.3, name.3.0.
  struct el_emit {
    lm_sym name;
    const char *places;
    int64_t place;
    el_val val;
  } * emits;
  uint32_t n_emits, cap_emits;
  struct el_made *made; // what methods of the model gave in the function being made (once.c)
  const ast_decl **visited;
  uint32_t n_visited, cap_visited;
};

// ---- names (names.c)
el_bind *el_names_find(const el_names *s, lm_sym name); // the last of that name, NULL
void el_names_add(lm_elab *e, el_names *s, lm_sym name, el_val v, bool settable);
void el_names_cut(el_names *s, const el_bind *last); // forgets what came after `last`

// ---- values (value.c)
el_val el_error(void);
el_val el_number(lm_elab *e, double v);
el_val el_whole(lm_elab *e, int64_t v);
el_val el_sized(lm_size s);
el_val el_unknown_number(void);
el_val el_boolean(bool v, bool known);
el_val el_tensor(el_kind kind, const el_axes *axes, lm_value *v);
el_val el_tuple(lm_elab *e, const el_val *items, uint32_t n);
bool el_is_scalar_number(const el_val *v);
bool el_number_value(const el_val *v, double *out); // known number
const char *el_show(lm_elab *e, const el_val *v);   // "real[b, t, d]" for messages
const char *el_show_axes(lm_elab *e, const el_axes *axes);
const char *el_kind_name(el_kind k);
lm_dtype el_dtype(const lm_elab *e, el_kind k);
void el_note_value(lm_elab *e, lm_diag *d, const el_val *v); // "= x: real[b, t, d] (line 8)"
lm_diag *el_err(lm_elab *e, lm_loc at, const char *code, const char *fmt, ...)
    LM_PRINTF(4, 5); // with the chain of instances
el_val el_fail(lm_elab *e, lm_loc at, const char *code, const char *fmt, ...) LM_PRINTF(4, 5);
bool el_reject(lm_elab *e, lm_loc at, const char *code, const char *fmt, ...) LM_PRINTF(4, 5);

// ---- axes (value.c)
el_axis *el_axis_new(lm_elab *e, lm_sym name, lm_size size, int dyn); // also made live in the frame
el_axis *el_axis_again(lm_elab *e, const el_axis *x); // a second axis with the properties of x
lm_axis el_axis_ir(lm_elab *e, el_axis *x);
void el_axis_bind_name(lm_elab *e, lm_sym name, el_axis *x);
el_axis *el_axis_lookup(lm_elab *e, lm_sym name); // of the frame or its instance; NULL
// Whether x holds places (t, or s of the history) in a function that decodes: how many is no number
// of the model then.
bool el_axis_is_sequence(const lm_elab *e, const el_axis *x);
el_val el_axis_size(lm_elab *e, const el_axis *x, lm_loc at); // its size as a value
bool el_axes_has(const el_axes *s, const el_axis *x);
int el_axes_find(const el_axes *s, const el_axis *x);
bool el_axes_subset(const el_axes *s, const el_axes *of);
bool el_axes_same(const el_axes *x, const el_axes *y); // same order
void el_axes_push(lm_elab *e, el_axes *s, el_axis *x);
el_axes el_axes_minus(lm_elab *e, const el_axes *s, const el_axes *drop);
lm_type el_ir_type(lm_elab *e, el_kind kind, const el_axes *axes);
bool el_size_check(lm_elab *e, lm_type t,
                   lm_loc at);             // whether a tensor can be so large; else it is an error
void el_live(lm_elab *e, const el_val *v); // makes the axes of a value live in the frame
el_val el_rename(lm_elab *e, const el_val *v, const el_axes *from,
                 const el_axes *to); // tensors, tuples, records

// ---- expressions (expr.c, prim.c)
el_val el_eval(lm_elab *e, const ast_expr *x);
// Of n arguments the one for parameter k of the declaration, NULL where the default stands.
bool el_mentions(const ast_expr *x, const el_bind *names);
const ast_expr *el_argument(const ast_arg *args, uint32_t n, const ast_sig *sig, uint32_t k);
el_val el_binary(lm_elab *e, ast_op op, const el_val *x, const el_val *y, lm_loc at);
el_val el_as_tensor(lm_elab *e, const el_val *v, lm_loc at); // numbers become NUM scalars
el_val el_adapt(lm_elab *e, const el_val *v, el_kind kind,
                lm_loc at); // NUM tensors and numbers to a kind
bool el_axis_list(lm_elab *e, const ast_expr *x,
                  el_axes *out); // axis, tuple or list of axes, row variable
el_val el_primitive(lm_elab *e, const ast_expr *call, bool *out_found);
el_val el_history(lm_elab *e, const el_val *v, el_axis *t, el_axis *s, lm_loc at);
// How far a program may expand; fuzzers are built with less. LM_EXPRESSIONS: expressions evaluated
// for one lowering, some hundred bytes of memory each; models of public architectures, layers that
// have to be unrolled included, take a few thousand. EL_MOST: of things that are found by walking
// through all of them, axes and parameters; nothing more is evaluated then.
#ifndef LM_EXPRESSIONS
#define LM_EXPRESSIONS 200000
#endif
enum {
  EL_EXPRESSIONS = LM_EXPRESSIONS,
  EL_MOST = LM_EXPRESSIONS < 4096 ? LM_EXPRESSIONS : 4096
};
// Whether what could not be read, and is reported, may have declared a name that is not found here.
bool el_is_incomplete(const lm_elab *e);
bool el_budget(lm_elab *e, lm_loc at);
void el_count_check(lm_elab *e, uint32_t n, const char *what, lm_loc at);

// ---- calls (call.c)
el_val el_call(lm_elab *e, const ast_expr *x);
el_val el_invoke_method(lm_elab *e, const el_ref *ref, lm_sym method, const el_val *args,
                        uint32_t n, lm_loc at);
el_val el_invoke_fn(lm_elab *e, lm_decl_ref fn, const el_val *args, uint32_t n,
                    lm_loc at); // args: tensors, one a parameter
el_kind el_kind_of_type(lm_elab *e, const ast_type *t, bool *out_ok);
el_val el_lookup(lm_elab *e, lm_sym name, lm_loc at, bool report);
// A parameter, dim or sub of the frame's instance.
el_val el_lookup_member(lm_elab *e, lm_sym name, bool *out_found);
void el_check_fn(lm_elab *e, const lm_file *file, ast_decl *d); // a definition that nothing reaches

// ---- loops whose index decides something (unroll.c)
bool el_unrolled(const lm_elab *e, const void *over);
// A scalar computed from loop indices alone, wanted at compile time: true asks for those loops to
// be unrolled. What the function holds until then, diagnostics included, is thrown away.
bool el_decide(lm_elab *e, const el_val *v);

// ---- constraints (where.c), in the frame where the parameters' names are bound
// locs: of the arguments; NULL: not known. inst: whose parameters they are; NULL: of no instance.
typedef struct el_where {
  const ast_sig *sig;
  const char *what;
  lm_loc at;
  const lm_loc *locs;
  const el_inst *inst;
} el_where;
lm_diag *el_where_check(lm_elab *e, const el_where *s,
                        const ast_expr *constraint); // NULL: it holds; else the report
bool el_where_check_all(lm_elab *e, const el_where *s);

// ---- statements (stmt.c)
void el_run(lm_elab *e, const ast_body *body);
void el_bind_name(lm_elab *e, lm_sym name, el_val v, bool settable);

bool el_emits_check(lm_elab *e, lm_loc at,
                    uint64_t n); // whether so many values can be emitted; else it is an error

// ---- instances (inst.c)
typedef struct el_inst_site {
  lm_decl_ref decl /* set: what the call names */;
  el_inst *owner;
  lm_sym path;
  int n_stack;
  int64_t stack[4], place[4];
  lm_sym stack_name[4];
} el_inst_site;
el_inst *el_inst_make(lm_elab *e, const ast_expr *call, const lm_file *file,
                      const el_inst_site *where);
// Where the value of its parameter k is written: through arguments that hand on a parameter of the
// owner.
lm_loc el_inst_origin(const el_inst *inst, uint32_t k);
// Its path with the places of its repetitions, and of a member if `name` is not empty:
// "layers.17.attn.wq".
lm_sym el_inst_path(lm_elab *e, const el_inst *inst, lm_sym name);
el_ref el_ref_sub(lm_elab *e, const el_ref *owner, el_inst *sub); // a single sub of an instance
el_inst *el_inst_generic(lm_elab *e, ast_decl *d, const lm_file *file);
void el_check_members(lm_elab *e,
                      el_inst *inst); // every method, on arguments of its declared types
el_val el_param_value(lm_elab *e, const el_ref *ref, el_param *p);
el_val el_index_value(lm_elab *e,
                      const el_index *at); // first + step * loop, as a number that adapts
el_val el_insts_at(lm_elab *e, const el_val *insts,
                   const el_index *at); // the instance at that place
// From place `first` on: the number of iterations of a loop whose body holds *out_period places of
// equal structure each.
int64_t el_insts_segment(lm_elab *e, const el_insts *insts, int64_t first, int *out_period);
const ast_member *el_method_find(const el_inst *inst, lm_sym name);

lm_elab *lm_elab_create(lm_ctx *c, lm_program *prog, lm_module *m);

// ---- what the recipe says to save or to compute again (remat.c)
typedef struct lm_recipe_memory lm_recipe_memory;
void el_remat_begin(lm_elab *e, const lm_recipe_memory *rules);
// Operations emitted from here on are of self's method; returns what to put back into e->b.keep at
// its end.
uint8_t el_remat_enter(lm_elab *e, const el_ref *self);
void el_remat_let(lm_elab *e, const el_val *v, lm_sym name, bool carried);
void el_remat_check(lm_elab *e); // reports rules that matched nothing
#endif
