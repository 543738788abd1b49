// partials.h - loops in which sums and maxima accumulate in partial results (prelude/partial.h).
#ifndef LM_CODEGEN_CPU_PARTIALS_H
#define LM_CODEGEN_CPU_PARTIALS_H
#include "runtime/base/base.h"

// for (int64_t `name` = `from`; `name` < `to`; `name`++). The body accumulates in element `lane` of
// arrays of partial results.
typedef struct cpu_partials_loop {
  const char *name, *from, *to;
  const char *block; // a name that is unused in the scope of the loop
  bool ordered;      // must not be vectorised
} cpu_partials_loop;

void cpu_partials_loop_put(lm_arena *a, lm_buf *out, const cpu_partials_loop *l, const char *body);
#endif
