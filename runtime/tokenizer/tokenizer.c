// tokenizer.c - what all tokenizers share, and the simplest of them: bytes.
#include "runtime/tokenizer/tokenizer.h"

void lm_tokens_add(lm_tokens *t, int32_t id) {
  if (t->n == t->cap) {
    t->cap = t->cap ? 2 * t->cap : 256;
    t->ids = lm_realloc(t->ids, t->cap * sizeof *t->ids);
  }
  t->ids[t->n++] = id;
}

void lm_tokens_free(lm_tokens *t) {
  lm_free(t->ids);
  *t = (lm_tokens){0};
}

lm_status lm_tokenizer_encode(const lm_tokenizer *t, const char *text, size_t n, lm_tokens *out) {
  return t->ops->encode(t, text, n, out);
}

const char *lm_tokenizer_piece(const lm_tokenizer *t, int32_t id, size_t *out_n) {
  LM_ASSERT(id >= 0 && id < t->vocab);
  return t->ops->piece(t, id, out_n);
}

lm_status lm_tokenizer_decode(const lm_tokenizer *t, const int32_t *ids, size_t n, lm_buf *out) {
  for (size_t i = 0; i < n; i++) {
    if (ids[i] < 0 || ids[i] >= t->vocab) return lm_fail(LM_USER, "%d is no token: the vocabulary has %d", ids[i], t->vocab);
    size_t length;
    const char *p = lm_tokenizer_piece(t, ids[i], &length);
    lm_buf_add(out, p, length);
  }
  return NULL;
}

void lm_tokenizer_destroy(lm_tokenizer *t) {
  if (t) t->ops->destroy(t);
}

// ---- bytes

typedef struct { lm_tokenizer base; char alphabet[256]; } byte_tokenizer;

static lm_status bytes_encode(const lm_tokenizer *self, const char *text, size_t n, lm_tokens *out) {
  for (size_t i = 0; i < n; i++) lm_tokens_add(out, (unsigned char)text[i]);
  return NULL;
}

static const char *bytes_piece(const lm_tokenizer *self, int32_t id, size_t *out_n) {
  *out_n = 1;
  return &((const byte_tokenizer *)self)->alphabet[id];
}

static void bytes_destroy(lm_tokenizer *self) { lm_free(self); }

lm_tokenizer *lm_tokenizer_bytes_create(void) {
  static const lm_tokenizer_ops ops = {bytes_encode, bytes_piece, bytes_destroy};
  byte_tokenizer *t = lm_alloc(sizeof *t);
  t->base = (lm_tokenizer){&ops, 256, -1};
  for (int i = 0; i < 256; i++) t->alphabet[i] = (char)i;
  return &t->base;
}
