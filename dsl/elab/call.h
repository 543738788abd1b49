// call.h - what the files about calls share.
#ifndef LM_ELAB_CALL_H
#define LM_ELAB_CALL_H
#include "dsl/elab/elab.h"

// What a call maps on its way in; the reverse is applied to its result.
typedef struct {
  el_axes from, to;
} el_mapping;

typedef struct {
  const ast_sig *sig;
  const char *what;
  el_val *args; // one per parameter; axes already evaluated
  lm_loc *locs;
  bool *given;
  lm_loc at;
  lm_sym bound_by[64];
  el_axis *bound[64];
  uint32_t n_bound; // names this call bound
  el_mapping map;
  el_kind real;
  bool real_set;
  bool ran; // the body was run; not where an argument is an error or does not fit
} el_invocation;

bool el_type_is(const ast_type *t, const char *name);
bool el_type_check(lm_elab *e, const ast_type *t); // whether its form is sound; else it is reported
const char *el_type_text(lm_elab *e, const ast_type *t); // "real[b, t, d]"
bool el_is_duration(const ast_type *t);                  // the type `steps`, of parameters alone
el_row *el_row_find(lm_elab *e, lm_sym name);
void el_row_bind(lm_elab *e, lm_sym name, el_axes axes);
lm_sym el_dim_name(lm_elab *e, const ast_dim *d); // NULL: reported
void el_known_axes(lm_elab *e, const el_val *v, el_axes *out);
// unify.c: unifies argument i with its parameter and adapts numbers. False: reported.
bool el_unify_param(lm_elab *e, el_invocation *v, uint32_t i, bool is_fn);
el_axis *el_mapped(const el_mapping *m, el_axis *a); // what the call maps a to; a if nothing
// The returned value against the declared type; adapts numbers.
el_val el_check_result(lm_elab *e, const ast_type *t, el_val v, const char *what);
// Unifies the arguments, runs the body, maps the result back to the caller's axes.
el_val el_run_invocation(lm_elab *e, el_invocation *v, const lm_file *file, el_ref *self,
                         const ast_body *body);
bool el_can_be_library(const el_invocation *v, const lm_file *file, lm_elab *e);
// False: the body needs what only the caller has (parameters, random numbers, caches), so it is to
// be inlined.
bool el_call_library(lm_elab *e, el_invocation *v, const ast_decl *d, const lm_file *file,
                     el_val *out);

// ---- calls that are made once (once.c)
typedef struct el_once {
  bool asked; // else each call is run
  const el_inst *model;
  const ast_member *method;
  el_val *args;
  uint32_t n;
  uint32_t sites; // of random numbers before it
} el_once;
el_once el_once_begin(lm_elab *e, const el_invocation *v, const el_inst *inst,
                      const ast_member *method);
bool el_once_find(const lm_elab *e, const el_once *o, el_val *out);
void el_once_end(lm_elab *e, const el_once *o, el_val result);
#endif
