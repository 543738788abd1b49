// gemm.c - lm_plan_gemm as calls of dnnl_sgemm.
//
// A product is cut into tasks: one index of each batch axis that is not summed, one tile of C. A task runs the sum axes in
// order, the first call storing (or adding, if the product accumulates), the others adding. Where no operand order suits
// the library (no unit stride, overlapping rows, not f32), a plain loop does the work.
#include <dnnl.h>

#include "runtime/cpu/gemm.h"
#include "runtime/cpu/gemm_loop.h"

enum {
  TASKS = 32,                  // wanted, if each has at least…
  TASK_FLOPS = 4 << 20,        // …so many
  TILE_MIN = 64, TILE_STEP = 16,
};

typedef struct axis { int64_t size, a, b, c; } axis;

typedef struct problem {       // a lm_plan_gemm with its run-time extents filled in
  lm_gemm_shape s;             // of one call before tiling
  axis outer[6], sum[6];
  int n_outer, n_sum;
  int64_t n_outers, n_sums;
} problem;

static problem problem_make(const lm_plan_gemm *g, const int64_t *var) {
  problem p = {
    .s = {.m = lm_plan_extent_value(&g->m, var), .n = lm_plan_extent_value(&g->n, var),
          .k = lm_plan_extent_value(&g->k, var), .a_m = g->a_m, .a_k = g->a_k, .b_k = g->b_k, .b_n = g->b_n,
          .c_m = g->c_m, .c_n = g->c_n, .ab = g->dtype_ab, .cc = g->dtype_c},
    .n_outers = 1, .n_sums = 1};
  for (int i = 0; i < g->n_batch; i++) {
    axis x = {lm_plan_extent_value(&g->batch[i].size, var), g->batch[i].a, g->batch[i].b, g->batch[i].c};
    if (g->batch[i].sum) {
      p.sum[p.n_sum++] = x;
      p.n_sums *= x.size;
    } else {
      p.outer[p.n_outer++] = x;
      p.n_outers *= x.size;
    }
  }
  return p;
}

// Displacement of the operands, in elements, at place `index` of the row-major product of the axes.
static axis place(const axis *axes, int n, int64_t index) {
  axis at = {0};
  for (int i = n - 1; i >= 0; i--) {
    int64_t j = index % axes[i].size;
    index /= axes[i].size;
    at.a += j * axes[i].a;
    at.b += j * axes[i].b;
    at.c += j * axes[i].c;
  }
  return at;
}

// A matrix as the library takes it: 'N' rows of unit stride ld apart, 'T' the same of its transpose.
typedef struct form { char trans; int64_t ld; } form;

static bool form_find(int64_t rows, int64_t cols, int64_t row, int64_t col, form *out) {
  if (rows == 1 && row < cols) row = cols;   // strides over a size of 1 are free
  if (cols == 1 && col < rows) col = rows;
  if ((col == 1 || cols == 1) && row >= cols) return *out = (form){'N', row}, true;
  if ((row == 1 || rows == 1) && col >= rows) return *out = (form){'T', col}, true;
  return false;
}

// C = A B, or where only that gives C rows of unit stride, its transpose.
static lm_gemm_shape transposed(const lm_gemm_shape *s) {
  return (lm_gemm_shape){.m = s->n, .n = s->m, .k = s->k, .a_m = s->b_n, .a_k = s->b_k, .b_k = s->a_k, .b_n = s->a_m,
                         .c_m = s->c_n, .c_n = s->c_m, .ab = s->ab, .cc = s->cc};
}

static bool sgemm(const lm_gemm_shape *s, const float *a, const float *b, float *c, bool add) {
  form fa, fb, fc;
  if (!form_find(s->m, s->n, s->c_m, s->c_n, &fc) || !form_find(s->m, s->k, s->a_m, s->a_k, &fa) ||
      !form_find(s->k, s->n, s->b_k, s->b_n, &fb))
    return false;
  if (fc.trans == 'T') {
    lm_gemm_shape t = transposed(s);
    return sgemm(&t, b, a, c, add);
  }
  dnnl_status_t status = dnnl_sgemm(fa.trans, fb.trans, s->m, s->n, s->k, 1.0f, a, fa.ld, b, fb.ld, add ? 1.0f : 0.0f,
                                    c, fc.ld);
  if (status != dnnl_success) LM_BUG("dnnl_sgemm: status %d", (int)status);
  return true;
}

