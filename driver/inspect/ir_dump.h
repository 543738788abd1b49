// ir_dump.h - prints the IR while passes run.
#ifndef LM_DRIVER_IR_DUMP_H
#define LM_DRIVER_IR_DUMP_H
#include <stdio.h>

#include "compiler/ir/ir.h"

typedef struct lm_dump {
  const char *after; // name of a pass, "all", or NULL
  FILE *to;          // receives the text
  const char *dir;   // receives a file for each stage; NULL: none
  int n_passes;      // that have run
  lm_status failed;  // the error of the first file that was not written
} lm_dump;

// pass: its name, "all", or NULL. LM_USER if there is no such pass.
lm_status lm_dump_after(lm_dump *d, const char *pass);
void lm_dump_pass(lm_dump *d, const char *pass, const lm_module *m); // after each pass
void lm_dump_stage_end(lm_dump *d, const lm_module *m);              // before the next stage
lm_status lm_dump_stage(const char *dir, const lm_module *m);        // writes STAGE.lmir
// Reads and verifies a module's text. LM_USER without text: the errors are diagnostics.
lm_status lm_module_read(lm_ctx *ctx, const char *path, lm_module **out);
// Writes `m` to a new file in ${TMPDIR:-/tmp}, for a report of an internal error. Its path, in
// memory that lives as long as the process; NULL if there is no module or no file could be written.
const char *lm_module_dump(const lm_module *m);
#endif
