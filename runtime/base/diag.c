// diag.c - the compilation context, and diagnostics rendered as text and as JSON.
//
// Source text is untrusted: control characters, invalid UTF-8 and characters that reorder text are
// rendered as escapes, and only a part of a long line is shown. Columns in `file:line:col` count
// bytes; the position of the caret counts terminal cells.
#include "runtime/base/diag.h"
#include "runtime/base/utf8.h"
#include "runtime/base/wrap.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  LINE_MAX_BYTES = 160,
  LINE_BEFORE_CARET = 100,
  DEFAULT_MAX_ERRORS = 100,
  NEAREST_MAX = 63,
  HINT_CODES = 5,
  HANG = 2 // of the continuation lines of a headline
};

// ---- the context

lm_ctx *lm_ctx_create(void) {
  return lm_ctx_create_on(NULL);
}

lm_ctx *lm_ctx_create_on(const lm_ctx *base) {
  lm_arena *a = lm_arena_create();
  lm_ctx *c = LM_NEW(a, lm_ctx);
  c->arena = a;
  c->intern = lm_intern_create(a, base ? base->intern : NULL);
  c->diags_tail = &c->diags;
  c->max_errors = DEFAULT_MAX_ERRORS;
  for (uint32_t i = 0; i < (base ? base->n_sources : 1); i++)
    LM_PUSH(a, c->sources, c->n_sources, c->cap_sources) = base ? base->sources[i] : (lm_source){0};
  return c;
}

void lm_ctx_destroy(lm_ctx *c) {
  if (c)
    lm_arena_destroy(c->arena);
}

// A file that is loaded again, as for another variant of a plan, is the same source, so that
// repeated reports about it are recognised.
static uint16_t source_find(const lm_ctx *c, const char *path, const char *text, size_t n) {
  for (uint32_t i = 1; i < c->n_sources; i++) {
    const lm_source *s = &c->sources[i];
    if (s->n == n && !strcmp(s->path, path) && !memcmp(s->text, text, n))
      return (uint16_t)i;
  }
  return 0;
}

uint16_t lm_source_add(lm_ctx *c, const char *path, const char *text, size_t n) {
  uint16_t same = source_find(c, path, text, n);
  if (same)
    return same;
  LM_ASSERT(c->n_sources < UINT16_MAX);
  lm_source s = {lm_arena_strndup(c->arena, path, strlen(path)),
                 lm_arena_strndup(c->arena, text, n), n};
  LM_PUSH(c->arena, c->sources, c->n_sources, c->cap_sources) = s;
  return (uint16_t)(c->n_sources - 1);
}

// ---- adding

static const char *vformat(lm_ctx *c, const char *fmt, va_list ap) {
  lm_buf b = {0};
  lm_buf_vprintf(&b, fmt, ap);
  const char *s = lm_arena_strndup(c->arena, b.p ? b.p : "", b.n);
  lm_buf_free(&b);
  return s;
}

static bool same_location(lm_loc a, lm_loc b) {
  return a.file == b.file && a.line == b.line && a.col == b.col;
}

static bool same_report(const lm_diag *a, const lm_diag *b) {
  if (a->severity != b->severity || !same_location(a->loc, b->loc))
    return false;
  if (a->code && b->code && a->loc.file)
    return !strcmp(a->code, b->code);
  return a->code == b->code && !strcmp(a->text, b->text);
}

lm_diag *lm_diag_add(lm_ctx *c, lm_severity severity, lm_loc at, const char *code, const char *fmt,
                     va_list ap) {
  lm_diag *d = LM_NEW(c->arena, lm_diag);
  d->severity = severity;
  d->code = code;
  d->loc = at;
  d->text = vformat(c, fmt, ap);
  c->n_rejects += severity == LM_SEV_ERROR;
  for (const lm_diag *old = c->diags; old; old = old->next)
    if (same_report(old, d))
      return d;
  if (severity == LM_SEV_ERROR && c->n_errors++ >= c->max_errors)
    return d;
  if (severity == LM_SEV_WARNING && c->n_warnings++ >= c->max_errors)
    return d;
  *c->diags_tail = d;
  c->diags_tail = &d->next;
  return d;
}

lm_diag *lm_report_plain(lm_ctx *c, lm_loc at, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  lm_diag *d = lm_diag_add(c, LM_SEV_ERROR, at, NULL, fmt, ap);
  va_end(ap);
  return d;
}

