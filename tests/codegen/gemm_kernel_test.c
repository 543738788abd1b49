// gemm_kernel_test.c - generated code of GEMMs against plain loops in double: sizes that are not
// multiples of tiles, every supported layout, types, reductions over several axes, accumulation;
// the documented order of sums in f32; the same bits for any division of the rows and for any
// number of them; and few rows with columns or k known only at run time. bf16 also for AMX and for
// BFMMLA of aarch64, emulated; on a processor with BFMMLA or AVX512-BF16, the instruction gives the
// bits of its emulation. With LM_TEST_BRIEF in the environment, a quarter of the cases.
// Build: plain
#include "tests/codegen/cache.h"

#include <math.h>

#include "codegen/cpu/cpu.h"
#include "runtime/cpu/detect.h"
#include "runtime/cpu/gemm.h"
#include "runtime/cpu/kernels.h"
#include "tests/codegen/rng.h"
#include "tests/codegen/sapphire.h"
#include "tests/codegen/threads.h"

enum {
  CASES = 36,
  PANELS = 8 /* of them with B in panels */
};

static lm_plan_extent fixed(int64_t n) {
  return (lm_plan_extent){.fixed = n};
}

typedef struct gemm_case {
  lm_plan_gemm g;
  int64_t elements[3];
} gemm_case;

// One batch axis and one reduction axis besides k, each of size 1 to 3; operands are contiguous
// along them.
static gemm_case shape_make(int64_t m, int64_t n, int64_t k, int layout, bool bf16, bool bf16_c,
                            bool add, int64_t batch, int64_t sum) {
  bool ta = layout & 1;
  bool tb = layout & 2;
  bool tc = layout & 4;
  gemm_case p = {.g = {.m = fixed(m),
                       .n = fixed(n),
                       .k = fixed(k),
                       .a_m = ta ? 1 : k + 3,
                       .a_k = ta ? m + 1 : 1,
                       .b_k = tb ? 1 : n + 2,
                       .b_n = tb ? k : 1,
                       .c_m = tc ? 1 : n,
                       .c_n = tc ? m + 5 : 1,
                       .n_batch = 2,
                       .accumulate = add,
                       .dtype_ab = bf16 ? LM_BF16 : LM_F32,
                       .dtype_c = bf16_c ? LM_BF16 : LM_F32}};
  int64_t a = ta ? k * p.g.a_k : m * p.g.a_m;
  int64_t b = tb ? n * p.g.b_n : k * p.g.b_k;
  int64_t c = tc ? n * p.g.c_n : m * p.g.c_m;
  p.g.batch[0].size = fixed(batch);
  p.g.batch[0].a = a * sum;
  p.g.batch[0].b = b * sum;
  p.g.batch[0].c = c;
  p.g.batch[1].size = fixed(sum);
  p.g.batch[1].a = a;
  p.g.batch[1].b = b;
  p.g.batch[1].sum = true;
  p.elements[0] = a * batch * sum;
  p.elements[1] = b * batch * sum;
  p.elements[2] = c * batch;
  return p;
}

// The same with B prepacked by pass prepack.
static gemm_case prepacked_case(rng *r, const lm_target_panel *panel, bool bf16) {
  gemm_case p = shape_make(
      1 + draw(r, draw(r, 2) ? 20 : 200), panel->n * (1 + (panel->n < 16) + draw(r, 5)),
      panel->k > 1 ? panel->k * (33 / panel->k + 1 + draw(r, 500 / panel->k)) : 33 + draw(r, 500),
      (int)draw(r, 2), bf16, bf16 && draw(r, 2), draw(r, 2), 1 + draw(r, 2), 1 + draw(r, 2));
  lm_plan_gemm *g = &p.g;
  int64_t size = g->n.fixed * g->k.fixed;
  g->b_k = g->b_columns = panel->columns;
  g->b_n = g->k.fixed;
  g->b_group = panel->group;
  g->batch[0].b = size * g->batch[1].size.fixed;
  g->batch[1].b = size;
  p.elements[1] = size * g->batch[0].size.fixed * g->batch[1].size.fixed;
  return p;
}

