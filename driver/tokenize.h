// tokenize.h - tokenizers apart from any recipe: text to token ids and back, and training.
#ifndef LM_DRIVER_TOKENIZE_H
#define LM_DRIVER_TOKENIZE_H
#include "driver/events.h"
#include "runtime/data/rows/vocab.h"

// spec, as in a recipe: bytes(), bpe("tokenizer.json"), bpe("encoder.json", "vocab.bpe"),
// unigram("tokenizer.model"), wordpiece("tokenizer.json"). LM_USER for anything else.
lm_status lm_tokenizer_spec_open(lm_ctx *ctx, const char *spec, lm_tokenizer **out);

// Token ids as text: "1,2,3", "1 2 3" or "1, 2, 3" on any number of lines, with at most one comma
// between two ids. LM_USER for other text.
lm_status lm_ids_parse(const char *text, size_t n, lm_tokens *out);

// Append one line: the token ids of a text; the text of token ids. json: as an object.
lm_status lm_tokenize_text(const lm_tokenizer *t, const char *text, size_t n, bool json,
                           lm_buf *out);
lm_status lm_tokenize_ids(const lm_tokenizer *t, const char *text, size_t n, bool json,
                          lm_buf *out);

typedef struct lm_vocabulary_options {
  const char *path; // of the tokenizer.json to write
  const char *kind; // "bpe" or "unigram"
  int64_t vocab;
  const char *field; // of .jsonl files; NULL: "text"
  double bad;        // percentage of documents that may be unusable
  const char *const *files;
  uint32_t n_files;
} lm_vocabulary_options;

typedef struct lm_vocabulary {
  lm_data_trained_on on; // documents that were read, and the unusable ones
  int32_t vocab;         // at most the requested size
} lm_vocabulary;

// Trains a vocabulary on files and writes it. LM_USER if more documents than `bad` allows cannot be
// used: nothing is written. Free *out in any case.
lm_status lm_vocabulary_train(lm_arena *a, const lm_events *e, const lm_vocabulary_options *o,
                              lm_vocabulary *out);
void lm_vocabulary_free(lm_vocabulary *v);
// A note if a trained vocabulary has fewer tokens than `most`, which `option` asked for: the text
// has no more of them.
void lm_vocabulary_note(const lm_events *e, int64_t vocab, int64_t most, const char *option);
#endif
