// leaders_test.c - the kernel that finds the greatest logits (runtime/cuda/leaders.cu), under the
// SIMT emulator: those of a sort, with equal logits, zeros of both signs and infinities; and the
// tokens that are sampled from them, which are those of all logits.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "codegen/common/prelude/inline.h"
#include "codegen/common/prelude/types.h"
#include "contract/floats.h"
#include "codegen/common/prelude/math.h"
#pragma GCC push_options
#pragma GCC diagnostic ignored "-Wunused-function"
#include "codegen/cuda/prelude/simt.h"
#include "codegen/cuda/prelude/team.cuh"
#include "runtime/cuda/leaders.cu"
#pragma GCC pop_options
#include "runtime/infer/sample.h"
#include "tests/cuda/simt.h"
#include "tests/runtime/check.h"

enum {
  N = 700, // more than two rounds of the block, the last one incomplete
};
_Static_assert(sizeof(lm_leader) == sizeof(lm_leader_out), "one layout");

typedef struct launch {
  const void *x;
  lm_leader *out;
  int32_t k, is_bf16;
} launch;

static void kernel_call(void *p) {
  const launch *l = p;
  lm_leaders(l->x, (lm_leader_out *)l->out, N, l->k, l->is_bf16);
}

static void find(const void *x, int32_t k, bool is_bf16, lm_leader *out) {
  launch l = {x, out, k, is_bf16};
  simt_run(kernel_call, &l, 1, 256);
  char *found = simt_report_take();
  if (found)
    fprintf(stderr, "%s", found);
  CHECK(!found);
}

static int by_value(const void *a, const void *b) {
  const lm_leader *x = a, *y = b;
  if (x->value != y->value)
    return x->value > y->value ? -1 : 1;
  return x->index - y->index;
}

// Few values, so that many are equal. kind 1: the greatest are zeros; 2: negative infinities too.
static void fill(float *x, int kind, uint32_t seed) {
  for (int i = 0; i < N; i++) {
    seed = seed * 1664525 + 1013904223;
    int level = (int)(seed >> 8) % 40;
    x[i] = kind == 1 ? -(float)(level / 30) : (float)level * 0.25f - 5;
    if (kind == 1 && x[i] == 0 && i % 2)
      x[i] = -0.0f;
    if (kind == 2 && level < 30)
      x[i] = -INFINITY;
  }
}

static void compare(const float *x, int32_t k, bool is_bf16) {
  lm_leader all[N], got[LM_LEADERS_MAX];
  uint16_t half[N];
  for (int i = 0; i < N; i++) {
    half[i] = lm_bf16_round(x[i]);
    all[i] = (lm_leader){x[i], i};
  }
  find(is_bf16 ? (const void *)half : x, k, is_bf16, got);
  qsort(all, N, sizeof *all, by_value);
  qsort(got, (size_t)k, sizeof *got, by_value);
  for (int i = 0; i < k; i++)
    CHECK(got[i].index == all[i].index && got[i].value == all[i].value);
}

static void tokens_compare(const float *x) {
  static lm_candidate workspace[N];
  lm_leader leaders[LM_LEADERS_MAX];
  for (int i = 0; i < 30; i++) {
    lm_sampler s = {.temperature = i % 3 * 0.8, .top_k = 1 + i * 7, .seed = 5};
    s.top_p = i % 2 ? 0.7 : 0;
    int32_t all, some;
    find(x, lm_sample_leaders(&s), false, leaders);
    CHECK_OK(lm_sample(&s, x, N, i, workspace, &all));
    CHECK_OK(lm_sample_from(&s, leaders, i, workspace, &some));
    CHECK(all == some);
  }
}

int main(void) {
  static const int32_t counts[] = {1, 2, 33, 255};
  float x[N];
  for (int kind = 0; kind < 3; kind++)
    for (size_t i = 0; i < LM_COUNT(counts); i++) {
      fill(x, kind, 7 + (uint32_t)i);
      compare(x, counts[i], i % 2);
    }
  tokens_compare(x);
  lm_leader bad[1];
  x[N - 1] = NAN;
  find(x, 1, false, bad);
  CHECK(bad[0].index == -1);
  CHECK_FAILS(lm_sample_from(&(lm_sampler){.temperature = 0}, bad, 0, NULL, &bad[0].index), LM_USER,
              "logits are NaN");
  return 0;
}
