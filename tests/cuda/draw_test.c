// draw_test.c - the kernels that draw a token (runtime/cuda/draw.cu), under the SIMT emulator: the
// tokens are those that the host draws by sorting, with equal logits, zeros of both signs,
// infinities, one token of almost all the weight, and vocabularies of up to 151,936. Each token is
// also where float64 sums of exp2 reach the random number's share, and the weights are compared
// with exp2. Without one of the kernels' barriers, or with additions that are not atomic, the
// emulator must report it or the token must differ.
// Build: plain
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "codegen/common/prelude/inline.h"
#include "codegen/common/prelude/types.h"
#include "contract/floats.h"
#include "codegen/common/prelude/math.h"
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#include "codegen/cuda/prelude/simt.h"
#include "codegen/cuda/prelude/team.cuh"
#include "runtime/hal/draw.h"
#include "runtime/cuda/draw.h"

// ---- what the kernels call, with a mistake

static struct {
  int without;          // the line of a barrier that is left out; 0: none
  bool torn;            // additions are loads and stores
  bool is_barrier[600]; // by line
} plant;

static void barrier(int line) {
  plant.is_barrier[line] = true;
  if (line != plant.without)
    lm_simt_barrier(line);
}
static uint32_t add(uint32_t *a, int32_t i, uint32_t x, int line) {
  if (!plant.torn)
    return lm_simt_add(a, i, x, line);
  const uint32_t before = lm_get(a, i);
  lm_put(a, i, before + x);
  return before;
}
#undef lm_barrier
#undef lm_shared_add
#define lm_barrier() barrier(__LINE__)
#define lm_shared_add(a, i, x) add(a, i, x, __LINE__)
#include "runtime/cuda/draw.cu"
#pragma GCC diagnostic pop
#include "runtime/infer/sample.h"
#include "tests/cuda/simt.h"
#include "tests/runtime/check.h"

enum {
  SMALL = 700,   // one slice; several rounds of the block, the last one incomplete
  MIDDLE = 5001, // four slices
  GPT2 = 50257,
  QWEN = 151936
};

typedef enum {
  FEW_LEVELS, // so that many are equal
  ZEROS,      // the greatest are zeros of both signs
  MASKED,     // most are -Inf
  DOMINATED,  // one has almost all the weight
  NEIGHBOURS, // successive floats, which are equal in bf16
  EQUAL,
  SMOOTH, // normal, as a model's
  KINDS
} kind;

typedef struct launch {
  const void *x;
  lm_draw_work *work;
  int32_t *ids, n;
  lm_draw_rule rule;
} launch;

static void greatest_call(void *p) {
  const launch *l = p;
  lm_draw_greatest(l->x, l->work, l->n, l->rule);
}
static void sort_call(void *p) {
  const launch *l = p;
  lm_draw_sort(l->x, l->work, l->ids, l->n, l->rule);
}
static void pick_call(void *p) {
  const launch *l = p;
  lm_draw_pick(l->x, l->work, l->ids, l->n, l->rule);
}

// The token; -2 if something is reported, after which nothing runs.
static int32_t draw(const void *x, int32_t n, lm_draw_rule rule, char **report) {
  static struct {
    _Alignas(16) lm_draw_work work;
    int32_t ids[QWEN];
  } memory;
  static void (*const calls[])(void *) = {greatest_call, sort_call, pick_call};
  const int slices = lm_draw_slices(n), of_slice = slices < 8 ? 96 : 256;
  launch l = {x, &memory.work, memory.ids, n, rule};
  memset(&memory, 0x5a, sizeof memory);
  *report = NULL;
  for (int i = 0; i < 3 && !*report; i++) {
    if (i != 1 || rule.scale > 0)
      simt_run(calls[i], &l, i == 2 ? 1 : slices, i == 2 ? LM_DRAW_BINS : of_slice);
    *report = simt_report_take();
  }
  return *report ? -2 : memory.work.token;
}

static int32_t draw_correctly(const void *x, int32_t n, lm_draw_rule rule) {
  char *report;
  const int32_t token = draw(x, n, rule, &report);
  if (report)
    fprintf(stderr, "%s", report);
  CHECK(!report);
  return token;
}

static uint32_t state = 7;
static double uniform(void) {
  state = state * 1664525 + 1013904223;
  return ((state >> 8) + 0.5) * 0x1p-24;
}

