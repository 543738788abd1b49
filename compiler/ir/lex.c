// lex.c - the tokens of .lmir text. All input gives tokens: invalid bytes are TK_BAD.
#include "compiler/ir/lex.h"
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
  NAME_MAX_BYTES = 255,
  NUMBER_MAX_BYTES = 63,
  VALUE_MAX = 1 << 22
};

void lm_lexer_init(lm_lexer *x, lm_ctx *c, uint16_t source) {
  const lm_source *s = &c->sources[source];
  *x = (lm_lexer){c, s->text, s->text + s->n, s->text, 1, source};
}

static bool word(char c) {
  return isalnum((unsigned char)c) || c == '_' || c == '.';
}
static bool word_start(char c) {
  return isalpha((unsigned char)c) || c == '_';
}

static void skip_blank(lm_lexer *x) {
  for (; x->p < x->end; x->p++) {
    if (*x->p == '\n') {
      x->line++;
      x->line_start = x->p + 1;
    } else if (*x->p == '/' && x->p + 1 < x->end && x->p[1] == '/') {
      while (x->p + 1 < x->end && x->p[1] != '\n')
        x->p++;
    } else if (*x->p != ' ' && *x->p != '\t' && *x->p != '\r') {
      return;
    }
  }
}

static lm_sym span(lm_lexer *x, const char *from, const char *to) {
  return lm_intern_n(x->c->intern, from, (size_t)(to - from));
}

static void bad(lm_token *t) {
  t->kind = TK_BAD;
}

static int hex4(const char *s, const char *end) {
  int v = 0;
  for (int i = 0; i < 4; i++) {
    if (s + i >= end || !isxdigit((unsigned char)s[i]))
      return -1;
    v = v * 16 +
        (isdigit((unsigned char)s[i]) ? s[i] - '0' : tolower((unsigned char)s[i]) - 'a' + 10);
  }
  return v;
}

// The JSON escapes that lm_buf_json writes: \u below 128, and \ufffd for an invalid UTF-8 byte.
static bool unescape(lm_lexer *x, lm_buf *out) {
  static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
  char c = x->p < x->end ? *x->p++ : 0;
  const char *at = c ? strchr(from, c) : NULL;
  if (at) {
    lm_buf_add(out, to + (at - from), 1);
    return true;
  }
  int v = c == 'u' ? hex4(x->p, x->end) : -1;
  if (v <= 0 || (v >= 128 && v != 0xfffd))
    return false;
  lm_buf_add(out, &(char){(char)v}, 1);
  x->p += 4;
  return true;
}

static void quoted(lm_lexer *x, lm_token *t) {
  lm_buf text = {0};
  bool ok = true;
  x->p++;
  while (ok && x->p < x->end && *x->p != '"' && *x->p != '\n' && *x->p) {
    if (*x->p == '\\') {
      x->p++;
      ok = unescape(x, &text);
    } else
      lm_buf_add(&text, x->p++, 1);
  }
  ok = ok && x->p < x->end && *x->p == '"' && text.n <= 16 * NAME_MAX_BYTES;
  if (ok)
    x->p++;
  t->sym = lm_intern_n(x->c->intern, text.p ? text.p : "", text.n);
  t->quoted = true;
  lm_buf_free(&text);
  if (!ok)
    bad(t);
}

static void name(lm_lexer *x, lm_token *t) {
  const char *from = x->p;
  while (x->p < x->end && (word(*x->p) || *x->p == '#' || *x->p == '@'))
    x->p++;
  if (x->p - from > NAME_MAX_BYTES)
    bad(t);
  else
    t->sym = span(x, from, x->p);
}

static void value(lm_lexer *x, lm_token *t) {
  const char *from = ++x->p;
  while (x->p < x->end && word(*x->p))
    x->p++;
  const char *digits = x->p;
  while (digits > from && isdigit((unsigned char)digits[-1]))
    digits--;
  bool numbered = digits < x->p && (digits == from || digits[-1] == '.');
  bool named = word_start(*from);
  t->id = -1;
  if (x->p == from || x->p - from > NAME_MAX_BYTES || (!named && digits != from)) {
    bad(t);
    return;
  }
  t->sym = span(x, from, x->p);
  if (numbered) {
    t->id = 0;
    for (const char *s = digits; s < x->p && t->id < VALUE_MAX; s++)
      t->id = t->id * 10 + (*s - '0');
    if (t->id >= VALUE_MAX) {
      bad(t);
      return;
    }
  }
  if (named)
    t->name = numbered ? span(x, from, digits - 1) : t->sym;
}

// -12, 0.5, 1e-30, inf, -nan
static void number(lm_lexer *x, lm_token *t) {
  char text[NUMBER_MAX_BYTES + 1], *end;
  size_t n = 0;
  while (x->p + n < x->end && n < NUMBER_MAX_BYTES && (word(x->p[n]) || strchr("+-", x->p[n])) &&
         x->p[n]) {
    bool sign = x->p[n] == '+' || x->p[n] == '-';
    if (sign && n && x->p[n - 1] != 'e' && x->p[n - 1] != 'E')
      break;
    n++;
  }
  memcpy(text, x->p, n);
  text[n] = 0;
  x->p += n;
  t->num = strtod(text, &end);
  if (!n || *end || end == text) {
    bad(t);
    return;
  }
  errno = 0;
  t->inum = strtoll(text, &end, 10);
  t->is_int = !*end && !errno;
}

lm_token lm_lex(lm_lexer *x) {
  skip_blank(x);
  lm_token t = {.loc = {
                    .file = x->source,
                    .line = x->line,
                    .col = (uint32_t)(x->p - x->line_start + 1),
                }};
  const char *from = x->p;
  char c = x->p < x->end ? *x->p : 0;
  char next = x->p + 1 < x->end ? x->p[1] : 0;
  if (x->p >= x->end) {
    t.kind = TK_END;
    return t;
  }
  if (c == '-' && next == '>') {
    t.kind = TK_ARROW;
    x->p += 2;
  } else if (word_start(c)) {
    t.kind = TK_NAME;
    name(x, &t);
  } else if (c == '"') {
    t.kind = TK_NAME;
    quoted(x, &t);
  } else if (c == '%') {
    t.kind = TK_VALUE;
    value(x, &t);
  } else if (c == '@') {
    t.kind = TK_SYM;
    x->p++;
    if (next == '"')
      quoted(x, &t);
    else if (word_start(next))
      name(x, &t);
    else
      bad(&t);
  } else if (isdigit((unsigned char)c) || c == '-') {
    t.kind = TK_NUMBER;
    number(x, &t);
  } else if (c && strchr("()[]{},:=*+", c)) {
    t.kind = TK_PUNCT;
    t.punct = c;
    x->p++;
  } else {
    bad(&t);
    x->p++;
  }
  t.loc.len = (uint16_t)(x->p - from < UINT16_MAX ? x->p - from : UINT16_MAX);
  return t;
}