static void multiply(const lm_gemm_shape *s, const char *a, const char *b, char *c, bool add) {
  bool f32 = s->ab == LM_F32 && s->cc == LM_F32;
  if (!f32 || !sgemm(s, (const float *)a, (const float *)b, (float *)c, add)) lm_gemm_loop(s, a, b, c, add);
}

static int64_t tile_size(int64_t size, int64_t pieces) {
  int64_t tile = (size + pieces - 1) / pieces;
  return (tile + TILE_STEP - 1) / TILE_STEP * TILE_STEP;
}

// Halves the longer side until there are enough tasks, or they would be too small to be worth one.
static void tiles_choose(const problem *p, int64_t *tile_m, int64_t *tile_n) {
  double flops = 2.0 * (double)p->s.m * (double)p->s.n * (double)p->s.k * (double)p->n_sums;
  int64_t wanted = TASKS / (p->n_outers < TASKS ? p->n_outers : TASKS), pieces_m = 1, pieces_n = 1;
  *tile_m = p->s.m;
  *tile_n = p->s.n;
  while (pieces_m * pieces_n < wanted && flops / (double)(pieces_m * pieces_n) >= 2.0 * TASK_FLOPS) {
    if (*tile_m >= *tile_n && *tile_m >= 2 * TILE_MIN) *tile_m = tile_size(p->s.m, pieces_m *= 2);
    else if (*tile_n >= 2 * TILE_MIN) *tile_n = tile_size(p->s.n, pieces_n *= 2);
    else break;
  }
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static void task_run(const problem *p, const lm_plan_gemm *g, int64_t task, int64_t tile_m, int64_t tile_n,
                     const char *a, const char *b, char *c) {
  int64_t across = (p->s.n + tile_n - 1) / tile_n, down = (p->s.m + tile_m - 1) / tile_m;
  int64_t i = task / across % down * tile_m, j = task % across * tile_n;
  axis o = place(p->outer, p->n_outer, task / across / down);
  lm_gemm_shape s = p->s;
  s.m = least(tile_m, p->s.m - i);
  s.n = least(tile_n, p->s.n - j);
  int64_t size_ab = lm_gemm_dtype_bytes(s.ab), size_c = lm_gemm_dtype_bytes(s.cc);
  for (int64_t r = 0; r < p->n_sums; r++) {
    axis q = place(p->sum, p->n_sum, r);
    multiply(&s, a + (o.a + q.a + i * s.a_m) * size_ab, b + (o.b + q.b + j * s.b_n) * size_ab,
             c + (o.c + i * s.c_m + j * s.c_n) * size_c, g->accumulate || r > 0);
  }
}

void lm_cpu_gemm(const lm_plan_gemm *g, const int64_t *var, const char *a, const char *b, char *c, int threads) {
  problem p = problem_make(g, var);
  if (p.n_outers == 0 || p.s.m == 0 || p.s.n == 0) return;
  int64_t tile_m, tile_n;
  tiles_choose(&p, &tile_m, &tile_n);
  int64_t tasks = p.n_outers * ((p.s.m + tile_m - 1) / tile_m) * ((p.s.n + tile_n - 1) / tile_n);
  double flops = 2.0 * (double)p.s.m * (double)p.s.n * (double)p.s.k * (double)(p.n_sums * p.n_outers);
  if (tasks < threads) threads = (int)tasks;
  if (flops < TASK_FLOPS / 4) threads = 1;   // sooner done than handed out
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (threads > 1)
  for (int64_t t = 0; t < tasks; t++) task_run(&p, g, t, tile_m, tile_n, a, b, c);
}
