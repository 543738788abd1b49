// cost_attend.c - the time of attention: tiles of queries by keys, each two or more GEMMs and the
// elementwise work of a softmax.
//
// A block of a forward pass owns rows of queries and walks over tiles of keys; of a backward pass
// it owns rows of keys (dk and dv: four GEMMs a tile with those that recompute the scores) or of
// queries (dq: three). The GEMMs of one group of warps overlap with the softmax of another.
#include <math.h>

#include "compiler/plan/cost.h"

// Rows that a block owns, columns of a tile.
typedef struct shape {
  double rows;
  double columns;
} shape;

// Instructions of all lanes for a score, where an exponential counts as 8, since a multiprocessor
// computes 16 of them in a cycle in which it issues 128 others. Forward: the maximum, scale, sum,
// conversion to bf16. Backward: the difference from delta and two multiplications too, but no
// maximum and no rescaling.
static const double FORWARD = 17, BACKWARD = 13;
// Share of the main loop's rate. Backward both factors of a GEMM come from shared memory, whose
// bandwidth limits tiles of 64 columns.
static const double FORWARD_SHARE = 0.93, BACKWARD_SHARE = 0.9;
// A block waits for its first tiles and writes its rows at the end: about 3,000 cycles at 1.7 GHz.
static const double BLOCK = 1.75e-6;

static double overlap(double a, double b) {
  return sqrt(a * a + b * b); // closer coupled than memory and instructions
}

// FLOP/s of a multiprocessor.
static double rate(const lm_target *t, lm_dtype dtype, bool warpgroups) {
  double r = lm_cost_peak(t, dtype) / t->units;
  return warpgroups || !lm_dtype_is_half(dtype) ? r : r * t->rates.mma_sync;
}

// Seconds in which the device computes all tiles of a section. width: the sum of the widths of a
// tile's GEMMs.
static double section(const lm_target *t, const lm_plan_attend *a, shape x, double rows,
                      double columns, double width, double instructions, double flops_rate) {
  double blocks = ceil(rows / x.rows) * (double)a->points;
  double across = ceil(columns / x.columns);
  if (a->causal) // tiles on the diagonal are whole
    across *= fmin(1, (1 + x.rows / rows) / 2);
  double lanes = t->rates.lanes / t->units;
  double multiply = 2 * x.rows * x.columns * width / flops_rate;
  double softmax = x.rows * x.columns * instructions / lanes;
  double block = across * overlap(multiply, softmax) + BLOCK;
  double waves = blocks / t->units;
  // Half of the last wave is idle; fewer blocks than multiprocessors take as long as one.
  return waves < 1 ? block : (waves + 0.5) * block;
}

static double gpu_seconds(const lm_target *t, const lm_plan_attend *a, bool warpgroups) {
  double both = (double)(a->qk + a->v);
  double r = rate(t, a->dtype, warpgroups);
  double queries = (double)a->t;
  double keys = (double)a->s;
  if (!a->backward) {
    shape x = warpgroups ? (shape){128, 128} : (shape){64, 64};
    return section(t, a, x, queries, keys, both, FORWARD, r * FORWARD_SHARE);
  }
  shape x = warpgroups ? (shape){128, 64} : (shape){64, 64};
  r *= BACKWARD_SHARE;
  return section(t, a, x, keys, queries, 2 * both, BACKWARD, r) +
         section(t, a, x, queries, keys, both + (double)a->qk, BACKWARD, r);
}

static double cpu_seconds(const lm_target *t, const lm_plan_attend *a) {
  double pairs = (double)a->points * (double)a->t * (double)a->s * (a->causal ? 0.5 : 1);
  double width = (double)(a->qk + a->v) * (a->backward ? 2.5 : 1);
  double multiply = 2 * pairs * width / lm_cost_peak(t, a->dtype);
  double softmax =
      t->rates.lanes > 0 ? pairs * (a->backward ? BACKWARD : FORWARD) / t->rates.lanes : 0;
  return multiply + softmax; // one thread does both
}

lm_cost lm_cost_of_attend(const lm_target *t, const lm_plan_attend *a, double bytes,
                          bool warpgroups) {
  double busy = t->kind == LM_TARGET_CUDA ? gpu_seconds(t, a, warpgroups) : cpu_seconds(t, a);
  double memory = lm_cost_memory(t, bytes);
  lm_cost_bound bound = memory > busy ? LM_COST_MEMORY : LM_COST_ARITHMETIC;
  if (t->rates.launch > busy)
    bound = LM_COST_LAUNCH;
  return (lm_cost){t->rates.launch + lm_cost_overlap(busy, memory), bound};
}
