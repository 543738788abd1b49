// words.h - counts words. Private to runtime/tokenizer.
#ifndef LM_TOKENIZER_WORDS_H
#define LM_TOKENIZER_WORDS_H
#include <string.h>

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

// Adds to the count of a word, which is copied when it is new. The word stays in the table until
// the next call.
lm_word *lm_word_count(lm_word_table *t, const char *p, size_t n, uint64_t count);
// Adds the counts of all words of `from`.
void lm_words_add(lm_word_table *t, const lm_word_table *from);
// All words, in no particular order; the caller frees the list.
lm_word *lm_words_list(const lm_word_table *t, size_t *out_n);

// Orders strings of bytes: by the first byte that differs, then by their lengths.
static inline int lm_bytes_compare(const char *a, size_t n_a, const char *b, size_t n_b) {
  int order = memcmp(a, b, n_a < n_b ? n_a : n_b);
  return order ? order : (n_a > n_b) - (n_a < n_b);
}
#endif
