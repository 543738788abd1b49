// sample.h - text from a running plan.
#ifndef LMC_SAMPLE_H
#define LMC_SAMPLE_H
#include "lmc/session.h"
#include "runtime/infer/generate.h"

typedef enum {
  LM_SAMPLE_LENGTH,
  LM_SAMPLE_EOS,
  LM_SAMPLE_STOP
} lm_sample_end;

typedef struct lm_sample_options {
  const int32_t *prompt;
  int64_t n_prompt, n;
  lm_sampler sampler;
  FILE *to; // where it is shown as it is made; NULL: nowhere
  bool ids; // shows token numbers, not text; an end of document is one like any other
  const char *const *stops;
  int n_stops; // none empty: it ends in front of the first that is complete
} lm_sample_options;

// What was made: all tokens, with those of a stop or of the end of a document; the text without
// these.
typedef struct lm_sample_result {
  lm_tokens ids;
  lm_buf text;
  lm_sample_end end;
} lm_sample_result;

lm_status lm_sample_make(const lm_session *s, const lm_sample_options *o,
                         lm_sample_result *out); // free it in any case
void lm_sample_free(lm_sample_result *r);
// The same shown on a line: with text, the prompt in front of it.
lm_status lm_sample_print(const lm_session *s, const lm_sample_options *o);
// LM_USER if the model has fewer positions than prompt and continuation together.
lm_status lm_sample_check(const lm_session *s, int64_t n_prompt, int64_t n);
#endif
