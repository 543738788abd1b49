// trie.h - a map from byte strings to numbers that finds every key which begins at an index of a
// text. Private to runtime/tokenizer.
#ifndef LM_TOKENIZER_TRIE_H
#define LM_TOKENIZER_TRIE_H
#include "runtime/base/base.h"

enum {
  LM_TRIE_ROOT = 0
};
typedef struct lm_trie lm_trie; // immutable after its keys were set

lm_trie *lm_trie_create(void);
void lm_trie_destroy(lm_trie *t); // t may be NULL
// Replaces the value of an equal key. n > 0; value >= 0.
void lm_trie_set(lm_trie *t, const char *key, size_t n, int32_t value);
// The node that a byte leads to from a node; LM_TRIE_ROOT: no key continues so.
uint32_t lm_trie_step(const lm_trie *t, uint32_t parent, unsigned char byte);
// The value of the key that ends at a node; -1: none ends there.
int32_t lm_trie_value(const lm_trie *t, uint32_t at);
// The value of a key; -1: there is no such key.
int32_t lm_trie_find(const lm_trie *t, const char *key, size_t n);
// The value of the longest key that text begins with, of those that continue the key of the node
// `from`; *out_n is the length that was matched. -1: none.
int32_t lm_trie_longest(const lm_trie *t, uint32_t from, const char *text, size_t n, size_t *out_n);
#endif
