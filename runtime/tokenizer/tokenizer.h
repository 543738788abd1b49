// tokenizer.h - text to token numbers and back. A tokenizer is immutable once made: any number of
// threads may use one.
//
// Byte-level tokenizers take any bytes: text decodes to exactly what was encoded. Bytes that are no
// UTF-8 are cut off from the text around them and encoded byte by byte, as far as merges join them.
#ifndef LM_TOKENIZER_H
#define LM_TOKENIZER_H
#include "runtime/base/base.h"

typedef struct lm_tokens {
  int32_t *ids;
  size_t n, cap;
} lm_tokens;
void lm_tokens_add(lm_tokens *t, int32_t id);
void lm_tokens_add_n(lm_tokens *t, const int32_t *ids, size_t n);
void lm_tokens_free(lm_tokens *t);

typedef struct lm_tokenizer lm_tokenizer;

// What a kind of tokenizer brings; `self` points at the whole object, whose first member is the
// lm_tokenizer.
typedef struct lm_tokenizer_ops {
  lm_status (*encode)(const lm_tokenizer *self, const char *text, size_t n, bool continues,
                      lm_tokens *out); // appends
  const char *(*piece)(const lm_tokenizer *self, int32_t id,
                       size_t *out_n); // the bytes of one token; NULL: no such token
  void (*destroy)(lm_tokenizer *self);
} lm_tokenizer_ops;

enum {
  LM_TOKENIZER_FRAME = 8
};
struct lm_tokenizer {
  const lm_tokenizer_ops *ops;
  int32_t vocab;     // ids are 0 … vocab - 1
  int32_t eos;       // put behind every document; -1: none
  bool prefix_space; // a space that a decoded text begins with is none of the text
  bool needs_utf8;   // text that is none is no text; else any bytes are
  int32_t prefix[LM_TOKENIZER_FRAME], suffix[LM_TOKENIZER_FRAME];
  int n_prefix, n_suffix; // of a framed text
  uint64_t key[2];        // equal keys: equal ids of every text
};

lm_tokenizer *lm_tokenizer_bytes_create(void); // vocab 256: a token is a byte

// Byte pairs as in Hugging Face's tokenizer.json (merges NULL), or in GPT-2's encoder.json and
// vocab.bpe. eos is what a tokenizer_config.json beside it names, else a special token with a usual
// name. LM_USER: the file isn't there, or isn't right, or asks for what can't be had, which the
// message names.
lm_status lm_tokenizer_bpe_open(const char *path, const char *merges, lm_tokenizer **out);
// The text of a tokenizer.json; `what` names it in errors.
lm_status lm_tokenizer_bpe_parse(const char *json, size_t n, const char *what, lm_tokenizer **out);

lm_status lm_tokenizer_encode(const lm_tokenizer *t, const char *text, size_t n,
                              lm_tokens *out); // appends
// With what the file's post-processor puts in front and behind (beginning of text, …), as Hugging
// Face's encode() does.
lm_status lm_tokenizer_encode_framed(const lm_tokenizer *t, const char *text, size_t n,
                                     lm_tokens *out);
// Text that goes on from text that was encoded before.
lm_status lm_tokenizer_encode_more(const lm_tokenizer *t, const char *text, size_t n,
                                   lm_tokens *out);
// Where text can be cut so that the parts' ids are the whole's with all usual pre-tokenizers:
// between a letter or digit and a space before a letter, or behind a line that has text, before one
// that begins with a letter; the last such place in the upper half of text, else before any
// character there.
size_t lm_tokenizer_cut(const char *text, size_t n);

// appends; LM_USER on an id that is none
lm_status lm_tokenizer_decode(const lm_tokenizer *t, const int32_t *ids, size_t n, lm_buf *out);
const char *lm_tokenizer_piece(const lm_tokenizer *t, int32_t id,
                               size_t *out_n); // id < vocab; NULL, 0: no such token
void lm_tokenizer_destroy(lm_tokenizer *t);    // NULL is fine
#endif
