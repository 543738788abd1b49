// elab.h - elaboration: evaluates the declarations of a program over typed tensors and emits graph
// IR.
//
// One evaluator checks and lowers. With a module (`m`) it emits. Without one, for definitions that
// the recipe does not use, it only checks, and sizes are symbolic. An error is reported once and
// gives V_ERROR; operations on V_ERROR report nothing, so one mistake makes one message.
//
// Axes are objects of a scope: two tensors share an axis if they share the object. A call binds the
// callee's names to the caller's axes. If a name already denotes an axis of the instance (`d` of a
// block), the argument's axis is renamed to it at the entry of the call and back at its exit.
#ifndef LM_ELAB_H
#define LM_ELAB_H
#include "compiler/ir/ir.h"
#include "dsl/syntax/program.h"
#include "dsl/elab/size.h"
#include "runtime/base/diag_code.h"

typedef struct lm_elab lm_elab;
typedef struct el_inst el_inst;

typedef struct el_axis {
  lm_sym name;
  lm_size size;
  lm_axis ir;   // 0 until the axis is part of an emitted type, and while only checking
  int dyn;      // as in lm_axis_info
  bool opaque;  // represents the unknown axes of a row variable (checking only)
  bool history; // made by `history`
  bool element; // runs over the elements of all parameters; an optimizer sees one of them
  struct el_sorted *sorted; // of rows that group_by has sorted
  int64_t micro_batches; // > 1: of so many, which a call has; a number of elements is that of one
} el_axis;

// How rows are sorted.
typedef struct el_sorted {
  el_axis *groups; // the axis of their groups
  lm_value *id;    // as the program gives it, or NULL while only checking
  lm_value *counts, *order, *inverse;
} el_sorted;

typedef struct el_axes {
  el_axis **v;
  uint32_t n, cap;
} el_axes;

typedef enum {
  K_REAL, // the precision that the recipe selects
  K_F32,
  K_INT,
  K_BOOL,
  K_NUM // adapts to the other operand: literals, sizes, iota
} el_kind;

typedef enum {
  V_ERROR, // reported already, or unknown while only checking
  V_NUM,   // a number at compile time: `size` if has_size, else `num`; known = false: any number
  V_BOOL,  // a condition at compile time: num != 0
  V_STRING,
  V_PATTERN,
  V_TENSOR,
  V_TUPLE,
  V_RECORD, // Batch
  V_AXES,   // an axis or a list of axes
  V_INST,   // an instance of a block
  V_INSTS,  // sub xs[i < n]
} el_vkind;

// Index of an element of a repeated sub: first + step * loop. loop: NULL outside of an emitted
// loop.
typedef struct el_index {
  lm_value *loop;
  int64_t first, step;
} el_index;

typedef struct el_bind el_bind;

// An instance, and its index in each of the n repetitions around it.
typedef struct el_ref {
  el_inst *inst;
  int n;
  el_index at[4];
  el_bind *indexed; // parameters that depend on a loop index, as scalars of the loop's body
  const struct el_insts *each; // the element stands for all of this list; NULL: for itself
} el_ref;

typedef struct el_val {
  el_vkind k;
  lm_loc loc;  // where the value was bound, for messages
  lm_sym name; // its name there, or NULL
  bool known, has_size;
  lm_size size;
  double num;
  lm_sym text; // of strings, units and patterns
  el_kind kind;
  el_axes axes;         // of V_TENSOR and V_AXES
  lm_value *v;          // of V_TENSOR; NULL while only checking
  struct el_val *items; // of V_TUPLE and V_RECORD
  uint32_t n;
  const lm_sym *names;    // of the items of V_RECORD
  el_ref ref;             // of V_INST; of V_INSTS the instance that owns the list
  struct el_insts *insts; // of V_INSTS
  const struct el_origin
      *of; // edit.h; of V_TENSOR, in a model with edits: the parameter that it is
} el_val;

struct el_bind {
  lm_sym name;
  el_val val;
  bool settable;
  el_bind *up;    // the previous binding of the scope
  el_bind *hides; // the previous binding of the same name
};

typedef struct el_slot {
  lm_sym name;
  el_bind *last;
} el_slot;

