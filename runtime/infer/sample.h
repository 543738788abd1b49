// sample.h - the next token from logits.
#ifndef LM_INFER_SAMPLE_H
#define LM_INFER_SAMPLE_H
#include "runtime/base/base.h"

typedef struct lm_sampler {
  double temperature; // 0: the greatest logit, the first of equals
  int32_t top_k;      // only the k greatest; 0: all
  double top_p;       // only the greatest whose probabilities reach p; 1 (or 0): all
  uint64_t seed;
} lm_sampler;

typedef struct lm_candidate {
  double p;
  int32_t id;
} lm_candidate;

// Token number `place` of the continuation. The draw is word 0 of Philox block `place` under
// lm_philox_key(seed, 0), so it depends on neither the tokens nor the time. scratch: [vocab].
// LM_USER if no logit is a number.
lm_status lm_sample(const lm_sampler *s, const float *logits, int32_t vocab, int64_t place,
                    lm_candidate *scratch, int32_t *out);
#endif
