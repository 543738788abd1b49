// output.h - what a command writes is nothing that it reads.
#ifndef LMC_OUTPUT_H
#define LMC_OUTPUT_H
#include "dsl/recipe/recipe.h"
#include "lmc/command.h"

// LM_USER if `path`, a file or a folder, is one of `inputs` (NULLs among them are none) under
// whatever name.
lm_status lm_output_check(const char *path, const char *const *inputs, size_t n);
// The same for what the command was given and all that its recipe names: files of the program,
// text, tokenizer, weights.
lm_status lm_output_check_recipe(const lm_cli *cli, const lm_recipe *r, const char *path);
// LM_USER if a file of this name can't be made, as it is a folder or in none: told before the work
// that is to be written there.
lm_status lm_output_file_check(const char *path);
#endif
