// regex.h - regular expressions of tokenizers. They are written for Oniguruma (Ruby's syntax);
// PCRE2 runs them, after what means something else there has been rewritten: \s \S \w \W, names of
// scripts, lines in ^ and $. What cannot be rewritten is refused: \h \H \b \B \R \X \G \K, classes
// in classes, &&, a repeated {n,m}.
//
// Letters, numbers and so on are those of the Unicode version of the PCRE2 at hand (10.42: Unicode
// 14).
#ifndef LM_TOKENIZER_REGEX_H
#define LM_TOKENIZER_REGEX_H
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "runtime/base/base.h"

typedef struct lm_regex lm_regex;           // immutable: any number of threads may match with one
typedef struct lm_regex_room lm_regex_room; // what matching needs to write to: one for each thread

// literal: the pattern is plain text. LM_USER: it is no regular expression, or one that cannot be
// had.
lm_status lm_regex_create(const char *pattern, size_t n, bool literal, lm_regex **out);
void lm_regex_destroy(lm_regex *r); // NULL is fine
lm_regex_room *lm_regex_room_create(void);
void lm_regex_room_destroy(lm_regex_room *m);

// The first match in text (well-formed UTF-8) from `at` on; *out_start = n if there is none.
lm_status lm_regex_find(const lm_regex *r, lm_regex_room *m, const char *text, size_t n, size_t at,
                        size_t *out_start, size_t *out_end);
#endif
