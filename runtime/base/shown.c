// shown.c - text of foreign origin made safe to print; see diag.h.
#include <stdio.h>
#include <string.h>

#include "runtime/base/diag.h"
#include "runtime/base/utf8.h"

// Terminal cells of a character: East Asian wide ones and emoji take two.
static int cells(uint32_t v) {
  return (v >= 0x1100 && v < 0x1160) || (v >= 0x2e80 && v < 0xa4d0) ||
                 (v >= 0xac00 && v < 0xd7a4) || (v >= 0xf900 && v < 0xfb00) ||
                 (v >= 0xfe30 && v < 0xfe70) || (v >= 0xff00 && v < 0xff61) ||
                 (v >= 0x1f300 && v < 0x1fb00) || (v >= 0x20000 && v < 0x40000)
             ? 2
             : 1;
}

int lm_buf_puts_shown(lm_buf *b, const char *s, size_t n) {
  int width = 0;
  for (size_t i = 0; i < n;) {
    uint32_t v = 0;
    int len = lm_utf8_decode(s + i, n - i, &v);
    size_t before = b->n;
    if (!len)
      lm_buf_printf(b, "\\x%02x", (unsigned char)s[i]);
    else if (v == '\t')
      lm_buf_puts(b, " ");
    else if (lm_utf8_is_hidden(v))
      lm_buf_printf(b, v < 0x100 ? "\\x%02x" : "\\u{%x}", v);
    else
      lm_buf_add(b, s + i, (size_t)len);
    width += len && v != '\t' && !lm_utf8_is_hidden(v) ? cells(v) : (int)(b->n - before);
    i += len ? (size_t)len : 1;
  }
  return width;
}

void lm_buf_lines_shown(lm_buf *b, const char *s) {
  while (s && *s) {
    size_t n = strcspn(s, "\n");
    lm_buf_puts_shown(b, s, n);
    lm_buf_puts(b, s[n] ? "\n" : "");
    s += n + (s[n] != 0);
  }
}

void lm_puts_shown(FILE *to, const char *text) {
  lm_buf shown = {0};
  lm_buf_lines_shown(&shown, text);
  fputs(shown.p ? shown.p : "", to);
  lm_buf_free(&shown);
}

void lm_vprint_shown(FILE *to, const char *fmt, va_list ap) {
  lm_buf text = {0};
  lm_buf_vprintf(&text, fmt, ap);
  lm_puts_shown(to, text.p);
  lm_buf_free(&text);
}

const char *lm_shown(lm_arena *a, const char *s) {
  lm_buf b = {0};
  lm_buf_puts_shown(&b, s, strlen(s));
  const char *text = lm_arena_strndup(a, b.p ? b.p : "", b.n);
  lm_buf_free(&b);
  return text;
}