static gemm_case case_draw(rng *r, int i) {
  static const int64_t odd[] = {16, 17, 31, 53, 97, 128, 200, 231};
  int64_t m = odd[draw(r, 8)];
  int64_t n = odd[draw(r, 8)];
  int64_t k = i % 7 ? odd[draw(r, 6) + 2] : 257 + draw(r, 400);
  bool bf16 = i % 3 == 2;
  return shape_make(m, n, k, (int)draw(r, 8), bf16, bf16 && draw(r, 2), draw(r, 2), 1 + draw(r, 2),
                    1 + draw(r, 3));
}

// ---- numbers with few bits, which are exact in bf16

static double get(lm_dtype t, const char *p, int64_t i) {
  float f = 0;
  if (t == LM_BF16)
    memcpy((char *)&f + 2, p + 2 * i, 2);
  else
    memcpy(&f, p + 4 * i, 4);
  return f;
}

static char *random_memory(rng *r, lm_dtype t, int64_t n) {
  char *p = lm_calloc((size_t)n, 4);
  for (int64_t i = 0; i < n; i++) {
    float v = (float)(draw(r, 255) - 127) / 128;
    if (t == LM_BF16)
      memcpy(p + 2 * i, (char *)&v + 2, 2);
    else
      memcpy(p + 4 * i, &v, 4);
  }
  return p;
}

// ---- expected results

static int64_t offset_of_b(const lm_plan_gemm *g, int64_t k, int64_t j) {
  int64_t columns = g->b_columns;
  int64_t group = g->b_group;
  return columns ? j / columns * columns * g->k.fixed + k / group * columns * group +
                       j % columns * group + k % group
                 : k * g->b_k + j * g->b_n;
}

static double element(const lm_plan_gemm *g, const char *a, const char *b, const char *old,
                      int64_t batch, int64_t i, int64_t j) {
  lm_dtype t = (lm_dtype)g->dtype_ab;
  double sum = g->accumulate
                   ? get((lm_dtype)g->dtype_c, old, batch * g->batch[0].c + i * g->c_m + j * g->c_n)
                   : 0;
  for (int64_t s = 0; s < g->batch[1].size.fixed; s++)
    for (int64_t k = 0; k < g->k.fixed; k++)
      sum += get(t, a, batch * g->batch[0].a + s * g->batch[1].a + i * g->a_m + k * g->a_k) *
             get(t, b, batch * g->batch[0].b + s * g->batch[1].b + offset_of_b(g, k, j));
  return sum;
}

static void compare(const lm_plan_gemm *g, const char *a, const char *b, const char *old,
                    const char *c) {
  double allowed = g->dtype_c == LM_BF16 ? 1.0 / 256 + 1e-4 : 1e-5;
  for (int64_t z = 0; z < g->batch[0].size.fixed; z++)
    for (int64_t i = 0; i < g->m.fixed; i++)
      for (int64_t j = 0; j < g->n.fixed; j++) {
        double want = element(g, a, b, old, z, i, j);
        double x = get((lm_dtype)g->dtype_c, c, z * g->batch[0].c + i * g->c_m + j * g->c_n);
        bool near = fabs(x - want) <= allowed * (1 + fabs(want));
        if (!near)
          fprintf(stderr, "m %lld n %lld k %lld: C[%lld, %lld] is %g, not %g\n",
                  (long long)g->m.fixed, (long long)g->n.fixed, (long long)g->k.fixed, (long long)i,
                  (long long)j, x, want);
        CHECK(near);
      }
}

// ---- runs

