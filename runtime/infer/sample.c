// sample.c - see sample.h. Applies temperature, then top_k, then top_p.
#include "runtime/infer/sample.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "runtime/base/philox.h"

// The scale is a normal float32, so that the weight of -Inf is 0 at any temperature.
static float scale_of(double temperature) {
  double scale = temperature > 0 ? 1.4426950408889634 / temperature : 0;
  if (temperature > 0 && scale < FLT_MIN)
    scale = FLT_MIN;
  return scale < FLT_MAX ? (float)scale : FLT_MAX;
}

lm_draw_rule lm_sample_rule(const lm_sampler *s, int32_t vocab, int64_t index) {
  lm_philox4 block = lm_philox_block(lm_philox_key(s->seed, 0), (uint64_t)index);
  return (lm_draw_rule){
      .scale = scale_of(s->temperature),
      .unit = lm_philox_unit(block.v[0]),
      .top_k = s->top_k > 0 && s->top_k < vocab ? s->top_k : 0,
      .top_p = s->top_p > 0 && s->top_p < 1 ? s->top_p : 1,
  };
}

// The candidate of the greatest logit and the least id; -1 if a logit is NaN.
static int32_t greatest(const lm_candidate *c, int32_t n) {
  int32_t best = 0;
  for (int32_t i = 0; i < n; i++) {
    if (isnan(c[i].logit))
      return -1;
    if (c[i].logit > c[best].logit)
      best = i;
  }
  return best;
}

// Sorts by decreasing logit, then by id.
static int by_logit(const void *a, const void *b) {
  const lm_candidate *x = a, *y = b;
  if (x->logit != y->logit)
    return x->logit > y->logit ? -1 : 1;
  return x->id < y->id ? -1 : 1;
}

static uint64_t weights_sum(const lm_candidate *c, int32_t n) {
  uint64_t sum = 0;
  for (int32_t i = 0; i < n; i++)
    sum += c[i].weight;
  return sum;
}

// The least number of candidates whose weights sum to `limit`.
static int32_t reach(const lm_candidate *c, uint64_t limit) {
  int32_t n = 0;
  for (uint64_t sum = 0; sum < limit; n++)
    sum += c[n].weight;
  return n;
}

static int32_t draw(const lm_draw_rule *r, lm_candidate *c, int32_t n) {
  if (r->top_k || r->top_p < 1)
    qsort(c, (size_t)n, sizeof *c, by_logit);
  n = r->top_k ? r->top_k : n;
  uint64_t sum = weights_sum(c, n);
  if (r->top_p < 1)
    sum = weights_sum(c, reach(c, lm_draw_limit(r->top_p, sum)));
  return c[reach(c, lm_draw_mark(r->unit, sum)) - 1].id;
}

int32_t lm_sample(const lm_draw_rule *r, const float *logits, int32_t vocab,
                  lm_candidate *workspace) {
  for (int32_t i = 0; i < vocab; i++)
    workspace[i] = (lm_candidate){
        .logit = logits[i],
        .id = i,
    };
  int32_t best = greatest(workspace, vocab);
  if (best < 0 || r->scale == 0 || isinf(logits[best]))
    return best;
  for (int32_t i = 0; i < vocab; i++)
    workspace[i].weight = lm_draw_weight(logits[best] - logits[i], r->scale);
  return draw(r, workspace, vocab);
}

lm_status lm_sample_id_check(int32_t id) {
  if (id >= 0)
    return NULL;
  return lm_fail(LM_USER,
                 "the model's logits are NaN: its weights hold NaN or Inf, or values so large that "
                 "the computation overflows");
}
