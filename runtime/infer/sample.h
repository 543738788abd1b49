// sample.h - samples the next token from logits, by the rule of hal/draw.h.
#ifndef LM_INFER_SAMPLE_H
#define LM_INFER_SAMPLE_H
#include "runtime/base/base.h"
#include "runtime/hal/draw.h"

typedef struct lm_sampler {
  double temperature; // 0: greedy; among equal logits the least id
  int32_t top_k;      // only the k most probable tokens; 0: all
  double top_p;       // only the most probable tokens whose probabilities sum to p; 1 or 0: all
  uint64_t seed;
} lm_sampler;

typedef struct lm_candidate {
  uint64_t weight;
  float logit;
  int32_t id;
} lm_candidate;

// The rule of token number `index` of a continuation. The random number is word 0 of Philox block
// `index` under lm_philox_key(seed, 0), so it is independent of the tokens.
lm_draw_rule lm_sample_rule(const lm_sampler *s, int32_t vocab, int64_t index);
// The token; -1 if a logit is NaN. workspace: [vocab].
int32_t lm_sample(const lm_draw_rule *r, const float *logits, int32_t vocab,
                  lm_candidate *workspace);
lm_status lm_sample_id_check(int32_t id); // LM_USER: it is -1
#endif