static char *run(const lm_plan_gemm *g, const lm_kernels *kernels, int threads,
                 const lm_gemm_tilings *tilings, const char *a, const char *b, const char *old,
                 int64_t n) {
  char *c = lm_calloc((size_t)n, 4);
  memcpy(c, old, (size_t)n * 4);
  lm_cpu_gemms *all = lm_cpu_gemms_create(&(lm_cpu_gemm_options){.threads = test_threads(threads),
                                                                 .primitives = 1u << LM_F64,
                                                                 .tilings = tilings,
                                                                 .code = true,
                                                                 .kernels = kernels->fn});
  lm_cpu_gemm_prepare(all, g);
  CHECK(lm_cpu_gemm_tile(all, g).code);
  lm_cpu_gemm(all, g, NULL, a, b, c);
  lm_cpu_gemms_destroy(all);
  return c;
}

static void case_run(rng *r, const gemm_case *p, const lm_kernels *kernels) {
  const lm_plan_gemm *g = &p->g;
  lm_gemm_tiling usual = {.tile = {.code = true}},
                 small = {.tile = {1 + draw(r, 90), 1 + draw(r, 90), true}};
  lm_gemm_tilings whole = {&usual, 1, 1}, cut = {&small, 1, 1};
  CHECK(lm_gemm_key_find(g, &usual.key) && lm_gemm_key_find(g, &small.key));
  char *a = random_memory(r, g->dtype_ab, p->elements[0]);
  char *b = random_memory(r, g->dtype_ab, p->elements[1]);
  char *old = random_memory(r, g->dtype_c, p->elements[2]);
  char *one = run(g, kernels, 1, &whole, a, b, old, p->elements[2]);
  char *four = run(g, kernels, 4, &whole, a, b, old, p->elements[2]);
  char *other = run(g, kernels, 2, &cut, a, b, old, p->elements[2]);
  CHECK(!memcmp(one, four, (size_t)p->elements[2] * 4) &&
        !memcmp(one, other, (size_t)p->elements[2] * 4));
  compare(g, a, b, old, one);
  char *used[] = {a, b, old, one, four, other};
  for (size_t i = 0; i < LM_COUNT(used); i++)
    lm_free(used[i]);
}

// Half of the GEMMs by the function for any number of rows.
static void emit(lm_arena *a, lm_plan *plan, lm_plan_gemm *g) {
  lm_kernel_code code = {0};
  CHECK(lm_cpu_gemm_emit(NULL, g, g->m.fixed % 2, a, &code));
  g->code = 0;
  while (g->code < plan->n_kernels && strcmp(plan->kernels[g->code].name, code.name))
    g->code++;
  if (g->code == plan->n_kernels)
    plan->kernels[plan->n_kernels++] = (lm_plan_kernel){.name = code.name, .source = code.source};
  g->code++;
}

// ---- any number of rows

enum {
  ROWS = 37, // maximum number of rows
  ROW_CASES = 8
};

// The first m rows are the same as in `all`.
static void prefix_check(lm_cpu_gemms *gemms, const lm_plan_gemm *g, int64_t m, int64_t row,
                         const char *a, const char *b, const char *all, int64_t elements) {
  char *c = lm_calloc((size_t)elements, 4);
  lm_cpu_gemm_prepare(gemms, g);
  lm_cpu_gemm(gemms, g, &m, a, b, c);
  CHECK(!memcmp(c, all, (size_t)(m * row)));
  lm_free(c);
}

// The first rows of a GEMM whose number of rows is known at run time have the bits of the GEMM with
// ROWS rows; so has one row, which has no strides between rows.
static void rows_run(rng *r, gemm_case p, const lm_kernels *kernels) {
  lm_plan_gemm *g = &p.g;
  char *a = random_memory(r, g->dtype_ab, p.elements[0]);
  char *b = random_memory(r, g->dtype_ab, p.elements[1]);
  char *old = lm_calloc((size_t)p.elements[2], 4);
  lm_gemm_tiling usual = {.tile = {.code = true}};
  lm_gemm_tilings whole = {&usual, 1, 1};
  CHECK(lm_gemm_key_find(g, &usual.key));
  char *all = run(g, kernels, 2, &whole, a, b, old, p.elements[2]);
  g->m = (lm_plan_extent){.fixed = 1, .n_dyn = 1};
  lm_cpu_gemms *gemms = lm_cpu_gemms_create(
      &(lm_cpu_gemm_options){.threads = test_threads(2), .code = true, .kernels = kernels->fn});
  int64_t row = g->c_m * lm_dtype_bytes((lm_dtype)g->dtype_c);
  for (int64_t m = 1; m <= ROWS; m++)
    prefix_check(gemms, g, m, row, a, b, all, p.elements[2]);
  g->m = fixed(1);
  g->a_m = g->c_m = 0;
  prefix_check(gemms, g, 1, row, a, b, all, p.elements[2]);
  lm_cpu_gemms_destroy(gemms);
  char *used[] = {a, b, old, all};
  for (size_t i = 0; i < LM_COUNT(used); i++)
    lm_free(used[i]);
}

