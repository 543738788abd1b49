// words.c - see words.h.
#include "runtime/tokenizer/words.h"

// The slot of a word, or the empty slot for it. Requires a free slot.
static lm_word *word_at(const lm_word_table *t, const char *p, size_t n) {
  size_t at = lm_hash(p, n, 0) & (t->cap - 1);
  while (t->at[at].p && (t->at[at].n != n || memcmp(t->at[at].p, p, n)))
    at = (at + 1) & (t->cap - 1);
  return &t->at[at];
}

static void table_grow(lm_word_table *t) {
  lm_word_table old = *t;
  t->cap = old.cap ? 2 * old.cap : 4096;
  t->at = lm_calloc(t->cap, sizeof *t->at);
  for (size_t i = 0; i < old.cap; i++)
    if (old.at[i].p)
      *word_at(t, old.at[i].p, old.at[i].n) = old.at[i];
  lm_free(old.at);
}

lm_word *lm_word_count(lm_word_table *t, const char *p, size_t n, uint64_t count) {
  if (2 * (t->n + 1) > t->cap)
    table_grow(t);
  lm_word *w = word_at(t, p, n);
  if (!w->p) {
    *w = (lm_word){lm_arena_strndup(t->arena, p, n), (uint32_t)n, 0};
    t->n++;
  }
  w->count += count;
  return w;
}

void lm_words_add(lm_word_table *t, const lm_word_table *from) {
  for (size_t i = 0; i < from->cap; i++)
    if (from->at[i].p)
      lm_word_count(t, from->at[i].p, from->at[i].n, from->at[i].count);
}

lm_word *lm_words_list(const lm_word_table *t, size_t *out_n) {
  lm_word *words = lm_calloc(t->n + 1, sizeof *words);
  *out_n = 0;
  for (size_t i = 0; i < t->cap; i++)
    if (t->at[i].p)
      words[(*out_n)++] = t->at[i];
  return words;
}
