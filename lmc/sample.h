// sample.h - text from a running plan.
#ifndef LMC_SAMPLE_H
#define LMC_SAMPLE_H
#include "lmc/session.h"
#include "runtime/infer/generate.h"

typedef struct lm_sample_options {
  const int32_t *prompt; int64_t n_prompt, n;
  lm_sampler sampler;
  FILE *to;
  bool ids;                            // token numbers, not text
} lm_sample_options;

// Writes what is made, token by token, to `to`; with text, the prompt in front of it.
lm_status lm_sample_print(const lm_session *s, const lm_sample_options *o);
// LM_USER if the model has fewer positions than prompt and continuation together.
lm_status lm_sample_check(const lm_session *s, int64_t n_prompt, int64_t n);
#endif