static float *fine_memory(rng *r, int64_t n) {
  float *p = lm_calloc((size_t)n, 4);
  for (int64_t i = 0; i < n; i++)
    p[i] = (float)(draw(r, 1 << 24) - (1 << 23)) / (float)(1 << draw(r, 24));
  return p;
}

// Numbers of every precision that bf16 has and of many magnitudes, so that sums are rounded.
static char *wide_memory(rng *r, int64_t n) {
  uint16_t *p = lm_calloc((size_t)n, 4);
  for (int64_t i = 0; i < n; i++)
    p[i] = (uint16_t)(draw(r, 2) << 15 | (120 + draw(r, 12)) << 7 | draw(r, 128));
  return (char *)p;
}

// ---- columns and k known only at run time

static char *extent_run(lm_cpu_gemms *gemms, const lm_plan_gemm *g, int64_t extent, const char *a,
                        const char *b, int64_t elements) {
  char *c = lm_calloc((size_t)elements, 4);
  lm_cpu_gemm_prepare(gemms, g);
  lm_cpu_gemm(gemms, g, &extent, a, b, c);
  return c;
}

// Elements along k that are zero in A change no bits, and the sums are right. exact: so they can be
// compared with those in double.
static void run_time_k_check(lm_cpu_gemms *gemms, const gemm_case *p, int64_t k, bool exact,
                             char *a, const char *b) {
  lm_plan_gemm g = p->g;
  int64_t size = lm_dtype_bytes((lm_dtype)g.dtype_ab);
  char *old = lm_calloc((size_t)p->elements[2], 4);
  g.k = (lm_plan_extent){.fixed = 1, .n_dyn = 1};
  char *few = extent_run(gemms, &g, k, a, b, p->elements[2]);
  g.k = fixed(k);
  if (exact)
    compare(&g, a, b, old, few);
  for (int64_t i = 0; i < g.m.fixed; i++)
    memset(a + (i * g.a_m + k) * size, 0, (size_t)((p->g.k.fixed - k) * size));
  g.k = (lm_plan_extent){.fixed = 1, .n_dyn = 1};
  char *all = extent_run(gemms, &g, p->g.k.fixed, a, b, p->elements[2]);
  CHECK(!memcmp(few, all, (size_t)p->elements[2] * 4));
  lm_free(few);
  lm_free(all);
  lm_free(old);
}

// The first columns have the bits that they have beside others.
static void run_time_n_check(lm_cpu_gemms *gemms, const gemm_case *p, int64_t n, const char *a,
                             const char *b) {
  lm_plan_gemm g = p->g;
  int64_t size = lm_dtype_bytes((lm_dtype)g.dtype_c);
  char *all = extent_run(gemms, &g, 0, a, b, p->elements[2]);
  g.n = (lm_plan_extent){.fixed = 1, .n_dyn = 1};
  char *first = extent_run(gemms, &g, n, a, b, p->elements[2]);
  for (int64_t i = 0; i < g.m.fixed; i++)
    CHECK(!memcmp(all + i * g.c_m * size, first + i * g.c_m * size, (size_t)(n * size)));
  lm_free(all);
  lm_free(first);
}

