// lower_internal.h - the parts of lowering that have files of their own.
#ifndef LM_LOWER_INTERNAL_H
#define LM_LOWER_INTERNAL_H
#include "dsl/elab.h"
#include "dsl/lower.h"
void lm_lower_maps(lm_elab *e, el_inst *model, lm_lowered *out, lm_loc at);       // lower_maps.c
void lm_lower_optimizer(lm_elab *e, lm_recipe *r, lm_lowered *out);               // lower_optim.c
#endif
