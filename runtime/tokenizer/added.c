// added.c - see added.h.
#include "runtime/tokenizer/added.h"

#include <string.h>

#include "runtime/base/utf8.h"
#include "runtime/tokenizer/trie.h"

struct lm_added {
  lm_trie *index; // of tokens, by their texts
  lm_added_token *tokens;
  uint32_t n;
  uint32_t cap;
  lm_regex *word; // matches one word character; NULL: not needed
};

lm_added *lm_added_create(void) {
  lm_added *a = lm_alloc(sizeof *a);
  a->index = lm_trie_create();
  return a;
}

void lm_added_destroy(lm_added *a) {
  if (!a)
    return;
  lm_regex_destroy(a->word);
  lm_trie_destroy(a->index);
  lm_free(a->tokens);
  lm_free(a);
}

bool lm_added_is_empty(const lm_added *a) {
  return !a->n;
}

void lm_added_token_add(lm_added *a, const lm_added_token *t) {
  if (!t->n)
    return;
  if (t->single_word && !a->word) {
    const char *w = "[\\w\\x{200c}\\x{200d}]";
    lm_status s = lm_regex_create(w, strlen(w), false, &a->word);
    LM_ASSERT(!s);
  }
  if (a->n == a->cap) {
    a->cap = a->cap ? 2 * a->cap : 16;
    a->tokens = lm_realloc(a->tokens, a->cap * sizeof *a->tokens);
  }
  lm_trie_set(a->index, t->text, t->n, (int32_t)a->n);
  a->tokens[a->n++] = *t;
}

// ---- characters adjacent to a token

static lm_status is_word(const lm_added *a, lm_regex_room *m, const char *text, size_t n, size_t at,
                         bool *out) {
  uint32_t point;
  size_t start;
  size_t end;
  int len = lm_utf8_decode(text + at, n - at, &point);
  LM_TRY(lm_regex_find(a->word, m, text + at, (size_t)len, 0, &start, &end));
  *out = end > start;
  return NULL;
}

static lm_status stands_alone(const lm_added *a, lm_regex_room *m, const char *text, size_t n,
                              size_t start, size_t end, bool *out) {
  bool before = false;
  bool behind = false;
  if (start)
    LM_TRY(is_word(a, m, text, n, lm_utf8_before(text, start), &before));
  if (end < n)
    LM_TRY(is_word(a, m, text, n, end, &behind));
  *out = !before && !behind;
  return NULL;
}

// The index at which the white space before `start` begins, at `least` or behind it.
static size_t strip_left(const char *text, size_t start, size_t least) {
  return start < least ? least : least + lm_utf8_spaces_start(text + least, start - least);
}

static bool is_allowed(lm_added_allowed x, const lm_added_token *t, size_t at) {
  if (x.plain && t->special)
    return false;
  for (size_t i = 0; x.own && i < t->n; i++)
    if (!x.own[at + i])
      return false;
  return true;
}

lm_status lm_added_find(const lm_added *a, lm_regex_room *m, lm_added_allowed allowed,
                        const char *text, size_t n, size_t done, size_t *at, size_t *out_start,
                        size_t *out_end, const lm_added_token **out) {
  *out = NULL;
  for (size_t i = *at; i < n;) {
    size_t length;
    int32_t found = lm_trie_longest(a->index, LM_TRIE_ROOT, text + i, n - i, &length);
    const lm_added_token *t = found >= 0 ? &a->tokens[found] : NULL;
    if (t && !is_allowed(allowed, t, i))
      t = NULL;
    bool taken = t != NULL;
    if (t && t->single_word)
      LM_TRY(stands_alone(a, m, text, n, i, i + t->n, &taken));
    *at = i + (t ? t->n : 1);
    if (taken) {
      *out_start = t->strip_left ? strip_left(text, i, done) : i;
      *out_end = t->strip_right ? *at + lm_utf8_spaces_end(text + *at, n - *at) : *at;
      *out = t;
      return NULL;
    }
    i = *at;
  }
  return NULL;
}
