// charsmap.h - the compiled character map of a SentencePiece model: which strings of characters a
// normalizer replaces by which. Private to runtime/tokenizer.
//
// A map is a little-endian uint32_t with the size in bytes of a trie, the trie (a double array of
// uint32_t, as Darts-clone writes it), and the replacements, each ended by a NUL byte. The trie
// maps a string to the offset of its replacement.
#ifndef LM_TOKENIZER_CHARSMAP_H
#define LM_TOKENIZER_CHARSMAP_H
#include "runtime/base/base.h"

typedef struct lm_charsmap lm_charsmap; // immutable

// Copies the map. LM_USER: it is malformed.
lm_status lm_charsmap_create(const char *map, size_t n, lm_charsmap **out);
void lm_charsmap_destroy(lm_charsmap *c); // c may be NULL
// Finds a string of the map that text begins with: the longest, or the shortest. Returns its
// length, 0 if there is none; *out (of *out_n bytes) is its replacement.
size_t lm_charsmap_find(const lm_charsmap *c, const char *text, size_t n, bool longest,
                        const char **out, size_t *out_n);
#endif
