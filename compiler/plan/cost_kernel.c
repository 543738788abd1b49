// cost_kernel.c - the terms that the files of the cost model share, and the time of a kernel.
#include <math.h>

#include "compiler/plan/cost.h"

// ---- terms

// The cube root of the sum of cubes. Two terms of equal length take 1.26 times as long as each: the
// cross-entropy kernel, with 181 us of memory and 209 us of instructions, takes 246 us.
double lm_cost_overlap(double a, double b) {
  return cbrt(a * a * a + b * b * b);
}

// A working set of up to a sixth of the cache was in part written by the kernel before.
double lm_cost_memory(const lm_target *t, double bytes) {
  enum {
    PART = 6
  };
  const lm_target_rates *r = &t->rates;
  bool cached = r->cache > 0 && bytes * PART <= (double)t->cache;
  return bytes / (cached ? r->cache : r->memory * lm_target_bandwidth_of(t, bytes));
}

// A GPU has one bandwidth of memory, a CPU one for each size of the working set.
static double memory_seconds(const lm_target *t, const lm_cost_kernel *k) {
  double cold = t->rates.cache > 0 ? k->cold / (t->rates.memory * lm_target_bandwidth(t)) : 0;
  double again = t->rates.cache > 0 ? k->again / t->rates.cache : 0;
  return cold + again + lm_cost_memory(t, k->bytes - (cold > 0 ? k->cold : 0));
}

double lm_cost_launch_bytes(const lm_target *t) {
  return (t->rates.launch + t->rates.gap) * t->rates.memory * lm_target_bandwidth(t);
}

double lm_cost_peak(const lm_target *t, lm_dtype dtype) {
  double peak = t->math[dtype].peak;
  for (int i = 0; i < LM_DTYPES && !(peak > 0); i++)
    peak = t->math[i].peak;
  return peak * t->rates.math;
}

// ---- a kernel

// Share of its rate that a multiprocessor issues at: dependent instructions need eight warps for
// each of its four schedulers.
static double issue_share(const lm_target *t, double threads) {
  static const double WARP = 32, WARPS = 32;
  double warps = threads / WARP / t->units;
  return threads > 0 && warps < WARPS ? warps / WARPS : 1;
}

// Seconds until a load from memory arrives: 479 cycles without other loads on an H100 (Luo et al.,
// "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", 2024), 0.28 us, and about twice
// as long beside those of all multiprocessors.
static const double LOAD = 0.5e-6;

static lm_cost_bound longest(double launch, double memory, double instructions) {
  if (launch > memory && launch > instructions)
    return LM_COST_LAUNCH;
  return memory > instructions ? LM_COST_MEMORY : LM_COST_INSTRUCTIONS;
}

lm_cost lm_cost_of_kernel(const lm_target *t, const lm_cost_kernel *k) {
  double memory = memory_seconds(t, k);
  double lanes = t->rates.lanes;
  double instructions = lanes > 0 ? k->instructions / lanes / issue_share(t, k->threads) : 0;
  double busy = lm_cost_overlap(memory, instructions);
  double waiting = t->kind == LM_TARGET_CUDA ? k->waits * LOAD : 0;
  return (lm_cost){t->rates.launch + lm_cost_overlap(busy, waiting),
                   longest(t->rates.launch, fmax(memory, waiting), instructions)};
}