lm_diag_mark lm_diag_mark_of(const lm_ctx *c) {
  return (lm_diag_mark){c->diags_tail, c->n_errors, c->n_warnings, c->n_rejects};
}

void lm_diag_return(lm_ctx *c, lm_diag_mark to) {
  c->n_errors = to.n_errors;
  c->n_warnings = to.n_warnings;
  c->n_rejects = to.n_rejects;
  c->diags_tail = to.tail;
  *to.tail = NULL;
}

void lm_diag_soften(lm_ctx *c, lm_diag *first, const char *what) {
  for (lm_diag *d = first ? first : c->diags; d; d = d->next) {
    if (d->severity != LM_SEV_ERROR)
      continue;
    d->severity = LM_SEV_NOTE;
    d->text = lm_arena_printf(c->arena, "%s: %s", what, d->text);
    c->n_errors--;
  }
}

void lm_diag_label(lm_ctx *c, lm_diag *d, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  d->label = vformat(c, fmt, ap);
  va_end(ap);
}

void lm_diag_help(lm_ctx *c, lm_diag *d, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  d->help = vformat(c, fmt, ap);
  va_end(ap);
}

static bool has_note(const lm_diag *d, lm_loc at, const char *text) {
  for (int i = 0; i < d->n_notes; i++)
    if (same_location(d->note[i].loc, at) && !strcmp(d->note[i].text, text))
      return true;
  return false;
}

void lm_diag_note(lm_ctx *c, lm_diag *d, lm_loc at, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  const char *text = vformat(c, fmt, ap);
  va_end(ap);
  if (d->n_notes == (int)LM_COUNT(d->note) || has_note(d, at, text))
    return;
  d->note[d->n_notes].loc = at;
  d->note[d->n_notes++].text = text;
}

void lm_diag_use(lm_ctx *c, lm_diag *d, lm_loc at) {
  for (uint32_t i = 0; i < d->n_uses; i++)
    if (same_location(d->uses[i], at))
      return;
  if (!d->n_uses) {
    d->uses_note = d->n_notes;
    lm_diag_note(c, d, at, "1 further use");
  }
  LM_PUSH(c->arena, d->uses, d->n_uses, d->cap_uses) = at;
  if (d->n_uses < 2 || d->uses_note == d->n_notes)
    return;
  d->note[d->uses_note].loc = at;
  d->note[d->uses_note].text =
      lm_arena_printf(c->arena, "%u further uses, the last one here", d->n_uses);
}

// ---- rendering

static void puts_safe(lm_buf *b, const char *s) {
  lm_buf_puts_shown(b, s, strlen(s));
}

typedef struct span {
  const char *s;
  size_t n;
} span;

static span line_of(const lm_source *src, uint32_t line) {
  const char *p = src->text;
  const char *end = src->text + src->n;
  while (--line && p < end) {
    const char *nl = memchr(p, '\n', (size_t)(end - p));
    p = nl ? nl + 1 : end;
  }
  const char *nl = memchr(p, '\n', (size_t)(end - p));
  size_t n = (size_t)((nl ? nl : end) - p);
  if (n && p[n - 1] == '\r')
    n--;
  return (span){p, n};
}

// Selects the part [*from, *to) of a long line that contains the caret, on character boundaries.
static void excerpt_bounds(span l, size_t caret, size_t *from, size_t *to) {
  *from = 0;
  *to = l.n;
  if (l.n <= LINE_MAX_BYTES)
    return;
  if (caret > LINE_BEFORE_CARET)
    *from = caret - LINE_BEFORE_CARET;
  if (l.n - *from > LINE_MAX_BYTES)
    *to = *from + LINE_MAX_BYTES;
  for (int i = 0; i < 3 && *from < caret && lm_utf8_continues(l.s[*from]); i++)
    ++*from;
  for (int i = 0; i < 3 && *to > caret && *to < l.n && lm_utf8_continues(l.s[*to]); i++)
    --*to;
}

static void add_caret(lm_buf *b, int blanks, int carets) {
  lm_buf_printf(b, "%*s", blanks, "");
  for (int i = 0; i < carets; i++)
    lm_buf_puts(b, "^");
}

typedef struct style {
  const char *strong;
  const char *error;
  const char *warning;
  const char *note;
  const char *dim;
  const char *off;
  int width; // of the terminal; 0: lines are not wrapped
} style;

