// fmt.c - the formatter. It works on tokens, not on the tree, so that comments, parentheses and
// line breaks are kept and the sequence of tokens, and so the tree, cannot change.
//
//   - A line is indented by two spaces for each open brace. If the braces of a block are on
//     different lines, '{' ends its line and '}' begins its line.
//   - A line inside parentheses is aligned with the token after the open parenthesis, or is
//     indented by two spaces if that parenthesis ends its line.
//   - Any other line that continues a statement is indented by four spaces.
//   - There is one space around operators and none inside parentheses. ';' is kept only between two
//     statements on one line.
//   - There is at most one empty line, and none after '{' or before '}'. Trailing comments of
//     consecutive lines are aligned.
#include "dsl/syntax/scan.h"
#include "runtime/base/utf8.h"
#include <string.h>

enum {
  COMMENT = 3,
  FARTHEST_ALIGNED = 60,
  UNALIGNED_DIFFERENCE = 25
};

// A token or a comment.
typedef struct lexeme {
  int kind;
  const char *text;
  size_t n;
  uint32_t newlines; // number of newlines before it
  bool broken;       // '{' and '}' of the block are on different lines
} lexeme;

typedef struct out_line {
  lm_buf code;
  const char *comment;
  size_t comment_n;
} out_line;
// Columns of lines inside parentheses, and of a line that begins with the closing parenthesis.
typedef struct paren_columns {
  uint32_t inside, closing;
} paren_columns;

typedef struct layout {
  lm_arena *arena;
  lexeme *lexemes;
  uint32_t n_lexemes, cap_lexemes;
  out_line *lines;
  uint32_t n_lines, cap_lines;
  paren_columns parens[LM_MAX_NESTING + 1];
  uint32_t n_parens;
  uint32_t braces;
  uint32_t indent; // of the current line
} layout;

// ---- tokens and comments

static void add_gap(layout *f, const char *s, const char *end, uint32_t *newlines) {
  while (s < end) {
    if (*s == '#') {
      size_t n = strcspn(s, "\n"), kept = n;
      while (kept && strchr(" \t\r", s[kept - 1]))
        kept--;
      LM_PUSH(f->arena, f->lexemes, f->n_lexemes, f->cap_lexemes) =
          (lexeme){COMMENT, s, kept, *newlines, false};
      *newlines = 0;
      s += n;
    } else
      *newlines += *s++ == '\n';
  }
}

static void read_lexemes(layout *f, lm_ctx *c, uint16_t source) {
  const lm_source *src = &c->sources[source];
  lm_scan scan = {c, source, 0, 1, 1};
  yyscan_t flex;
  if (lm_scan_lex_init_extra(&scan, &flex))
    LM_BUG("flex");
  lm_scan__scan_bytes(src->text, (int)src->n, flex);
  uint32_t newlines = 0;
  size_t end = 0; // of the previous lexeme
  for (int kind = 1; kind;) {
    union lm_dsl_value value;
    lm_loc at;
    kind = lm_scan_lex(&value, &at, flex);
    if (kind == LM_SCAN_NEWLINE)
      continue;
    size_t n = kind ? at.len : 0;
    size_t start = kind ? scan.offset - n : src->n;
    add_gap(f, src->text + end, src->text + start, &newlines);
    if (kind)
      LM_PUSH(f->arena, f->lexemes, f->n_lexemes, f->cap_lexemes) =
          (lexeme){kind, src->text + start, n, newlines, false};
    newlines = 0;
    end = start + n;
  }
  lm_scan_lex_destroy(flex);
}

// A ';' is needed only between two things on one line.
static void drop_separators(layout *f) {
  uint32_t k = 0;
  for (uint32_t i = 0; i < f->n_lexemes; i++) {
    lexeme *p = &f->lexemes[i];
    lexeme *next = i + 1 < f->n_lexemes ? p + 1 : NULL;
    bool first =
        !k || p->newlines || f->lexemes[k - 1].kind == '{' || f->lexemes[k - 1].kind == ';';
    bool last = !next || next->newlines || next->kind == '}' || next->kind == COMMENT;
    if (p->kind != ';' || !(first || last))
      f->lexemes[k++] = *p;
    else if (next && next->newlines < p->newlines)
      next->newlines = p->newlines;
  }
  f->n_lexemes = k;
}

