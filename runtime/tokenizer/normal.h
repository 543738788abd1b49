// normal.h - normalizers: change the characters of a text before it is split into words. Private to
// runtime/tokenizer.
//
// A normalizer is a list of steps; each step reads the result of the step before. The steps have
// the semantics of Hugging Face tokenizers.
#ifndef LM_TOKENIZER_NORMAL_H
#define LM_TOKENIZER_NORMAL_H
#include "runtime/tokenizer/charsmap.h"
#include "runtime/tokenizer/regex.h"
#include "runtime/tokenizer/tokenizer.h"
#include "runtime/tokenizer/trie.h"

typedef struct lm_normalizer lm_normalizer;           // immutable after its steps were added
typedef struct lm_normalizer_room lm_normalizer_room; // workspace of one thread

lm_normalizer *lm_normalizer_create(void);
void lm_normalizer_destroy(lm_normalizer *n); // n may be NULL

// The functions that add a step. LM_USER: too many steps, or the step is unsupported.
// A Unicode normal form by its name: NFC, NFD, NFKC, NFKD.
lm_status lm_normalizer_form_add(lm_normalizer *n, const char *form);
lm_status lm_normalizer_lowercase_add(lm_normalizer *n);
// Removes the combining marks; `spacing`: those that occupy a column too.
lm_status lm_normalizer_marks_remove_add(lm_normalizer *n, bool spacing);
// Removes white space at the ends of a text.
lm_status lm_normalizer_strip_add(lm_normalizer *n, bool left, bool right);
// Inserts `prefix` at the beginning of a text that is not empty and continues no other text.
lm_status lm_normalizer_prepend_add(lm_normalizer *n, const char *prefix);
// Replaces all matches of a pattern. literal: the pattern is plain text.
lm_status lm_normalizer_replace_add(lm_normalizer *n, const char *pattern, bool literal,
                                    const char *content);
// As BERT's basic tokenizer: removes control characters, makes white space a space; and surrounds
// CJK ideographs by spaces.
lm_status lm_normalizer_clean_add(lm_normalizer *n);
lm_status lm_normalizer_ideographs_add(lm_normalizer *n);
// Replaces strings by a character map (copied) as Hugging Face tokenizers does: each grapheme
// cluster of less than 6 bytes, else each of its characters, that begins with a string of the map.
lm_status lm_normalizer_clusters_add(lm_normalizer *n, const char *map, size_t n_map);
// As SentencePiece does: the longest string of the map at each index. Keys of `keep` (may be NULL;
// must outlive the normalizer) stay as they are. An empty map replaces nothing.
lm_status lm_normalizer_charsmap_add(lm_normalizer *n, const char *map, size_t n_map,
                                     const lm_trie *keep);
// Makes runs of spaces one space, and removes those at the ends of a text.
lm_status lm_normalizer_squeeze_add(lm_normalizer *n);

lm_normalizer_room *lm_normalizer_room_create(void);
void lm_normalizer_room_destroy(lm_normalizer_room *m); // m may be NULL
// Normalizes text, which must be valid UTF-8; part: a set of lm_text_part. *out is in `text` if no
// step changed it, else in the workspace.
lm_status lm_normalizer_run(const lm_normalizer *n, lm_normalizer_room *m, const char *text,
                            size_t length, int part, const char **out, size_t *out_n);
#endif
