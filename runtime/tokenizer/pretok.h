// pretok.h - pre-tokenizers: split text into the words within which byte pairs are merged.
//
// A pre-tokenizer is a list of steps; each step splits every word of the step before. The behaviors
// are named as in Hugging Face tokenizers. They define how the matches of a regular expression, and
// the gaps between matches, become words:
//   ISOLATED    each match and each gap is a word
//   REMOVED     each gap is a word; matches are dropped
//   PREVIOUS    a match is appended to the gap before it
//   NEXT        a match is prepended to the gap after it
//   CONTIGUOUS  as ISOLATED, but adjacent matches are one word
// `invert` exchanges matches and gaps.
#ifndef LM_TOKENIZER_PRETOK_H
#define LM_TOKENIZER_PRETOK_H
#include "runtime/tokenizer/regex.h"
#include "runtime/tokenizer/tokenizer.h"

typedef enum {
  LM_SPLIT_ISOLATED,
  LM_SPLIT_REMOVED,
  LM_SPLIT_PREVIOUS,
  LM_SPLIT_NEXT,
  LM_SPLIT_CONTIGUOUS
} lm_split_behavior;

#define LM_SPACE_MARK "\xe2\x96\x81" // U+2581
// The words before which U+2581 is inserted, unless they begin with one: none; all; the word at the
// beginning of the whole text.
typedef enum {
  LM_PREFIX_NONE,
  LM_PREFIX_ALL,
  LM_PREFIX_FIRST
} lm_space_prefix;

typedef struct lm_pretok lm_pretok;           // immutable after its steps were added
typedef struct lm_pretok_room lm_pretok_room; // workspace of one thread

lm_pretok *lm_pretok_create(void);
void lm_pretok_destroy(lm_pretok *p); // p may be NULL
// The functions that add a step. LM_USER: too many steps, or the pattern is unsupported.
lm_status lm_pretok_split_add(lm_pretok *p, const char *pattern, size_t n, bool literal,
                              lm_split_behavior b, bool invert);
// Prepends a space to a word that does not begin with one.
lm_status lm_pretok_prefix_add(lm_pretok *p);
// Replaces spaces by U+2581, as SentencePiece does, and inserts one before a word (see
// lm_space_prefix); split: splits before each of them.
lm_status lm_pretok_metaspace_add(lm_pretok *p, lm_space_prefix prefix, bool split);
// Replaces each byte by its character (bytechar.h), for the later steps and for `word`.
lm_status lm_pretok_chars_add(lm_pretok *p);
bool lm_pretok_gives_chars(const lm_pretok *p); // whether `word` receives such characters

lm_pretok_room *lm_pretok_room_create(const lm_pretok *p);
void lm_pretok_room_destroy(lm_pretok_room *m); // m may be NULL

typedef struct lm_word_sink {
  lm_status (*word)(void *user, const char *p, size_t n);
  void *user;
} lm_word_sink;
// Calls sink.word for each word of text, which must be valid UTF-8. part: a set of lm_text_part; no
// space is inserted before a word that an earlier text began. begun: there is an earlier text, or
// an added token before this one.
lm_status lm_pretok_run(const lm_pretok *p, lm_pretok_room *m, const char *text, size_t n, int part,
                        bool begun, lm_word_sink sink);

#define LM_PRETOK_LINES "[\\r\\n]+"
#define LM_PRETOK_GPT2                                                                             \
  "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#endif
