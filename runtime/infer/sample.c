// sample.c - see sample.h. Applies temperature, then top_k, then top_p.
#include "runtime/infer/sample.h"

#include <math.h>
#include <stdlib.h>

#include "runtime/base/philox.h"

// -1 if there is none, or if one of the logits is NaN.
static int32_t greatest(const float *logits, int32_t n) {
  int32_t best = -1;
  for (int32_t i = 0; i < n; i++) {
    if (isnan(logits[i]))
      return -1;
    if (best < 0 || logits[i] > logits[best])
      best = i;
  }
  return best;
}

// Sorts by decreasing probability, then by id.
static int by_probability(const void *a, const void *b) {
  const lm_candidate *x = a, *y = b;
  if (x->p != y->p)
    return x->p > y->p ? -1 : 1;
  return x->id < y->id ? -1 : 1;
}

static double probabilities(const lm_sampler *s, const float *logits, int32_t n, float top,
                            lm_candidate *out) {
  double sum = 0;
  for (int32_t i = 0; i < n; i++) {
    double p = exp(((double)logits[i] - (double)top) / s->temperature);
    out[i] = (lm_candidate){p, i};
    sum += p;
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

static int32_t restrict_to(const lm_sampler *s, lm_candidate *c, int32_t n, double *sum) {
  bool some_p = s->top_p > 0 && s->top_p < 1;
  bool some_k = s->top_k > 0 && s->top_k < n;
  if (!some_p && !some_k)
    return n;
  qsort(c, (size_t)n, sizeof *c, by_probability);
  if (some_k) {
    n = s->top_k;
    *sum = 0;
    for (int32_t i = 0; i < n; i++)
      *sum += c[i].p;
  }
  return some_p ? nucleus(c, n, s->top_p, sum) : n;
}

lm_status lm_sample(const lm_sampler *s, const float *logits, int32_t vocab, int64_t index,
                    lm_candidate *workspace, int32_t *out) {
  int32_t best = greatest(logits, vocab);
  if (best < 0)
    return lm_fail(
        LM_USER, "the model's logits are NaN: its weights hold NaN or Inf, or values so large that "
                 "the computation overflows");
  *out = best;
  if (!(s->temperature > 0) || isinf(logits[best]))
    return NULL;
  double sum = probabilities(s, logits, vocab, logits[best], workspace);
  int32_t n = restrict_to(s, workspace, vocab, &sum);
  double at =
      sum * lm_philox_unit(lm_philox_block(lm_philox_key(s->seed, 0), (uint64_t)index).v[0]);
  int32_t i = 0;
  while (i + 1 < n && (at -= workspace[i].p) >= 0)
    i++;
  *out = workspace[i].id;
  return NULL;
}
