// draw_test.c - the kernel that draws a token (runtime/cuda/draw.cu), under the SIMT emulator: the
// tokens are those that the host draws by sorting, with equal logits, zeros of both signs,
// infinities, and one token of almost all the weight. The weights are compared with exp.
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
#include "runtime/cuda/draw.cu"
#pragma GCC diagnostic pop
#include "runtime/infer/sample.h"
#include "tests/cuda/simt.h"
#include "tests/runtime/check.h"

enum {
  N = 700,      // several rounds of the block, the last one incomplete
  THREADS = 96, // three warps; the runtime launches 1,024 threads
  GPT2 = 50257
};

typedef enum {
  FEW_LEVELS, // so that many are equal
  ZEROS,      // the greatest are zeros of both signs
  MASKED,     // most are -Inf
  DOMINATED,  // one has almost all the weight
  NEIGHBOURS, // successive floats, which are equal in bf16
  SMOOTH,     // normal, as a model's
  KINDS
} kind;

typedef struct launch {
  const void *x;
  int32_t *out, n;
  lm_draw_rule rule;
} launch;

static void kernel_call(void *p) {
  const launch *l = p;
  lm_draw(l->x, l->out, l->n, l->rule);
}

static int32_t draw(const void *x, int32_t n, int threads, lm_draw_rule rule) {
  int32_t token = -2;
  launch l = {x, &token, n, rule};
  simt_run(kernel_call, &l, 1, threads);
  char *found = simt_report_take();
  if (found)
    fprintf(stderr, "%s", found);
  CHECK(!found);
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
  case SMOOTH: return (float)(3 * sqrt(-2 * log(uniform())) * cos(2 * M_PI * uniform()));
  default: return (float)level * 0.25f - 5;
  }
}

// The row is bf16 in every second case, which `half` receives.
static void compare(const float *x, int32_t n, const lm_sampler *s, int index) {
  static lm_candidate workspace[GPT2];
  static uint16_t half[GPT2];
  static float rounded[GPT2];
  lm_draw_rule rule = lm_sample_rule(s, n, index);
  rule.of_16_bits = index % 2;
  for (int i = 0; i < n; i++) {
    half[i] = lm_bf16_round(x[i]);
    rounded[i] = index % 2 ? lm_bf16_load(half[i]) : x[i];
  }
  int32_t want = lm_sample(&rule, rounded, n, workspace);
  int32_t got = draw(index % 2 ? (const void *)half : x, n, n == N ? THREADS : 1024, rule);
  if (got != want)
    fprintf(stderr, "T %g, top_k %d, top_p %g, token %d: %d, not %d\n", s->temperature, s->top_k,
            s->top_p, index, got, want);
  CHECK(got == want && isfinite(x[got]));
}

static void test_tokens(void) {
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
      {.temperature = 2, .top_k = 300, .top_p = 0.8},
      {.temperature = 1, .top_k = N},
  };
  float x[N];
  for (kind k = 0; k < KINDS; k++) {
    for (int i = 0; i < N; i++)
      x[i] = logit(k, i);
    for (size_t i = 0; i < LM_COUNT(samplers); i++)
      compare(x, N, &samplers[i], (int)i + (int)k);
  }
  x[N - 1] = NAN;
  CHECK(draw(x, N, THREADS, lm_sample_rule(&samplers[2], N, 0)) == -1);
  x[N - 1] = INFINITY;
  CHECK(draw(x, N, THREADS, lm_sample_rule(&samplers[2], N, 0)) == N - 1);
}

static void test_gpt2(void) {
  static float x[GPT2];
  for (int i = 0; i < GPT2; i++)
    x[i] = logit(SMOOTH, i);
  compare(x, GPT2, &(lm_sampler){.temperature = 1, .top_p = 0.95}, 0);
  compare(x, GPT2, &(lm_sampler){.temperature = 1}, 1);
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

int main(void) {
  test_weights();
  test_tokens();
  test_gpt2();
  return 0;
}
