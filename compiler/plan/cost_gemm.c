// cost_gemm.c - the time of a GEMM: tiles of the result on multiprocessors.
//
// A block computes a tile of C over all of k, or over a part of k if there are fewer tiles than
// multiprocessors (weight gradients: small results of many tokens). Blocks run in waves, so the
// last wave may leave multiprocessors idle. Of the tile sizes and splits of k the fastest counts,
// as the library's heuristic would choose.
#include <math.h>

#include "compiler/plan/cost.h"

typedef struct tile {
  double m;
  double n;
  double share; // of the main loop's rate with the largest tile
} tile;

// The share falls with the FLOPs for each byte that a tile reads from shared memory.
static const tile tiles[] = {
    {128, 256, 1}, {256, 128, 1}, {128, 128, 0.9}, {64, 128, 0.75}, {64, 64, 0.55}};

enum {
  MOST_SPLITS = 32,
  LEAST_K = 256, // of a block
  VECTOR = 16    // bytes to which tensor copies and vector loads are aligned
};

// Seconds in which a wave does not multiply: until its first tiles have arrived, and while it
// writes its results.
static const double EDGE = 0.3e-6;

static double ceil_div(double a, double b) {
  return ceil(a / b);
}

// FLOP/s of one multiprocessor. Rows that are not aligned to vectors are read in pieces, by kernels
// that multiply with instructions of warps and reach two thirds of their rate at 8 bytes, two
// fifths at 2.
static double rate(const lm_target *t, const lm_cost_gemm *g) {
  double r = lm_cost_peak(t, g->ab) / t->units;
  if (g->alignment >= VECTOR)
    return r;
  double pieces = log2(VECTOR / (double)g->alignment); // 8 bytes: 1, 4: 2, 2: 3
  return r * t->rates.mma_sync / (1 + pieces / 2);
}

// Seconds of the multiplications with one tile size and split.
static double split_seconds(const lm_target *t, const lm_cost_gemm *g, tile x, double splits) {
  double blocks = ceil_div(g->m, x.m) * ceil_div(g->n, x.n) * g->batch * splits;
  double flops = 2 * x.m * x.n * ceil_div(g->k, splits);
  return ceil_div(blocks, t->units) * (flops / (rate(t, g) * x.share) + EDGE);
}

// Seconds at the end in which the sums of the parts are read again; they were written while other
// blocks multiplied.
static double partial_seconds(const lm_target *t, const lm_cost_gemm *g, double splits) {
  double bytes = splits * g->m * g->n * g->batch * (double)sizeof(float);
  return splits > 1 ? bytes / t->rates.cache : 0;
}

static double gpu_seconds(const lm_target *t, const lm_cost_gemm *g, double memory) {
  double best = INFINITY;
  for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++)
    for (int splits = 1; splits <= MOST_SPLITS; splits++) {
      if (splits > 1 && g->k / splits < LEAST_K)
        break;
      double seconds = lm_cost_overlap(split_seconds(t, g, tiles[i], splits), memory) +
                       partial_seconds(t, g, splits);
      best = fmin(best, seconds);
    }
  return best;
}

lm_cost lm_cost_of_gemm(const lm_target *t, const lm_cost_gemm *g) {
  double memory = lm_cost_memory(t, g->bytes);
  double flops = 2 * g->m * g->n * g->k * g->batch;
  double math = flops / lm_cost_peak(t, g->ab);
  double busy =
      t->kind == LM_TARGET_CUDA ? gpu_seconds(t, g, memory) : lm_cost_overlap(math, memory);
  lm_cost_bound bound = memory > math ? LM_COST_MEMORY : LM_COST_ARITHMETIC;
  if (t->rates.launch > busy)
    bound = LM_COST_LAUNCH;
  return (lm_cost){t->rates.launch + busy, bound};
}

// ---- from the step of a plan

// The alignment of a matrix, at most `most` bytes: of its rows, if the stride of columns is 1, else
// of its columns.
static int aligned(int most, int64_t rows, int64_t row, int64_t columns, int64_t column,
                   lm_dtype t) {
  bool by_row = column == 1;
  int64_t bytes = (by_row ? row : column) * lm_dtype_bytes(t);
  bool one = (by_row ? rows : columns) == 1;
  while (!one && most > 1 && bytes % most)
    most /= 2;
  return most;
}

lm_cost_gemm lm_cost_gemm_of(const lm_plan *p, const lm_plan_step *s) {
  const lm_plan_gemm *g = s->gemm;
  int64_t capacity[LM_COUNT(p->extents)];
  for (int i = 0; i < p->n_extents; i++)
    capacity[i] = p->extents[i].capacity;
  int64_t m = lm_plan_extent_value(&g->m, capacity);
  int64_t n = lm_plan_extent_value(&g->n, capacity);
  int64_t k = lm_plan_extent_value(&g->k, capacity);
  lm_cost_gemm out = {.m = (double)m,
                      .n = (double)n,
                      .k = (double)k,
                      .batch = 1,
                      .ab = (lm_dtype)g->dtype_ab,
                      .bytes = (double)s->moved,
                      .alignment = VECTOR};
  out.alignment = aligned(out.alignment, m, g->a_m, k, g->a_k, out.ab);
  out.alignment = aligned(out.alignment, k, g->b_k, n, g->b_n, out.ab);
  out.alignment = aligned(out.alignment, m, g->c_m, n, g->c_n, (lm_dtype)g->dtype_c);
  for (int i = 0; i < g->n_batch; i++) {
    double size = (double)lm_plan_extent_value(&g->batch[i].size, capacity);
    *(g->batch[i].sum ? &out.k : &out.batch) *= size;
  }
  return out;
}
