// diag_code.c - the catalogue of diagnostics: reports by code, and its reference as text.
#include "runtime/base/diag_code.h"
#include "runtime/base/terminal.h"
#include <string.h>
#include <strings.h>

enum {
  ENTRY_WIDTH = 80,
  REFERENCE_WIDTH = 100
};

const lm_diag_info lm_diag_table[LM_DIAGS] = {
#define DIAG(code, severity, text, explanation, example, corrected)                                \
  {#code, LM_SEV_##severity, text, explanation, example, corrected},
#include "runtime/base/diag.def"
#undef DIAG
};

bool lm_diag_is_code(const char *word) {
  static const char digits[] = "0123456789abcdefABCDEF";
  return *word && strchr("EeWw", *word) && strspn(word + 1, digits) == 3 && !word[4];
}

const lm_diag_info *lm_diag_find(const char *code) {
  for (int i = 0; i < LM_DIAGS; i++)
    if (!strcasecmp(lm_diag_table[i].code, code))
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

void lm_diag_write_entry(lm_buf *out, const lm_diag_info *d, int width) {
  lm_buf title = {0};
  width = width ? width : ENTRY_WIDTH;
  lm_buf_printf(&title, "%s[%s]: ", lm_severity_name(d->severity), d->code);
  lm_diag_title(&title, d);
  lm_text_wrap(out, title.p, width, 0);
  lm_buf_puts(out, "\n\n");
  lm_text_wrap(out, d->explanation, width, 0);
  lm_buf_puts(out, "\n");
  indented(out, "This program has the mistake:", d->example);
  indented(out, "This one is correct:", d->corrected);
  lm_buf_free(&title);
}

void lm_diag_write_entry_json(lm_buf *out, const lm_diag_info *d) {
  const char *const fields[][2] = {
      {"code", d->code},       {"severity", lm_severity_name(d->severity)},
      {"text", d->text},       {"explanation", d->explanation},
      {"example", d->example}, {"corrected", d->corrected}};
  for (size_t i = 0; i < LM_COUNT(fields); i++) {
    lm_buf_printf(out, "%s\"%s\": ", i ? ", " : "{", fields[i][0]);
    lm_buf_json(out, fields[i][1]);
  }
  lm_buf_puts(out, "}\n");
}

static void write_section(lm_buf *out, const lm_diag_info *d) {
  lm_buf_printf(out, "\n## %s\n\n```text\n%s[%s]: ", d->code, lm_severity_name(d->severity),
                d->code);
  lm_diag_title(out, d);
  lm_buf_puts(out, "\n```\n\n");
  lm_text_wrap(out, d->explanation, REFERENCE_WIDTH, 0);
  lm_buf_puts(out, "\n");
  if (*d->example)
    lm_buf_printf(out, "\n```text\n# wrong\n%s%s%s```\n", d->example,
                  *d->corrected ? "\n# correct\n" : "", d->corrected);
}

void lm_diag_write_reference(lm_buf *out) {
  lm_buf_puts(
      out, "# Errors and warnings\n\n"
           "Written by `lmc explain --errors`; `lmc explain CODE` prints one entry. `…` stands "
           "for names, numbers and\ntypes of the program. Some examples take a model `M`, a data "
           "section `D` and a complete recipe `Base` for\ngranted; the model calls `mix` or has a "
           "`sub part = Part(d)` where the example declares these.\n");
  for (int i = 0; i < LM_DIAGS; i++)
    write_section(out, &lm_diag_table[i]);
}