static void mark_broken(layout *f) {
  uint32_t open[LM_MAX_NESTING + 1], n = 0, newlines[LM_MAX_NESTING + 1], total = 0;
  for (uint32_t i = 0; i < f->n_lexemes; i++) {
    lexeme *p = &f->lexemes[i];
    total += p->newlines;
    if (p->kind == '{' && n <= LM_MAX_NESTING) {
      open[n] = i;
      newlines[n++] = total;
    }
    if (p->kind != '}' || !n)
      continue;
    n--;
    p->broken = f->lexemes[open[n]].broken = total != newlines[n];
  }
}

// ---- spaces between two lexemes on one line

static bool is_keyword(const lexeme *p) { // flex returns NAME for all words
  static const char *const words[] = {"import", "fn",    "let",  "return", "emit",    "for",
                                      "in",     "carry", "if",   "then",   "else",    "divides",
                                      "mod",    "where", "from", "with",   "extends", "dim",
                                      "param",  "state", "sub",  "map"};
  for (size_t i = 0; p->kind == LM_TOKEN_NAME && i < LM_COUNT(words); i++)
    if (strlen(words[i]) == p->n && !memcmp(words[i], p->text, p->n))
      return true;
  return false;
}

static bool ends_operand(const lexeme *p) {
  return lm_ends_operand(p->kind) && !is_keyword(p);
}

// `before`: the lexeme before a, NULL if there is none.
static bool space_between(const lexeme *before, const lexeme *a, const lexeme *b) {
  if (strchr(")],;:", b->kind) && b->kind < 256)
    return false;
  if (a->kind == '(' || a->kind == '[' || a->kind == '.' || b->kind == '.' ||
      a->kind == LM_TOKEN_DOTDOT)
    return false;
  if (a->kind == '-' && !(before && ends_operand(before)))
    return false;
  if (b->kind == '(' || b->kind == '[')
    return !ends_operand(a) || a->kind == '}';
  return true;
}

// ---- lines

static uint32_t width(const out_line *l) { // in characters
  return (uint32_t)lm_utf8_count(l->code.p, l->code.n);
}

static out_line *current(layout *f) {
  return &f->lines[f->n_lines - 1];
}

static void new_line(layout *f, uint32_t indent) {
  LM_PUSH(f->arena, f->lines, f->n_lines, f->cap_lines) = (out_line){0};
  f->indent = indent;
  lm_buf_printf(&current(f)->code, "%*s", (int)indent, "");
}

static bool word_is(const lexeme *p, const char *s) {
  return p->n == strlen(s) && !memcmp(p->text, s, p->n);
}

static bool continues_statement(const lexeme *before, const lexeme *p) {
  if (!before || before->kind == '{' || before->kind == ';' || before->kind == COMMENT ||
      p->kind == '}')
    return false;
  return !ends_operand(before) || word_is(p, "where") || word_is(p, "from") || word_is(p, "with") ||
         word_is(p, "then") || word_is(p, "else");
}

// `before`: the last token before p.
static uint32_t indent_of(const layout *f, const lexeme *before, const lexeme *p) {
  if (f->n_parens) {
    const paren_columns *in = &f->parens[f->n_parens - 1];
    return p->kind == ')' || p->kind == ']' ? in->closing : in->inside;
  }
  uint32_t depth = f->braces - (p->kind == '}' && f->braces);
  return 2 * depth + (p->kind != COMMENT && continues_statement(before, p) ? 4 : 0);
}

// Quantities are written `20k docs`, `72GB`, `10%`. Patterns have no spaces.
static void add_text(lm_buf *b, const lexeme *p) {
  bool glued = p->kind == LM_TOKEN_PATTERN ||
               (p->kind == LM_TOKEN_QUANTITY && p->n > 1 && p->text[p->n - 1] == 'B');
  if (!glued && p->kind != LM_TOKEN_QUANTITY) {
    lm_buf_add(b, p->text, p->n);
    return;
  }
  for (size_t i = 0; i < p->n; i++) {
    bool is_space = p->text[i] == ' ' || p->text[i] == '\t';
    if (!is_space)
      lm_buf_add(b, p->text + i, 1);
    else if (!glued && b->p[b->n - 1] != ' ')
      lm_buf_puts(b, " ");
  }
}

