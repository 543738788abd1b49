// resume.h - finds the checkpoint that a run resumes from, and compares the recipe and the program
// with the ones that made it.
//
// Values of the recipe that influence the result are compared one by one; --change KEY accepts a
// difference. Programs are compared by fingerprint, so names, comments and layout do not count;
// --change-model accepts a difference. Accepted changes are written to history.json, and the
// replaced program is kept in program-STEP.
#ifndef LM_DRIVER_RESUME_H
#define LM_DRIVER_RESUME_H
#include "driver/fingerprint.h"
#include "driver/history.h"
#include "driver/resume_keys.h"
#include "runtime/train/run.h"

// The user's options about resuming.
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
  lm_recipe_keys keys;        // of the present recipe
  lm_fingerprint fingerprint; // of the present program
  lm_checkpoint_choice from;  // folder NULL: the run begins at step 1
  lm_checkpoint was;          // its state
  const char *run;            // the folder of the run of that checkpoint
  const char *program;        // the folder of the program that it was made with
  const char *replaced;       // the folder of the program to keep, as it is replaced; NULL: none
  lm_history history;         // changes up to that step, and the changes accepted now
} lm_resumption;

// s: an open session, before any expensive work. Finds the checkpoint and compares recipe and
// program with the ones that made it. LM_USER for a difference that is not accepted.
lm_status lm_resume_find(lm_session *s, const char *dir, const lm_resume_choice *wanted,
                         lm_resumption *out);
// s: a session with its tokenizer. Adds the content of its files to the fingerprint, and compares
// it with the tokenizer that the checkpoint was trained with. LM_USER for a difference that
// `--change data.tokenizer` does not accept.
lm_status lm_resume_tokenizer(const lm_session *s, lm_resumption *x);
// The texts or batches themselves have changed since the checkpoint of `path`. LM_USER, unless
// `--change data.source`, or another accepted change of the data or of the seed, permits it.
lm_status lm_resume_other_data(const lm_session *s, lm_resumption *x, const char *path);
// s: a compiled session. Adds the frozen parameters' origin to the fingerprint. LM_USER if the
// checkpoint was trained on others.
lm_status lm_resume_base(const lm_session *s, lm_resumption *x);
// Writes history.json and keeps a replaced program, before the folder receives the present one.
lm_status lm_resume_record(const lm_session *s, const lm_resumption *x);
#endif
