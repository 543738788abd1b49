// params_only.h - values that depend on parameters alone: norms of weights, masks, merged weights.
// They change with an update only. Pass hoist_params computes them once per update, and pass grad
// computes them again in the backward code instead of stashing them.
#ifndef LM_PARAMS_ONLY_H
#define LM_PARAMS_ONLY_H
#include "compiler/passes/rewrite.h"

enum {
  LM_OF_CONSTANTS = 1, // constants and values that depend on them alone
  LM_OF_PARAMS = 2,    // at one index of their stacked axes, and constants
  LM_OF_COSTLY = 4,    // of parameters, by a reduction, a dot or a gather
  LM_OF_TRAINED = 8    // one of the parameters is trained
};
// The marks by value id, for the values of f; free with lm_free.
uint8_t *lm_params_only(const lm_func *f);

// The values of a module that are computed once per update: each is a `derived` global.
typedef struct lm_hoisted {
  lm_sym name;
  const lm_value *like; // one of the values that read it
  uint64_t digest;      // of the computation
  bool frozen;          // of frozen parameters alone
} lm_hoisted;
typedef struct lm_hoisting {
  lm_hoisted *v;
  uint32_t n, cap;
  lm_idmap by_value; // -> 1 + the index of the one to read
  lm_idmap params;   // -> a parameter with stacked axes that the value depends on
} lm_hoisting;
// Finds them, and adds their globals.
lm_hoisting lm_hoisting_find(lm_module *m);
// Replaces the values by reads of the globals, and frees the maps.
void lm_hoisting_apply(lm_module *m, lm_hoisting *h);
// Emits their computation: out[i] is the value of h->v[i], NULL if it is frozen and `trained` is
// set. copied: casts of trained parameters are read from the copies.
void lm_hoisting_emit(lm_builder *b, const lm_hoisting *h, bool copied, bool trained,
                      lm_value **out);
// True of a `param` of which each rank has a part by ZeRO, and of what gathers one.
bool lm_param_has_zero(const lm_module *m, const lm_op *param);
bool lm_param_is_gathered(const lm_op *op);
#endif
