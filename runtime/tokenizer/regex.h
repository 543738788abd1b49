// regex.h - regular expressions of tokenizers. They are written for Oniguruma (Ruby syntax) and run
// by PCRE2. Syntax that means something else in PCRE2 is rewritten: \s \S \w \W, names of scripts,
// and ^ and $, which match at lines. Syntax that cannot be rewritten is unsupported: \h \H \b \B \R
// \X \G \K, nested classes, &&, repeated {n,m}.
//
// Character properties follow the Unicode version of PCRE2 (10.42: Unicode 14).
#ifndef LM_TOKENIZER_REGEX_H
#define LM_TOKENIZER_REGEX_H
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "runtime/base/base.h"

typedef struct lm_regex lm_regex;           // immutable and thread-safe
typedef struct lm_regex_room lm_regex_room; // workspace of one thread

// literal: the pattern is plain text. LM_USER: the pattern is malformed or unsupported.
lm_status lm_regex_create(const char *pattern, size_t n, bool literal, lm_regex **out);
void lm_regex_destroy(lm_regex *r); // r may be NULL
lm_regex_room *lm_regex_room_create(void);
void lm_regex_room_destroy(lm_regex_room *m);

// Finds the first match at or after `at` in text, which must be valid UTF-8; *out_start = n if
// there is none.
lm_status lm_regex_find(const lm_regex *r, lm_regex_room *m, const char *text, size_t n, size_t at,
                        size_t *out_start, size_t *out_end);
#endif
