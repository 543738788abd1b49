// share.h - which instances of a parameter are stacked in one global.
//
//   sub layers[i < 6] = if i < 2 then Dense(d, f) else Experts(d, f, n)
//   ->
//   param @layers.wd : f32[stack.layers.2, f, d] stacked 1 as (layers.0.wd, layers.1.wd)
//   param @layers.wd.kind1 : f32[stack.layers.4, n, f, d] stacked 1 as (layers.2.wd, …)
//
// Instances of one form, which edits treat equally, share a global if their indices form a grid:
// all combinations of some indices of each repetition. Other ones are divided by the index of the
// outermost repetition that differs, until they do. The model is instantiated as a whole before any
// global is made.
#ifndef LM_ELAB_SHARE_H
#define LM_ELAB_SHARE_H
#include "dsl/elab/elab.h"

// The instances that the same expressions make, for any indices of the repetitions around them.
typedef struct el_form {
  const ast_expr *call;
  lm_sym path;
  struct el_form *parts, *next; // the forms of its subs; the next one of the same owner
  struct el_family *families;   // of its parameters
} el_form;
// The form of an instance in an instance of the form `owner`; NULL: the model.
el_form *el_form_of(lm_elab *e, el_form *owner, const ast_expr *call, lm_sym path);

// Instances with one global. rank: for each repetition around them, by the index there, the number
// of smaller ones.
typedef struct el_share {
  int edits; // el_edit_class
  bool adds; // of a state: a method adds to it
  el_inst **of;
  uint32_t n, cap;
  int64_t *rank[4], size[4], limit[4];
  lm_sym global;
  struct el_share *next;
} el_share;

// A parameter of a form, of one shape.
typedef struct el_family {
  lm_sym name, base; // base: its path without indices; with a suffix if another form has that path
  lm_type own;       // its axes without those of repetitions
  el_share *shares;  // one for each el_edit_class, before they are divided
  struct el_family *next, *up; // of the form; the one before it in the model
} el_family;

// A parameter of an instance.
typedef struct el_declared {
  el_inst *inst;
  uint32_t param;
} el_declared;

// Adds the last parameter of the instance to the family of its form. Errors are reported.
void el_share_declare(lm_elab *e, el_inst *inst);
// Instantiates the adapters, and makes the globals of all parameters.
void el_shares_make(lm_elab *e);
// The base of the family that a global is of; the name itself if it is of none.
lm_sym el_share_base(const lm_elab *e, lm_sym global);
// True if two instances have one form, and parameters of the same shapes.
bool el_insts_same_kind(const el_inst *x, const el_inst *y);
// True if two elements of a repetition are computed in the same way, from the same globals.
bool el_insts_agree(const el_inst *x, const el_inst *y);
// The index of the parameter along stacked axis k of its global. A loop over instances that agree
// visits those of a share at a constant distance.
el_index el_share_index(const el_ref *ref, const el_param *p, int k);
#endif
