// project.h - a program, a recipe and its overrides, resolved. Nothing changes it afterwards: what
// compiling, fitting and tuning choose is in lm_run_spec, lm_fit and lm_tuning.
#ifndef LM_DRIVER_PROJECT_H
#define LM_DRIVER_PROJECT_H
#include "driver/events.h"
#include "dsl/recipe/recipe.h"

typedef struct lm_project {
  lm_ctx *ctx;             // its diagnostics and its arena
  const lm_events *events; // optional
  lm_program *program;
  const lm_recipe *recipe;
  const struct lm_bundle *bundle; // the program is in a run folder; NULL: it is not
} lm_project;

// A recipe of a file, and its overrides.
typedef struct lm_recipe_choice {
  const char *path;   // of the program's main file
  const char *recipe; // its name; NULL: the file has one
  lm_recipe_overrides overrides;
  const struct lm_bundle *bundle; // of a program in a run folder; else NULL
  struct lm_comm *comm;           // the ranks that compute it together; NULL: one process
  // A recipe whose mesh has more ranks than the run is computed with fewer along dp (without dp:
  // fsdp) if the run has at least so many; 0: their numbers must agree.
  int least_ranks;
} lm_recipe_choice;

// Loads the program and resolves the recipe. `ctx` and `events` must outlive the project. Errors
// are diagnostics in the context and an LM_USER status without text.
lm_status lm_project_open(lm_ctx *ctx, const lm_events *events, const lm_recipe_choice *from,
                          lm_project *out);
#endif
