// pretok.h - pre-tokenizers: cut text into the pieces ("words") within which byte pairs are merged.
//
// A list of steps; each cuts every piece of the one before. The behaviours are those of Hugging
// Face tokenizers: what becomes of the matches of a regular expression and of the text between them
// ("gaps"):
//   ISOLATED   each match and each gap is a piece           REMOVED    gaps are pieces, matches are
//   dropped PREVIOUS   a match joins the gap before it              NEXT       a match joins the
//   gap behind it CONTIGUOUS matches that touch are one piece, as are gaps
// `invert` makes matches gaps and gaps matches.
#ifndef LM_TOKENIZER_PRETOK_H
#define LM_TOKENIZER_PRETOK_H
#include "runtime/tokenizer/regex.h"

typedef enum {
  LM_SPLIT_ISOLATED,
  LM_SPLIT_REMOVED,
  LM_SPLIT_PREVIOUS,
  LM_SPLIT_NEXT,
  LM_SPLIT_CONTIGUOUS
} lm_split_behavior;

typedef struct lm_pretok lm_pretok; // immutable once its steps are added; LM_USER: too many
typedef struct lm_pretok_room lm_pretok_room; // scratch: one for each thread

lm_pretok *lm_pretok_create(void);
void lm_pretok_destroy(lm_pretok *p); // NULL is fine
lm_status lm_pretok_split_add(lm_pretok *p, const char *pattern, size_t n, bool literal,
                              lm_split_behavior b, bool invert);
lm_status
lm_pretok_prefix_add(lm_pretok *p); // a space in front of a piece that does not begin with one
lm_status
lm_pretok_chars_add(lm_pretok *p); // later steps see each byte as its character (bytechar.h)
bool lm_pretok_gives_chars(
    const lm_pretok *p); // such a step is there, and so `word` is given characters, too

lm_pretok_room *lm_pretok_room_create(const lm_pretok *p);
void lm_pretok_room_destroy(lm_pretok_room *m); // NULL is fine

typedef struct lm_word_sink {
  lm_status (*word)(void *user, const char *p, size_t n);
  void *user;
} lm_word_sink;
// text is well-formed UTF-8. continues: it goes on from text that was given before, so no space is
// put in front.
lm_status lm_pretok_run(const lm_pretok *p, lm_pretok_room *m, const char *text, size_t n,
                        bool continues, lm_word_sink sink);

#define LM_PRETOK_GPT2                                                                             \
  "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#endif
