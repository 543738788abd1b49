// strip.h - innermost loops in strips of 32 iterations.
//
// An iteration of a strip has a number, `lane`. Sums and maxima accumulate in element `lane` of
// arrays of partial results (prelude/partial.h), and bf16 results are stored to element `lane` of
// an array of float32 that is rounded as a whole (prelude/strip_bf16.h). The compiler keeps these
// arrays in registers, since it unrolls the strip.
#ifndef LM_CODEGEN_CPU_STRIP_H
#define LM_CODEGEN_CPU_STRIP_H
#include "runtime/base/base.h"

// An array `name` of results, stored to memory at `location`, which depends on the loop variable.
typedef struct cpu_strip_store {
  const char *name, *location;
} cpu_strip_store;

// for (int64_t `name` = `from`; `name` < `to`; `name`++)
typedef struct cpu_strip_loop {
  const char *name, *from, *to;
  int64_t count;     // the trip count; -1: known only at run time
  const char *strip; // a name that is unused in the scope of the loop
  bool ordered;      // must not be vectorised
  const cpu_strip_store *stores;
  int n_stores;
} cpu_strip_loop;

void cpu_strip_loop_put(lm_arena *a, lm_buf *out, const cpu_strip_loop *l, const char *body);
#endif
