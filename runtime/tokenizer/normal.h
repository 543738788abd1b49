// normal.h - Unicode normal forms, by utf8proc.
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

// Looks up a form by name. LM_USER: there is no such form.
lm_status lm_normal_form_find(const char *name, lm_normal_form *out);
// Normalizes text, which must be valid UTF-8. *out is `text` itself if a quick check shows that it
// is normalized already, else the result in `workspace`.
lm_status lm_normalize(lm_normal_form form, const char *text, size_t n, lm_buf *workspace,
                       const char **out, size_t *out_n);
#endif
