// memory.h - the breakdown of a plan's memory: which values take it, and when.
#ifndef LM_DRIVER_MEMORY_H
#define LM_DRIVER_MEMORY_H
#include "runtime/base/base.h"
#include "runtime/plan/plan.h"

// Memory of the whole run has func = NULL. Other items are the buffers with one label (operation
// and source lines) in the function's work arena that are live at the step where the function needs
// most; first and last: their steps.
typedef struct lm_memory_item {
  const char *label, *func;
  int64_t bytes;
  int n, first, last;
} lm_memory_item;
typedef struct lm_memory_breakdown {
  lm_memory_item *v;
  int n;                    // the largest first
  const lm_plan_func *func; // with the largest work arena; NULL: none has one
  int peak;                 // the step of func where most bytes are live
  int64_t peak_bytes;       // live bytes there; the arena may be larger, by gaps between buffers
} lm_memory_breakdown;

lm_memory_breakdown lm_memory_breakdown_make(lm_arena *a, const lm_plan *p,
                                             int64_t workspace, // of GEMMs, beyond the arenas
                                             int64_t saving);   // the copy of a checkpoint
// Live bytes at each of the f->n_steps steps.
int64_t *lm_memory_live(lm_arena *a, const lm_plan_func *f);
const char *
lm_memory_item_when(lm_arena *a, const lm_memory_breakdown *all,
                    const lm_memory_item *h); // "always", "steps 4 to 210 of 320 of micro"
#endif
