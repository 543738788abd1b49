// added.h - finds added tokens in text, before normalization and pre-tokenization. Of the tokens
// that match at an index, the longest is taken.
#ifndef LM_TOKENIZER_ADDED_H
#define LM_TOKENIZER_ADDED_H
#include "runtime/tokenizer/regex.h"

typedef struct lm_added_token {
  const char *text;
  size_t n;
  int32_t id;
  bool single_word;             // matches only if no letter, digit or mark is adjacent
  bool strip_left, strip_right; // the match includes the white space on that side
  bool special;                 // marks structure, such as the end of a text
} lm_added_token;

typedef struct lm_added lm_added; // immutable after its tokens were added

lm_added *lm_added_create(void);
void lm_added_destroy(lm_added *a); // a may be NULL
// t->text must outlive `a`. A token replaces an earlier one with equal text.
void lm_added_token_add(lm_added *a, const lm_added_token *t);
bool lm_added_is_empty(const lm_added *a);

// Which tokens are found.
typedef struct lm_added_allowed {
  const unsigned char *own; // [n]: a token consists of bytes that are marked; NULL: of any
  bool plain;               // special tokens are not found
} lm_added_allowed;

// Finds the first allowed token at or after *at and moves *at to its end. *out is NULL if there is
// none. *out_start … *out_end is the match, with stripped white space, but never before `done`.
lm_status lm_added_find(const lm_added *a, lm_regex_room *m, lm_added_allowed allowed,
                        const char *text, size_t n, size_t done, size_t *at, size_t *out_start,
                        size_t *out_end, const lm_added_token **out);
#endif
