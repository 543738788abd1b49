// words.h - counts words. Private to runtime/tokenizer.
#ifndef LM_TOKENIZER_WORDS_H
#define LM_TOKENIZER_WORDS_H
#include "runtime/base/base.h"

typedef struct lm_word {
  const char *p; // NULL: an empty slot
  uint32_t n;
  uint64_t count;
} lm_word;
typedef struct lm_word_table {
  lm_word *at; // hash table; cap is a power of two
  size_t n, cap;
  lm_arena *arena; // holds the bytes of the words
} lm_word_table;

// The slot of a word, or the empty slot for it. Requires a free slot.
lm_word *lm_word_at(const lm_word_table *t, const char *p, size_t n);
// Adds to the count of a word, which is copied when it is new. The word stays in the table until
// the next call.
lm_word *lm_word_count(lm_word_table *t, const char *p, size_t n, uint64_t count);
// All words of the tables, sorted by their bytes; the caller frees the list.
lm_word *lm_words_collect(lm_word_table *const *tables, int n, size_t *out_n);
#endif
