// edit.h - the edits of a model instance: `model X = M() with { freeze @P; adapt @P = B(…) }`.
//
// Edits are applied while the model is instantiated. Of the `freeze` and `train` lines that match a
// parameter the last one decides whether it is trained; without any it is. `adapt` gives each
// parameter that it matches an instance of a block, whose method `use` computes the result of each
// `dot` with the parameter, or whose method `merge` computes the weight (adapt.c). `after` passes
// values through a block, and `replace FUNCTION = BLOCK(…)` computes calls by one (site.c).
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
  const char *pattern; // REPLACE: of subs, or the name of the function
  lm_loc at;
  int number;                // lines before it
  bool failed;               // an instance of it has an error, which was reported
  const ast_expr *call;      // ADAPT, AFTER, REPLACE: the instance
  lm_decl_ref block;         // of `call`
  const ast_decl *fn;        // REPLACE: the function; NULL: subs are replaced
  uint32_t hits;             // AFTER, REPLACE: instances
  struct el_call_of **calls; // REPLACE, of subs: with the arguments of the replaced calls
} el_edit;

// `replace FUNCTION = FUNCTION` (replace.c).
typedef struct el_replacement {
  lm_decl_ref of, by; // by: a function or a block
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

// A call of a block with the arguments that a line and a site, or a line and a sub, give. One for
// all instances, which then have one form.
typedef struct el_call_of {
  const void *of; // the line of the site's list; the call of the sub that the line replaces
  const ast_expr *call;
  struct el_call_of *next;
} el_call_of;

// A value that an edit can pass through a block: one that a `let` binds, an argument of `apply`,
// the result of a sub's `apply`, or that of a call of a replaced function. Instances of one form
// have the same sites.
typedef struct el_site {
  const ast_expr *call; // of the form
  lm_sym path;
  lm_sym name;        // of the `let` or parameter; NULL: the other two
  const ast_decl *fn; // the replaced function; NULL: the other two
  lm_loc at, other;   // other: a second `let` of the name, or a second call
  const el_val *args; // what `apply` of the block gets: the value, or the arguments of the call
  uint32_t n;
  struct el_call_of *calls;
  struct el_site *next;
} el_site;

// The instance of a block at a site of the instance that has the list.
typedef struct el_inserted {
  el_inst *inst;
  const el_edit *by;
  const el_site *site;
  struct el_inserted *next; // in the order of the lines
} el_inserted;

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
  bool has_sites; // some lines are `after` or `replace FUNCTION = BLOCK(…)`
  bool records;   // the model is elaborated to find the roles; nothing is edited
} el_edits;

// Reads the items of `with` in e's frame to e->edits. False: reported.
bool el_edits_read(lm_elab *e, const ast_items *items);
// What the edits make of a parameter: 2 * (0, or 1 + the line that gave it the adapter whose
// parameter it is) + (1 if it is frozen). Instances with different numbers have different globals.
int el_edit_class(lm_elab *e, const el_inst *inst, const el_param *p);
// Reports patterns that match no parameter of the model.
void el_edits_check(lm_elab *e, const el_inst *model);
// Warns of adapters beside which the parameters that they are for are trained.
void el_edits_warn(lm_elab *e);
// The result of a method of a block that an edit adds, which has the type of `like`.
el_val el_edit_result(lm_elab *e, const el_inst *block, const char *method, el_val r,
                      const el_val *like, lm_loc at);
// r, which an edit computes from `from`, marked as such for pass epilogue.
el_val el_edited(lm_elab *e, el_val r, const el_val *from);
// ---- near.c
typedef struct el_paths {
  const char **v;
  uint32_t n, cap;
} el_paths; // paths of parameters, such as layers.0.wq
// Adds to `d` what to write instead of a pattern that matches none of the paths.
void el_help_pattern(lm_elab *e, lm_diag *d, const char *pattern, const el_paths *paths);

// Reports an alternative of a pattern that matches no parameter, with the nearest name. Parameters
// that an edit from line `before` on adds do not count.
// model: the declaration that a note shows; NULL: no note.
void el_pattern_check(lm_elab *e, const char *pattern, lm_loc at, int before,
                      const ast_decl *model);
// The first edit after which no parameters of the model without edits give its results; no file:
// none. blocks: those at sites count.
lm_loc el_edits_change(const lm_elab *e, bool blocks);
// True if an edit has an effect on a parameter that its pattern matches.
bool el_edit_reaches(const el_edit *x, const lm_global *g);

// ---- replaced functions (replace.c)
// by: the block that computes the calls; without declaration: the item names a function. False:
// reported.
bool el_replacement_read(lm_elab *e, const ast_item *item, lm_decl_ref by);
// What a call of the function calls instead; NULL: itself.
el_replacement *el_replacement_find(const lm_elab *e, const ast_decl *fn);
// Reports functions that the model, all of whose functions were emitted, does not call.
void el_replacements_check(lm_elab *e);

// ---- replaced subs (replace_sub.c)
// The call that makes a sub, and *where: with the block of the last line that replaces the sub.
const ast_expr *el_sub_replaced(lm_elab *e, const ast_expr *call, el_inst_site *where);
// The arguments of the line's call as constants, since it is evaluated where a sub is. False:
// reported.
bool el_sub_arguments(lm_elab *e, el_edit *edit);
// The paths of the parameters that the model lacks since subs are replaced.
const lm_sym *el_subs_former(lm_elab *e, el_inst *model, uint32_t *n);
// Reports patterns that match no sub.
void el_subs_check(lm_elab *e, const el_inst *model);
// The line that adds a parameter: that of an adapter or of a block at a site, or the one that
// replaces a sub by a block if the replaced block has no such parameter. NULL: the model's own.
const el_edit *el_edit_of_param(const lm_elab *e, const el_inst *inst, lm_sym param);

// ---- sites (site.c)
// Instantiates the blocks at the sites of the model, which an elaboration without edits has found.
void el_sites_edit(lm_elab *e, el_inst *model);
// Reports patterns of `after` that match no site.
void el_sites_check(lm_elab *e, const el_inst *model);
// The value that a `let` of the current method binds to a name, after its blocks.
el_val el_site_let(lm_elab *e, const ast_name *name, el_val v);
// Passes the arguments of `apply`, which the current frame binds, through their blocks.
void el_site_params(lm_elab *e, const ast_sig *sig);
// The result of `apply` of the instance, after its blocks.
el_val el_site_sub(lm_elab *e, const el_ref *ref, el_val v, lm_loc at);
// Records a call of a replaced function, in the elaboration without edits.
void el_site_record_call(lm_elab *e, const ast_decl *fn, const el_val *args, uint32_t n, lm_loc at);
// The block that computes calls of a function in the current method; false: there is none.
bool el_site_call_block(lm_elab *e, const ast_decl *fn, el_ref *out);

// ---- adapters (adapt.c)
// Instantiates the adapters of a parameter, the last of inst->params.
void el_adapters_add(lm_elab *e, el_inst *inst, uint32_t param);
// The line that gave an instance, or the adapter around it, to a parameter; NULL: the model's own.
const el_edit *el_edit_of(const el_inst *inst);
// The last line of a kind whose pattern matches the path and that has the block; NULL: none does.
const el_edit *el_edit_last(lm_elab *e, el_edit_kind kind, lm_sym path, const ast_decl *block);
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
