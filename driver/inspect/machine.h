// machine.h - what training needs of a machine: what was found of it, and what is missing.
#ifndef LM_DRIVER_MACHINE_H
#define LM_DRIVER_MACHINE_H
#include "runtime/base/base.h"

typedef struct lm_finding {
  const char *name;
  bool found, required; // required: nothing can be trained without it
  const char *what;     // was found
  const char *gives;    // what the missing part would make possible
} lm_finding;

enum {
  LM_FINDINGS = 11
};

typedef struct lm_machine_findings {
  lm_finding v[LM_FINDINGS];
  int n;
  bool gpu; // one was found that can be trained on
} lm_machine_findings;

void lm_machine_inspect(lm_arena *a, lm_machine_findings *out);
// LM_ENV if nothing can be trained here, with what is missing.
lm_status lm_machine_verdict(const lm_machine_findings *x);
#endif