static void extents_run(rng *r, gemm_case p, const lm_kernels *kernels) {
  lm_plan_gemm *g = &p.g;
  lm_cpu_gemms *gemms = lm_cpu_gemms_create(
      &(lm_cpu_gemm_options){.threads = test_threads(2), .code = true, .kernels = kernels->fn});
  for (int i = 0; i < 4; i++) {
    bool exact = i % 2;
    char *used[2];
    g->m = fixed(1 + draw(r, LM_GEMM_FEW_ROWS));
    for (int j = 0; j < 2; j++)
      used[j] = exact                    ? random_memory(r, g->dtype_ab, p.elements[j])
                : g->dtype_ab == LM_BF16 ? wide_memory(r, p.elements[j])
                                         : (char *)fine_memory(r, p.elements[j]);
    run_time_n_check(gemms, &p, 1 + draw(r, g->n.fixed), used[0], used[1]);
    run_time_k_check(gemms, &p, 1 + draw(r, g->k.fixed), exact, used[0], used[1]);
    lm_free(used[0]);
    lm_free(used[1]);
  }
  lm_cpu_gemms_destroy(gemms);
}

static void few_rows_run(rng *r, const gemm_case *p, const lm_kernels *kernels) {
  rows_run(r, *p, kernels);
  if (!p->g.b_columns)
    extents_run(r, *p, kernels);
}

// B as rows, as columns and in panels, in f32 and bf16, with sums of one and of several blocks.
static int rows_cases(rng *r, const lm_target_panel *panels, gemm_case *out) {
  int n = 0;
  for (int i = 0; i < ROW_CASES; i++) {
    const lm_target_panel *panel = &panels[i & 1 ? LM_BF16 : LM_F32];
    int64_t columns = 32 * (1 + draw(r, 3)), k = 32 + 32 * draw(r, 25);
    gemm_case p = shape_make(ROWS, columns + (i & 2 ? 0 : 5), k + (i & 2 ? 0 : 3), i & 4 ? 2 : 0,
                             i & 1, i == 7, false, 1, 1);
    if (i & 2 && !panel->columns)
      continue;
    if (i & 2) {
      p.g.b_k = p.g.b_columns = panel->columns;
      p.g.b_n = k;
      p.g.b_group = panel->group;
    }
    p.g.n_batch = 0;
    out[n++] = p;
  }
  return n;
}

// The order of sums in f32 that docs/numerics.md states, on every processor with multiply-adds:
// even blocks of at most 256 elements along k, in each of which k ascends; block sums are added to
// C.
static float ordered_sum(const float *a, const float *b, int64_t k, float c) {
  int64_t blocks = (k + 255) / 256, size = ((k + blocks - 1) / blocks + 3) / 4 * 4;
  for (int64_t first = 0; first < k; first += size) {
    float sum = 0;
    for (int64_t i = first; i < first + size && i < k; i++)
      sum = fmaf(a[i], b[i], sum);
    c += sum;
  }
  return c;
}

static void order_check(lm_arena *a, rng *r) {
  lm_plan plan = {.prelude = lm_cpu_prelude_text(a), .kernels = LM_NEW_N(a, lm_plan_kernel, 1)};
  gemm_case p = shape_make(31, 40, 701, 2, false, false, true, 1, 1);
  lm_gemm_tiling usual = {.tile = {.code = true}};
  lm_gemm_tilings whole = {&usual, 1, 1};
  lm_kernels kernels;
  emit(a, &plan, &p.g);
  CHECK_OK(lm_kernels_load(&plan, &(lm_exec_options){0}, 1, &kernels));
  CHECK(lm_gemm_key_find(&p.g, &usual.key));
  float *x = fine_memory(r, p.elements[0]), *y = fine_memory(r, p.elements[1]);
  float *old = fine_memory(r, p.elements[2]);
  float *c =
      (float *)run(&p.g, &kernels, 2, &whole, (char *)x, (char *)y, (char *)old, p.elements[2]);
  for (int64_t i = 0; i < p.g.m.fixed; i++)
    for (int64_t j = 0; j < p.g.n.fixed; j++) {
      int64_t at = i * p.g.c_m + j * p.g.c_n;
      CHECK(c[at] == ordered_sum(x + i * p.g.a_m, y + j * p.g.b_n, p.g.k.fixed, old[at]));
    }
  lm_kernels_unload(&kernels);
  float *used[] = {x, y, old, c};
  for (size_t i = 0; i < LM_COUNT(used); i++)
    lm_free(used[i]);
}

