// dump.h - IR as text while passes run: for --print-after, for the folder of `lmc compile`, after a
// bug.
#ifndef LMC_DUMP_H
#define LMC_DUMP_H
#include <stdio.h>

#include "compiler/ir/ir.h"

typedef struct lm_dump {
  const char *after; // name of a pass, "all", or NULL
  FILE *to;          // where --print-after goes
  const char *dir;   // a file for each stage there; NULL: none
  int n_passes;      // so far
  lm_status failed;  // of the first file that could not be written
} lm_dump;

// NULL, "all", or a pass; LM_USER if there is none of that name.
lm_status lm_dump_after(lm_dump *d, const char *pass);
void lm_dump_pass(lm_dump *d, const char *pass, const lm_module *m); // after each pass
lm_status lm_dump_stage(const char *dir, const lm_module *m);        // STAGE.lmir, as m stands
#endif
