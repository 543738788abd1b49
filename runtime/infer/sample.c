// sample.c - see sample.h. Applies temperature, then top_k, then top_p.
#include "runtime/infer/sample.h"

#include <math.h>
#include <stdlib.h>

#include "runtime/base/philox.h"

static lm_status nan_status(void) {
  return lm_fail(LM_USER,
                 "the model's logits are NaN: its weights hold NaN or Inf, or values so large that "
                 "the computation overflows");
}

// The candidate of the greatest logit and the least id; -1 if there is none, or if a logit is NaN.
static int32_t greatest(const lm_candidate *c, int32_t n) {
  int32_t best = -1;
  for (int32_t i = 0; i < n; i++) {
    if (isnan(c[i].logit))
      return -1;
    if (best < 0 || c[i].logit > c[best].logit ||
        (c[i].logit == c[best].logit && c[i].id < c[best].id))
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

static double probabilities(const lm_sampler *s, float top, lm_candidate *c, int32_t n) {
  double sum = 0;
  for (int32_t i = 0; i < n; i++) {
    c[i].p = exp(((double)c[i].logit - (double)top) / s->temperature);
    sum += c[i].p;
  }
  return sum;
}

// The number of sorted candidates that top_p keeps; *sum becomes the sum of their probabilities.
static int32_t nucleus(const lm_candidate *c, int32_t n, double top_p, double *sum) {
  double limit = top_p * *sum, reached = 0;
  int32_t kept = 0;
  while (kept < n && (!kept || reached < limit))
    reached += c[kept++].p;
  *sum = reached;
  return kept;
}

static int32_t restrict_to(const lm_sampler *s, int32_t k, lm_candidate *c, int32_t n,
                           double *sum) {
  bool some_p = s->top_p > 0 && s->top_p < 1;
  if (!some_p && !k)
    return n;
  qsort(c, (size_t)n, sizeof *c, by_logit);
  if (k) {
    n = k;
    *sum = 0;
    for (int32_t i = 0; i < n; i++)
      *sum += c[i].p;
  }
  return some_p ? nucleus(c, n, s->top_p, sum) : n;
}

// k: the candidates are restricted to the k most probable ones; 0: they are not.
static lm_status choose(const lm_sampler *s, int32_t k, lm_candidate *c, int32_t n, int64_t index,
                        int32_t *out) {
  int32_t best = greatest(c, n);
  if (best < 0)
    return nan_status();
  *out = c[best].id;
  if (!(s->temperature > 0) || isinf(c[best].logit))
    return NULL;
  double sum = probabilities(s, c[best].logit, c, n);
  n = restrict_to(s, k, c, n, &sum);
  double at =
      sum * lm_philox_unit(lm_philox_block(lm_philox_key(s->seed, 0), (uint64_t)index).v[0]);
  int32_t i = 0;
  while (i + 1 < n && (at -= c[i].p) >= 0)
    i++;
  *out = c[i].id;
  return NULL;
}

int32_t lm_sample_leaders(const lm_sampler *s) {
  return s->temperature > 0 ? s->top_k : 1;
}

lm_status lm_sample_from(const lm_sampler *s, const lm_leader *leaders, int64_t index,
                         lm_candidate *workspace, int32_t *out) {
  int32_t n = lm_sample_leaders(s);
  if (leaders[0].index < 0)
    return nan_status();
  for (int32_t i = 0; i < n; i++)
    workspace[i] = (lm_candidate){
        .logit = leaders[i].value,
        .id = leaders[i].index,
    };
  return choose(s, n, workspace, n, index, out);
}

lm_status lm_sample(const lm_sampler *s, const float *logits, int32_t vocab, int64_t index,
                    lm_candidate *workspace, int32_t *out) {
  for (int32_t i = 0; i < vocab; i++)
    workspace[i] = (lm_candidate){
        .logit = logits[i],
        .id = i,
    };
  return choose(s, s->top_k > 0 && s->top_k < vocab ? s->top_k : 0, workspace, vocab, index, out);
}