// The names of a scope: a list of bindings, with a hash index if there are many.
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

// A row variable (`..r`) and the axes that it is bound to.
typedef struct el_row {
  lm_sym name;
  el_axes axes;
  struct el_row *up;
} el_row;

// The row of the batch axes of an adapter, which has no name in the language.
#define EL_BATCH_ROW "batch axes"

typedef struct el_frame {
  struct el_frame *up; // the caller
  const char *what;    // "Attn.apply", "rope"
  lm_loc called_at;
  const lm_file *file; // whose declarations are visible
  el_ref *self;        // the instance whose method runs, or NULL
  el_names names;
  el_axis_bind *axes;
  el_row *rows;
  el_kind real;    // the meaning of `real` in this call
  el_axes live;    // axes that may occur in one type here; new IR axes get names unlike theirs
  el_axes carried; // of the carries of loops over subs around, whose sizes may change
  bool has_result;
  el_val result;
  const ast_stmt *counts; // the loop over a number that runs, or NULL
  bool runs;              // the body of a method, or of a function that is checked by itself
  bool incomplete;        // after an error, names that later statements use may be missing
} el_frame;

typedef struct el_draws el_draws; // the random numbers drawn so far in a function (draw.c)

typedef struct el_param {
  lm_sym name;
  el_axes axes;
  el_kind kind;
  lm_loc loc;
  lm_init init;
  lm_sym global;
  struct el_family *family;    // share.h; NULL while only checking
  struct el_share *share;      // share.h: which instances the global has; NULL: not made yet
  struct el_adapter *adapters; // edit.h
  const ast_expr *made;        // computes its initial value in @begin; NULL: an initializer
  bool is_state;
} el_param;

// sub xs[index < n]: one instance for each index.
typedef struct el_insts {
  int64_t n;     // elements; while only checking, the possible ones
  int64_t count; // declared; INT64_MAX: not known while only checking
  el_inst **of;
  lm_sym index;
  const ast_member *member;
  el_inst **kinds; // the first instance of each kind (share.h)
  uint32_t n_kinds, cap_kinds;
} el_insts;

struct el_inst {
  ast_decl *decl;
  const lm_file *file;
  lm_sym path; // "layers.attn", without indices; "" for the model
  int n_stack; // repetitions around the instance: their sizes, its index in each, their paths
  int64_t stack[4], index[4];
  lm_sym stack_name[4];
  const ast_expr *call; // the expression that instantiated it
  struct el_form *form; // share.h
  // Of an element of a list, by argument: it takes many values, so loops compute it from their
  // index.
  const bool *by_index;
  lm_loc at; // the location of that expression
  el_inst *owner;
  el_names vals; // parameters and dims
  el_axis_bind *axes;
  el_row *rows; // of an adapter: the axes of the parameter, by role, the batch axes first
  const struct el_edit *added_by;    // of an adapter: its line (edit.h)
  lm_sym host;                       // of an adapter: the owner's parameter that it adapts
  struct el_inserted *inserted;      // edit.h: blocks at its sites
  const struct el_edit *replaced_by; // edit.h: the line that made it of another block; NULL: none
  lm_decl_ref replaces;              // that block
  struct el_source *source;          // source.h; NULL: the instance has no `from`
  el_param *params;
  uint32_t n_params, cap_params;
  struct el_sub {
    lm_sym name;
    lm_loc loc;
    el_inst *one;
    el_insts *many;
  } * subs;
  uint32_t n_subs, cap_subs;
  bool broken; // an error in it has been reported
};

typedef enum {
  EL_TRAIN,
  EL_EVAL,
  EL_DECODE,
  EL_UPDATE // the optimizer and the schedule
} el_mode;

typedef struct el_library_call el_library_call;

// Runs `inner.update(…)` or `inner.eval(…)`, the call x of a method of an optimizer that is an
// argument of the optimizer whose body is evaluated.
typedef struct el_wrapper {
  el_val (*call)(struct el_wrapper *w, lm_elab *e, const ast_expr *x, const el_inst *inner);
} el_wrapper;

// While `use` of an adapter of a `grouped_dot` is evaluated: values with the axis of the groups are
// those of each row's group where they meet values with the axis of the rows (route.c).
typedef struct el_grouping {
  el_axis *rows;
  el_val counts;
} el_grouping;

