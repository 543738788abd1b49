// lex.c - splits a template into text and the tokens of its tags, as jinja2's lexer does with
// trim_blocks and lstrip_blocks: a line break directly behind a tag and white space between the
// beginning of a line and a tag are left out; `-` strips all white space on its side, `+` keeps it.
#include <string.h>

#include "runtime/base/utf8.h"
#include "runtime/template/ast.h"

typedef struct {
  jt_parser *p;
  const char *s;
  size_t n;
  size_t at;
  uint32_t line;
  bool line_starts; // the token before ended with a line break
} lexer;

static void token_add(lexer *x, jt_token_kind kind, const char *s, size_t n) {
  jt_parser *p = x->p;
  LM_PUSH(p->t->a, p->tokens, p->n_tokens, p->cap_tokens) =
      (jt_token){kind, s, (uint32_t)n, x->line};
}

static uint32_t lines_of(const char *s, size_t n) {
  uint32_t lines = 0;
  for (size_t i = 0; i < n; i++)
    lines += s[i] == '\n';
  return lines;
}

// Moves to `to`, counting lines.
static void move(lexer *x, size_t to) {
  x->line += lines_of(x->s + x->at, to - x->at);
  x->line_starts = to > x->at ? x->s[to - 1] == '\n' : x->line_starts;
  x->at = to;
}

static size_t spaces_end(const lexer *x, size_t at) {
  jt_string rest = {
      .p = x->s + at,
      .n = (uint32_t)(x->n - at),
  };
  return x->n - jt_strip(rest, true, false).n;
}

static size_t strip_end(const char *s, size_t n) {
  return jt_strip((jt_string){.p = s, .n = (uint32_t)n}, false, true).n;
}

static bool starts(const lexer *x, size_t at, const char *text) {
  size_t n = strlen(text);
  return n <= x->n - at && !memcmp(x->s + at, text, n);
}

// ---- text

// The length of the text before a tag without what the tag strips.
static size_t text_length(const lexer *x, const char *s, size_t n, char sign, bool print) {
  if (sign == '-')
    return strip_end(s, n);
  if (sign == '+' || print)
    return n;
  size_t line = n;
  while (line && s[line - 1] != '\n')
    line--;
  bool begins = line > 0 || x->line_starts;
  bool blank = strip_end(s + line, n - line) == 0;
  return begins && blank ? line : n;
}

// The end of `close` at `at` with its sign and the stripped text; 0: it is not there.
static size_t close_end(const lexer *x, size_t at, const char *close, bool print) {
  bool minus = at < x->n && x->s[at] == '-';
  bool plus = at < x->n && x->s[at] == '+' && !print;
  size_t to = at + (minus || plus);
  if (!starts(x, to, close))
    return 0;
  to += strlen(close);
  if (minus)
    return spaces_end(x, to);
  return to + (!plus && !print && to < x->n && x->s[to] == '\n');
}

static void comment_skip(lexer *x) {
  for (size_t at = x->at; at < x->n; at++) {
    size_t end = close_end(x, at, "#}", false);
    if (end) {
      move(x, end);
      return;
    }
  }
  jt_refuse(x->p, x->line, "a comment has no end");
}

// ---- the inside of tags

static bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
static bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

static size_t digits_end(const lexer *x, size_t at) {
  while (at < x->n &&
         (is_digit(x->s[at]) || (x->s[at] == '_' && at + 1 < x->n && is_digit(x->s[at + 1]))))
    at++;
  return at;
}

