// lower_internal.h - the parts of lowering that have files of their own.
#ifndef LM_LOWER_INTERNAL_H
#define LM_LOWER_INTERNAL_H
#include "dsl/elab.h"
#include "dsl/lower.h"
el_val lm_lower_logits(lm_elab *e, el_inst *model, const el_val *tok_pos_seg);   // lower.c; of a model with an apply
// lower_tokens.c: adds xent.sum and xent.weight to the results of an evaluation, where the model has an apply.
void lm_lower_tokens(lm_elab *e, el_inst *model, const el_val *columns, lm_value **out, lm_sym *names, uint32_t *n);
void lm_lower_tokens_check(lm_elab *e, const lm_recipe *r, const el_inst *model);
void lm_lower_maps(lm_elab *e, el_inst *model, lm_lowered *out, lm_loc at);       // lower_maps.c
void lm_lower_config(lm_elab *e, el_inst *inst, const ast_item *section, lm_lowered *out);   // lower_config.c
void lm_lower_args(lm_elab *e, el_inst *model, lm_lowered *out);                  // the model's arguments that are numbers
bool lm_item_is_config(const ast_item *item);                                     // config { … }
void lm_lower_optimizer(lm_elab *e, lm_recipe *r, lm_lowered *out);               // lower_optim.c
#endif