// True if a terminal may get colors: without NO_COLOR (https://no-color.org), and if it has any.
static bool color_wanted(void) {
  const char *refused = getenv("NO_COLOR");
  const char *terminal = getenv("TERM");
  return !(refused && *refused) && !(terminal && !strcmp(terminal, "dumb"));
}

static style style_of(int width) {
  if (!width || !color_wanted())
    return (style){"", "", "", "", "", "", width};
  return (style){"\033[1m", "\033[1;31m", "\033[1;33m", "\033[1;36m", "\033[34m", "\033[0m", width};
}

static const char *severity_color(const style *st, lm_severity s) {
  return s == LM_SEV_ERROR ? st->error : s == LM_SEV_WARNING ? st->warning : st->note;
}
const char *lm_severity_name(lm_severity s) {
  static const char *const names[] = {"error", "warning", "note"};
  return names[s];
}

// Adds text whose first line begins at `column` > 0, and continuation lines at `hang`.
static void add_text(lm_buf *b, const style *st, int column, int hang, const char *text) {
  lm_buf line = {0};
  lm_buf wrapped = {0};
  lm_buf_printf(&line, "%*s", column, "");
  puts_safe(&line, text);
  lm_text_wrap(&wrapped, line.p, st->width, hang > st->width / 2 ? HANG : hang);
  lm_buf_puts(b, wrapped.p + column);
  lm_buf_free(&line);
  lm_buf_free(&wrapped);
}

// Adds "10 |     let k = …" and the caret line below it; returns the width of the gutter.
static int add_excerpt(const lm_ctx *c, const lm_diag *d, lm_buf *b, const style *st) {
  char number[16];
  int gutter = snprintf(number, sizeof number, "%u", d->loc.line);
  span l = line_of(&c->sources[d->loc.file], d->loc.line);
  size_t caret = d->loc.col ? d->loc.col - 1 : 0;
  size_t from;
  size_t to;
  if (caret > l.n)
    caret = l.n;
  excerpt_bounds(l, caret, &from, &to);
  lm_buf_printf(b, "%s%s |%s ", st->dim, number, st->off);
  size_t marked_end = caret + d->loc.len < to ? caret + d->loc.len : to;
  if (from)
    lm_buf_puts(b, "...");
  int blanks = (from ? 3 : 0) + lm_buf_puts_shown(b, l.s + from, caret - from);
  int carets = lm_buf_puts_shown(b, l.s + caret, marked_end - caret);
  lm_buf_puts_shown(b, l.s + marked_end, to - marked_end);
  lm_buf_printf(b, "%s\n%s%*s |%s ", to < l.n ? "..." : "", st->dim, gutter, "", st->off);
  lm_buf_puts(b, severity_color(st, d->severity));
  add_caret(b, blanks, carets ? carets : 1);
  if (d->label) {
    int column = gutter + 3 + blanks + (carets ? carets : 1) + 1;
    lm_buf_puts(b, " ");
    add_text(b, st, column, column, d->label);
  }
  lm_buf_printf(b, "%s\n", st->off);
  return gutter;
}

// Adds "   = text", or "   = help: text".
static void add_remark(lm_buf *b, const style *st, int gutter, const char *title,
                       const char *text) {
  int column = gutter + 3;
  lm_buf_printf(b, "%*s = ", gutter, "");
  if (*title)
    lm_buf_printf(b, "%s%s%s: ", st->note, title, st->off);
  add_text(b, st, column + (*title ? (int)strlen(title) + 2 : 0), column, text);
  lm_buf_puts(b, "\n");
}

static void add_note(const lm_ctx *c, const lm_diag *d, int i, int gutter, lm_buf *b,
                     const style *st) {
  lm_loc at = d->note[i].loc;
  lm_buf text = {0};
  lm_buf_puts(&text, d->note[i].text);
  if (at.file && at.file == d->loc.file)
    lm_buf_printf(&text, " (line %u)", at.line);
  else if (at.file)
    lm_buf_printf(&text, " (%s:%u:%u)", c->sources[at.file].path, at.line, at.col);
  add_remark(b, st, gutter, "", text.p ? text.p : "");
  lm_buf_free(&text);
}

