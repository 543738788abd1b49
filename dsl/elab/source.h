// source.h - instances with initial separate weights: `sub teacher = M(…) from "PATH"`.
//
// Their parameters are frozen unless `train` in the edits of the model says otherwise. One whose
// parameters are all frozen computes as in an evaluation, without dropout.
#ifndef LM_ELAB_SOURCE_H
#define LM_ELAB_SOURCE_H
#include "dsl/elab/elab.h"

typedef struct el_source {
  el_inst *inst;
  const char *path;
  bool from_hf; // the weights have the names and layouts of `map hf`
  lm_loc at;
  bool trained;           // some parameter in it is, perhaps one of an adapter
  struct el_source *next; // in the order of the instances
} el_source;

// Reads `from` of a member. NULL: it has none, or the error is reported.
el_source *el_source_read(lm_elab *e, const el_inst *owner, const ast_member *m);
// The source of the innermost instance around a parameter that has one; NULL: none has.
el_source *el_source_of(const el_inst *inst);
// True if the current method computes as in training.
bool el_trains(const lm_elab *e);
// True in a method and in a function that it calls, not in an optimizer, nor while an instance is
// made.
bool el_in_method(const lm_elab *e);
// Evaluates instance.bare(…), the apply of an instance without its adapters.
el_val el_call_bare(lm_elab *e, const ast_expr *x, const el_ref *ref);
#endif
