// holders.h - who holds the memory of a plan, and when.
#ifndef LMC_HOLDERS_H
#define LMC_HOLDERS_H
#include "runtime/base/base.h"
#include "runtime/plan/plan.h"

// What is taken for the whole run has func = NULL; else stretches of the function's work arena
// under one label (the operation and its source lines) that are taken at the step where the
// function needs most. Steps: from the first of them to the last.
typedef struct lm_memory_item {
  const char *label, *func;
  int64_t bytes;
  int n, first, last;
} lm_memory_item;
typedef struct lm_memory_breakdown {
  lm_memory_item *v;
  int n;                    // the largest first
  const lm_plan_func *func; // the one that needs the largest work arena; NULL: none does
  int peak;                 // its step where most bytes are live
  int64_t peak_bytes;       // that many; the arena may be larger, where gaps could not be filled
} lm_memory_breakdown;

lm_memory_breakdown
lm_memory_breakdown_make(lm_arena *a, const lm_plan *p,
                         int64_t scratch); // scratch: of products, beside the arenas
// Bytes live at each step of f, n_steps of them.
int64_t *lm_memory_live(lm_arena *a, const lm_plan_func *f);
const char *
lm_memory_item_when(lm_arena *a, const lm_memory_breakdown *all,
                    const lm_memory_item *h); // "always", "steps 4 to 210 of 320 of micro"
#endif