struct lm_elab {
  lm_ctx *c;
  lm_arena *a;
  lm_program *prog;
  lm_module *m; // NULL while only checking
  lm_builder b;
  el_mode mode;
  el_frame *frame;
  uint32_t depth;  // of calls
  uint32_t budget; // expressions that may still be evaluated
  bool exhausted;  // the budget is spent, and that has been reported
  // Number of branches of `select` around the current expression: those whose values may be not
  // finite, and those that are known not to be selected (select.c).
  uint32_t guarded, dead;
  uint32_t nested;              // loops and branches of `select` around the current expression
  el_wrapper *wrapper;          // of the optimizer whose body is evaluated, or NULL
  lm_value *step, *row, *layer; // scalars of the current function, for random numbers
  lm_value *at;                 // EL_DECODE: the first position of the call
  lm_axis position;             // axis t of the current function, the axis of `history`
  int64_t capacity;             // EL_DECODE: positions of the KV cache
  int history_dyn;              // EL_DECODE: the extent that holds how many of them are filled
  const el_draws *draws;
  uint32_t n_sites, n_caches;
  uint64_t seed;
  lm_dtype master;             // of trained parameters of type `real`
  const el_grouping *grouping; // NULL: none
  el_library_call *library;    // library functions emitted so far, by signature
  uint32_t n_library;
  bool in_library;     // a library function is being emitted
  bool library_failed; // it uses parameters, random numbers or caches, so it must be inlined
  struct {
    lm_value *index;
    int64_t count;
    lm_sym name;
    const void *over; // the el_insts or the ast_stmt that the loop runs over
  } loops[4];         // around the current statement
  int n_loops;
  struct el_scan *scan;  // the loop over positions whose body is evaluated, or NULL (scan.c)
  const void **unrolled; // loops that must be unrolled, as in loops[].over (unroll.c)
  uint32_t n_unrolled, cap_unrolled;
  bool restart;           // the current function must be emitted again
  bool begins;            // @begin is emitted
  bool extra_loss;        // a loss is emitted whose gradient an optimizer takes beside the step's
  struct el_edits *edits; // edit.h; NULL: the model has none
  struct el_role *roles;  // edit.h; of the parameters, if an edit or an optimizer needs them
  struct el_site *sites;  // edit.h; if an edit needs them
  struct el_form *forms;  // share.h: of models
  struct el_family *families;
  struct el_declared *declared; // share.h: the parameters of all instances
  uint32_t n_families, n_declared, cap_declared;
  struct el_source *sources; // source.h
  uint32_t bare;             // calls of `bare` around the current one: adapters have no effect
  struct el_remats *remats;  // remat.c; NULL: the recipe has no memory rules
  // Metrics. In a loop each iteration emits one; its indices become the suffix of its name:
  // name.3, name.3.0.
  struct el_emit {
    lm_sym name;
    const char *suffix;
    int64_t index; // in the innermost loop
    el_val val;
  } * emits;
  uint32_t n_emits, cap_emits;
  struct el_memo_entry *memo; // results of the model's methods in the current function (memo.c)
  const ast_decl **visited;   // declarations that have been evaluated
  uint32_t n_visited, cap_visited;
};

// ---- random numbers (draw.c)
// The site of the next draw of the instance whose method runs, as in docs/language.md.
uint64_t el_draw(lm_elab *e);
// For each instance the larger of its counts in a and b.
const el_draws *el_draws_join(lm_elab *e, const el_draws *a, const el_draws *b);

// ---- names (names.c)
el_bind *el_names_find(const el_names *s, lm_sym name); // the last binding of the name, or NULL
void el_names_add(lm_elab *e, el_names *s, lm_sym name, el_val v, bool settable);
void el_names_truncate(el_names *s, const el_bind *last); // removes the bindings after `last`

