// call.h - declarations that the files about types and calls share.
#ifndef LM_ELAB_CALL_H
#define LM_ELAB_CALL_H
#include "dsl/elab/elab.h"

// Axes of the caller and the axes that represent them in the callee.
typedef struct {
  el_axes from, to;
} el_mapping;

typedef struct {
  const ast_sig *sig;
  const char *what; // for messages: "rope", "Attn.apply"
  el_val *args;     // one per parameter
  lm_loc *locs;
  bool *given; // false: the parameter takes its default
  lm_loc at;
  lm_sym bound_by[64]; // names of axes that this call bound, and the axes
  el_axis *bound[64];
  uint32_t n_bound;
  el_mapping map; // applied to the arguments; its inverse is applied to the result
  el_kind real;   // the meaning of `real` in a function: the kind of the first such argument
  bool real_set;
  bool ran; // the body was evaluated, as no argument was in error
} el_invocation;

// Warns of positional arguments that exchange the parameters of their names, unless all arguments
// of the call do, as the sizes of `down = Linear(f, d)`.
void el_warn_order(lm_elab *e, const ast_sig *sig, const char *what, const ast_expr *call);
// Warns if fn multiplies by an argument initialized with zeros and adds one initialized with ones.
void el_warn_exchanged(lm_elab *e, const ast_decl *fn, const ast_expr *call);

// ---- types (type.c)
bool el_type_is(const ast_type *t, const char *name);
bool el_type_check(lm_elab *e, const ast_type *t);       // false: reported
bool el_is_duration(const ast_type *t);                  // `steps`, a type of parameters only
const char *el_type_text(lm_elab *e, const ast_type *t); // "real[b, t, d]"
el_row *el_row_find(lm_elab *e, lm_sym name);
void el_row_bind(lm_elab *e, lm_sym name, el_axes axes);
// True if the row variable is one of the instance whose method runs.
bool el_row_is_of_instance(const lm_elab *e, lm_sym name);
// The batch axes of an adapter if the type has one of its rows, in front of which they are.
const el_axes *el_type_batch(lm_elab *e, const ast_type *t);
lm_sym el_dim_name(lm_elab *e, const ast_dim *d); // NULL: reported

// Calls a method with the arguments of the call x.
el_val el_call_method(lm_elab *e, const ast_expr *x, const el_ref *ref, lm_sym name); // call.c

// Calls a method with `first`; its further parameters have the values of their names in the scope.
el_val el_invoke_named(lm_elab *e, const el_ref *ref, lm_sym name, el_val first, lm_loc at);

// ---- unification (unify.c)
// Unifies argument i with its parameter and adapts numbers. False: reported.
bool el_unify_param(lm_elab *e, el_invocation *v, uint32_t i, bool is_fn);
el_axis *el_mapped(const el_mapping *m, el_axis *a); // a itself if it is not mapped

// ---- invocation (invoke.c)
// Checks the returned value against the declared type, and adapts numbers.
el_val el_check_result(lm_elab *e, const ast_type *t, el_val v, const char *what);
void el_known_axes(lm_elab *e, const el_val *v, el_axes *out); // adds the axes of v
// Unifies the arguments, evaluates the body and maps the result to the caller's axes.
el_val el_run_invocation(lm_elab *e, el_invocation *v, const lm_file *file, el_ref *self,
                         const ast_body *body);

// ---- lists of several blocks (kinds.c)
// Whether the blocks of the list that the instance is from declare the method with one signature,
// up to names of axes, and of parameters unless the call has named arguments. False: reported.
bool el_kinds_agree(lm_elab *e, const ast_expr *call, const el_ref *ref, lm_sym name);

// ---- library functions (library.c)
bool el_can_be_library(const el_invocation *v, const lm_file *file, lm_elab *e);
// False: the body uses parameters, random numbers or caches, so the call must be inlined.
bool el_call_library(lm_elab *e, el_invocation *v, const ast_decl *d, const lm_file *file,
                     el_val *out);

// ---- memoized calls (memo.c)
typedef struct el_memo {
  bool enabled; // false: every call is evaluated
  const el_inst *model;
  const ast_member *method;
  el_val *args;
  uint32_t n;
  uint32_t sites; // of random numbers before the call
} el_memo;
el_memo el_memo_begin(lm_elab *e, const el_invocation *v, const el_inst *inst,
                      const ast_member *method);
bool el_memo_find(const lm_elab *e, const el_memo *o, el_val *out);
void el_memo_end(lm_elab *e, const el_memo *o, el_val result);
#endif
