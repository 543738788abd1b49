// resume.h - a run that is resumed: from which checkpoint, and whether the recipe and the program
// are still the same.
//
// Values of the recipe that shape the result are compared one by one; --change KEY accepts a
// difference. What the program computes is compared by its fingerprint, so names, comments and form
// do not count; --change-model accepts a difference. What was accepted is written to history.json,
// and the program that was replaced to program-STEP.
#ifndef LM_DRIVER_RESUME_H
#define LM_DRIVER_RESUME_H
#include "driver/fingerprint.h"
#include "driver/history.h"
#include "driver/resume_keys.h"
#include "runtime/train/run.h"

// What the user says about resuming.
typedef struct lm_resume_choice {
  const char *how; // "auto", "never", or the folder of a checkpoint; NULL: as the recipe says
  const char *const *changes;
  int n_changes;     // paths of recipe keys whose change is accepted
  bool change_model; // a program that computes something else is accepted
} lm_resume_choice;

typedef struct lm_resumption {
  lm_resume_choice wanted;
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

// Of an open session, before any expensive work: finds the checkpoint and compares recipe and
// program with those that it was made with. LM_USER for a difference that is not accepted.
lm_status lm_resume_find(lm_session *s, const char *dir, const lm_resume_choice *wanted,
                         lm_resumption *out);
// Once it is certain that the run resumes, before its folder gets today's program.
lm_status lm_resume_record(const lm_session *s, const lm_resumption *x);
#endif