// ---- values (value.c)
el_val el_error(void);
bool el_any_error(const el_val *v, uint32_t n);
el_val el_number(lm_elab *e, double v);
el_val el_whole(lm_elab *e, int64_t v);
el_val el_sized(lm_size s);
// A whole number is a size even if it was computed from fractions: 64 * 0.25. Others are v.
el_val el_as_size(lm_elab *e, el_val v);
el_val el_unknown_number(void);
el_val el_boolean(bool v, bool known);
el_val el_tensor(el_kind kind, const el_axes *axes, lm_value *v);
el_val el_tuple(lm_elab *e, const el_val *items, uint32_t n);
bool el_number_value(const el_val *v, double *out); // false: not a known number
bool el_is_optimizer(const el_val *v);
const char *el_kind_name(el_kind k);
lm_dtype el_dtype(const lm_elab *e, el_kind k);
void el_mark_live(lm_elab *e, const el_val *v); // adds the axes of v to the frame's live axes
// Replaces axes of tensors, tuples and records.
el_val el_rename(lm_elab *e, const el_val *v, const el_axes *from, const el_axes *to);

// ---- messages (report.c)
const char *el_show(lm_elab *e, const el_val *v); // "real[b, t, d]"
const char *el_show_axes(lm_elab *e, const el_axes *axes);
void el_note_value(lm_elab *e, lm_diag *d, const el_val *v); // "= x: real[b, t, d] (line 8)"
// Each reports an error of the catalogue, with notes for the calls around it: EL_ERR(e, at, E020,
// name). EL_FAIL returns V_ERROR, EL_REJECT false.
#define EL_ERR(e, at, code, ...) el_err(e, at, LM_DIAGNOSTIC(code, ##__VA_ARGS__))
#define EL_FAIL(e, at, code, ...) el_fail(e, at, LM_DIAGNOSTIC(code, ##__VA_ARGS__))
#define EL_REJECT(e, at, code, ...) el_reject(e, at, LM_DIAGNOSTIC(code, ##__VA_ARGS__))
// The help for a word of other libraries or languages (words.def); NULL or false if there is none.
const char *el_word_help(const char *word);
bool el_help_word(lm_elab *e, lm_diag *d, const char *word);
// Says that `name`, which was written as a method, is a function, if it is one.
void el_help_function(lm_elab *e, lm_diag *d, lm_sym name);
// The module of the library that declares the name, as one of the kinds, a set of 1 << DC_…; NULL
// if none does.
const char *el_library_module(const lm_elab *e, lm_sym name, unsigned kinds);
lm_diag *el_err(lm_elab *e, lm_loc at, lm_diag_id id, const char *fmt, ...) LM_PRINTF(4, 5);
el_val el_fail(lm_elab *e, lm_loc at, lm_diag_id id, const char *fmt, ...) LM_PRINTF(4, 5);
bool el_reject(lm_elab *e, lm_loc at, lm_diag_id id, const char *fmt, ...) LM_PRINTF(4, 5);
lm_diag *el_verr(lm_elab *e, lm_loc at, lm_diag_id id, const char *fmt, va_list ap);

// ---- axes (axis.c)
el_axis *el_axis_new(lm_elab *e, lm_sym name, lm_size size, int dyn); // live in the frame
el_axis *el_axis_copy(lm_elab *e, const el_axis *x); // a second axis with the properties of x
lm_axis el_axis_ir(lm_elab *e, el_axis *x);
void el_axis_bind_name(lm_elab *e, lm_sym name, el_axis *x);
el_axis *el_axis_lookup(lm_elab *e, lm_sym name); // of the frame or its instance; or NULL
// True if x runs over positions (t, or s of `history`) in a decoding function, where its size
// differs between calls.
bool el_axis_is_sequence(const lm_elab *e, const el_axis *x);
// Adds to an error that names the size of x, if x is the axis of positions, that the size is not
// the user's.
void el_help_sequence(lm_elab *e, lm_diag *d, const el_axis *x);
el_val el_axis_size(lm_elab *e, const el_axis *x, lm_loc at);
bool el_axes_has(const el_axes *s, const el_axis *x);
int el_axes_find(const el_axes *s, const el_axis *x); // -1: not found
bool el_axes_subset(const el_axes *s, const el_axes *of);
bool el_axes_same(const el_axes *x, const el_axes *y); // the same axes in the same order
void el_axes_push(lm_elab *e, el_axes *s, el_axis *x);
el_axes el_axes_minus(lm_elab *e, const el_axes *s, const el_axes *drop);
lm_type el_ir_type(lm_elab *e, el_kind kind, const el_axes *axes);
// True if a tensor may have the size of t; reports an error if not.
bool el_size_check(lm_elab *e, lm_type t, lm_loc at);

