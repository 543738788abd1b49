// cost_draw.c - the time in which the runtime's kernels draw a token (runtime/cuda/draw.cu).
//
// The instructions are those of the machine code for sm_90a: for each logit, and for each thread of
// the block that searches, before its first search and for each byte of a rank, where all warps
// are taken to do what the slowest one does. Of a search, four bytes are taken to decide: with f32,
// the bits of a logit; in order of ids, three are enough.
#include <math.h>

#include "compiler/plan/cost.h"
#include "runtime/cuda/draw.h"

enum {
  THREADS = 1024, // of a block for a slice
  LOADS = 4,      // of a thread, in flight
  F32 = 4,        // bytes of a logit
  GREATEST = 18,  // instructions for a logit
  SORT = 165,
  PICK_THREADS = 512,
  PICK = 350, // instructions of a thread
  PICK_BYTE = 430,
  BYTES = 4,       // of a rank, in a search
  PICK_WAITS = 6,  // for the greatest logits, twice for the bins, three times for the token's id
  SEARCH_WAITS = 2 // for the ids of a bin and their logits, beside one for each byte
};

static const int searches_of[LM_DRAW_KINDS] = {
    [LM_DRAW_GREEDY] = 0, [LM_DRAW_TEMPERATURE] = 1, [LM_DRAW_TOP_P] = 2,
    [LM_DRAW_TOP_K] = 2,  [LM_DRAW_TOP_K_AND_P] = 3,
};

// A kernel with a block for each slice that reads the row so many times.
static lm_cost slices_cost(const lm_target *t, double logits, double instructions, int times) {
  double threads = THREADS * (double)lm_draw_slices((int32_t)logits);
  lm_cost_kernel kernel = {
      .bytes = times * F32 * logits,
      .instructions = logits * instructions,
      .threads = threads,
      .waits = 1 + times * ceil(logits / (threads * LOADS)),
  };
  return lm_cost_of_kernel(t, &kernel);
}

static lm_cost pick_cost(const lm_target *t, double logits, int searches) {
  double bins = LM_DRAW_BINS * sizeof(lm_draw_bin) * (double)lm_draw_slices((int32_t)logits);
  lm_cost_kernel kernel = {
      .bytes = searches ? bins : 0,
      .instructions = PICK_THREADS * (double)(PICK + searches * BYTES * PICK_BYTE),
      .threads = PICK_THREADS,
      .waits = searches ? PICK_WAITS + searches * (SEARCH_WAITS + BYTES) : 1,
  };
  return lm_cost_of_kernel(t, &kernel);
}

lm_cost lm_cost_of_draw(const lm_target *t, lm_draw_kind kind, double logits) {
  int searches = searches_of[kind];
  lm_cost cost = slices_cost(t, logits, GREATEST, 1);
  lm_cost pick = pick_cost(t, logits, searches);
  if (searches)
    cost.seconds += t->rates.gap + slices_cost(t, logits, SORT, 2).seconds;
  cost.seconds += t->rates.gap + pick.seconds;
  cost.bound = pick.bound;
  return cost;
}
