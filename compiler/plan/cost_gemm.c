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

// Grouped GEMMs (codegen/cuda/grouped.c) without warpgroups: instructions of warps on tiles of up
// to 128 x 128, two blocks on a multiprocessor. The last tile of a group is half full on average.
static double grouped_seconds(const lm_target *t, const lm_cost_gemm *g) {
  enum {
    BLOCKS = 2 // of a multiprocessor
  };
  double rows = g->sums ? g->m : g->m / g->groups;
  tile x = rows > 64   ? (tile){128, 128, 0.9}
           : rows > 32 ? (tile){64, 128, 0.75}
                       : (tile){32, 128, 0.55};
  double k = g->sums ? g->k / g->groups : g->k;
  double down = g->sums ? ceil_div(g->m, x.m) * g->groups : ceil_div(g->m, x.m) + g->groups / 2;
  double waves = ceil_div(down * ceil_div(g->n, x.n) * g->batch, BLOCKS * t->units);
  double rate = lm_cost_peak(t, g->ab) / t->units * x.share;
  if (lm_dtype_is_half(g->ab))
    rate *= t->rates.mma_sync;
  return waves * (BLOCKS * 2 * x.m * x.n * k / rate + EDGE);
}

// ---- generated kernels

// Of the library's rate: a persistent kernel with tiles of 128 x 256, TMA, mbarriers and no
// clusters reaches 97 % of cuBLAS at 8192 x 8192 x 8192 on an H100 (kernel 6 of
// https://github.com/pranjalssh/fast.cu: 777 of 798 TFLOP/s). A little less is assumed for short k.
static const double OWN_SHARE = 0.95;
// Of the rate at which a multiprocessor issues instructions: one warp for each scheduler.
static const double EPILOGUE_SHARE = 0.5;
enum {
  OWN_M = 128,
  OWN_N = 256,
  OWN_K = 64,
  OWN_STAGES = 4, // of the ring of tiles in shared memory
};

// Tiles of a group have its columns of the weights. The last one along m is half full on average.
static double own_tiles(const lm_cost_gemm *g) {
  double across = ceil_div(g->n, OWN_N);
  if (!g->groups)
    return ceil_div(g->m, OWN_M) * across;
  return (g->sums ? ceil_div(g->m, OWN_M) * g->groups : g->m / OWN_M + g->groups / 2) * across;
}

// Steps of k of a tile, the last one of which is half full on average if the rows of a group are
// along k.
static double own_steps(const lm_cost_gemm *g) {
  return g->groups && g->sums ? g->k / g->groups / OWN_K + 0.5 : ceil_div(g->k, OWN_K);
}

static double operand_bytes(const lm_cost_gemm *g) {
  double n = g->groups && !g->sums ? g->n * g->groups : g->n;
  return (g->m + n) * g->k * lm_dtype_bytes(g->ab);
}

// Of f32 results, which are read first if the GEMM adds to them.
static double result_bytes(const lm_cost_gemm *g) {
  return (g->adds ? 2 : 1) * sizeof(float) * g->m * g->n;
}

// A launch of such tiles.
typedef struct own {
  double tiles, steps; // of k, of a tile
  double width;        // columns of a tile
  double moved;        // bytes besides the operands
  double instructions; // of the epilogue, of all tiles
} own;

// Seconds in which a warpgroup waits for results in memory that it adds to: of each of a thread's
// two rows all loads are in flight together.
static double added_seconds(const lm_cost_gemm *g) {
  static const double WAIT = 0.5e-6;
  return g->adds ? 2 * WAIT : 0;
}

// The share of the rate, as of the library's tiles.
static double width_share(double width) {
  return width >= 256 ? 1 : width >= 192 ? 0.96 : 0.9;
}

// Two warpgroups have half of the rows of a tile each. While one is in the epilogue, the other one
// multiplies the steps that the ring holds; what an epilogue takes longer is idle time.
static double ring_seconds(const lm_target *t, const lm_cost_gemm *g, const own *x) {
  double step = 2.0 * OWN_M * x->width * OWN_K / (rate(t, g) * OWN_SHARE * width_share(x->width));
  double share = 1 / (2 * x->tiles) * t->units; // of a half, by the rates of a multiprocessor
  double moved = x->moved * share / t->rates.cache;
  double issued = x->instructions * share / (t->rates.lanes * EPILOGUE_SHARE);
  double rest = moved + issued + added_seconds(g);
  double hidden = fmin(OWN_STAGES, x->steps) * step / 2;
  double tile = x->steps * step + fmax(rest - hidden, 0);
  return ceil_div(x->tiles, t->units) * tile + EDGE + rest;
}

static double own_seconds(const lm_target *t, const lm_cost_gemm_kernel *k) {
  const lm_cost_gemm *g = &k->gemm;
  return ring_seconds(t, g,
                      &(own){.tiles = own_tiles(g),
                             .steps = own_steps(g),
                             .width = OWN_N,
                             .moved = fmax(g->bytes - operand_bytes(g), 0),
                             .instructions = k->instructions});
}

// Of GEMMs that no other operations follow: results are rounded, paired and stored, or added. The
// instructions of an element are those of the machine code for sm_90a.
static const double STORE = 1.3, ADD = 4.4;