// ---- expressions (expr.c, arith.c, lookup.c, prim.c)
el_val el_eval(lm_elab *e, const ast_expr *x);
// If one operand has the rows of e->grouping and the other one its groups, gives each row the value
// of its group (route.c).
void el_rows_of_groups(lm_elab *e, el_val *x, el_val *y, lm_loc at);
el_val el_binary(lm_elab *e, ast_op op, const el_val *x, const el_val *y, lm_loc at);
el_val el_as_tensor(lm_elab *e, const el_val *v, lm_loc at); // numbers become scalars of K_NUM
// Numbers and tensors of K_NUM become tensors of `kind`; other tensors are returned as they are.
el_val el_adapt(lm_elab *e, const el_val *v, el_kind kind, lm_loc at);
// Appends an axis, a tuple or list of axes, or the axes of a row variable. False: reported.
bool el_axis_list(lm_elab *e, const ast_expr *x, el_axes *out);
// The same for the axes of operands, which the error about an unknown axis lists.
typedef struct el_operands {
  const el_val *v[2];
  uint32_t n;
} el_operands;
bool el_axis_list_of(lm_elab *e, const ast_expr *x, const el_operands *of, el_axes *out);
el_val el_lookup(lm_elab *e, lm_sym name, lm_loc at, bool report);
// A parameter, dim or sub of the frame's instance.
el_val el_lookup_member(lm_elab *e, lm_sym name, bool *out_found);
el_val el_primitive(lm_elab *e, const ast_expr *call, bool *out_found);
bool el_mentions(const ast_expr *x, const el_bind *names);
// The argument for parameter k of the signature; NULL: the default applies.
const ast_expr *el_argument(const ast_arg *args, uint32_t n, const ast_sig *sig, uint32_t k);

// Limits of a program's expansion; fuzzers are built with smaller ones. LM_EXPRESSIONS: expressions
// that are evaluated for one lowering, at some hundred bytes of memory each. Models of public
// architectures take a few thousand, including layers that must be unrolled. EL_MAX_ITEMS: axes and
// parameters, which are found by linear search.
#ifndef LM_EXPRESSIONS
#define LM_EXPRESSIONS 200000
#endif
enum {
  EL_EXPRESSIONS = LM_EXPRESSIONS,
  EL_MAX_ITEMS = LM_EXPRESSIONS < 4096 ? LM_EXPRESSIONS : 4096
};
bool el_budget(lm_elab *e, lm_loc at); // takes one expression from the budget; false: reported
void el_count_check(lm_elab *e, uint32_t n, const char *what, lm_loc at);
// True if part of the file or block could not be parsed, so that a name that is not found may have
// been declared there.
bool el_is_incomplete(const lm_elab *e);
bool el_has_errors(const ast_decl *d); // whether a member of d could not be parsed

// ---- calls (call.c)
el_val el_call(lm_elab *e, const ast_expr *x);
el_val el_invoke_method(lm_elab *e, const el_ref *ref, lm_sym method, const el_val *args,
                        uint32_t n, lm_loc at);
// args: tensors, one for each parameter.
el_val el_invoke_fn(lm_elab *e, lm_decl_ref fn, const el_val *args, uint32_t n, lm_loc at);
const ast_member *el_method_find(const el_inst *inst, lm_sym name);
// True if the block has the methods of an adapter: `use` or `merge` (edit.h).
bool el_is_adapter(const lm_elab *e, const el_inst *inst);
el_kind el_kind_of_type(lm_elab *e, const ast_type *t, bool *out_ok);
el_kind el_kind_of_column(lm_column_id c);
void el_visit(lm_elab *e, const ast_decl *d); // d has been evaluated
bool el_is_visited(const lm_elab *e, const ast_decl *d);

// ---- formats (format.c)
// The value of a call of a format: its instance. V_ERROR: reported.
el_val el_format_make(lm_elab *e, const ast_expr *call, lm_decl_ref format);
bool el_format_check(lm_elab *e, const ast_decl *d); // its members and methods; false: reported
bool el_is_format(const el_val *v);
// True if two formats are of one declaration and have equal arguments.
bool el_formats_agree(const el_val *a, const el_val *b);

