// zoo.h - the models of examples/zoo, embedded in the binary, by the model_type of config.json.
#ifndef LM_DRIVER_ZOO_H
#define LM_DRIVER_ZOO_H
#include "runtime/base/base.h"

typedef struct lm_zoo_model {
  const char *type, *file, *model; // "llama" in config.json; "llama.lm"; "Llama"
  const char *args, *undecayed;    // zoo.def; args may be NULL
  int64_t period;                  // of its kinds of layers
} lm_zoo_model;

const lm_zoo_model *lm_zoo_find(const char *type); // NULL: there is none
// Of those that `lmc new` begins with, by the name of its file without .lm, or by its type.
const lm_zoo_model *lm_zoo_named(const char *name);
// The file's name that is most similar to `name`, without .lm, or NULL.
const char *lm_zoo_nearest(lm_arena *a, const char *name);
const char *lm_zoo_names(lm_arena *a);          // "gemma2, gpt2, …": of the files
const char *lm_zoo_text(const lm_zoo_model *m); // the text of its file
const char *lm_zoo_types(lm_arena *a);          // "gemma2, gpt2, …", for messages
#endif
