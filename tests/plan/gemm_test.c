// gemm_test.c - GEMMs of plans against plain loops in double, over random strides, batches and sums; equal bits whatever
// the number of threads.
#include <math.h>
#include <omp.h>

#include "runtime/cpu/gemm.h"
#include "runtime/base/dtype.h"
#include "tests/runtime/check.h"

static char scratch[4 * LM_GEMM_SCRATCH];

typedef struct rng { uint64_t state; } rng;

static uint32_t draw(rng *r, uint32_t n) {
  r->state = r->state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)((r->state >> 33) % n);
}

static lm_plan_extent fixed(int64_t n) { return (lm_plan_extent){.fixed = n}; }

// Three operands; axes are dealt to each in random order, innermost first, with gaps now and then.
typedef struct tensor { int64_t elements; float *p; } tensor;

static void shuffle(rng *r, int *order, int n) {
  for (int i = 0; i < n; i++) order[i] = i;
  for (int i = n - 1; i > 0; i--) {
    int j = (int)draw(r, (uint32_t)i + 1), t = order[i];
    order[i] = order[j];
    order[j] = t;
  }
}

// strides[i]: where to put the stride of axis i of size[i]; NULL: not an axis of this tensor. Returns its elements.
static int64_t strides_deal(rng *r, const int64_t *size, int64_t **strides, int n) {
  int order[16];
  int64_t stride = draw(r, 8) ? 1 : 2;
  shuffle(r, order, n);
  for (int i = 0; i < n; i++) {
    if (!strides[order[i]]) continue;
    *strides[order[i]] = stride;
    stride *= size[order[i]];
    if (!draw(r, 5)) stride += draw(r, 7);
  }
  return stride;
}

static lm_plan_gemm random_gemm(rng *r, int64_t *elements) {
  lm_plan_gemm g = {.accumulate = draw(r, 2), .n_batch = (int)draw(r, 4), .dtype_ab = LM_F32, .dtype_c = LM_F32};
  uint32_t most = draw(r, 6) ? 24 : 150;
  int64_t size[16] = {1 + draw(r, most), 1 + draw(r, most), 1 + draw(r, most)};
  int64_t *a[16] = {&g.a_m, NULL, &g.a_k}, *b[16] = {NULL, &g.b_n, &g.b_k}, *c[16] = {&g.c_m, &g.c_n, NULL};
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

static void reference(const lm_plan_gemm *g, int level, const float *a, const float *b, double *c) {
  if (level < g->n_batch) {
    for (int64_t i = 0; i < g->batch[level].size.fixed; i++)
      reference(g, level + 1, a + i * g->batch[level].a, b + i * g->batch[level].b, c + i * g->batch[level].c);
    return;
  }
  for (int64_t i = 0; i < g->m.fixed; i++)
    for (int64_t j = 0; j < g->n.fixed; j++)
      for (int64_t k = 0; k < g->k.fixed; k++)
        c[i * g->c_m + j * g->c_n] += (double)a[i * g->a_m + k * g->a_k] * b[k * g->b_k + j * g->b_n];
}

// Elements of C that the product writes: there the reference begins at 0 unless it accumulates.
static void begin(const lm_plan_gemm *g, int level, const float *old, double *c) {
  if (level < g->n_batch) {
    for (int64_t i = 0; i < g->batch[level].size.fixed; i++)
      begin(g, level + 1, old + i * g->batch[level].c, c + i * g->batch[level].c);
    return;
  }
  for (int64_t i = 0; i < g->m.fixed; i++)
    for (int64_t j = 0; j < g->n.fixed; j++)
      c[i * g->c_m + j * g->c_n] = g->accumulate ? old[i * g->c_m + j * g->c_n] : 0;
}

static float *random_floats(rng *r, int64_t n) {
  float *p = lm_calloc((size_t)n, sizeof *p);
  for (int64_t i = 0; i < n; i++) p[i] = (float)draw(r, 2001) / 1000 - 1;
  return p;
}

static void case_run(rng *r) {
  int64_t n[3];
  lm_plan_gemm g = random_gemm(r, n);
  float *a = random_floats(r, n[0]), *b = random_floats(r, n[1]), *c = random_floats(r, n[2]);
  float *one = lm_calloc((size_t)n[2], sizeof *one), *four = lm_calloc((size_t)n[2], sizeof *four);
  double *want = lm_calloc((size_t)n[2], sizeof *want);
  memcpy(one, c, (size_t)n[2] * sizeof *c);
  memcpy(four, c, (size_t)n[2] * sizeof *c);
  for (int64_t i = 0; i < n[2]; i++) want[i] = c[i];
  begin(&g, 0, c, want);
  reference(&g, 0, a, b, want);
  lm_cpu_gemm(&g, NULL, (char *)a, (char *)b, (char *)one, scratch, 1);
  lm_cpu_gemm(&g, NULL, (char *)a, (char *)b, (char *)four, scratch, 4);
  CHECK(!memcmp(one, four, (size_t)n[2] * sizeof *one));
  for (int64_t i = 0; i < n[2]; i++) CHECK(fabs(one[i] - want[i]) <= 1e-4 * (1 + fabs(want[i])));
  lm_free(a);
  lm_free(b);
  lm_free(c);
  lm_free(one);
  lm_free(four);
  lm_free(want);
}

// Large enough to be cut into tiles, sizes that tiles do not divide; the sum over k takes its order from the shape alone.
// With a stride of 4 KiB operands are packed.
static void tiles_run(rng *r, bool packed) {
  int64_t m = packed ? 1024 : 700 + draw(r, 99), n = 300 + draw(r, 99), k = 200 + draw(r, 99);
  lm_plan_gemm g = {
      .m = fixed(m), .n = fixed(n), .k = fixed(k), .a_m = 1, .a_k = m, .b_k = n, .b_n = 1, .c_m = n, .c_n = 1};
  float *a = random_floats(r, m * k), *b = random_floats(r, k * n), *one = lm_calloc((size_t)(m * n), 4),
        *two = lm_calloc((size_t)(m * n), 4);
  lm_cpu_gemm(&g, NULL, (char *)a, (char *)b, (char *)one, scratch, 1);
  lm_cpu_gemm(&g, NULL, (char *)a, (char *)b, (char *)two, scratch, 2);
  CHECK(!memcmp(one, two, (size_t)(m * n) * sizeof *one));
  double *want = lm_calloc((size_t)(m * n), sizeof *want);
  reference(&g, 0, a, b, want);
  for (int64_t i = 0; i < m * n; i++) CHECK(fabs(one[i] - want[i]) <= 1e-4 * (1 + fabs(want[i])));
  lm_free(a);
  lm_free(b);
  lm_free(one);
  lm_free(two);
  lm_free(want);
}

int main(void) {
  rng r = {7};
  omp_set_num_threads(1);
  for (int i = 0; i < 500; i++) case_run(&r);
  for (int i = 0; i < 4; i++) tiles_run(&r, i % 2);
}
