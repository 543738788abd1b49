// machine.h - the parts of a machine that training needs, found or missing.
#ifndef LM_DRIVER_MACHINE_H
#define LM_DRIVER_MACHINE_H
#include "runtime/base/base.h"

typedef struct lm_finding {
  const char *name;
  bool found, required; // required: training is impossible without it
  const char *what;     // the part, such as "GCC 12.2"
  const char *gives;    // the feature that the missing part enables
} lm_finding;

enum {
  LM_FINDINGS = 12
};

typedef struct lm_machine_findings {
  lm_finding v[LM_FINDINGS];
  int n;
  bool gpu; // a GPU was found that lmc can train on
} lm_machine_findings;

void lm_machine_inspect(lm_arena *a, lm_machine_findings *out);
// LM_ENV, with the missing parts, if training is impossible on this machine.
lm_status lm_machine_verdict(const lm_machine_findings *x);
#endif
