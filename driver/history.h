// history.h - history.json of a run folder: the changes that were accepted when the run was
// resumed.
//
//   [{"step": 20, "option": "--change", "key": "optimizer.lr", "old": "2e-3", "new": "1e-3",
//   "program": null, "lines": null}, …]
//
// program: the folder within the run folder that holds the program up to that step, if the model
// was changed. lines: of its first entry, the lines of the program that differ.
#ifndef LM_DRIVER_HISTORY_H
#define LM_DRIVER_HISTORY_H
#include "runtime/base/base.h"

typedef struct lm_history_entry {
  int64_t step;
  const char *option, *key, *was, *is, *program, *lines;
} lm_history_entry; // program NULL: it was not changed; lines: optional
typedef struct lm_history {
  lm_history_entry *v;
  uint32_t n, cap;
} lm_history;

// Empty if the folder has no such file. LM_USER if the file is malformed.
lm_status lm_history_read(lm_arena *a, const char *dir, lm_history *out);
lm_status lm_history_write(const char *dir, const lm_history *h);
// The folder, a run's or one within it, that holds the program of the checkpoint of `step`
// (bundle.h reads both).
const char *lm_history_program(lm_arena *a, const lm_history *h, const char *dir, int64_t step);
void lm_history_json(const lm_history *h, lm_buf *out); // the text of history.json
#endif
