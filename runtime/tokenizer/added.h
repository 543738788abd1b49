// added.h - added tokens: texts that are found before anything else is done, the longest first of
// those that begin at a place.
#ifndef LM_TOKENIZER_ADDED_H
#define LM_TOKENIZER_ADDED_H
#include "runtime/tokenizer/regex.h"

typedef struct lm_added_token {
  const char *text;
  size_t n;
  int32_t id;
  bool single_word;             // only where no letter, digit or mark touches it
  bool strip_left, strip_right; // takes white space on that side with it
} lm_added_token;

typedef struct lm_added lm_added; // immutable once its tokens are added

lm_added *lm_added_create(void);
void lm_added_destroy(lm_added *a); // NULL is fine
void lm_added_token_add(
    lm_added *a,
    const lm_added_token *t); // text must outlive it; of two with equal text the later one
bool lm_added_is_empty(const lm_added *a);

// The first token in text from *at on, where *done bytes have been dealt with; NULL: none.
// *out_start … *out_end is what it takes, white space included; moves *at behind the token itself.
lm_status lm_added_find(const lm_added *a, lm_regex_room *m, const char *text, size_t n,
                        size_t done, size_t *at, size_t *out_start, size_t *out_end,
                        const lm_added_token **out);
#endif