static void number_lex(lexer *x) {
  size_t end = digits_end(x, x->at);
  bool real = false;
  if (end + 1 < x->n && x->s[end] == '.' && is_digit(x->s[end + 1])) {
    end = digits_end(x, end + 1);
    real = true;
  }
  if (end < x->n && (x->s[end] == 'e' || x->s[end] == 'E')) {
    size_t sign = end + 1 < x->n && (x->s[end + 1] == '+' || x->s[end + 1] == '-');
    if (end + 1 + sign < x->n && is_digit(x->s[end + 1 + sign])) {
      end = digits_end(x, end + 1 + sign);
      real = true;
    }
  }
  if (end < x->n && is_name_start(x->s[end]))
    jt_refuse(x->p, x->line, "the number at \"%.10s\" is unsupported", x->s + x->at);
  token_add(x, real ? JT_REAL : JT_WHOLE, x->s + x->at, end - x->at);
  x->at = end;
}

static void string_lex(lexer *x) {
  char quote = x->s[x->at];
  size_t end = x->at + 1;
  while (end < x->n && x->s[end] != quote)
    end += x->s[end] == '\\' ? 2 : 1;
  if (end >= x->n) {
    jt_refuse(x->p, x->line, "a string has no end");
    return;
  }
  token_add(x, JT_TEXT, x->s + x->at + 1, end - x->at - 1);
  move(x, end + 1);
}

static size_t sign_length(const lexer *x) {
  static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
  for (size_t i = 0; i < LM_COUNT(two); i++)
    if (starts(x, x->at, two[i]))
      return 2;
  return x->s[x->at] && strchr("+-/*%~[](){}><=.:|,;", x->s[x->at]) ? 1 : 0;
}

// A sign; `open`: the brackets that are open.
static void sign_lex(lexer *x, char *open, size_t *n_open, size_t room) {
  static const char pairs[] = "()[]{}";
  size_t n = sign_length(x);
  char c = x->s[x->at];
  const char *pair = n == 1 ? strchr(pairs, c) : NULL;
  if (!n)
    jt_refuse(x->p, x->line, "unexpected character %s",
              lm_utf8_valid(&c, 1) ? (char[]){c, 0} : "outside of ASCII");
  else if (pair && (pair - pairs) % 2 == 0 && *n_open == room)
    jt_refuse(x->p, x->line, "more than %zu brackets are open", room);
  else if (pair && (pair - pairs) % 2 == 0)
    open[(*n_open)++] = pair[1];
  else if (pair && (!*n_open || open[--*n_open] != c))
    jt_refuse(x->p, x->line, "unexpected '%c'", c);
  if (x->p->fault)
    return;
  token_add(x, JT_SIGN, x->s + x->at, n);
  x->at += n;
}

static void tag_lex(lexer *x, bool print) {
  char open[100];
  size_t n_open = 0;
  const char *close = print ? "}}" : "%}";
  uint32_t first = x->line;
  while (!x->p->fault) {
    move(x, spaces_end(x, x->at));
    if (x->at >= x->n) {
      jt_refuse(x->p, first, "a tag has no end");
      return;
    }
    size_t end = n_open ? 0 : close_end(x, x->at, close, print);
    char c = x->s[x->at];
    if (end) {
      token_add(x, print ? JT_END_PRINT : JT_END_TAG, close, 2);
      move(x, end);
      return;
    }
    if (is_name_start(c)) {
      size_t to = x->at;
      while (to < x->n && (is_name_start(x->s[to]) || is_digit(x->s[to])))
        to++;
      token_add(x, JT_NAME, x->s + x->at, to - x->at);
      x->at = to;
    } else if (is_digit(c)) {
      number_lex(x);
    } else if (c == '"' || c == '\'') {
      string_lex(x);
    } else {
      sign_lex(x, open, &n_open, sizeof open);
    }
  }
}

// ---- the template

// The next "{{", "{%" or "{#".
static size_t tag_find(const lexer *x) {
  for (size_t at = x->at; at + 1 < x->n; at++)
    if (x->s[at] == '{' && strchr("{%#", x->s[at + 1]))
      return at;
  return x->n;
}

