// tokenizer.c - functions common to all tokenizers, and the byte tokenizer.
#include "runtime/tokenizer/tokenizer.h"

#include <string.h>

#include "runtime/base/utf8.h"

void lm_tokens_add_n(lm_tokens *t, const int32_t *ids, size_t n) {
  if (n > t->cap - t->n) {
    t->cap = t->n + n > 2 * t->cap ? t->n + n + 256 : 2 * t->cap;
    t->ids = lm_realloc(t->ids, t->cap * sizeof *t->ids);
  }
  if (n)
    memcpy(t->ids + t->n, ids, n * sizeof *ids);
  t->n += n;
}

void lm_tokens_add(lm_tokens *t, int32_t id) {
  lm_tokens_add_n(t, &id, 1);
}

void lm_tokens_free(lm_tokens *t) {
  lm_free(t->ids);
  *t = (lm_tokens){0};
}

lm_status lm_tokenizer_kind_check(const lm_tokenizer *t, lm_tokenizer_kind kind, const char *path) {
  if (t->kind == kind)
    return NULL;
  return lm_fail(LM_USER, "%s holds another kind of tokenizer; write %s(\"%s\")", path,
                 lm_tokenizer_names[t->kind], path);
}

lm_status lm_tokenizer_encode(const lm_tokenizer *t, const char *text, size_t n, lm_tokens *out) {
  return t->ops->encode(t, text, n, NULL, LM_TEXT_WHOLE, out);
}

lm_status lm_tokenizer_encode_part(const lm_tokenizer *t, const char *text, size_t n, int part,
                                   lm_tokens *out) {
  return t->ops->encode(t, text, n, NULL, part, out);
}

lm_status lm_tokenizer_encode_own(const lm_tokenizer *t, const char *text, size_t n,
                                  const unsigned char *own, int part, lm_tokens *out) {
  return t->ops->encode(t, text, n, own, part, out);
}

bool lm_tokenizer_is_special(const lm_tokenizer *t, int32_t id) {
  return t->ops->is_special && t->ops->is_special(t, id);
}

lm_status lm_tokenizer_special_find(const lm_tokenizer *t, const char *text, size_t n,
                                    const unsigned char *own, size_t *out_end, bool *out_found) {
  *out_end = n;
  *out_found = false;
  return t->ops->special_find ? t->ops->special_find(t, text, n, own, out_end, out_found) : NULL;
}

lm_status lm_tokenizer_encode_framed(const lm_tokenizer *t, const char *text, size_t n,
                                     lm_tokens *out) {
  lm_tokens_add_n(out, t->prefix, (size_t)t->n_prefix);
  LM_TRY(lm_tokenizer_encode(t, text, n, out));
  lm_tokens_add_n(out, t->suffix, (size_t)t->n_suffix);
  return NULL;
}

static bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
static bool is_letter_or_digit(char c) {
  return is_letter(c) || (c >= '0' && c <= '9');
}

// The quality of a split before p: 3: before a space; 2: after a line; 1: between characters; 0: no
// split.
static int cut_quality(const char *p) {
  if (p[0] == ' ' && is_letter_or_digit(p[-1]) && is_letter(p[1]))
    return 3;
  // require ASCII before the line break, since other white space could belong to it
  if (p[-1] == '\n' && p[-2] > ' ' && is_letter(p[0]))
    return 2;
  return !lm_utf8_continues(p[0]);
}

size_t lm_tokenizer_cut(const char *text, size_t n) {
  size_t best = n;
  size_t quality = 0;
  for (size_t at = n - 1; n >= 4 && at > n / 2 && at >= 2 && quality < 3; at--) {
    size_t q = at + 1 < n ? (size_t)cut_quality(text + at) : 0;
    if (q > quality) {
      best = at;
      quality = q;
    }
  }
  return best;
}

const char *lm_tokenizer_piece(const lm_tokenizer *t, int32_t id, size_t *out_n) {
  LM_ASSERT(id >= 0 && id < t->vocab);
  return t->ops->piece(t, id, out_n);
}

lm_status lm_tokenizer_decode(const lm_tokenizer *t, const int32_t *ids, size_t n, lm_buf *out) {
  for (size_t i = 0; i < n; i++) {
    if (ids[i] < 0 || ids[i] >= t->vocab)
      return lm_fail(LM_USER, "%d is not a token id: the vocabulary has %d", ids[i], t->vocab);
    size_t length;
    const char *p = lm_tokenizer_piece(t, ids[i], &length);
    if (!p)
      return lm_fail(LM_USER, "%d is not a token id: the vocabulary has a gap there", ids[i]);
    bool drop = !i && t->prefix_space && ids[i] != t->spaced && length && *p == ' ';
    lm_buf_add(out, p + drop, length - drop);
  }
  return NULL;
}

void lm_tokenizer_destroy(lm_tokenizer *t) {
  if (t)
    t->ops->destroy(t);
}

// ---- bytes

typedef struct {
  lm_tokenizer base;
  char alphabet[256];
} byte_tokenizer;

static lm_status bytes_encode(const lm_tokenizer *self, const char *text, size_t n,
                              const unsigned char *own, int part, lm_tokens *out) {
  for (size_t i = 0; i < n; i++)
    lm_tokens_add(out, (unsigned char)text[i]);
  return NULL;
}

static const char *bytes_piece(const lm_tokenizer *self, int32_t id, size_t *out_n) {
  *out_n = 1;
  return &((const byte_tokenizer *)self)->alphabet[id];
}

static void bytes_destroy(lm_tokenizer *self) {
  lm_free(self);
}

lm_tokenizer *lm_tokenizer_bytes_create(void) {
  static const lm_tokenizer_ops ops = {bytes_encode, NULL, NULL, bytes_piece, bytes_destroy};
  byte_tokenizer *t = lm_alloc(sizeof *t);
  t->base = (lm_tokenizer){
      .ops = &ops,
      .vocab = 256,
      .eos = -1,
      .spaced = -1,
  };
  for (int i = 0; i < 256; i++)
    t->alphabet[i] = (char)i;
  return &t->base;
}
