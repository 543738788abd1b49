// zoo.h - the models of examples/zoo, which are in the binary, so that `lmc import` finds the one
// that a config.json is of.
#ifndef LMC_ZOO_H
#define LMC_ZOO_H
#include "runtime/base/base.h"

typedef struct lm_zoo_model {
  const char *type, *file, *model; // of config.json: "llama"; "llama.lm"; "Llama"
} lm_zoo_model;

const lm_zoo_model *lm_zoo_find(const char *type); // NULL: none
const char *lm_zoo_text(const lm_zoo_model *m);    // of its file
const char *lm_zoo_types(lm_arena *a);             // "gemma2, gpt2, …", for messages
#endif