// Adds "llama.lm:10:33: error[E031]: axis mismatch in dot".
static void add_headline(const lm_ctx *c, const lm_diag *d, lm_buf *b, const style *st) {
  lm_buf at = {0};
  lm_buf kind = {0};
  if (d->loc.file) {
    puts_safe(&at, c->sources[d->loc.file].path);
    lm_buf_printf(&at, ":%u:%u:", d->loc.line, d->loc.col);
    lm_buf_printf(b, "%s%s%s ", st->strong, at.p, st->off);
  }
  lm_buf_puts(&kind, lm_severity_name(d->severity));
  if (d->code)
    lm_buf_printf(&kind, "[%s]", d->code);
  lm_buf_printf(b, "%s%s:%s %s", severity_color(st, d->severity), kind.p, st->off, st->strong);
  int column = (at.p ? lm_text_columns(at.p) + 1 : 0) + (int)kind.n + 2;
  add_text(b, st, column, HANG, d->text);
  lm_buf_printf(b, "%s\n", st->off);
  lm_buf_free(&at);
  lm_buf_free(&kind);
}

static void add_diag(const lm_ctx *c, const lm_diag *d, lm_buf *b, const style *st) {
  int gutter = 2;
  add_headline(c, d, b, st);
  if (d->loc.file)
    gutter = add_excerpt(c, d, b, st);
  else if (d->label)
    add_remark(b, st, gutter, "", d->label);
  for (int i = 0; i < d->n_notes; i++)
    add_note(c, d, i, gutter, b, st);
  if (d->help)
    add_remark(b, st, gutter, "help", d->help);
}

typedef struct ordered {
  const lm_diag *d;
  uint32_t i;
} ordered;

static int by_location(const void *pa, const void *pb) {
  const ordered *a = pa, *b = pb;
  lm_loc x = a->d->loc;
  lm_loc y = b->d->loc;
  if (x.file != y.file)
    return x.file < y.file ? -1 : 1;
  if (x.line != y.line)
    return x.line < y.line ? -1 : 1;
  if (x.col != y.col)
    return x.col < y.col ? -1 : 1;
  return a->i < b->i ? -1 : 1;
}

static ordered *sorted(const lm_ctx *c, uint32_t *n) {
  *n = 0;
  for (const lm_diag *d = c->diags; d; d = d->next)
    ++*n;
  ordered *v = lm_calloc(*n + 1, sizeof *v);
  uint32_t i = 0;
  for (const lm_diag *d = c->diags; d; d = d->next, i++)
    v[i] = (ordered){d, i};
  if (*n)
    qsort(v, *n, sizeof *v, by_location);
  return v;
}

void lm_diag_render(const lm_ctx *c, lm_buf *out, int width) {
  style st = style_of(width);
  uint32_t n;
  ordered *v = sorted(c, &n);
  for (uint32_t i = 0; i < n; i++)
    add_diag(c, v[i].d, out, &st);
  lm_free(v);
  if (c->n_errors > c->max_errors)
    lm_buf_printf(out, "... and %u more errors\n", c->n_errors - c->max_errors);
}

// ---- the hint

// The codes of the errors, each once, in the order of their locations.
static int codes_of(const lm_ctx *c, const char *codes[HINT_CODES]) {
  uint32_t n;
  int n_codes = 0;
  ordered *v = sorted(c, &n);
  for (uint32_t i = 0; i < n && n_codes < HINT_CODES; i++) {
    const char *code = v[i].d->severity == LM_SEV_ERROR ? v[i].d->code : NULL;
    bool known = !code;
    for (int k = 0; k < n_codes; k++)
      known |= !strcmp(codes[k], code ? code : "");
    if (!known)
      codes[n_codes++] = code;
  }
  lm_free(v);
  return n_codes;
}

void lm_diag_hint(const lm_ctx *c, lm_buf *out) {
  const char *codes[HINT_CODES];
  int n = codes_of(c, codes);
  if (n == 1)
    lm_buf_printf(out, "`lmc explain %s` tells more about this error\n", codes[0]);
  if (n < 2)
    return;
  lm_buf_puts(out, "`lmc explain CODE` tells more about an error, such as");
  for (int i = 0; i < n; i++)
    lm_buf_printf(out, "%s %s", i ? "," : "", codes[i]);
  lm_buf_puts(out, "\n");
}

// ---- JSON

static void json_field(lm_buf *b, const char *key, const char *value) {
  lm_buf_printf(b, ", \"%s\": ", key);
  if (value)
    lm_buf_json(b, value);
  else
    lm_buf_puts(b, "null");
}

