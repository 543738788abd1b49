// gemm_problem.c - see gemm_problem.h.
#include "runtime/cpu/gemm_problem.h"

#include <string.h>

enum {
  TASKS = 32,           // desired number of tasks, as long as each has at least
  TASK_FLOPS = 4 << 20, // this many FLOPs
  TILE_MIN = 64,
  TILE_STEP = 16,
  CODE_STEP_M = 12,
  CODE_STEP_N = 32,
  CODE_PIECES = 48,
  FEW_PIECES = 2,       // per thread, of a GEMM of few rows, as long as each has at least
  FEW_BYTES = 128 << 10 // this much of B
};

static lm_gemm_shape transposed(const lm_gemm_shape *s) {
  return (lm_gemm_shape){.m = s->n,
                         .n = s->m,
                         .k = s->k,
                         .a_m = s->b_n,
                         .a_k = s->b_k,
                         .b_k = s->a_k,
                         .b_n = s->a_m,
                         .c_m = s->c_n,
                         .c_n = s->c_m,
                         .ab = s->ab,
                         .cc = s->cc};
}

// Applies the tiling from lm_cpu_gemm_options. False if there is none.
static bool tiling_apply(lm_gemm_problem *p, int64_t max_m, int64_t max_n) {
  if (!p->tiling || !p->tiling->tile.m)
    return false;
  int64_t step = p->panel ? p->panel : 1;
  int64_t n = (p->tiling->tile.n + step - 1) / step * step;
  p->tile_m = lm_gemm_min(p->tiling->tile.m, lm_gemm_min(p->s.m, max_m));
  p->tile_n = lm_gemm_min(n, lm_gemm_min(p->s.n, max_n));
  return true;
}

static int64_t tile_size(int64_t size, int64_t pieces) {
  int64_t tile = (size + pieces - 1) / pieces;
  return (tile + TILE_STEP - 1) / TILE_STEP * TILE_STEP;
}

// Halves the longer side until there are enough tasks, or further tasks would be too small. For
// bf16, rows are halved first: whole rows of C, and all of B, are contiguous matrices, for which
// the library has its fastest kernels.
void lm_gemm_tiles_choose(lm_gemm_problem *p, int64_t max) {
  if (tiling_apply(p, max, max))
    return;
  double flops = 2.0 * (double)p->s.m * (double)p->s.n * (double)p->s.k * (double)p->n_sums;
  int64_t wanted = TASKS / (p->n_batches < TASKS ? p->n_batches : TASKS);
  int64_t pieces_m = 1;
  int64_t pieces_n = 1;
  bool rows = p->s.ab == LM_BF16;
  for (p->tile_m = p->s.m; p->tile_m > max;)
    p->tile_m = tile_size(p->s.m, pieces_m *= 2);
  for (p->tile_n = p->s.n; p->tile_n > max;)
    p->tile_n = tile_size(p->s.n, pieces_n *= 2);
  while (pieces_m * pieces_n < wanted &&
         flops / (double)(pieces_m * pieces_n) >= 2.0 * TASK_FLOPS) {
    bool longer = p->tile_m >= p->tile_n || (rows && p->tile_m >= 4 * TILE_MIN);
    if (longer && p->tile_m >= 2 * TILE_MIN)
      p->tile_m = tile_size(p->s.m, pieces_m *= 2);
    else if (p->tile_n >= 2 * TILE_MIN)
      p->tile_n = tile_size(p->s.n, pieces_n *= 2);
    else
      break;
  }
}

static int64_t side_of(int64_t size, int64_t pieces, int64_t step, int64_t max) {
  return lm_gemm_min(lm_gemm_pieces(lm_gemm_pieces(size, pieces), step) * step,
                     lm_gemm_min(size, max));
}

// For few rows: columns are divided as finely as is good for reading them from memory, in a
// multiple of the threads that one point of the batch axes gets.
static void tiles_of_few(lm_gemm_problem *p, int threads, int64_t max_n) {
  int64_t bytes = lm_dtype_bytes((lm_dtype)p->s.ab) * p->s.k * p->s.n * p->n_sums;
  int64_t share = lm_gemm_pieces(threads, p->n_batches);
  int64_t pieces = lm_gemm_min(bytes / FEW_BYTES / share, FEW_PIECES) * share;
  p->tile_m = p->s.m;
  p->tile_n = side_of(p->s.n, pieces > 0 ? pieces : share, CODE_STEP_N, max_n);
}

