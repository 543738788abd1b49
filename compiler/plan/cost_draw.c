// cost_draw.c - the time in which the runtime's kernel draws a token (runtime/cuda/draw.cu).
//
// One block reads the row of logits in passes. The instructions of a pass are those of its loop in
// the machine code for sm_90a, for each logit: of one that is compared, and of one whose weight is
// computed. A search takes 16 passes; in all but the first one nearly all logits are below the
// range that is still searched, so their weights are not computed.
#include <math.h>

#include "compiler/plan/cost.h"

enum {
  THREADS = 1024,
  COMPARE = 12,      // instructions
  COMPARE_LOADS = 4, // of a thread, in flight
  WEIGHT = 95,
  WEIGHT_LOADS = 2
};

typedef struct passes {
  double compare, weight;
} passes;

static const passes passes_of[LM_DRAW_KINDS] = {
    [LM_DRAW_GREEDY] = {2, 0}, // the greatest, and its index
    [LM_DRAW_TEMPERATURE] = {1, 2},
    // The greatest, all weights; a search each for the end of the candidates and for the token, and
    // the sum of those above it; the index.
    [LM_DRAW_TOP_P] = {34, 3},
    [LM_DRAW_TOP_K] = {36, 2}, // the first search counts, and a sum of weights follows
    [LM_DRAW_TOP_K_AND_P] = {52, 3},
};

lm_cost lm_cost_of_draw(const lm_target *t, lm_draw_kind kind, double logits) {
  passes p = passes_of[kind];
  lm_cost_kernel kernel = {
      .instructions = logits * (p.compare * COMPARE + p.weight * WEIGHT),
      .threads = THREADS,
      .waits = p.compare * ceil(logits / (THREADS * COMPARE_LOADS)) +
               p.weight * ceil(logits / (THREADS * WEIGHT_LOADS)),
  };
  return lm_cost_of_kernel(t, &kernel);
}
