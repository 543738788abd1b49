// normal.h - normalizers: the Unicode normal forms, through utf8proc where the build has found it.
#ifndef LM_TOKENIZER_NORMAL_H
#define LM_TOKENIZER_NORMAL_H
#include "runtime/base/base.h"

typedef enum {
  LM_NORMAL_NONE,
  LM_NORMAL_NFC,
  LM_NORMAL_NFD,
  LM_NORMAL_NFKC,
  LM_NORMAL_NFKD
} lm_normal_form;

// The form of that name. LM_USER: there is none, or this build lacks utf8proc.
lm_status lm_normal_form_find(const char *name, lm_normal_form *out);
// Text (well-formed UTF-8) that is surely in the form already is given back as it is, else what it
// becomes, in `scratch`.
lm_status lm_normalize(lm_normal_form form, const char *text, size_t n, lm_buf *scratch,
                       const char **out, size_t *out_n);
#endif
