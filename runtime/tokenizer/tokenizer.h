// tokenizer.h - text to token numbers and back. A tokenizer is immutable once made: any number of threads may use one.
#ifndef LM_TOKENIZER_H
#define LM_TOKENIZER_H
#include "runtime/base/base.h"

typedef struct lm_tokens { int32_t *ids; size_t n, cap; } lm_tokens;
void lm_tokens_add(lm_tokens *t, int32_t id);
void lm_tokens_free(lm_tokens *t);

typedef struct lm_tokenizer lm_tokenizer;

// What a kind of tokenizer brings; `self` points at the whole object, whose first member is the lm_tokenizer.
typedef struct lm_tokenizer_ops {
  lm_status (*encode)(const lm_tokenizer *self, const char *text, size_t n, lm_tokens *out);   // appends
  const char *(*piece)(const lm_tokenizer *self, int32_t id, size_t *out_n);                  // the bytes of one token
  void (*destroy)(lm_tokenizer *self);
} lm_tokenizer_ops;

struct lm_tokenizer {
  const lm_tokenizer_ops *ops;
  int32_t vocab;                       // ids are 0 … vocab - 1
  int32_t eos;                         // put behind every document; -1: none
};

lm_tokenizer *lm_tokenizer_bytes_create(void);      // vocab 256: a token is a byte

lm_status lm_tokenizer_encode(const lm_tokenizer *t, const char *text, size_t n, lm_tokens *out);   // appends
// appends; LM_USER on an id that is none
lm_status lm_tokenizer_decode(const lm_tokenizer *t, const int32_t *ids, size_t n, lm_buf *out);
const char *lm_tokenizer_piece(const lm_tokenizer *t, int32_t id, size_t *out_n);                   // id must be one
void lm_tokenizer_destroy(lm_tokenizer *t);         // NULL is fine
#endif