// Unsupported by generated code: columns known only at run time of many rows, small sizes,
// operands and results without unit stride, float64; and unprofitable GEMMs.
static void declined_check(lm_arena *a) {
  lm_plan_gemm usual = shape_make(1024, 512, 64, 0, false, false, false, 1, 1).g, g[6];
  for (size_t i = 0; i < LM_COUNT(g); i++)
    g[i] = usual;
  g[0].n.n_dyn = 1;
  g[1].k = fixed(8);
  g[2].n = fixed(3);
  g[3].a_k = 2;
  g[4].c_n = 2;
  g[5].dtype_ab = g[5].dtype_c = LM_F64;
  lm_target any = lm_target_any(LM_TARGET_CPU);
  lm_kernel_code code;
  CHECK(lm_cpu_gemm_emit(NULL, &usual, true, a, &code));
  for (size_t i = 0; i < LM_COUNT(g); i++)
    CHECK(!lm_cpu_gemm_emit(NULL, &g[i], true, a, &code) &&
          !lm_cpu_gemm_is_profitable(&any, &g[i]));
  CHECK(lm_cpu_gemm_is_profitable(&any, &usual));
  lm_target wide = any;
  wide.vector = 16;
  lm_plan_gemm middle = shape_make(1024, 512, 768, 0, false, false, false, 1, 1).g;
  lm_plan_gemm weight = shape_make(512, 512, 768, 1, false, false, true, 1, 1).g;
  CHECK(lm_cpu_gemm_is_profitable(&wide, &usual) && lm_cpu_gemm_is_profitable(&wide, &weight));
  CHECK(lm_cpu_gemm_is_profitable(&any, &middle) && !lm_cpu_gemm_is_profitable(&wide, &middle));
  lm_plan_gemm forward = shape_make(1024, 512, 64, 0, true, true, false, 1, 1).g;
  lm_plan_gemm far = shape_make(1024, 512, 4096, 2, true, true, false, 1, 1).g;
  weight.dtype_ab = LM_BF16;
  CHECK(lm_cpu_gemm_is_profitable(&wide, &forward));
  wide.math[LM_BF16].native = true;
  CHECK(!lm_cpu_gemm_is_profitable(&wide, &forward) && lm_cpu_gemm_is_profitable(&wide, &far));
  CHECK(lm_cpu_gemm_is_profitable(&wide, &weight));
  wide.matrix = LM_MATRIX_AMX;
  CHECK(lm_cpu_gemm_is_profitable(&wide, &forward));
  usual.n = fixed(64);
  CHECK(lm_cpu_gemm_emit(NULL, &usual, true, a, &code) && !lm_cpu_gemm_is_profitable(&any, &usual));
  usual.m = fixed(LM_GEMM_FEW_ROWS);
  CHECK(lm_cpu_gemm_is_profitable(&any, &usual));
  usual.n = usual.k = (lm_plan_extent){.fixed = 1, .n_dyn = 1};
  CHECK(lm_cpu_gemm_is_profitable(&any, &usual) && lm_cpu_gemm_emit(NULL, &usual, true, a, &code));
  usual.dtype_ab = LM_BF16;
  CHECK(lm_cpu_gemm_is_profitable(&any, &usual) && lm_cpu_gemm_emit(NULL, &usual, true, a, &code));
}

