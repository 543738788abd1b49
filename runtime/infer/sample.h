// sample.h - samples the next token from logits.
#ifndef LM_INFER_SAMPLE_H
#define LM_INFER_SAMPLE_H
#include "runtime/base/base.h"
#include "runtime/hal/exec.h"

typedef struct lm_sampler {
  double temperature; // 0: greedy; among equal logits the least id
  int32_t top_k;      // only the k most probable tokens; 0: all
  double top_p;       // only the most probable tokens whose probabilities sum to p; 1 or 0: all
  uint64_t seed;
} lm_sampler;

typedef struct lm_candidate {
  double p;
  float logit;
  int32_t id;
} lm_candidate;

// Samples token number `index` of the continuation. The random number is word 0 of Philox block
// `index` under lm_philox_key(seed, 0), so it is independent of the tokens. workspace: [vocab].
// LM_USER: all logits are NAN.
lm_status lm_sample(const lm_sampler *s, const float *logits, int32_t vocab, int64_t index,
                    lm_candidate *workspace, int32_t *out);

// The number of greatest logits on which the token depends; 0: on all.
int32_t lm_sample_leaders(const lm_sampler *s);
// The same token from these alone, in any order. workspace: [lm_sample_leaders(s)].
lm_status lm_sample_from(const lm_sampler *s, const lm_leader *leaders, int64_t index,
                         lm_candidate *workspace, int32_t *out);
#endif
