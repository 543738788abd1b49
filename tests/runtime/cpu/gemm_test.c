// gemm_test.c - GEMMs of plans against plain loops in double, with random strides, batch axes and
// summed axes, in every type and by every implementation (f32 also through the matmul primitives
// that bf16 uses on processors that multiply it); equal bits for every number of threads.
// Build: plain
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/cpu/detect.h"
#include "runtime/cpu/gemm.h"
#include "runtime/cpu/matmul.h"
#include "tests/runtime/check.h"
#include "tests/runtime/cpu/plan_gemm.h"

typedef struct rng {
  uint64_t state;
} rng;

static uint32_t draw(rng *r, uint32_t n) {
  r->state = r->state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)((r->state >> 33) % n);
}

// Three operands. Axes are assigned strides in random order, innermost first, with occasional gaps.
typedef struct tensor {
  int64_t elements;
  float *p;
} tensor;

static void shuffle(rng *r, int *order, int n) {
  for (int i = 0; i < n; i++)
    order[i] = i;
  for (int i = n - 1; i > 0; i--) {
    int j = (int)draw(r, (uint32_t)i + 1);
    int t = order[i];
    order[i] = order[j];
    order[j] = t;
  }
}

// strides[i] receives the stride of axis i of size[i]; NULL: the tensor lacks that axis. Returns
// the number of elements.
static int64_t strides_deal(rng *r, const int64_t *size, int64_t **strides, int n) {
  int order[16];
  int64_t stride = draw(r, 8) ? 1 : 2;
  shuffle(r, order, n);
  for (int i = 0; i < n; i++) {
    if (!strides[order[i]])
      continue;
    *strides[order[i]] = stride;
    stride *= size[order[i]];
    if (!draw(r, 5))
      stride += draw(r, 7);
  }
  return stride;
}

typedef struct kind {
  const char *name;
  lm_dtype ab, c;
  uint32_t primitives;
} kind;
static const kind kinds[] = {
    {"f32", LM_F32, LM_F32, 0},    {"f32 by primitives", LM_F32, LM_F32, 1 << LM_F32},
    {"bf16", LM_BF16, LM_BF16, 0}, {"bf16 into f32", LM_BF16, LM_F32, 0},
    {"f64", LM_F64, LM_F64, 0},
};

static lm_plan_gemm random_gemm(rng *r, const kind *k, int64_t *elements) {
  lm_plan_gemm g = {.accumulate = draw(r, 2),
                    .n_batch = (int)draw(r, 4),
                    .dtype_ab = (uint8_t)k->ab,
                    .dtype_c = (uint8_t)k->c};
  uint32_t most = draw(r, 6) ? 24 : 150;
  int64_t size[16] = {1 + draw(r, most), 1 + draw(r, most), 1 + draw(r, most)};
  int64_t *a[16] = {&g.a_m, NULL, &g.a_k}, *b[16] = {NULL, &g.b_n, &g.b_k},
          *c[16] = {&g.c_m, &g.c_n, NULL};
  g.m = fixed(size[0]);
  g.n = fixed(size[1]);
  g.k = fixed(size[2]);
  int sums = (int)draw(r, (uint32_t)g.n_batch + 1);
  for (int i = 0; i < g.n_batch; i++) {
    g.batch[i].size = fixed(size[3 + i] = 1 + draw(r, 4));
    g.batch[i].sum = i >= g.n_batch - sums;
    a[3 + i] = &g.batch[i].a;
    b[3 + i] = &g.batch[i].b;
    c[3 + i] = g.batch[i].sum ? NULL : &g.batch[i].c;
  }
  elements[0] = strides_deal(r, size, a, 3 + g.n_batch);
  elements[1] = strides_deal(r, size, b, 3 + g.n_batch);
  elements[2] = strides_deal(r, size, c, 3 + g.n_batch);
  return g;
}

static void reference(const lm_plan_gemm *g, int level, const double *a, const double *b,
                      double *c) {
  if (level < g->n_batch) {
    for (int64_t i = 0; i < g->batch[level].size.fixed; i++)
      reference(g, level + 1, a + i * g->batch[level].a, b + i * g->batch[level].b,
                c + i * g->batch[level].c);
    return;
  }
  for (int64_t i = 0; i < g->m.fixed; i++)
    for (int64_t j = 0; j < g->n.fixed; j++)
      for (int64_t k = 0; k < g->k.fixed; k++)
        c[i * g->c_m + j * g->c_n] += a[i * g->a_m + k * g->a_k] * b[k * g->b_k + j * g->b_n];
}