static void same_bits_check(rng *r, const gemm_case *p, const lm_kernels *one,
                            const lm_kernels *other) {
  lm_gemm_tiling usual = {.tile = {.code = true}};
  lm_gemm_tilings whole = {&usual, 1, 1};
  CHECK(lm_gemm_key_find(&p->g, &usual.key));
  char *a = wide_memory(r, p->elements[0]), *b = wide_memory(r, p->elements[1]);
  char *old = random_memory(r, p->g.dtype_c, p->elements[2]);
  char *x = run(&p->g, one, 2, &whole, a, b, old, p->elements[2]);
  char *y = run(&p->g, other, 2, &whole, a, b, old, p->elements[2]);
  CHECK(!memcmp(x, y, (size_t)p->elements[2] * 4));
  char *used[] = {a, b, old, x, y};
  for (size_t j = 0; j < LM_COUNT(used); j++)
    lm_free(used[j]);
}

// The usual code gives the bits of code that is compiled with the macro `other`, for each layout.
static void instruction_check(lm_arena *a, rng *r, const lm_plan *plan, const char *other) {
  lm_plan real = {.prelude = plan->prelude, .kernels = LM_NEW_N(a, lm_plan_kernel, 4)};
  lm_plan emulated = {.prelude = lm_arena_printf(a, "#define %s\n%s", other, plan->prelude)};
  lm_kernels kernels[2];
  gemm_case cases[4];
  for (int i = 0; i < 4; i++) {
    cases[i] = shape_make(29, 19, 530, i, true, i == 3, i == 2, 1, 1);
    emit(a, &real, &cases[i].g);
  }
  emulated.kernels = real.kernels;
  emulated.n_kernels = real.n_kernels;
  CHECK_OK(lm_kernels_load(&real, &(lm_exec_options){0}, 2, &kernels[0]));
  CHECK_OK(lm_kernels_load(&emulated, &(lm_exec_options){0}, 2, &kernels[1]));
  for (int i = 0; i < 4; i++)
    same_bits_check(r, &cases[i], &kernels[0], &kernels[1]);
  lm_kernels_unload(&kernels[0]);
  lm_kernels_unload(&kernels[1]);
}

// Code for AMX and BFMMLA in plain C, with the panels of that unit.
static void emulated_run(lm_arena *a, rng *r, const lm_plan *plan, const gemm_case *all,
                         lm_matrix_unit emulates) {
  static const char *const names[] = {[LM_MATRIX_AMX] = "AMX", [LM_MATRIX_BFMMLA] = "BFMMLA"};
  lm_plan emulated = {.kernels = LM_NEW_N(a, lm_plan_kernel, CASES)};
  lm_kernels kernels;
  lm_target_panel panel[LM_DTYPES] = {{0}};
  gemm_case cases[CASES + PANELS], rows[ROW_CASES];
  int n = 0;
  lm_cpu_panels(0, emulates, panel);
  emulated.prelude =
      lm_arena_printf(a, "#define LM_%s_EMULATED\n%s", names[emulates], plan->prelude);
  for (int i = 0; i < CASES; i++)
    if (all[i].g.dtype_ab == LM_BF16 && !all[i].g.b_columns)
      cases[n++] = all[i];
  for (int i = 0; i < PANELS; i++)
    cases[n++] = prepacked_case(r, &panel[LM_BF16], true);
  for (int i = 0; i < n; i++)
    emit(a, &emulated, &cases[i].g);
  int n_rows = rows_cases(r, panel, rows);
  for (int i = 0; i < n_rows; i++)
    emit(a, &emulated, &rows[i].g);
  CHECK_OK(lm_kernels_load(&emulated, &(lm_exec_options){0}, 2, &kernels));
  for (int i = 0; i < n; i++)
    case_run(r, &cases[i], &kernels);
  for (int i = 0; i < n_rows; i++)
    if (rows[i].g.dtype_ab == LM_BF16)
      few_rows_run(r, &rows[i], &kernels);
  lm_kernels_unload(&kernels);
}

