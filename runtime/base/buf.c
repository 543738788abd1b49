// buf.c - growable text.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/base.h"
#include "runtime/base/utf8.h"

static void reserve(lm_buf *b, size_t more) {
  size_t need = b->n + more + 1;
  if (need <= b->cap)
    return;
  size_t cap = b->cap ? b->cap * 2 : 64;
  if (cap < need)
    cap = need;
  b->p = lm_realloc(b->p, cap);
  b->cap = cap;
}

void lm_buf_add(lm_buf *b, const void *s, size_t n) {
  reserve(b, n);
  if (n)
    memcpy(b->p + b->n, s, n);
  b->n += n;
  b->p[b->n] = 0;
}

void lm_buf_puts(lm_buf *b, const char *s) {
  lm_buf_add(b, s, strlen(s));
}

void lm_buf_vprintf(lm_buf *b, const char *fmt, va_list ap) {
  va_list again;
  va_copy(again, ap);
  reserve(b, 0);
  size_t left = b->cap - b->n;
  int n = vsnprintf(b->p + b->n, left, fmt, ap);
  LM_ASSERT(n >= 0);
  if ((size_t)n >= left) {
    reserve(b, (size_t)n);
    vsnprintf(b->p + b->n, (size_t)n + 1, fmt, again);
  }
  b->n += (size_t)n;
  va_end(again);
}

void lm_buf_printf(lm_buf *b, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  lm_buf_vprintf(b, fmt, ap);
  va_end(ap);
}

void lm_buf_number(lm_buf *b, double x) {
  char text[40];
  int digits = 15;
  do
    snprintf(text, sizeof text, "%.*g", digits, x);
  while (strtod(text, NULL) != x && x == x && ++digits <= 17);
  lm_buf_puts(b, text);
}

void lm_buf_bounds(lm_buf *b, double min, double max, double x, const char *unit) {
  bool open = min > 0 && min < 1e-6;
  bool bounded = max < 1e9;
  if (!bounded && x > max)
    lm_buf_printf(b, "at most %.10g%s", max, unit);
  else if (open)
    lm_buf_printf(b, "more than 0%s", unit);
  else if (!bounded)
    lm_buf_printf(b, "at least %.10g%s", min, unit);
  else
    lm_buf_printf(b, "from %.10g%s to %.10g%s", min, unit, max, unit);
  if (open && bounded)
    lm_buf_printf(b, " and at most %.10g%s", max, unit);
}

void lm_buf_free(lm_buf *b) {
  lm_free(b->p);
  *b = (lm_buf){0};
}

static void json_escape(lm_buf *b, unsigned char c) {
  const char *from = "\"\\\b\f\n\r\t";
  const char *to = "\"\\bfnrt";
  const char *at = c ? strchr(from, c) : NULL;
  if (at)
    lm_buf_printf(b, "\\%c", to[at - from]);
  else
    lm_buf_printf(b, "\\u%04x", c);
}

// Bytes that are not UTF-8 become U+FFFD, so the output is always valid JSON.
void lm_buf_json_n(lm_buf *b, const char *s, size_t left) {
  lm_buf_puts(b, "\"");
  while (left) {
    uint32_t point;
    int n = lm_utf8_decode(s, left, &point);
    unsigned char c = (unsigned char)*s;
    if (!n)
      lm_buf_puts(b, "\\ufffd");
    else if (c < 0x20 || c == 0x7f || c == '"' || c == '\\')
      json_escape(b, c);
    else if (lm_utf8_is_hidden(point))
      lm_buf_printf(b, "\\u%04x", point);
    else
      lm_buf_add(b, s, (size_t)n);
    size_t taken = n ? (size_t)n : lm_utf8_malformed(s, left);
    s += taken;
    left -= taken;
  }
  lm_buf_puts(b, "\"");
}

void lm_buf_json(lm_buf *b, const char *s) {
  lm_buf_json_n(b, s, strlen(s));
}

// ---- quantities

static void scaled(lm_buf *b, double x, const char *const *units, int n) {
  int k = 0;
  for (; x >= 999.5 && k + 1 < n; k++)
    x /= 1000;
  lm_buf_printf(b, k ? "%.3g%s" : "%.0f%s", x, units[k]);
}

void lm_show_bytes(lm_buf *b, double bytes) {
  static const char *const units[] = {" bytes", " kB", " MB", " GB", " TB", " PB", " EB"};
  scaled(b, bytes, units, LM_COUNT(units));
}

void lm_show_count(lm_buf *b, double n) {
  static const char *const units[] = {"", "k", "M", "G", "T", "P"};
  scaled(b, n, units, LM_COUNT(units));
}