static float logit(kind k, int i) {
  int level = (int)(uniform() * 40);
  switch (k) {
  case ZEROS: return level < 30 ? (float)level - 30 : i % 2 ? 0.0f : -0.0f;
  case MASKED: return level < 36 ? -INFINITY : (float)level;
  case DOMINATED: return i == 617 ? 40 : (float)level * 0.25f;
  case NEIGHBOURS: return 1 + (float)level * 0x1p-23f;
  case EQUAL: return -3;
  case SMOOTH: return (float)(3 * sqrt(-2 * log(uniform())) * cos(2 * M_PI * uniform()));
  default: return (float)level * 0.25f - 5;
  }
}

// ---- sums in float64

static const float *sorted_by;
static int by_logit(const void *a, const void *b) {
  const int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
  if (sorted_by[i] != sorted_by[j])
    return sorted_by[i] > sorted_by[j] ? -1 : 1;
  return (i > j) - (i < j);
}

// Weights are rounded down to multiples of 2^-32.
static double tolerance(int32_t n) {
  return 1e-5 + n * 0x1p-32;
}

// The least sum of the first candidates that is at least the limit.
static double reach(const double *p, int32_t n, double limit) {
  double sum = 0;
  for (int32_t i = 0; i < n && sum < limit; i++)
    sum += p[i];
  return sum;
}

static void sums_check(const float *x, int32_t n, const lm_draw_rule *rule, int32_t token) {
  static int32_t ids[QWEN];
  static double p[QWEN];
  double all = 0, top = -INFINITY, before = 0;
  int32_t at = 0, k = rule->top_k ? rule->top_k : n;
  for (int32_t i = 0; i < n; i++) {
    ids[i] = i;
    top = x[i] > top ? x[i] : top;
  }
  sorted_by = x;
  if (rule->top_k || rule->top_p < 1)
    qsort(ids, (size_t)n, sizeof *ids, by_logit);
  for (int32_t i = 0; i < k; i++)
    all += p[i] = exp2((x[ids[i]] - top) * (double)rule->scale);
  for (; at < k && ids[at] != token; at++)
    before += p[at];
  CHECK(at < k);
  const double loose = tolerance(n) * (1 + all);
  const double least = reach(p, k, rule->top_p * all - loose);
  const double most = rule->top_p < 1 ? reach(p, k, rule->top_p * all + loose) : all;
  CHECK(before <= rule->unit * most + loose);
  CHECK(before + p[at] >= rule->unit * least - loose);
}

// ---- tokens

// The row is bf16 in every second case, which `half` receives.
static void compare(const float *x, int32_t n, const lm_sampler *s, int index) {
  static lm_candidate workspace[QWEN];
  static uint16_t half[QWEN];
  static float rounded[QWEN];
  lm_draw_rule rule = lm_sample_rule(s, n, index);
  rule.of_16_bits = index % 2;
  for (int i = 0; i < n; i++) {
    half[i] = lm_bf16_round(x[i]);
    rounded[i] = index % 2 ? lm_bf16_load(half[i]) : x[i];
  }
  int32_t want = lm_sample(&rule, rounded, n, workspace);
  int32_t got = draw_correctly(index % 2 ? (const void *)half : x, n, rule);
  if (got != want)
    fprintf(stderr, "n %d, T %g, top_k %d, top_p %g, token %d: %d, not %d\n", n, s->temperature,
            s->top_k, s->top_p, index, got, want);
  CHECK(got == want && (isfinite(x[got]) || n == 1));
  if (rule.scale > 0 && isfinite(x[got]))
    sums_check(rounded, n, &rule, got);
}

static const lm_sampler samplers[] = {
    {.temperature = 0},
    {.temperature = 1},
    {.temperature = 1, .top_p = 0.9},
    {.temperature = 0.7, .top_p = 0.5},
    {.temperature = 1e9, .top_p = 0.999999},
    {.temperature = 1e-30, .top_p = 1e-9},
    {.temperature = 1e300, .top_p = 0.3},
    {.temperature = 1.3, .top_k = 1},
    {.temperature = 1.3, .top_k = 500},
    {.temperature = 0.01, .top_k = 500},
    {.temperature = 2, .top_k = 300, .top_p = 0.8},
    {.temperature = 1, .top_k = SMALL},
    {.temperature = 1, .top_k = QWEN + 1, .top_p = 0},
};