static void text_and_tag_lex(lexer *x) {
  size_t tag = tag_find(x);
  bool found = tag < x->n;
  char kind = found ? x->s[tag + 1] : 0;
  char sign = tag + 2 < x->n && found ? x->s[tag + 2] : 0;
  bool print = kind == '{';
  const char *text = x->s + x->at;
  size_t n = tag - x->at;
  size_t kept = found ? text_length(x, text, n, sign, print) : n;
  if (kept)
    token_add(x, JT_DATA, text, kept);
  if (!found) {
    move(x, x->n);
    return;
  }
  move(x, tag + 2 + (sign == '-' || sign == '+'));
  if (kind == '#') {
    comment_skip(x);
    return;
  }
  token_add(x, print ? JT_BEGIN_PRINT : JT_BEGIN_TAG, x->s + tag, 2);
  tag_lex(x, print);
}

// Line breaks become "\n", and one at the end is left out.
static size_t lines_normalize(char *s, size_t n) {
  size_t to = 0;
  for (size_t i = 0; i < n; i++) {
    if (s[i] == '\r' && i + 1 < n && s[i + 1] == '\n')
      continue;
    s[to++] = s[i] == '\r' ? '\n' : s[i];
  }
  return to - (to && s[to - 1] == '\n');
}

void jt_lex(jt_parser *p, const char *text, size_t n) {
  char *s = lm_arena_strndup(p->t->a, text, n);
  lexer x = {
      .p = p,
      .s = s,
      .n = lines_normalize(s, n),
      .line = 1,
      .line_starts = true,
  };
  while (x.at < x.n && !p->fault)
    text_and_tag_lex(&x);
  token_add(&x, JT_END, "", 0);
}

// ---- strings

static int hex_digit(char c) {
  return is_digit(c) ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

// True if s begins with `digits` hexadecimal digits that are a code point; appends its character.
static bool escape_hex(const char *s, size_t left, size_t digits, lm_buf *out) {
  uint32_t point = 0;
  char bytes[4];
  if (left < digits)
    return false;
  for (size_t i = 0; i < digits; i++) {
    if (hex_digit(s[i]) < 0 || point > 0x10ffff)
      return false;
    point = 16 * point + (uint32_t)hex_digit(s[i]);
  }
  if (point > 0x10ffff || (point >= 0xd800 && point < 0xe000))
    return false;
  lm_buf_add(out, bytes, (size_t)lm_utf8_encode(point, bytes));
  return true;
}

// Appends the character of the escape at s[0..n), which begins with a backslash; returns its
// length, 0 if it is unsupported.
static size_t escape_add(const char *s, size_t n, lm_buf *out) {
  static const char letters[] = "abfnrtv\\'\"", bytes[] = "\a\b\f\n\r\t\v\\'\"";
  char c = n > 1 ? s[1] : 0;
  const char *letter = c ? strchr(letters, c) : NULL;
  size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
  if (letter) {
    lm_buf_add(out, bytes + (letter - letters), 1);
    return 2;
  }
  if (digits)
    return escape_hex(s + 2, n - 2, digits, out) ? 2 + digits : 0;
  if (!c || c == 'N' || is_digit(c))
    return 0;
  if (c != '\n')
    lm_buf_add(out, s, 1); // an unknown escape is text
  return c == '\n' ? 2 : 1;
}

jt_string jt_unescape(jt_parser *p, const jt_token *t) {
  lm_buf b = {0};
  for (size_t i = 0, n; i < t->n; i += n) {
    n = t->p[i] == '\\' ? escape_add(t->p + i, t->n - i, &b) : 1;
    if (t->p[i] != '\\')
      lm_buf_add(&b, t->p + i, 1);
    if (!n) {
      jt_refuse(p, t->line, "the escape in the string '%.*s' is unsupported", (int)t->n, t->p);
      break;
    }
  }
  jt_string s = {.p = lm_arena_strndup(p->t->a, b.p ? b.p : "", b.n), .n = (uint32_t)b.n};
  lm_buf_free(&b);
  return s;
}
