// outputs.h - files that a command writes must not be files that it reads.
#ifndef LM_DRIVER_OUTPUTS_H
#define LM_DRIVER_OUTPUTS_H
#include "dsl/recipe/recipe.h"

// LM_USER if `path`, a file or a folder, is one of `inputs` under any name; inputs may be NULL.
lm_status lm_output_check(const char *path, const char *const *inputs, size_t n);
// The same for all files that a recipe reads: the program, texts, the tokenizer, weights.
lm_status lm_output_check_recipe(const lm_recipe *r, const char *path);
// The same for every file in `dir` whose name matches one of the patterns, which end with NULL.
lm_status lm_output_folder_check(const lm_recipe *r, const char *dir, const char *const *patterns);
// LM_USER if a file of this name cannot be made, because it is a folder or its folder is missing.
// Called before the work whose result it receives.
lm_status lm_output_file_check(const char *path);
// LM_USER if `dir` holds a file that the command has not written. Names that begin with a dot do
// not count.
typedef struct lm_output_kind {
  const char *what; // "the folder of a run"
  // A file that only such a folder holds: beside it any file may lie. One of tensors counts if lmc
  // wrote it.
  const char *mark;
  const char *const *own; // patterns of the names that the command writes, ending with NULL
} lm_output_kind;
extern const lm_output_kind LM_OUTPUT_RUN, LM_OUTPUT_PLAN, LM_OUTPUT_EXPORT, LM_OUTPUT_PEFT;
lm_status lm_output_kind_check(const char *dir, const lm_output_kind *kind);
// LM_USER if `dir` holds weights beside model.safetensors, which transformers and lmc may read
// instead of it, or a run.
lm_status lm_output_weights_check(const char *dir);
#endif
