// diag_code.c - the catalogue of diagnostics: reports by code, and its reference as text.
#include "runtime/base/diag_code.h"
#include <string.h>

const lm_diag_info lm_diag_table[LM_DIAGS] = {
#define DIAG(code, severity, text, explanation, example, corrected)                                \
  {#code, LM_SEV_##severity, text, explanation, example, corrected},
#include "runtime/base/diag.def"
#undef DIAG
};

const lm_diag_info *lm_diag_find(const char *code) {
  for (int i = 0; i < LM_DIAGS; i++)
    if (!strcmp(lm_diag_table[i].code, code))
      return &lm_diag_table[i];
  return NULL;
}

lm_diag *lm_vreport(lm_ctx *c, lm_loc at, lm_diag_id id, const char *fmt, va_list ap) {
  return lm_diag_add(c, lm_diag_table[id].severity, at, lm_diag_table[id].code, fmt, ap);
}

lm_diag *lm_report(lm_ctx *c, lm_loc at, lm_diag_id id, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  lm_diag *d = lm_vreport(c, at, id, fmt, ap);
  va_end(ap);
  return d;
}

// The length of a conversion such as %s, %.*s or %lld, which p points to; 0 for "%%".
static size_t conversion_length(const char *p) {
  if (p[1] == '%')
    return 0;
  size_t flags = 1 + strspn(p + 1, "0123456789.*$#+- ");
  size_t size = strspn(p + flags, "hlzjt");
  return flags + size + 1;
}

void lm_diag_title(lm_buf *out, const lm_diag_info *d) {
  for (const char *p = d->text; *p;) {
    size_t n = *p == '%' ? conversion_length(p) : 0;
    if (n) {
      lm_buf_puts(out, "…");
      p += n;
      continue;
    }
    p += *p == '%';
    lm_buf_printf(out, "%c", *p);
    p++;
  }
}

static const char *severity_text(const lm_diag_info *d) {
  return d->severity == LM_SEV_ERROR ? "error" : "warning";
}

static void indented(lm_buf *out, const char *title, const char *program) {
  if (!*program)
    return;
  lm_buf_printf(out, "\n%s\n\n", title);
  for (const char *p = program; *p;) {
    int n = (int)strcspn(p, "\n");
    lm_buf_printf(out, "    %.*s\n", n, p);
    p += n + (p[n] == '\n');
  }
}

void lm_diag_write_entry(lm_buf *out, const lm_diag_info *d) {
  lm_buf_printf(out, "%s[%s]: ", severity_text(d), d->code);
  lm_diag_title(out, d);
  lm_buf_printf(out, "\n\n%s\n", d->explanation);
  indented(out, "This program has the mistake:", d->example);
  indented(out, "This one is correct:", d->corrected);
}

static void fenced(lm_buf *out, const char *title, const char *program) {
  if (*program)
    lm_buf_printf(out, "\n%s\n\n```text\n%s```\n", title, program);
}

void lm_diag_write_reference(lm_buf *out) {
  lm_buf_puts(out, "# Errors and warnings\n\n"
                   "Written by `lmc explain --errors`; `lmc explain CODE` prints one entry. `…` "
                   "stands for names,\nnumbers and types of the program.\n");
  for (int i = 0; i < LM_DIAGS; i++) {
    const lm_diag_info *d = &lm_diag_table[i];
    lm_buf_printf(out, "\n## %s\n\n**", d->code);
    lm_diag_title(out, d);
    lm_buf_printf(out, "**\n\n%s\n", d->explanation);
    fenced(out, "This program has the mistake:", d->example);
    fenced(out, "This one is correct:", d->corrected);
  }
}
