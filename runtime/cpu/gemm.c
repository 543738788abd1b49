// gemm.c - lm_plan_gemm as calls of dnnl_sgemm.
//
// A product is cut into tasks: one index of each batch axis that is not summed, one tile of C. A task runs the sum axes in
// order, the first call storing (or adding, if the product accumulates), the others adding. Where no operand order suits
// the library (no unit stride, overlapping rows, not f32), a plain loop does the work.
//
// Rows a multiple of 4 KiB apart fall into the same sets of the first cache; the library then runs at half its speed unless
// tiles are too large to spread. Such operands are packed by us, a panel of k at a time.
#include <dnnl.h>
#include <omp.h>
#include <string.h>

#include "runtime/cpu/gemm.h"
#include "runtime/cpu/gemm_loop.h"

enum {
  TASKS = 32,                  // wanted, if each has at least…
  TASK_FLOPS = 4 << 20,        // …so many
  TILE_MIN = 64, TILE_STEP = 16,
  PACK_TILE = 512, PACK_K = 256, PACK_GAP = 16,   // of a packed operand: rows (or columns), panel, what parts its rows
  BAD_STRIDE = 1024,           // floats
  PACK_USES = 16,              // of each packed element, below which packing does not pay
};

typedef struct axis { int64_t size, a, b, c; } axis;