static void open_paren(layout *f, const lexeme *next) {
  uint32_t column = width(current(f));
  bool hanging = !next || next->newlines || next->kind == COMMENT || column > FARTHEST_ALIGNED;
  paren_columns p =
      hanging ? (paren_columns){f->indent + 2, f->indent} : (paren_columns){column, column - 1};
  if (f->n_parens < LM_MAX_NESTING)
    f->parens[f->n_parens++] = p;
}

static void put_lexeme(layout *f, uint32_t i, const lexeme *before, const lexeme *before2) {
  const lexeme *p = &f->lexemes[i];
  const lexeme *previous = i ? p - 1 : NULL;
  bool inside_edge =
      previous && ((previous->kind == '{' && previous->broken) || (p->kind == '}' && p->broken));
  bool breaks = !previous || p->newlines || (inside_edge && p->kind != COMMENT);
  if (breaks && f->n_lines && p->newlines > 1 && !inside_edge)
    new_line(f, 0);
  if (breaks)
    new_line(f, indent_of(f, before, p));
  out_line *l = current(f);
  if (p->kind == COMMENT && !breaks) {
    l->comment = p->text;
    l->comment_n = p->n;
    return;
  }
  if (!breaks && before && space_between(before2, before, p))
    lm_buf_puts(&l->code, " ");
  add_text(&l->code, p);
  if (p->kind == '{')
    f->braces++;
  if (p->kind == '}' && f->braces)
    f->braces--;
  if ((p->kind == ')' || p->kind == ']') && f->n_parens)
    f->n_parens--;
  if (p->kind == '(' || p->kind == '[')
    open_paren(f, i + 1 < f->n_lexemes ? p + 1 : NULL);
}

// ---- output, with the trailing comments of consecutive lines in one column

static void write_run(layout *f, uint32_t from, uint32_t to, lm_buf *out) {
  uint32_t column = 0;
  for (uint32_t i = from; i < to; i++) {
    uint32_t w = width(&f->lines[i]);
    if (w > column)
      column = w;
  }
  for (uint32_t i = from; i < to; i++) {
    out_line *l = &f->lines[i];
    while (l->code.n && l->code.p[l->code.n - 1] == ' ')
      l->code.n--;
    if (l->code.n)
      lm_buf_add(out, l->code.p, l->code.n);
    if (l->comment)
      lm_buf_printf(out, "%*s", (int)(column + 2 - width(l)), "");
    if (l->comment)
      lm_buf_add(out, l->comment, l->comment_n);
    lm_buf_puts(out, "\n");
    lm_buf_free(&l->code);
  }
}

static bool aligned_with_next(const layout *f, uint32_t i) {
  const out_line *a = &f->lines[i];
  const out_line *b = a + 1;
  if (!a->comment || !b->comment)
    return false;
  uint32_t wa = width(a);
  uint32_t wb = width(b);
  return wa < wb + UNALIGNED_DIFFERENCE && wb < wa + UNALIGNED_DIFFERENCE;
}

static void write_lines(layout *f, lm_buf *out) {
  for (uint32_t i = 0; i < f->n_lines;) {
    uint32_t end = i + 1;
    while (end < f->n_lines && aligned_with_next(f, end - 1))
      end++;
    write_run(f, i, end, out);
    i = end;
  }
}

void lm_fmt(lm_ctx *c, uint16_t source, lm_buf *out) {
  layout f = {.arena = lm_arena_create()};
  read_lexemes(&f, c, source);
  drop_separators(&f);
  mark_broken(&f);
  const lexeme *before = NULL, *before2 = NULL;
  for (uint32_t i = 0; i < f.n_lexemes; i++) {
    put_lexeme(&f, i, before, before2);
    if (f.lexemes[i].kind != COMMENT) {
      before2 = before;
      before = &f.lexemes[i];
    }
  }
  write_lines(&f, out);
  lm_arena_destroy(f.arena);
}
