// normal.c - see normal.h.
#include "runtime/tokenizer/normal.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static const struct {
  const char *name;
  uint32_t quick;
} forms[] = {
    // the least code point that the form may change or combine with the one before
    [LM_NORMAL_NONE] = {"", 0},        [LM_NORMAL_NFC] = {"NFC", 0x300},
    [LM_NORMAL_NFD] = {"NFD", 0xc0},   [LM_NORMAL_NFKC] = {"NFKC", 0xa0},
    [LM_NORMAL_NFKD] = {"NFKD", 0xa0},
};

static bool is_normal(lm_normal_form form, const char *text, size_t n) {
  // Lead bytes order as code points do: U+0300 begins with 0xcc, U+00A0 and U+00C0 with 0xc2 and
  // 0xc3.
  unsigned char least = forms[form].quick == 0x300 ? 0xcc : forms[form].quick == 0xc0 ? 0xc3 : 0xc2;
  for (size_t i = 0; i < n; i++)
    if ((unsigned char)text[i] >= least)
      return false;
  return true;
}

static lm_status transform(lm_normal_form form, const char *text, size_t n, lm_buf *workspace) {
  static const utf8proc_option_t options[] = {
      [LM_NORMAL_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
      [LM_NORMAL_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
      [LM_NORMAL_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
      [LM_NORMAL_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT};
  utf8proc_uint8_t *made = NULL;
  utf8proc_ssize_t length =
      utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, &made, options[form]);
  if (length < 0)
    return lm_fail(length == UTF8PROC_ERROR_NOMEM ? LM_ENV : LM_BUG_STATUS, "%s: %s",
                   forms[form].name, utf8proc_errmsg(length));
  workspace->n = 0;
  lm_buf_add(workspace, made, (size_t)length);
  free(made); // allocated by utf8proc with malloc
  return NULL;
}
lm_status lm_normal_form_find(const char *name, lm_normal_form *out) {
  for (size_t i = 1; i < LM_COUNT(forms); i++)
    if (!strcmp(name, forms[i].name)) {
      *out = (lm_normal_form)i;
      return NULL;
    }
  return lm_fail(LM_USER, "normalizer %s is unsupported; use NFC, NFD, NFKC or NFKD", name);
}

lm_status lm_normalize(lm_normal_form form, const char *text, size_t n, lm_buf *workspace,
                       const char **out, size_t *out_n) {
  bool same = form == LM_NORMAL_NONE || is_normal(form, text, n);
  if (!same)
    LM_TRY(transform(form, text, n, workspace));
  *out = same ? text : workspace->p;
  *out_n = same ? n : workspace->n;
  return NULL;
}
