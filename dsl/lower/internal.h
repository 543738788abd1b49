// internal.h - the parts of lowering that have files of their own.
#ifndef LM_LOWER_INTERNAL_H
#define LM_LOWER_INTERNAL_H
#include "dsl/elab/elab.h"
#include "dsl/lower/lower.h"
el_val lm_lower_logits(lm_elab *e, el_inst *model,
                       const el_val *tok_pos_seg); // lower.c; of a model with an apply
// tokens.c: adds xent.sum and xent.weight to the results of an evaluation, where the model
// has an apply.
void lm_lower_tokens(lm_elab *e, el_inst *model, const el_val *columns, lm_value **out,
                     lm_sym *names, uint32_t *n);
void lm_lower_tokens_check(lm_elab *e, const lm_recipe *r, const el_inst *model);
void lm_lower_maps(lm_elab *e, el_inst *model, lm_lowered *out, lm_loc at); // maps.c
void lm_lower_config(lm_elab *e, el_inst *inst, const ast_item *section,
                     lm_lowered *out); // config.c
void lm_lower_args(lm_elab *e, el_inst *model,
                   lm_lowered *out);          // the model's arguments that are numbers
bool lm_item_is_config(const ast_item *item); // config { … }
void lm_lower_optimizer(lm_elab *e, lm_recipe *r, lm_lowered *out); // optim.c

// ---- update.c, in the optimizer's frame, mode EL_UPDATE
// The method `update`, after a check of all members; NULL: reported.
const ast_member *lm_optimizer_members(lm_elab *e, const ast_decl *d);
typedef struct lm_lowered_states {
  lm_lowered_state *v;
  uint32_t n, cap;
} lm_lowered_states;
lm_lowered_states lm_optimizer_states(lm_elab *e, const ast_decl *d);
typedef struct lm_optimizer_values {
  const ast_member *update;
  const el_axes *elements; // of all parameters
  el_val args[3];          // p, g, k
  lm_lowered_states states;
  el_val *state; // the value of each
} lm_optimizer_values;
// Runs the body. out: the new p, then the new states, over all elements. False: reported.
bool lm_optimizer_run(lm_elab *e, const lm_optimizer_values *in, el_val *out);
void lm_optimizer_check(lm_elab *e, const lm_file *file, ast_decl *d); // one that no recipe reaches

// rates.c: moves what no element enters from @update to @rates. lr: a value of @update to
// return as `lr`, or NULL.
void lm_lower_rates(lm_elab *e, lm_func *rates, lm_func *update, lm_value *lr);
#endif
