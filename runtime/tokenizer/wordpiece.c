// wordpiece.c - WordPiece, the vocabulary of BERT: greedy, the longest token first.
#include "runtime/base/utf8.h"
#include "runtime/tokenizer/subword.h"

static void wordpiece_encode(const lm_subword *t, void *room, const char *p, size_t n,
                             lm_tokens *out) {
  size_t before = out->n;
  size_t length;
  const lm_wordpiece *w = &t->wordpiece;
  bool known = lm_utf8_count(p, n) <= w->longest;
  for (size_t at = 0; at < n && known; at += length) {
    int32_t id = lm_trie_longest(t->words, at ? w->inner : LM_TRIE_ROOT, p + at, n - at, &length);
    known = id >= 0 && (!at || w->has_inner);
    if (known)
      lm_tokens_add(out, id);
  }
  if (known)
    return;
  out->n = before;
  lm_tokens_add(out, t->unk);
}

static void *no_room(void) {
  return NULL;
}
static void no_room_destroy(void *room) {}

const lm_word_model LM_WORDPIECE = {no_room, no_room_destroy, wordpiece_encode};