// ---- definitions that the recipe does not use (check.c)
void el_check_fn(lm_elab *e, const lm_file *file, ast_decl *d);
void el_check_members(lm_elab *e, el_inst *inst); // all methods, on symbolic arguments

// ---- loops that must be unrolled (unroll.c)
bool el_is_unrolled(const lm_elab *e, const void *over);
// For a value that must be known at compile time: if it is a scalar computed from loop indices, it
// requests that those loops be unrolled and returns true. The current function is then discarded,
// with its diagnostics, and emitted again.
bool el_request_unroll(lm_elab *e, const el_val *v);
// The same for the element `at` of a list alone, which a loop of the IR cannot begin with.
void el_unroll_element(lm_elab *e, const el_insts *xs, int64_t at);

// ---- constraints (where.c), in a frame where the names of the parameters are bound
typedef struct el_where {
  const ast_sig *sig;
  const char *what;
  lm_loc at;
  const lm_loc *locs;  // of the arguments; NULL: unknown
  const el_inst *inst; // whose parameters they are, or NULL
} el_where;
// NULL: the constraint holds; else the diagnostic.
lm_diag *el_where_check(lm_elab *e, const el_where *s, const ast_expr *constraint);
bool el_where_check_all(lm_elab *e, const el_where *s);

// ---- statements (stmt.c, loop.c)
void el_run(lm_elab *e, const ast_body *body);
void el_run_for(lm_elab *e, const ast_stmt *st);
// True if the loop that runs is over a number that an axis is named after, as in `for at in d`.
bool el_counts_axis(const lm_elab *e);
// Then that is the help of an error in the body, for a program that means the axis.
void el_help_counts(lm_elab *e, lm_diag *d);
// After an error: the names that the emits of a body give a value have an error.
void el_emits_failed(lm_elab *e, const ast_body *body);
// Evaluates the body of a loop once, with the carries bound to `in`. var: the value of the loop's
// name, or NULL. out: the new values of the carries.
void el_run_body(lm_elab *e, const ast_stmt *st, const el_val *var, const el_val *in, el_val *out);
// A `let` of one name.
void el_bind_let(lm_elab *e, const ast_name *n, el_val v);
void el_bind_name(lm_elab *e, lm_sym name, el_val v, bool settable);
el_row *el_rows_copy(lm_elab *e, const el_row *rows);   // type.c; frames map the axes of theirs
bool el_emits_check(lm_elab *e, lm_loc at, uint64_t n); // whether n values may be emitted

// ---- loops over positions (scan.c)
// Runs the loop over axis x. carry: the values before the loop, then the values after it.
void el_run_scan(lm_elab *e, const ast_stmt *st, el_axis *x, el_val *carry);
// v, named at `at`, as the body of the loop sees it: tensors with the loop's axis are slices.
el_val el_scan_slice(lm_elab *e, el_val v, lm_loc at);
// True if x is the axis of the loop, which its body cannot name.
bool el_scan_hides(const lm_elab *e, const el_axis *x);
bool el_scan_names(const lm_elab *e, lm_sym name); // the same for the name of the axis
// `emit` in the body of the loop. False: it is a metric.
bool el_scan_emit(lm_elab *e, const ast_stmt *st);
// Reports what the body of a loop over positions cannot have; V_ERROR.
el_val el_not_in_scan(lm_elab *e, lm_loc at, const char *what);
// True if x is the axis of positions. In a definition that the recipe does not use, any axis of an
// argument may be.
bool el_is_positions(lm_elab *e, el_axis *x);

// ---- states of blocks (state.c)
// True if the declaration of the instance whose method runs has a state of that name (stmt.c).
bool el_is_state(const lm_elab *e, lm_sym name);
void el_run_add(lm_elab *e, const ast_stmt *st); // `add NAME = …` in a method
// Runs `after_step` of an instance, if it has one: state[i] is the value of parameter i, a state,
// then its new value. Values of other parameters are not used.
void el_run_after(lm_elab *e, el_ref *ref, el_val *state);
// The operands by which `param`, `gradient` and `assign` name a parameter: their number, and pairs
// in attr.
uint32_t el_param_indices(lm_elab *e, const el_ref *ref, const el_param *p, lm_value **in,
                          lm_attr *attr);