static void test_tokens(int32_t n, int every) {
  static float x[MIDDLE];
  for (kind k = 0; k < KINDS; k += (kind)every) {
    for (int i = 0; i < n; i++)
      x[i] = logit(k, i);
    for (size_t i = 0; i < LM_COUNT(samplers); i++)
      compare(x, n, &samplers[i], (int)i + (int)k);
  }
  x[n - 1] = NAN;
  CHECK(draw_correctly(x, n, lm_sample_rule(&samplers[2], n, 0)) == -1);
  x[n - 1] = INFINITY;
  CHECK(draw_correctly(x, n, lm_sample_rule(&samplers[2], n, 0)) == n - 1);
}

static void test_large(int32_t n, kind k) {
  static float x[QWEN];
  for (int i = 0; i < n; i++)
    x[i] = logit(k, i);
  compare(x, n, &(lm_sampler){.temperature = 1, .top_p = 0.95}, 0);
  compare(x, n, &(lm_sampler){.temperature = 1}, 1);
  compare(x, n, &(lm_sampler){.temperature = 1, .top_k = 50, .top_p = 0.9}, 2);
}

static void test_schedules(void) {
  float x[MIDDLE];
  for (int i = 0; i < MIDDLE; i++)
    x[i] = logit(SMOOTH, i);
  for (simt_schedule s = SIMT_BACKWARD; s < SIMT_SCHEDULES; s++) {
    simt_schedule_set(s);
    for (size_t i = 0; i < LM_COUNT(samplers); i++)
      compare(x, MIDDLE, &samplers[i], (int)i);
  }
  simt_schedule_set(SIMT_FORWARD);
}

// ---- mistakes

// A schedule under which there is a report or another token.
static bool is_found(const float *x, const lm_draw_rule *rule, int32_t want) {
  bool found = false;
  for (int s = 0; s < SIMT_SCHEDULES && !found; s++) {
    simt_schedule_set((simt_schedule)s);
    char *report;
    found |= draw(x, MIDDLE, *rule, &report) != want;
    lm_free(report);
  }
  simt_schedule_set(SIMT_FORWARD);
  return found;
}

static void test_mistakes(void) {
  static float x[MIDDLE];
  int barriers = 0;
  for (int i = 0; i < MIDDLE; i++)
    x[i] = logit(FEW_LEVELS, i);
  lm_draw_rule rule = lm_sample_rule(&samplers[10], MIDDLE, 3);
  const int32_t want = draw_correctly(x, MIDDLE, rule);
  CHECK(!is_found(x, &rule, want));
  for (int line = 1; line < (int)LM_COUNT(plant.is_barrier); line++) {
    plant.without = line;
    bool found = !plant.is_barrier[line] || is_found(x, &rule, want);
    if (!found)
      fprintf(stderr, "nothing is found without the barrier of line %d\n", line);
    CHECK(found);
    barriers += plant.is_barrier[line];
  }
  plant.without = 0;
  plant.torn = true;
  CHECK(is_found(x, &rule, want) && barriers == 5);
  plant.torn = false;
}

static void test_weights(void) {
  double worst = 0;
  uint64_t last = UINT64_MAX;
  for (float y = 0; y < 40; y += 0x1p-10f) {
    uint64_t weight = lm_draw_weight(y, 1);
    double error = fabs((double)weight - (y < 32 ? floor(exp2(32 - (double)y)) : 0));
    worst = error > worst ? error : worst;
    CHECK(weight <= last);
    last = weight;
  }
  CHECK(worst <= 16 && !lm_draw_weight(INFINITY, 1) && !lm_draw_weight(NAN, 1));
  CHECK(lm_draw_limit(0.5, 5) == 3 && lm_draw_limit(0.5, 4) == 2 && lm_draw_mark(0.5, 4) == 3);
}

static void test_slices(void) {
  CHECK(lm_draw_slices(1) == 1 && lm_draw_slices(2047) == 1 && lm_draw_slices(2048) == 2);
  CHECK(lm_draw_slices(32767) == 16 && lm_draw_slices(LM_DRAW_MAX) == LM_DRAW_SLICES);
}

int main(void) {
  test_weights();
  test_slices();
  test_tokens(1, 1);
  test_tokens(SMALL, 1);
  test_tokens(MIDDLE, 3);
  test_schedules();
  test_mistakes();
  test_large(GPT2, SMOOTH);
  test_large(QWEN, SMOOTH);
  test_large(QWEN, EQUAL);
  return 0;
}
