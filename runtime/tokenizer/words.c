// words.c - see words.h.
#include "runtime/tokenizer/words.h"

#include <stdlib.h>
#include <string.h>

lm_word *lm_word_at(const lm_word_table *t, const char *p, size_t n) {
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
      *lm_word_at(t, old.at[i].p, old.at[i].n) = old.at[i];
  lm_free(old.at);
}

lm_word *lm_word_count(lm_word_table *t, const char *p, size_t n, uint64_t count) {
  if (2 * (t->n + 1) > t->cap)
    table_grow(t);
  lm_word *w = lm_word_at(t, p, n);
  if (!w->p) {
    *w = (lm_word){lm_arena_strndup(t->arena, p, n), (uint32_t)n, 0};
    t->n++;
  }
  w->count += count;
  return w;
}

static int by_bytes(const void *x, const void *y) {
  const lm_word *a = x, *b = y;
  int order = memcmp(a->p, b->p, a->n < b->n ? a->n : b->n);
  return order ? order : (a->n > b->n) - (a->n < b->n);
}

lm_word *lm_words_collect(lm_word_table *const *tables, int n, size_t *out_n) {
  lm_word_table *all = tables[0];
  for (int i = 1; i < n; i++)
    for (size_t k = 0; k < tables[i]->cap; k++)
      if (tables[i]->at[k].p)
        lm_word_count(all, tables[i]->at[k].p, tables[i]->at[k].n, tables[i]->at[k].count);
  lm_word *words = lm_calloc(all->n + 1, sizeof *words);
  *out_n = 0;
  for (size_t k = 0; k < all->cap; k++)
    if (all->at[k].p)
      words[(*out_n)++] = all->at[k];
  qsort(words, *out_n, sizeof *words, by_bytes);
  return words;
}
