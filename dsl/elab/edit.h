// edit.h - the edits of a model instance: `model X = M() with { freeze @P; train @P }`.
//
// Edits are applied while the model is instantiated. Of the edits that match a parameter the last
// one decides whether it is trained; without any it is.
#ifndef LM_ELAB_EDIT_H
#define LM_ELAB_EDIT_H
#include "dsl/elab/elab.h"

typedef enum {
#define EDIT(ID, NAME, FORM) EL_EDIT_##ID,
#include "dsl/elab/edits.def"
#undef EDIT
  EL_EDITS
} el_edit_kind;
extern const char *const el_edit_names[EL_EDITS]; // "freeze"

typedef struct el_edit {
  el_edit_kind kind;
  const char *pattern;
  lm_loc at;
} el_edit;

// The instances of a parameter in its repetitions, divided into trained and frozen ones. Each part
// is a separate global, stacked over the instances that it has.
typedef struct el_division {
  lm_sym base;   // the path without indices
  int level;     // the repetition whose index decides; -1: all instances are equal
  bool *frozen;  // by that index; one element if level is -1
  int64_t *rank; // by that index: the index in the part
  int64_t n[2];  // instances of the trained and of the frozen part along that repetition
  struct el_division *next;
} el_division;

typedef struct el_edits {
  el_edit *v;
  uint32_t n, cap;
  el_division *divisions;
  bool divides; // some division has two parts
} el_edits;

// Reads the items of `with` to e->edits. False: reported.
bool el_edits_read(lm_elab *e, const ast_items *items);
// The division of a parameter; NULL if the model has no edits or after an error, which is reported.
const el_division *el_division_of(lm_elab *e, const el_inst *inst, const el_param *p);
bool el_division_is_frozen(const el_division *d, const el_inst *inst);
// Whether two elements of a repetition read the same globals.
bool el_edits_agree(const lm_elab *e, const el_inst *x, const el_inst *y);
// Reports patterns that match no parameter of the model.
void el_edits_check(lm_elab *e);
// Reports an alternative of a pattern that matches no parameter, with the nearest name.
void el_pattern_check(lm_elab *e, const char *pattern, lm_loc at);
#endif