typedef struct problem {       // a lm_plan_gemm with its run-time extents filled in
  lm_gemm_shape s;             // of one call before tiling
  axis outer[LM_PLAN_BATCH], sum[LM_PLAN_BATCH];
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

typedef struct forms { form a, b, c; } forms;

static bool forms_find(const lm_gemm_shape *s, forms *out) {
  return form_find(s->m, s->n, s->c_m, s->c_n, &out->c) && form_find(s->m, s->k, s->a_m, s->a_k, &out->a) &&
         form_find(s->k, s->n, s->b_k, s->b_n, &out->b);
}

static bool packs_a(const lm_gemm_shape *s, const forms *f) { return f->a.ld % BAD_STRIDE == 0 && s->n >= PACK_USES; }
static bool packs_b(const lm_gemm_shape *s, const forms *f) { return f->b.ld % BAD_STRIDE == 0 && s->m >= PACK_USES; }

// Copies rows x cols of a matrix in form f, keeping the form; f->ld becomes the copy's.
static const float *pack(const float *from, form *f, int64_t rows, int64_t cols, float *to) {
  int64_t lines = f->trans == 'N' ? rows : cols, length = f->trans == 'N' ? cols : rows, ld = length + PACK_GAP;
  for (int64_t i = 0; i < lines; i++) memcpy(to + i * ld, from + i * f->ld, (size_t)length * sizeof *to);
  f->ld = ld;
  return to;
}

static void call(const lm_gemm_shape *s, const forms *f, const float *a, const float *b, float *c, bool add) {
  dnnl_status_t status = dnnl_sgemm(f->a.trans, f->b.trans, s->m, s->n, s->k, 1.0f, a, f->a.ld, b, f->b.ld,
                                    add ? 1.0f : 0.0f, c, f->c.ld);
  if (status != dnnl_success) LM_BUG("dnnl_sgemm: status %d", (int)status);
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static void call_packed(const lm_gemm_shape *s, const forms *f, const float *a, const float *b, float *c, bool add,
                        float *scratch) {
  float *scratch_b = scratch + LM_GEMM_SCRATCH / 2 / (int)sizeof *scratch;
  for (int64_t k = 0; k < s->k; k += PACK_K) {
    lm_gemm_shape panel = *s;
    forms g = *f;
    panel.k = least(PACK_K, s->k - k);
    const float *ak = a + k * (f->a.trans == 'N' ? 1 : f->a.ld), *bk = b + k * (f->b.trans == 'N' ? f->b.ld : 1);
    if (packs_a(s, f)) ak = pack(ak, &g.a, s->m, panel.k, scratch);
    if (packs_b(s, f)) bk = pack(bk, &g.b, panel.k, s->n, scratch_b);
    call(&panel, &g, ak, bk, c, add || k);
  }
}

static bool sgemm(const lm_gemm_shape *s, const float *a, const float *b, float *c, bool add, float *scratch) {
  forms f;
  if (!forms_find(s, &f)) return false;
  if (f.c.trans == 'T') {
    lm_gemm_shape t = transposed(s);
    return sgemm(&t, b, a, c, add, scratch);
  }
  if (s->m <= PACK_TILE && s->n <= PACK_TILE && (packs_a(s, &f) || packs_b(s, &f)))
    call_packed(s, &f, a, b, c, add, scratch);
  else call(s, &f, a, b, c, add);
  return true;
}

static void multiply(const lm_gemm_shape *s, const char *a, const char *b, char *c, bool add, char *scratch) {
  bool f32 = s->ab == LM_F32 && s->cc == LM_F32;
  if (!f32 || !sgemm(s, (const float *)a, (const float *)b, (float *)c, add, (float *)scratch))
    lm_gemm_loop(s, a, b, c, add);
}

static int64_t tile_size(int64_t size, int64_t pieces) {
  int64_t tile = (size + pieces - 1) / pieces;
  return (tile + TILE_STEP - 1) / TILE_STEP * TILE_STEP;
}

// Halves the longer side until there are enough tasks, or they would be too small to be worth one.
static void tiles_choose(const problem *p, int64_t *tile_m, int64_t *tile_n) {
  double flops = 2.0 * (double)p->s.m * (double)p->s.n * (double)p->s.k * (double)p->n_sums;
  int64_t wanted = TASKS / (p->n_outers < TASKS ? p->n_outers : TASKS), pieces_m = 1, pieces_n = 1;
  forms f;
  bool packs = forms_find(&p->s, &f) && (packs_a(&p->s, &f) || packs_b(&p->s, &f));
  for (*tile_m = p->s.m; packs && *tile_m > PACK_TILE;) *tile_m = tile_size(p->s.m, pieces_m *= 2);
  for (*tile_n = p->s.n; packs && *tile_n > PACK_TILE;) *tile_n = tile_size(p->s.n, pieces_n *= 2);
  while (pieces_m * pieces_n < wanted && flops / (double)(pieces_m * pieces_n) >= 2.0 * TASK_FLOPS) {
    if (*tile_m >= *tile_n && *tile_m >= 2 * TILE_MIN) *tile_m = tile_size(p->s.m, pieces_m *= 2);
    else if (*tile_n >= 2 * TILE_MIN) *tile_n = tile_size(p->s.n, pieces_n *= 2);
    else break;
  }
}

static void task_run(const problem *p, const lm_plan_gemm *g, int64_t task, int64_t tile_m, int64_t tile_n,
                     const char *a, const char *b, char *c, char *scratch) {
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
             c + (o.c + i * s.c_m + j * s.c_n) * size_c, g->accumulate || r > 0, scratch);
  }
}

void lm_cpu_gemm(const lm_plan_gemm *g, const int64_t *var, const char *a, const char *b, char *c, char *scratch,
                 int threads) {
  problem p = problem_make(g, var);
  if (p.n_outers == 0 || p.s.m == 0 || p.s.n == 0) return;
  int64_t tile_m, tile_n;
  tiles_choose(&p, &tile_m, &tile_n);
  int64_t tasks = p.n_outers * ((p.s.m + tile_m - 1) / tile_m) * ((p.s.n + tile_n - 1) / tile_n);
  double flops = 2.0 * (double)p.s.m * (double)p.s.n * (double)p.s.k * (double)(p.n_sums * p.n_outers);
  if (tasks < threads) threads = (int)tasks;
  if (flops < TASK_FLOPS / 4) threads = 1;   // sooner done than handed out
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (threads > 1)
  for (int64_t t = 0; t < tasks; t++)
    task_run(&p, g, t, tile_m, tile_n, a, b, c, scratch + (int64_t)omp_get_thread_num() * LM_GEMM_SCRATCH);
}