// Sets the elements of C that the GEMM writes to 0 in the reference, unless it accumulates.
static void begin(const lm_plan_gemm *g, int level, double *c) {
  if (level < g->n_batch) {
    for (int64_t i = 0; i < g->batch[level].size.fixed; i++)
      begin(g, level + 1, c + i * g->batch[level].c);
    return;
  }
  for (int64_t i = 0; i < g->m.fixed && !g->accumulate; i++)
    for (int64_t j = 0; j < g->n.fixed; j++)
      c[i * g->c_m + j * g->c_n] = 0;
}

// ---- numbers in memory, by type

static void element_set(lm_dtype t, char *p, int64_t i, double v) {
  float f = (float)v;
  if (t == LM_F64)
    memcpy(p + 8 * i, &v, 8);
  else if (t == LM_F32)
    memcpy(p + 4 * i, &f, 4);
  else
    memcpy(p + 2 * i, (char *)&f + 2, 2); // exact, since v has few bits
}

static double element_get(lm_dtype t, const char *p, int64_t i) {
  float f = 0;
  double v;
  if (t == LM_F64) {
    memcpy(&v, p + 8 * i, 8);
    return v;
  }
  if (t == LM_F32)
    memcpy(&f, p + 4 * i, 4);
  else
    memcpy((char *)&f + 2, p + 2 * i, 2);
  return f;
}

// Numbers that bf16 represents exactly, as doubles and in memory.
static double *random_numbers(rng *r, lm_dtype t, int64_t n, char **out_memory) {
  double *v = lm_calloc((size_t)n, sizeof *v);
  *out_memory = lm_calloc((size_t)n, sizeof *v);
  for (int64_t i = 0; i < n; i++)
    element_set(t, *out_memory, i, v[i] = ((double)draw(r, 255) - 127) / 128);
  return v;
}

// Runs g on the given number of threads; C begins as `old`. The caller frees the result.
static char *gemm_run(const lm_plan_gemm *g, const kind *k, int threads, const char *a,
                      const char *b, const char *old, int64_t n) {
  char *c = lm_calloc((size_t)n, sizeof(double));
  memcpy(c, old, (size_t)n * sizeof(double));
  lm_cpu_gemms *all = lm_cpu_gemms_create(&(lm_cpu_gemm_options){threads, k->primitives});
  lm_cpu_gemm_prepare(all, g);
  lm_cpu_gemm(all, g, NULL, a, b, c);
  lm_cpu_gemms_destroy(all);
  return c;
}

static void compare(const kind *k, const lm_plan_gemm *g, const double *want, const char *got,
                    int64_t n) {
  double allowed = k->c == LM_BF16 ? 1.0 / 256 + 1e-4 : k->c == LM_F32 ? 1e-4 : 1e-14;
  for (int64_t i = 0; i < n; i++) {
    double x = element_get(k->c, got, i);
    bool near = fabs(x - want[i]) <= allowed * (0.01 + fabs(want[i]));
    if (!near)
      fprintf(stderr, "%s, m %lld n %lld k %lld: %g, not %g\n", k->name, (long long)g->m.fixed,
              (long long)g->n.fixed, (long long)g->k.fixed, x, want[i]);
    CHECK(near);
  }
}

static void check(rng *r, const kind *k, const lm_plan_gemm *g, const int64_t *n) {
  char *a, *b, *c;
  double *x = random_numbers(r, k->ab, n[0], &a);
  double *w = random_numbers(r, k->ab, n[1], &b);
  double *want = random_numbers(r, k->c, n[2], &c);
  begin(g, 0, want);
  reference(g, 0, x, w, want);
  char *one = gemm_run(g, k, 1, a, b, c, n[2]);
  char *four = gemm_run(g, k, 4, a, b, c, n[2]);
  CHECK(!memcmp(one, four, (size_t)n[2] * sizeof(double)));
  compare(k, g, want, one, n[2]);
  void *used[] = {a, b, c, x, w, want, one, four};
  for (size_t i = 0; i < LM_COUNT(used); i++)
    lm_free(used[i]);
}

static void case_run(rng *r, const kind *k) {
  int64_t n[3];
  lm_plan_gemm g = random_gemm(r, k, n);
  check(r, k, &g, n);
}