// For a processor with AVX-512 and AMX: code of matrices and of prepacked panels.
static void compiled_check(lm_arena *a, rng *r, const lm_plan *plan, const gemm_case *all) {
  lm_buf text = {0}, listing = {0};
  lm_target_panel panel[LM_DTYPES];
  lm_plan wide = {.kernels = LM_NEW_N(a, lm_plan_kernel, CASES + 2)};
  gemm_case prepacked[2] = {0};
  lm_cpu_panels(16, LM_MATRIX_AMX, panel);
  for (int i = 0; i < 2; i++) {
    prepacked[i] = prepacked_case(r, &panel[i ? LM_BF16 : LM_F32], i);
    emit(a, &wide, &prepacked[i].g);
  }
  for (int i = 0; i < CASES; i++) {
    lm_plan_gemm g = all[i].g;
    if (g.b_columns)
      continue;
    emit(a, &wide, &g);
  }
  lm_buf_puts(&text, plan->prelude);
  for (int i = 0; i < wide.n_kernels; i++)
    lm_buf_puts(&text, wide.kernels[i].source);
  if (sapphire_compile(a, text.p, &listing))
    CHECK(sapphire_count(&listing, "lm_tiles_bf16", "tdpbf16ps", "tmm") >= 4);
  lm_buf_free(&text);
  lm_buf_free(&listing);
}

// AVX512-BF16
static bool has_pairs(const lm_cpu_info *cpu) {
  return lm_cpu_vector(cpu) == 16 && strstr(cpu->isa, "bf16");
}

int main(void) {
  cache_begin();
  lm_arena *a = lm_arena_create();
  rng r = {11};
  gemm_case all[CASES], rows[ROW_CASES];
  lm_plan plan = {.prelude = lm_cpu_prelude_text(a), .kernels = LM_NEW_N(a, lm_plan_kernel, CASES)};
  int n = 0;
  lm_target_panel panel[LM_DTYPES] = {{0}};
  lm_cpu_info cpu;
  lm_cpu_detect(&cpu);
  bool brief = getenv("LM_TEST_BRIEF");
  lm_matrix_unit unit = getenv("LM_TEST_AMX") ? LM_MATRIX_AMX : lm_cpu_matrix_unit(&cpu);
  lm_cpu_panels(lm_cpu_vector(&cpu), unit, panel);
  declined_check(a);
  while (n < CASES) {
    lm_kernel_code ignored;
    lm_dtype type = n % 2 ? LM_BF16 : LM_F32;
    bool is_prepacked = n < PANELS && panel[type].columns;
    all[n] = is_prepacked ? prepacked_case(&r, &panel[type], type == LM_BF16) : case_draw(&r, n);
    if (!lm_cpu_gemm_emit(NULL, &all[n].g, true, a, &ignored))
      continue;
    emit(a, &plan, &all[n++].g);
  }
  int n_rows = rows_cases(&r, panel, rows);
  for (int i = 0; i < n_rows; i++)
    emit(a, &plan, &rows[i].g);
  lm_kernels kernels;
  CHECK_OK(lm_kernels_load(&plan, &(lm_exec_options){0}, 2, &kernels));
  for (int i = brief ? 1 : 0; i < CASES; i += brief ? 4 : 1)
    case_run(&r, &all[i], &kernels);
  for (int i = 0; i < n_rows; i++)
    few_rows_run(&r, &rows[i], &kernels);
  lm_kernels_unload(&kernels);
  if (lm_cpu_vector(&cpu))
    order_check(a, &r);
  if (unit == LM_MATRIX_BFMMLA) {
    instruction_check(a, &r, &plan, "LM_BFMMLA_EMULATED");
  } else {
    if (lm_cpu_vector(&cpu) && unit == LM_MATRIX_NONE)
      instruction_check(a, &r, &plan, has_pairs(&cpu) ? "LM_BF16_WIDENED" : "LM_PAIRS_EMULATED");
    emulated_run(a, &r, &plan, all, LM_MATRIX_AMX);
    emulated_run(a, &r, &plan, all, LM_MATRIX_BFMMLA);
  }
  compiled_check(a, &r, &plan, all);
  lm_arena_destroy(a);
}
