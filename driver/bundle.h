// bundle.h - the program in a run folder, so that the folder alone is enough to generate and to
// resume.
//
//   program/…      every file of the program, in the same relative folders, with imports that are
//                  relative
//   program.json   {"main": "examples/quickstart.lm", "folder": "/home/me/lmc",
//                   "recipe": "Quickstart", "set": ["optimizer.lr=1e-3"]}
//   recipe.txt     every value of the resolved recipe and where it came from
//   run.json       the numbers of the run (run_record.h)
#ifndef LM_DRIVER_BUNDLE_H
#define LM_DRIVER_BUNDLE_H
#include "driver/session.h"

typedef struct lm_bundle {
  const char *path, *recipe;     // the copy of the main file; the recipe's name
  const char *root;              // RUN/program
  const char *folder;            // of the original files; NULL: it no longer exists
  lm_recipe_overrides overrides; // of the command that started the run
  int64_t micro;                 // tokens of the micro-batch that was chosen; 0: not chosen
} lm_bundle;

// Copies the program's files to dir/program. *out_main: the path of the copied main file, in `a`.
lm_status lm_bundle_copy(lm_arena *a, const lm_program *p, const char *dir, const char **out_main);
// Writes all of these files but run.json.
lm_status lm_bundle_write(const lm_session *s, const char *dir, const lm_recipe_overrides *o);
// Resolves the paths in the program's files relative to the folder of the original files, if that
// still exists.
void lm_bundle_restore(lm_program *p, const lm_bundle *b);
// True if dir is a run folder, which holds program.json.
bool lm_bundle_exists(lm_arena *a, const char *dir);
lm_status lm_bundle_check(lm_arena *a, const char *dir); // LM_USER if it is not
// LM_USER if dir is not a run folder.
lm_status lm_bundle_read(lm_arena *a, const char *dir, lm_bundle *out);
#endif
