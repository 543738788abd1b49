// cost_attend.c - the time of attention: tiles of queries by keys, each two or more GEMMs and the
// elementwise work of a softmax.
//
// An item of a forward pass has rows of queries and walks over tiles of keys; of a backward pass it
// has rows of keys (dk and dv: four GEMMs a tile with those that recompute the scores, over all
// heads of queries that share the keys) or of queries (dq: three). The GEMMs of one group of warps
// overlap with the softmax of another. Both kinds of items of a backward pass are one launch.
// Without warpgroups each item is a block; with them a block takes one item after another.
#include <math.h>

#include "compiler/plan/cost.h"

// Instructions of all lanes for a score, where an exponential counts as 8, since a multiprocessor
// computes 16 of them in a cycle in which it issues 128 others. Forward: the maximum, scale, sum,
// conversion to bf16. Backward: the difference from delta and two multiplications too, but no
// maximum and no rescaling.
static const double FORWARD = 17, BACKWARD = 13;
// The same of warpgroups, for heads of up to 64 and of more elements: all instructions of a tile
// without masked elements in the machine code for sm_90a (scripts/sass), by its scores. Of heads of
// 64 a thread executes 259 for 32 scores (dk and dv) and 387 for 64 (dq), of heads of 128 it
// executes 348 and 287 for 32. Forward it executes 424 and 467 for 64, but by these counts a
// forward pass would be 6 % faster than any measured one, so the counts are those of an older
// kernel, 461 and 523.
static const double FORWARD_GROUPS[] = {14.4, 15.4};
static const double KEYS_GROUPS[] = {15.1, 17.9}, QUERIES_GROUPS[] = {13.0, 16.0};
// Instructions of a thread of a warpgroup for an item, beside those of tiles and epilogues: where
// its rows are, the results (machine code of the same kernels). For a score of the tiles on the
// diagonal of a causal mask: those of the mask.
static const double FORWARD_ENDS[] = {343, 439}, KEYS_ENDS[] = {300, 510};
static const double QUERIES_ENDS[] = {210, 300};
static const double FORWARD_MASK = 3.6, KEYS_MASK = 5.8, QUERIES_MASK = 3.6;
static const double THREADS = 256; // of both warpgroups
// Share of the main loop's rate. If both factors of a GEMM of 64 columns come from shared memory,
// its bandwidth limits them: backward, unless threads hold the rows of a block.
static const double MAIN_SHARE = 0.93, SHARED_SHARE = 0.9;
// A block waits for its first tiles and writes its rows at the end: about 3,000 cycles at 1.7 GHz.
static const double BLOCK = 1.75e-6;
// At a position of a scan a warp waits for two barriers, its loads of shared memory, and for two
// GEMMs whose multiplications depend on each other: about 700 cycles.
static const double POSITION = 0.4e-6;
// The rows of an item of wide heads arrive when the item before is complete, in a backward pass.
static const double ROWS_WAIT = 0.5e-6;

static double overlap(double a, double b) {
  return sqrt(a * a + b * b); // closer coupled than memory and instructions
}

// FLOP/s of a multiprocessor.
static double rate(const lm_target *t, lm_dtype dtype, bool warpgroups) {
  double r = lm_cost_peak(t, dtype) / t->units;
  return warpgroups || !lm_dtype_is_half(dtype) ? r : r * t->rates.mma_sync;
}

// A part of a launch: items that have `rows` of the `down` positions of an axis, at each of
// `points` points, and walk over tiles of `columns` of the `across` positions of the other axis
// `times` times.
typedef struct section {
  double rows, columns, down, across, points, times;
  double width;        // the sum of the widths of a tile's GEMMs
  double instructions; // for a score
  double ends, mask;   // instructions of a thread for an item, and for a masked score
  double wait;         // seconds, for an item
  double rate;         // FLOP/s
  bool causal, groups;
} section;

// Seconds of items: of all together, of the longest one and of the shortest one. With a causal
// mask they have from one to all tiles of the diagonal.
typedef struct items {
  double n, all, longest, shortest;
} items;

// What an item takes beside its tiles. With warpgroups: the instructions, which nothing hides, and
// the time by which a tile would be longer if its GEMMs and its softmax did not overlap, since a
// group's first scores and last sums do not overlap with its own softmax.
static double change_seconds(const section *x, double multiply, double softmax, double lanes) {
  double masked = x->causal ? x->rows * x->rows * x->times * x->mask : 0;
  if (!x->groups)
    return BLOCK;
  return multiply + softmax - overlap(multiply, softmax) + (THREADS * x->ends + masked) / lanes +
         x->wait;
}