// For generated code, whose bits do not depend on the tiling: minimizes the estimated time, with
// few tiles so that operands are packed rarely, but enough that threads are evenly loaded. The
// estimate is in cycles per element of k: one for a multiply-add of 16 floats, two for an element
// that is packed, which is mostly limited by memory.
void lm_gemm_tiles_of_code(lm_gemm_problem *p, int threads, int64_t max) {
  int64_t max_n = lm_gemm_min(max, LM_GEMM_KERNEL_COLUMNS);
  int64_t first_m = lm_gemm_pieces(p->s.m, max);
  int64_t first_n = lm_gemm_pieces(p->s.n, max_n);
  double best = 1e300;
  if (tiling_apply(p, max, max_n))
    return;
  if (p->s.m <= LM_GEMM_FEW_ROWS) {
    tiles_of_few(p, threads, max_n);
    return;
  }
  for (int64_t i = 0; i <= CODE_PIECES; i += 1 + i / 3)
    for (int64_t j = 0; j <= CODE_PIECES; j += 1 + j / 3) {
      int64_t m = side_of(p->s.m, first_m + i, CODE_STEP_M, max);
      int64_t n = side_of(p->s.n, first_n + j, CODE_STEP_N, max_n);
      int64_t tasks = p->n_batches * lm_gemm_pieces(p->s.m, m) * lm_gemm_pieces(p->s.n, n);
      double rounds = (double)lm_gemm_pieces(tasks, threads) + 0.125;
      double cost = rounds * ((double)m * (double)n / 16 + 2 * (double)(m + n));
      if (cost >= best)
        continue;
      best = cost;
      p->tile_m = m;
      p->tile_n = n;
    }
}

lm_gemm_key lm_gemm_problem_key(const lm_gemm_problem *p) {
  const lm_gemm_shape *s = &p->s;
  return (lm_gemm_key){s->m,   s->n,   s->k,         s->a_m,    s->a_k, s->b_k, s->b_n,
                       s->c_m, s->c_n, p->n_batches, p->n_sums, s->ab,  s->cc,  p->accumulate};
}

const lm_gemm_tiling *lm_gemm_tilings_find(const lm_gemm_tilings *tilings, const lm_gemm_key *key) {
  for (uint32_t i = 0; i < tilings->n; i++)
    if (!memcmp(&tilings->v[i].key, key, sizeof *key))
      return &tilings->v[i];
  return NULL;
}

lm_gemm_problem lm_gemm_problem_make(const lm_plan_gemm *g, const int64_t *var,
                                     const lm_gemm_tilings *tilings, bool code) {
  lm_gemm_problem p = {.s = {.m = lm_plan_extent_value(&g->m, var),
                             .n = lm_plan_extent_value(&g->n, var),
                             .k = lm_plan_extent_value(&g->k, var),
                             .a_m = g->a_m,
                             .a_k = g->a_k,
                             .b_k = g->b_k,
                             .b_n = g->b_n,
                             .c_m = g->c_m,
                             .c_n = g->c_n,
                             .ab = g->dtype_ab,
                             .cc = g->dtype_c},
                       .n_batches = 1,
                       .n_sums = 1,
                       .accumulate = g->accumulate,
                       .any_rows = lm_plan_gemm_any_rows(g),
                       .run_time_k = g->k.n_dyn > 0,
                       .panel = g->b_columns * g->b_group,
                       .groups = g->groups.count,
                       .group_b = g->groups.b,
                       .group_c = g->groups.c,
                       .group_sums = g->groups.sums};
  p.flipped = !p.panel && lm_gemm_layouts_find(&p.s).c.trans == 'T';
  if (p.flipped)
    p.s = transposed(&p.s);
  for (int i = 0; i < g->n_batch; i++) {
    lm_plan_batch x = lm_plan_batch_axis(g, i, var);
    if (p.flipped)
      x = (lm_plan_batch){x.size, x.b, x.a, x.c};
    *(g->batch[i].sum ? &p.sum[p.n_sum++] : &p.batch[p.n_batch++]) = x;
    *(g->batch[i].sum ? &p.n_sums : &p.n_batches) *= x.size;
  }
  if (tilings) {
    lm_gemm_key key = lm_gemm_problem_key(&p);
    p.tiling = lm_gemm_tilings_find(tilings, &key);
  }
  p.code = code ? g->code : 0;
  return p;
}
