// generate.h - text from a started session.
#ifndef LM_DRIVER_GENERATE_H
#define LM_DRIVER_GENERATE_H
#include "driver/request.h"
#include "runtime/infer/generate.h"

typedef enum {
  LM_SAMPLE_LENGTH,
  LM_SAMPLE_EOS,
  LM_SAMPLE_STOP
} lm_sample_end;

typedef struct lm_sample_options {
  const int32_t *prompt;
  int64_t n_prompt, n;
  int64_t n_marked; // the tokens of the column `prompt`, up to the first answer; 0: n_prompt
  const lm_request *request; // NULL: none
  lm_sampler sampler;
  // Receives text as soon as it is final: one that may still become a stop text is held back.
  // Optional.
  void (*write)(void *user, const char *p, size_t n);
  void *user;
  bool bare;      // lm_sample_print leaves out the prompt
  bool ids;       // writes token ids instead of text; an end-of-document token does not end it
  int32_t end_id; // with has_end: a further token that ends it, as the end of a document does
  bool has_end;
  const char *const *stops;
  int n_stops; // none is empty; the text ends before the first one that is complete
} lm_sample_options;

// ids: all generated tokens, including the tokens of a stop text or of the end of a document; text:
// without these.
typedef struct lm_sample_result {
  lm_tokens ids;
  lm_buf text;
  lm_sample_end end;
} lm_sample_result;

// True if the ranks exchange data to make a sample, so that all of them have to make it.
bool lm_sample_exchanges(const lm_session *s);
// Compiles the decoding functions of a session that lm_trained_open has opened, for texts of at
// most `positions` tokens, and loads the weights. `request` gives the sizes of the columns of an
// encoder-decoder model; NULL for other models.
lm_status lm_sample_start(lm_session *s, int64_t positions, const lm_request *request,
                          const char *weights);
lm_status lm_sample_make(const lm_session *s, const lm_sample_options *o,
                         lm_sample_result *out); // *out must be freed in any case
void lm_sample_free(lm_sample_result *r);
// Writes the same as one line, a text with its prompt in front.
lm_status lm_sample_print(const lm_session *s, const lm_sample_options *o);
// The token ids of a text. LM_USER: the weights were imported without a tokenizer.
lm_status lm_sample_encode(const lm_session *s, const char *weights, const char *text,
                           lm_tokens *out);
// The same for a text that the model encodes, with the tokens around a document of the data.
lm_status lm_sample_encode_source(const lm_session *s, const char *weights, const char *text,
                                  lm_tokens *out);
// The tokens to generate: `asked`, or if that is 0 `usual`, but no more than the model has
// positions for behind a prompt.
int64_t lm_sample_tokens(const lm_session *s, int64_t n_prompt, int64_t asked, int64_t usual);
// LM_USER if the model has fewer positions than prompt and continuation together.
lm_status lm_sample_check(const lm_session *s, int64_t n_prompt, int64_t n);
#endif