// A value of type f32 over `axes`; axes of them that it lacks are added. Reports other values.
el_val el_over_axes(lm_elab *e, el_val v, const el_axes *axes, lm_loc at);

// ---- caches (cache.c)
// A cache of a decoding function, one for each iteration of the loops around. attr and in: the
// attribute and operands by which an operation names it; `in` has space for two more.
typedef struct el_cache {
  lm_attr attr;
  lm_value *in[LM_COUNT(((lm_elab *)0)->loops) + 2];
  uint32_t n;
} el_cache;
// Adds the global of a cache for values of type `of`. False: it would have too many axes.
bool el_cache_make(lm_elab *e, lm_type of, el_cache *out);
// The contents of the cache after the calls before this one; `init` if there are none.
lm_value *el_cache_recall(lm_elab *e, const el_cache *c, lm_value *init);
void el_cache_retain(lm_elab *e, el_cache *c, lm_value *v); // v becomes the contents

// ---- instances (inst.c, param.c, sub.c)
typedef struct el_inst_site {
  lm_decl_ref decl; // if set, the declaration that the call names
  el_inst *owner;
  lm_sym path;
  int n_stack;
  int64_t stack[4], index[4];
  lm_sym stack_name[4];
  el_row *rows; // of an adapter, as the next two
  const struct el_edit *added_by;
  lm_sym host;
  const struct el_edit *replaced_by; // with the next one
  lm_decl_ref replaces;
  struct el_source *source;
} el_inst_site;
// NULL: reported.
el_inst *el_inst_make(lm_elab *e, const ast_expr *call, const lm_file *file,
                      const el_inst_site *where);
el_inst *el_inst_generic(lm_elab *e, ast_decl *d, const lm_file *file); // with symbolic arguments
// The location of the expression that gives parameter k its value, followed through arguments that
// are parameters of the owner.
lm_loc el_inst_origin(const el_inst *inst, uint32_t k);
// Calls `visit` for the instance and then for all below it, in the order of their declarations,
// until a call returns true. Returns whether one did.
typedef bool el_inst_visitor(void *user, const el_inst *inst);
bool el_inst_visit(const el_inst *inst, el_inst_visitor *visit, void *user);
// The path of the instance with its indices, and of its member `name` unless that is "":
// "layers.17.attn.wq".
lm_sym el_inst_path(lm_elab *e, const el_inst *inst, lm_sym name);
el_ref el_ref_sub(lm_elab *e, const el_ref *owner, el_inst *sub); // a sub that is not repeated
el_val el_param_value(lm_elab *e, const el_ref *ref, el_param *p);
el_val el_index_value(lm_elab *e, const el_index *at); // first + step * loop, of K_NUM
el_val el_insts_at(lm_elab *e, const el_val *insts, const el_index *at);
// The trip count of the loop that starts at index `first`. Its body runs *out_period elements, and
// elements at the distance *out_period have equal structure.
int64_t el_insts_segment(lm_elab *e, const el_insts *insts, int64_t first, int *out_period);

lm_elab *lm_elab_create(lm_ctx *c, lm_program *prog, lm_module *m);

// ---- the recipe's rules about stashes and recomputation (remat.c)
typedef struct lm_recipe_memory lm_recipe_memory;
void el_remat_begin(lm_elab *e, const lm_recipe_memory *rules);
// Applies the rules to the operations emitted from here on, in a method of self. Returns the value
// to restore e->b.remat with at the end of the method.
uint8_t el_remat_enter(lm_elab *e, const el_ref *self);
void el_remat_let(lm_elab *e, const el_val *v, lm_sym name, bool carried);
bool el_remat_divides(const lm_elab *e); // true if a rule divides loops in the current function
// False if a rule about some instances of a repetition treats these two differently, so that no
// loop runs both.
bool el_remat_agrees(lm_elab *e, const el_inst *x, const el_inst *y);
void el_remat_check(lm_elab *e); // reports rules that match no value
#endif
