// edit.h - the edits of a model instance: `model X = M() with { freeze @P; adapt @P = B(…) }`.
//
// Edits are applied while the model is instantiated. Of the `freeze` and `train` lines that match a
// parameter the last one decides whether it is trained; without any it is. `adapt` gives each
// parameter that it matches an instance of a block, whose method `use` computes the result of each
// `dot` with the parameter, or whose method `merge` computes the weight (adapt.c).
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
  int number;           // lines before it
  bool failed;          // an instance of it has an error, which was reported
  const ast_expr *call; // ADAPT: the instance
  lm_decl_ref block;    // ADAPT
} el_edit;

// `replace FUNCTION = FUNCTION` (replace.c).
typedef struct el_replacement {
  lm_decl_ref of, by;
  lm_loc at;
  bool active; // the body of `by` is being evaluated
  bool used;
} el_replacement;

// How a model uses a parameter in `dot`: in: axes that are summed over; batch: axes that are shared
// with the other operand and the result. Bit k is axis k of the parameter.
typedef struct el_role {
  lm_sym base; // the parameter, by its path without indices
  uint32_t in, batch;
  bool is_gather; // the use is a gather; in: the axis that it selects from
  lm_loc at;
  struct el_role *other; // a use that disagrees with this one, which is the first; NULL: none
  struct el_role *next;
} el_role;

typedef struct el_adapter {
  el_inst *inst;
  const el_edit *by;
  struct el_adapter *next; // in the order of the lines
} el_adapter;

// The parameter that a value is, for a `dot` with it.
typedef struct el_origin {
  const el_param *p;
  el_ref ref;
} el_origin;

typedef struct el_edits {
  el_edit *v;
  uint32_t n, cap;
  const lm_file *file; // of the edits
  el_replacement *replaced;
  uint32_t n_replaced, cap_replaced;
  bool has_adapters;
  bool records; // the model is elaborated to find the roles; nothing is edited
} el_edits;

// Reads the items of `with` in e's frame to e->edits. False: reported.
bool el_edits_read(lm_elab *e, const ast_items *items);
// What the edits make of a parameter: 2 * (0, or 1 + the line that gave it the adapter whose
// parameter it is) + (1 if it is frozen). Instances with different numbers have different globals.
int el_edit_class(lm_elab *e, const el_inst *inst, const el_param *p);
// Reports patterns that match no parameter of the model.
void el_edits_check(lm_elab *e, const el_inst *model);
// Reports an alternative of a pattern that matches no parameter, with the nearest name. Parameters
// that an edit from line `before` on adds do not count.
// model: the declaration that a note shows; NULL: no note.
void el_pattern_check(lm_elab *e, const char *pattern, lm_loc at, int before,
                      const ast_decl *model);
// True if an edit has an effect on a parameter that its pattern matches.
bool el_edit_reaches(const el_edit *x, const lm_global *g);

// ---- replaced functions (replace.c)
bool el_replacement_read(lm_elab *e, const ast_item *item); // false: reported
// What a call of the function calls instead; NULL: itself.
el_replacement *el_replacement_find(const lm_elab *e, const ast_decl *fn);
// Reports functions that the model, all of whose functions were emitted, does not call.
void el_replacements_check(lm_elab *e);

// ---- adapters (adapt.c)
// Instantiates the adapters of a parameter, the last of inst->params.
void el_adapters_add(lm_elab *e, el_inst *inst, uint32_t param);
// The line that gave an instance, or the adapter around it, to a parameter; NULL: the model's own.
const el_edit *el_edit_of(const el_inst *inst);
// The last line that adapts the parameter `path` by the block; NULL: none does.
const el_edit *el_edit_adapting(lm_elab *e, lm_sym path, const ast_decl *block);
// An adapted parameter with its adapters merged. V_ERROR if one has no method `merge`; reported.
el_val el_merged(lm_elab *e, el_inst *inst, uint32_t param);
// The parameter that the instance adapts, with the axes of the row `..i` in front.
el_val el_adapted_weight(lm_elab *e, el_inst *adapter);
// Records that rows of a table along axis v are selected.
void el_gather_record(lm_elab *e, const el_val *table, const el_axis *v, lm_loc at);
// How the model uses a parameter, by its path without indices; NULL if no use of it is known.
el_role *el_role_find(const lm_elab *e, lm_sym base);
// A use of a parameter of these axes in words: "sums over [d]".
const char *el_role_text(lm_elab *e, const el_axes *axes, const el_role *r);
// True if a value must not be passed to a function of the module, since a use of it is edited.
bool el_is_edited(const lm_elab *e, const el_val *v);
#endif