static double grouped_by_warpgroups(const lm_target *t, const lm_cost_gemm *g) {
  double results = g->m * g->n * (g->sums ? g->groups : 1);
  return own_seconds(
      t, &(lm_cost_gemm_kernel){.gemm = *g, .instructions = (g->adds ? ADD : STORE) * results});
}

// GEMMs of equal k whose results go to memory, in one launch.
static double joined_seconds(const lm_target *t, const lm_cost_gemm *g, int n, double width) {
  own x = {
      .steps = ceil_div(g->k, OWN_K),
      .width = width,
  };
  for (int i = 0; i < n; i++) {
    double results = g[i].m * g[i].n;
    x.tiles += ceil_div(g[i].m, OWN_M) * ceil_div(g[i].n, width);
    x.moved += result_bytes(&g[i]);
    x.instructions += ADD * results;
  }
  return ring_seconds(t, g, &x);
}

static double on_gpu(const lm_target *t, const lm_cost_gemm *g, double memory) {
  if (!g->groups)
    return gpu_seconds(t, g, memory);
  double math = g->warpgroups ? grouped_by_warpgroups(t, g) : grouped_seconds(t, g);
  return lm_cost_overlap(math, memory);
}

lm_cost lm_cost_of_gemm(const lm_target *t, const lm_cost_gemm *g) {
  double memory = lm_cost_memory(t, g->bytes);
  double flops = 2 * g->m * g->n * g->k * g->batch;
  double math = flops / lm_cost_peak(t, g->ab);
  double busy = t->kind == LM_TARGET_CUDA ? on_gpu(t, g, memory) : lm_cost_overlap(math, memory);
  lm_cost_bound bound = memory > math ? LM_COST_MEMORY : LM_COST_ARITHMETIC;
  if (t->rates.launch > busy)
    bound = LM_COST_LAUNCH;
  return (lm_cost){t->rates.launch + busy, bound};
}

lm_cost lm_cost_of_gemm_kernel(const lm_target *t, const lm_cost_gemm_kernel *k) {
  double memory = lm_cost_memory(t, k->gemm.bytes);
  double math = own_seconds(t, k);
  lm_cost_bound bound = memory > math ? LM_COST_MEMORY : LM_COST_ARITHMETIC;
  return (lm_cost){t->rates.launch + lm_cost_overlap(math, memory), bound};
}

lm_cost lm_cost_of_joined(const lm_target *t, const lm_cost_gemm *g, int n, int *out_width) {
  static const int widths[] = {256, 192, 128};
  double memory = 0, math = INFINITY;
  for (int i = 0; i < n; i++)
    memory += lm_cost_memory(t, g[i].bytes);
  for (size_t i = 0; i < LM_COUNT(widths); i++) {
    double seconds = joined_seconds(t, g, n, widths[i]);
    if (out_width && seconds < math)
      *out_width = widths[i];
    math = fmin(math, seconds);
  }
  lm_cost_bound bound = memory > math ? LM_COST_MEMORY : LM_COST_ARITHMETIC;
  return (lm_cost){t->rates.launch + lm_cost_overlap(math, memory), bound};
}

double lm_cost_of_gemm_apart(const lm_target *t, const lm_cost_gemm_kernel *k) {
  lm_cost_gemm library = k->gemm;
  double ab = operand_bytes(&library);
  double c = library.m * library.n * lm_dtype_bytes(k->c);
  double rest = k->gemm.bytes - ab + (k->stored ? 0 : c); // C is read instead of written
  library.bytes = ab + c;
  lm_cost_kernel kernel = {
      .bytes = rest,
      .instructions = k->instructions,
  };
  return lm_cost_of_gemm(t, &library).seconds + t->rates.gap +
         lm_cost_of_kernel(t, &kernel).seconds;
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

static lm_cost_gemm gemm_of(const lm_plan *p, const lm_plan_step *s, const lm_plan_gemm *g) {
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
                      .alignment = VECTOR,
                      .groups = (double)g->groups.count,
                      .sums = g->groups.sums,
                      .adds = g->accumulate};
  if (s->kind == LM_STEP_GEMM && g->code)
    out.warpgroups = p->kernels[g->code - 1].launch.n_maps > 0;
  out.alignment = aligned(out.alignment, m, g->a_m, k, g->a_k, out.ab);
  out.alignment = aligned(out.alignment, k, g->b_k, n, g->b_n, out.ab);
  out.alignment = aligned(out.alignment, m, g->c_m, n, g->c_n, (lm_dtype)g->dtype_c);
  for (int i = 0; i < g->n_batch; i++) {
    double size = (double)lm_plan_extent_value(&g->batch[i].size, capacity);
    *(g->batch[i].sum ? &out.k : &out.batch) *= size;
  }
  return out;
}

lm_cost_gemm lm_cost_gemm_of(const lm_plan *p, const lm_plan_step *s) {
  return gemm_of(p, s, s->gemm);
}

lm_cost_gemm lm_cost_gemm_at(const lm_plan *p, const lm_plan_step *s, int i) {
  lm_cost_gemm g = gemm_of(p, s, &s->gemm[i]);
  g.bytes = operand_bytes(&g) + result_bytes(&g);
  return g;
}

lm_cost_gemm_kernel lm_cost_gemm_kernel_of(const lm_plan *p, const lm_plan_step *s) {
  return (lm_cost_gemm_kernel){lm_cost_gemm_of(p, s), (lm_dtype)s->gemm->dtype_c, s->gemm->stored,
                               s->instructions};
}
