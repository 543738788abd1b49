// id_limits.h - how large the ids in a batch may be: the sizes of the tables that they index.
#ifndef LM_ANALYSIS_ID_LIMITS_H
#define LM_ANALYSIS_ID_LIMITS_H
#include "compiler/ir/ir.h"

typedef struct lm_limits {
  int64_t tok, pos, next;
} lm_limits; // numbers below it; INT64_MAX: no table is indexed by it

// Of every function of a module without calls. A table counts where it is indexed by the argument
// itself, moved around or not, in loops or not.
lm_limits lm_limits_find(const lm_module *m);
#endif