static items items_of(const lm_target *t, const section *x) {
  double lanes = t->rates.lanes / t->units;
  double multiply = 2 * x->rows * x->columns * x->width / x->rate;
  double softmax = x->rows * x->columns * x->instructions / lanes;
  double tile = x->times * overlap(multiply, softmax);
  double across = ceil(x->across / x->columns);
  double tiles = across;
  double fewest = across;
  if (x->causal) { // tiles on the diagonal are whole
    tiles *= fmin(1, (1 + x->rows / x->down) / 2);
    fewest *= fmin(1, x->rows / x->down);
  }
  double n = ceil(x->down / x->rows) * x->points;
  double change = change_seconds(x, multiply, softmax, lanes);
  return (items){n, n * (tiles * tile + change), across * tile + change, fewest * tile + change};
}

// The longest items of a launch begin first, so that at the end multiprocessors are idle for half
// of the shortest one. Fewer items than multiprocessors take as long as the longest one.
static double launch_seconds(const lm_target *t, const items *x, int n) {
  double count = 0;
  double all = 0;
  double longest = 0;
  for (int i = 0; i < n; i++) {
    count += x[i].n;
    all += x[i].all;
    longest = fmax(longest, x[i].longest);
  }
  return count < t->units ? longest : fmax(longest, all / t->units + x[n - 1].shortest / 2);
}

// The same with warpgroups: each multiprocessor begins one block, which waits as long again where
// the next section begins.
static double groups_seconds(const lm_target *t, const items *x, int n, bool groups) {
  return launch_seconds(t, x, n) + (groups ? n * BLOCK : 0);
}

static double forward_seconds(const lm_target *t, const lm_plan_attend *a, bool groups) {
  int wide = a->qk > 64 || a->v > 64;
  section x = {
      .rows = groups ? 128 : 64,
      .columns = groups ? 128 : 64,
      .down = (double)a->t,
      .across = (double)a->s,
      .points = (double)a->points,
      .times = 1,
      .width = (double)(a->qk + a->v),
      .instructions = groups ? FORWARD_GROUPS[wide] : FORWARD,
      .ends = FORWARD_ENDS[wide],
      .mask = FORWARD_MASK,
      .rate = rate(t, a->dtype, groups) * MAIN_SHARE,
      .causal = a->causal,
      .groups = groups,
  };
  items i = items_of(t, &x);
  return groups_seconds(t, &i, 1, groups);
}

static double backward_seconds(const lm_target *t, const lm_plan_attend *a, bool groups) {
  int wide = a->qk > 64 || a->v > 64;
  double both = (double)(a->qk + a->v);
  section keys = {
      .rows = groups ? 128 : 64,
      .columns = 64,
      .down = (double)a->s,
      .across = (double)a->t,
      .points = (double)a->key_points,
      .times = (double)a->points / (double)a->key_points,
      .width = 2 * both,
      .instructions = groups ? KEYS_GROUPS[wide] : BACKWARD,
      .ends = KEYS_ENDS[wide],
      .mask = KEYS_MASK,
      .wait = wide ? ROWS_WAIT : 0,
      .rate = rate(t, a->dtype, groups) * (groups && !wide ? MAIN_SHARE : SHARED_SHARE),
      .causal = a->causal,
      .groups = groups,
  };
  section queries = keys;
  queries.columns = groups && !wide ? 128 : 64;
  queries.down = (double)a->t;
  queries.across = (double)a->s;
  queries.points = (double)a->points;
  queries.times = 1;
  queries.width = both + (double)a->qk;
  queries.instructions = groups ? QUERIES_GROUPS[wide] : BACKWARD;
  queries.ends = QUERIES_ENDS[wide];
  queries.mask = QUERIES_MASK;
  items i[] = {items_of(t, &keys), items_of(t, &queries)};
  return groups_seconds(t, i, 2, groups);
}

// Both groups of a block are in their epilogue at about the same time: no multiplication hides it,
// and a scheduler has two warps, as for the softmax. BLOCK has the time of the results.
static double epilogue_seconds(const lm_target *t, const lm_plan_attend *a) {
  return (double)a->epilogue / t->rates.cache + a->instructions / t->rates.lanes;
}

static double gpu_seconds(const lm_target *t, const lm_plan_attend *a, bool groups) {
  if (!a->backward)
    return forward_seconds(t, a, groups);
  return backward_seconds(t, a, groups) + (a->epilogue ? epilogue_seconds(t, a) : 0);
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

// Its blocks take their GEMMs and instructions as those of attention do, all equally many.
lm_cost lm_cost_of_mix(const lm_target *t, const lm_cost_mix *x) {
  double units = t->units ? t->units : 1;
  double multiply = x->flops / x->blocks / (rate(t, x->dtype, false) * SHARED_SHARE);
  double issued = x->instructions / x->blocks / (t->rates.lanes / units);
  double one = overlap(multiply, issued) + x->positions * POSITION + BLOCK;
  items i = {x->blocks, x->blocks * one, one, one};
  double busy = launch_seconds(t, &i, 1);
  double memory = lm_cost_memory(t, x->bytes);
  lm_cost_bound bound = issued > multiply ? LM_COST_INSTRUCTIONS : LM_COST_ARITHMETIC;
  bound = memory > busy ? LM_COST_MEMORY : bound;
  return (lm_cost){t->rates.launch + lm_cost_overlap(busy, memory), bound};
}