// Large enough for several tiles, in sizes that are not multiples of a tile. A stride of 4 KiB
// makes f32 operands packed. Each of A, B and C may be transposed; with `accumulate` as in the
// gradient of a weight.
static void tiles_run(rng *r, const kind *k, int layout, bool strided) {
  int64_t m = strided ? 1024 : 700 + draw(r, 99);
  int64_t n = 300 + draw(r, 99);
  int64_t l = 200 + draw(r, 99);
  bool ta = layout & 1;
  bool tb = layout & 2;
  bool tc = layout & 4;
  lm_plan_gemm g = {.m = fixed(m),
                    .n = fixed(n),
                    .k = fixed(l),
                    .a_m = ta ? 1 : l,
                    .a_k = ta ? m : 1,
                    .b_k = tb ? 1 : n,
                    .b_n = tb ? l : 1,
                    .c_m = tc ? 1 : n,
                    .c_n = tc ? m : 1,
                    .accumulate = draw(r, 2),
                    .dtype_ab = (uint8_t)k->ab,
                    .dtype_c = (uint8_t)k->c};
  check(r, k, &g, (int64_t[]){m * l, l * n, m * n});
}

// Padded rows, a transpose and accumulation: the library has fast primitives for the layouts of
// plans.
static void primitives_exist(void) {
  lm_gemm_shape s = {.m = 33,
                     .n = 17,
                     .k = 29,
                     .a_m = 1,
                     .a_k = 40,
                     .b_k = 20,
                     .b_n = 1,
                     .c_m = 64,
                     .c_n = 1,
                     .ab = LM_F32,
                     .cc = LM_F32};
  lm_matmuls *all = lm_matmuls_create(1);
  CHECK(all);
  lm_matmuls_add(all, &s, true);
  CHECK(lm_matmuls_find(all, &s, true) && !lm_matmuls_find(all, &s, false));
  lm_matmuls_destroy(all);
}

static int64_t workspace_of(int64_t n, int64_t k, lm_dtype dtype, int threads) {
  lm_plan_gemm g = gemm_make(64, n, k, dtype);
  lm_plan_step step = {.kind = LM_STEP_GEMM, .gemm = &g};
  lm_plan_func func = {.name = "f", .steps = &step, .n_steps = 1};
  lm_plan plan = {.funcs = &func, .n_funcs = 1};
  return lm_cpu_gemms_of_plan_bytes(&plan, &(lm_cpu_gemm_options){.threads = threads});
}

static int threads_alive(void) {
  int n = -2; // excludes . and ..
  DIR *d = opendir("/proc/self/task");
  CHECK(d);
  while (readdir(d))
    n++;
  closedir(d);
  return n;
}

// Rows that the library supports need no workspace, other layouts need one per thread. Computing
// its size starts no threads.
static void workspace_counts(void) {
  int before = threads_alive();
  CHECK(workspace_of(96, 80, LM_F32, 4) == 0);
  int64_t one = workspace_of(96, 1024, LM_F32, 1);
  int64_t four = workspace_of(96, 1024, LM_F32, 4);
  int64_t six = workspace_of(96, 1024, LM_F32, 6);
  CHECK(one > (int64_t)sizeof(lm_gemm_workspace) && (four - one) * 5 == (six - one) * 3);
  CHECK(lm_cpu_has_bf16() || workspace_of(96, 80, LM_BF16, 2) > 0);
  CHECK(threads_alive() == before);
}

// FLOP/s of a GEMM whose operands are in the caches of a core.
static double gemm_rate(void) {
  lm_cpu_linear p = {.m = 512, .k = 512, .n = 512, .count = 1};
  lm_cpu_gemm_times t = lm_cpu_gemm_bench(&p, 1, LM_F32, 1, 20);
  return 2.0 * (double)(p.m * p.k * p.n) / fmin(t.forward, t.data);
}

// GEMMs come near the peak of multiply-adds in registers. The margin is wide, since other processes
// may disturb either measurement.
static void peak_is_near(void) {
  CHECK(gemm_rate() > 0.1 * lm_cpu_peak(1, LM_F32));
  CHECK(lm_cpu_peak(1, LM_BF16) > 0);
}

int main(void) {
  rng r = {7};
  workspace_counts();
  primitives_exist();
  peak_is_near();
  for (size_t k = 0; k < LM_COUNT(kinds); k++) {
    for (int i = 0; i < 300; i++)
      case_run(&r, &kinds[k]);
    for (int i = 0; i < 4 && kinds[k].ab != LM_F64; i++)
      tiles_run(&r, &kinds[k], (int)draw(&r, 8), i % 2);
  }
}
