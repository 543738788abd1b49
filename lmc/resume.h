// resume.h - a run that is resumed: from which checkpoint, and whether the recipe and the program
// are still the same.
//
// Values of the recipe that shape the result are compared one by one; --change KEY accepts a
// difference. What the program computes is compared by its fingerprint, so names, comments and form
// do not count; --change-model accepts a difference. What was accepted is written to history.json,
// and the program that was replaced to program-STEP.
#ifndef LMC_RESUME_H
#define LMC_RESUME_H
#include "lmc/fingerprint.h"
#include "lmc/history.h"
#include "lmc/recipe_keys.h"
#include "runtime/train/run.h"

#define LM_OPT_RESUME                                                                              \
  {.name = "resume",                                                                               \
   .kind = LM_OPT_TEXT,                                                                            \
   .value = "auto|never|PATH",                                                                     \
   .help =                                                                                         \
       "resume from the newest checkpoint of the run's folder, from none, or from this one; "      \
       "checkpoints that the run does not follow from are moved to superseded-N in the folder"},   \
      {.name = "change",                                                                           \
       .kind = LM_OPT_LIST,                                                                        \
       .value = "KEY",                                                                             \
       .help = "on resume accepts another value of KEY, such as optimizer.lr; may be repeated"},   \
  {                                                                                                \
    .name = "change-model", .kind = LM_OPT_FLAG,                                                   \
    .help = "on resume accepts a program that computes something else; the old one is kept as "    \
            "program-STEP"                                                                         \
  }

typedef struct lm_resumption {
  lm_resume how;
  const char *path;           // of LM_RESUME_PATH
  const char *dir;            // the run's folder, NULL: nothing is saved
  lm_recipe_keys keys;        // of the recipe today
  lm_fingerprint fingerprint; // of the program today
  lm_checkpoint_choice from;  // folder NULL: the run begins
  lm_checkpoint was;          // the state in it
  const char *run,
      *program; // the folder of the run that it is of; where the program is that it was made with
  const char *replaced; // the folder whose program was replaced: to be kept; NULL: none was
  lm_history history;   // what was changed up to that step, and what is accepted now
} lm_resumption;

// LM_USER if --resume is none of its values.
lm_status lm_resume_option_check(const lm_args *a);
// With the session open, before anything costs time: finds the checkpoint, and compares.
lm_status lm_resume_find(lm_session *s, const char *dir, lm_resumption *out);
// Once it is certain that the run resumes, before its folder gets today's program.
lm_status lm_resume_record(const lm_session *s, const lm_resumption *x);
#endif