static void json_location(const lm_ctx *c, lm_buf *b, lm_loc at) {
  json_field(b, "file", at.file ? c->sources[at.file].path : NULL);
  lm_buf_printf(b, ", \"line\": %u, \"column\": %u, \"length\": %u", at.line, at.col, at.len);
}

void lm_diag_render_json(const lm_ctx *c, lm_buf *out) {
  uint32_t n;
  ordered *v = sorted(c, &n);
  lm_buf_puts(out, "[");
  for (uint32_t i = 0; i < n; i++) {
    const lm_diag *d = v[i].d;
    lm_buf_printf(out, "%s\n {\"severity\": \"%s\"", i ? "," : "", lm_severity_name(d->severity));
    json_field(out, "code", d->code);
    json_location(c, out, d->loc);
    json_field(out, "message", d->text);
    json_field(out, "label", d->label);
    json_field(out, "help", d->help);
    lm_buf_puts(out, ", \"notes\": [");
    for (int k = 0; k < d->n_notes; k++) {
      lm_buf_puts(out, k ? ", {\"kind\": \"note\"" : "{\"kind\": \"note\"");
      json_field(out, "message", d->note[k].text);
      json_location(c, out, d->note[k].loc);
      lm_buf_puts(out, "}");
    }
    lm_buf_puts(out, "]}");
  }
  lm_buf_puts(out, n ? "\n]\n" : "]\n");
  lm_free(v);
}

// ---- suggestions

static int min(int a, int b) {
  return a < b ? a : b;
}

// Whether two characters are taken for each other: letters of either case, 0 and o, 1, l and i.
static bool look_alike(char a, char b) {
  static const char *const sets[] = {"0oO", "1lLiI"};
  for (size_t i = 0; i < LM_COUNT(sets); i++)
    if (strchr(sets[i], a) && strchr(sets[i], b))
      return true;
  return tolower((unsigned char)a) == tolower((unsigned char)b);
}

static int replace_cost(char a, char b) {
  return a == b ? 0 : look_alike(a, b) ? 1 : 2;
}

// Twice the optimal string alignment distance (insertions, deletions, replacements, transpositions
// of neighbours), for words of up to NEAREST_MAX bytes. Replacing a character by a similar one
// counts half.
static int edit_distance(const char *a, int n, const char *b, int m) {
  int row[3][NEAREST_MAX + 1];
  for (int j = 0; j <= m; j++)
    row[0][j] = 2 * j;
  for (int i = 1; i <= n; i++) {
    int *cur = row[i % 3];
    int *up = row[(i + 2) % 3];
    int *up2 = row[(i + 1) % 3];
    cur[0] = 2 * i;
    for (int j = 1; j <= m; j++) {
      int cost = replace_cost(a[i - 1], b[j - 1]);
      cur[j] = min(min(up[j] + 2, cur[j - 1] + 2), up[j - 1] + cost);
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        cur[j] = min(cur[j], up2[j - 2] + 2);
    }
  }
  return row[n % 3][m];
}

// True if one word is a prefix or a suffix of the other and has at least four letters: weight_decay
// and decay, xentropy and xent.
static bool extends(const char *a, const char *b) {
  size_t n = strlen(a);
  size_t m = strlen(b);
  if (n < m)
    return extends(b, a);
  return m >= 4 && (!strncmp(a, b, m) || !strcmp(a + n - m, b));
}

static const char *nearest_extended(const char *word, const char *const *names, int n) {
  const char *best = NULL;
  for (int i = 0; i < n; i++) {
    if (!names[i] || !strcmp(word, names[i]) || !extends(word, names[i]))
      continue;
    if (!best || strlen(names[i]) > strlen(best))
      best = names[i];
  }
  return best;
}

const char *lm_nearest(const char *word, const char *const *names, int n) {
  size_t len = strlen(word);
  if (len < 2 || len > NEAREST_MAX)
    return NULL; // every one-letter word would match
  const char *best = NULL;
  int best_distance = 2 * min((int)(len + 2) / 3, 3) + 1;
  for (int i = 0; i < n; i++) {
    size_t m = names[i] ? strlen(names[i]) : 0;
    if (!m || m > NEAREST_MAX || !strcmp(word, names[i]))
      continue;
    int d = edit_distance(word, (int)len, names[i], (int)m);
    if (d < best_distance) {
      best_distance = d;
      best = names[i];
    }
  }
  return best ? best : nearest_extended(word, names, n);
}
