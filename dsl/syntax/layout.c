// layout.c - the layer between flex and bison. It decides where a newline ends a statement, which
// words are keywords in their context, where unclosed parentheses and braces end, and which tokens
// are skipped after an error.
//
// As in Go, a ';' is inserted for a newline after an operand outside of parentheses (unless the
// next word continues the statement), before '}' and at the end of the file. A ';' is also inserted
// before a word that can only begin a statement or a declaration if it follows an operator or is
// inside parentheses. The parser then reports the missing part at that word and continues with an
// intact statement, so an error invalidates only the statement that contains it.
#include "dsl/syntax/scan.h"
#include <string.h>

typedef enum {
  WORD,
  STARTER, // can only begin a statement or a member
  DECLARES // begins a declaration
} word_class;

typedef struct token {
  int kind;
  word_class class; // WORD if it is not a keyword
  union lm_dsl_value value;
  lm_loc loc;
  size_t offset; // offset of the first byte
  bool after_newline;
  lm_loc newline; // the first newline after the previous token
} token;

typedef struct opening {
  char which;
  lm_loc loc;
} opening;

struct lm_layout {
  lm_ctx *ctx;
  const lm_source *source;
  yyscan_t flex;
  lm_scan scan;
  token next;
  bool has_next; // one token of lookahead
  token current; // the last token returned; for an inserted one, the token that follows it
  enum {
    FROM_TEXT,
    INSERTED,
    INSERTED_LINE_END
  } current_origin;
  int last; // kind of the last token returned
  opening open[LM_MAX_NESTING];
  int n_open;
  int parens; // open parentheses and brackets since the innermost open brace
  int braces; // open braces; includes the implicit brace of --set
  int base;   // the value of `braces` at top level: 1 for --set
  enum {
    NOT_RECOVERING,
    TO_SEPARATOR,
    TO_DECLARATION
  } recovery;
  int recovery_braces;
  uint32_t errors_before; // errors of the context before this text
  bool started, stopped, unclosed_reported;
  bool unclosed; // a brace of the declaration that was read last is never closed
};

enum {
  SEPARATOR = ';',
  END = LM_TOKEN_YYEOF
};

// ---- words

static const struct keyword {
  const char *text;
  int kind;
  word_class class;
} KEYWORDS[] = {
    {"import", LM_TOKEN_IMPORT, DECLARES},
    {"fn", LM_TOKEN_FN, DECLARES},
    {"block", LM_TOKEN_BLOCK, DECLARES},
    {"model", LM_TOKEN_MODEL, DECLARES},
    {"optimizer", LM_TOKEN_OPTIMIZER, DECLARES},
    {"format", LM_TOKEN_FORMAT, DECLARES},
    {"data", LM_TOKEN_DATA, DECLARES},
    {"recipe", LM_TOKEN_RECIPE, DECLARES},
    {"let", LM_TOKEN_LET, STARTER},
    {"return", LM_TOKEN_RETURN, STARTER},
    {"emit", LM_TOKEN_EMIT, STARTER},
    {"for", LM_TOKEN_FOR, STARTER},
    {"dim", LM_TOKEN_DIM, STARTER},
    {"param", LM_TOKEN_PARAM, STARTER},
    {"state", LM_TOKEN_STATE, STARTER},
    {"sub", LM_TOKEN_SUB, STARTER},
    {"map", LM_TOKEN_MAP, STARTER},
    {"extends", LM_TOKEN_EXTENDS, WORD},
    {"from", LM_TOKEN_FROM, WORD},
    {"with", LM_TOKEN_WITH, WORD},
    {"where", LM_TOKEN_WHERE, WORD},
    {"in", LM_TOKEN_IN, WORD},
    {"carry", LM_TOKEN_CARRY, WORD},
    {"if", LM_TOKEN_IF, WORD},
    {"then", LM_TOKEN_THEN, WORD},
    {"else", LM_TOKEN_ELSE, WORD},
    {"divides", LM_TOKEN_DIVIDES, WORD},
    {"mod", LM_TOKEN_MOD, WORD},
};

static const struct keyword *keyword_find(const char *text) {
  for (size_t i = 0; i < LM_COUNT(KEYWORDS); i++)
    if (KEYWORDS[i].text[0] == text[0] && !strcmp(KEYWORDS[i].text, text))
      return &KEYWORDS[i];
  return NULL;
}

bool lm_ends_operand(int kind) {
  switch (kind) {
  case LM_TOKEN_NAME:
  case LM_TOKEN_NUMBER:
  case LM_TOKEN_QUANTITY:
  case LM_TOKEN_STRING:
  case LM_TOKEN_PATTERN:
  case ')':
  case ']':
  case '}': return true;
  default: return false;
  }
}

// True if a line that begins with this token continues the statement of the previous line.
static bool continues_statement(int kind) {
  return kind == LM_TOKEN_WHERE || kind == LM_TOKEN_FROM || kind == LM_TOKEN_WITH ||
         kind == LM_TOKEN_THEN || kind == LM_TOKEN_ELSE;
}

static bool is_word_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '"';
}

// A word such as `model` begins a declaration at brace depth 0. In column 1 and followed by a name
// it does so at any depth: a brace or parenthesis before it is unclosed.
static bool declares_here(const struct lm_layout *t, const token *n) {
  bool margin = n->loc.col == 1 && t->base == 0;
  if (t->braces == 0 && (t->parens == 0 || margin))
    return true;
  const char *after = t->source->text + n->offset + n->loc.len;
  size_t blanks = strspn(after, " \t");
  return margin && blanks && is_word_start(after[blanks]);
}

// The comment lines directly above the declaration at `offset`, without '#'; NULL if there are
// none.
static const char *doc_above(const struct lm_layout *t, size_t offset) {
  const char *text = t->source->text;
  const char *end = text + offset;
  const char *from = end;
  while (end > text && (end[-1] == ' ' || end[-1] == '\t'))
    end--;
  if (end > text && end[-1] != '\n')
    return NULL;
  for (const char *p = end; p > text;) { // p: the start of a line; test the line above
    const char *line = p - 1;
    while (line > text && line[-1] != '\n')
      line--;
    if (line[strspn(line, " \t")] != '#')
      break;
    from = p = line;
  }
  if (from >= end)
    return NULL;
  lm_buf b = {0};
  for (const char *p = from; p < end;) {
    p = strchr(p, '#') + 1;
    if (*p == ' ')
      p++;
    size_t n = strcspn(p, "\n");
    lm_buf_add(&b, p, n && p[n - 1] == '\r' ? n - 1 : n);
    p += n + 1;
    if (p < end)
      lm_buf_puts(&b, "\n");
  }
  const char *doc = lm_arena_strndup(t->ctx->arena, b.p ? b.p : "", b.n);
  lm_buf_free(&b);
  return doc;
}

// ---- reading

struct lm_layout *lm_layout_create(lm_ctx *c, uint16_t source, bool is_item) {
  struct lm_layout *t = LM_NEW(c->arena, struct lm_layout);
  const lm_source *s = &c->sources[source];
  t->ctx = c;
  t->source = s;
  t->scan = (lm_scan){c, source, 0, 1, 1};
  t->base = t->braces = is_item;
  t->errors_before = c->n_errors;
  t->last = SEPARATOR;
  if (lm_scan_lex_init_extra(&t->scan, &t->flex))
    LM_BUG("flex");
  lm_scan__scan_bytes(s->text, (int)s->n, t->flex);
  return t;
}

void lm_layout_destroy(struct lm_layout *t) {
  lm_scan_lex_destroy(t->flex);
}

void lm_layout_stop(struct lm_layout *t) {
  t->stopped = true;
}
bool lm_layout_stopped(const struct lm_layout *t) {
  return t->stopped;
}

static void make_keyword(struct lm_layout *t, token *n) {
  const struct keyword *k = keyword_find(n->value.name.text);
  if (!k || (k->class == DECLARES && !declares_here(t, n)))
    return;
  n->kind = k->kind;
  n->class = k->class;
  if (k->class == DECLARES)
    n->value.doc = doc_above(t, n->offset);
}

static token *peek(struct lm_layout *t) {
  token *n = &t->next;
  if (t->has_next)
    return n;
  t->has_next = true;
  *n = (token){0};
  do {
    n->offset = t->scan.offset;
    n->loc = (lm_loc){t->scan.file, 1, t->scan.line, t->scan.col};
    if (t->ctx->n_errors - t->errors_before >= t->ctx->max_errors)
      t->stopped = true;
    t->scan.skipping = t->recovery != NOT_RECOVERING && !n->after_newline;
    n->kind = t->stopped ? END : lm_scan_lex(&n->value, &n->loc, t->flex);
    if (n->kind == LM_SCAN_NEWLINE && !n->after_newline) {
      n->after_newline = true;
      n->newline = n->loc;
    }
    if (n->kind != END)
      n->offset = t->scan.offset - n->loc.len;
  } while (n->kind == LM_SCAN_NEWLINE);
  if (n->kind == LM_TOKEN_NAME)
    make_keyword(t, n);
  return n;
}

// ---- nesting

static void pop_parens(struct lm_layout *t) {
  while (t->parens) {
    t->n_open--;
    t->parens--;
  }
}

static void push(struct lm_layout *t, const token *n) {
  if (t->n_open == LM_MAX_NESTING) {
    LM_REPORT(t->ctx, n->loc, E00A, LM_MAX_NESTING);
    t->stopped = true;
    return;
  }
  if (n->kind == '{')
    pop_parens(t);
  t->open[t->n_open++] = (opening){(char)n->kind, n->loc};
  if (n->kind == '{')
    t->braces++;
  else
    t->parens++;
}

static void pop_brace(struct lm_layout *t) {
  pop_parens(t);
  t->n_open--;
  t->braces--;
}

static void consume(struct lm_layout *t, const token *n) {
  if (n->kind == '(' || n->kind == '[' || n->kind == '{')
    push(t, n);
  else if (n->kind == '}')
    pop_brace(t);
  else if ((n->kind == ')' || n->kind == ']') && t->parens) {
    t->n_open--;
    t->parens--;
  } else if (n->class != WORD)
    pop_parens(t);
}

lm_loc lm_layout_unclosed(const struct lm_layout *t, char *out_which) {
  *out_which = t->parens ? t->open[t->n_open - 1].which : 0;
  return t->parens ? t->open[t->n_open - 1].loc : (lm_loc){0};
}

bool lm_layout_take_unclosed(struct lm_layout *t) {
  bool unclosed = t->unclosed;
  t->unclosed = false;
  return unclosed;
}

// Reports the unclosed brace before n, once for all braces that n ends.
static void report_unclosed(struct lm_layout *t, const token *n) {
  bool in_string = t->scan.string_unclosed; // the brace may be in the rest of that line
  t->unclosed = true;
  if (t->stopped || t->unclosed_reported || in_string || t->recovery == TO_DECLARATION)
    return;
  lm_diag *d = LM_REPORT(t->ctx, t->open[t->n_open - t->parens - 1].loc, E009);
  if (n->kind != END)
    lm_diag_note(t->ctx, d, n->loc, "the next declaration begins here, before a '}'");
  t->unclosed_reported = true;
}

// ---- one token, with inserted tokens

static token insert_token(struct lm_layout *t, int kind, lm_loc at) {
  token k = {
      .kind = kind,
      .loc = at,
  };
  t->last = kind;
  t->current = t->next;
  t->current_origin = INSERTED;
  return k;
}

static token insert_line_end(struct lm_layout *t) {
  token k = insert_token(t, SEPARATOR, t->next.newline);
  t->current_origin = INSERTED_LINE_END;
  return k;
}

static bool after_separator(const struct lm_layout *t) {
  return t->last == SEPARATOR || t->last == '{';
}

// True if all open parentheses and braces end before n.
static bool ends_all(const struct lm_layout *t, const token *n) {
  return n->kind == END || (n->class == DECLARES && t->braces > t->base);
}

static token step(struct lm_layout *t) {
  for (;;) {
    token *n = peek(t);
    bool ends_line =
        lm_ends_operand(t->last) && !t->parens && n->after_newline && !continues_statement(n->kind);
    bool interrupts = n->class != WORD && (t->parens || !lm_ends_operand(t->last));
    if (ends_line)
      return insert_line_end(t);
    if (!after_separator(t) && (n->kind == '}' || ends_all(t, n) || interrupts))
      return insert_token(t, SEPARATOR, n->loc);
    if (ends_all(t, n) && t->braces > t->base) {
      report_unclosed(t, n);
      pop_brace(t);
      return insert_token(t, '}', n->loc);
    }
    t->has_next = n->kind == END;
    if (n->kind == '}' && t->braces == t->base) {
      if (t->recovery != TO_DECLARATION)
        LM_REPORT(t->ctx, n->loc, E00E);
      continue;
    }
    consume(t, n);
    t->last = n->kind;
    t->current = *n;
    t->current_origin = FROM_TEXT;
    t->unclosed_reported = false;
    return *n;
  }
}

// ---- recovery

void lm_layout_recover(struct lm_layout *t) {
  int level = t->braces - (t->current.kind == '{' && t->current_origin == FROM_TEXT);
  if (t->last != SEPARATOR) {
    t->recovery = TO_SEPARATOR;
    t->recovery_braces = level;
  } else if (level == 0)
    t->recovery = TO_DECLARATION;
}

// True for a keyword in column 1: only there it certainly begins a declaration.
static bool begins_declaration(const token *k) {
  return k->loc.col == 1 && (k->class == DECLARES || k->kind == LM_TOKEN_LET);
}

static token next(struct lm_layout *t) {
  token k = step(t);
  if (t->recovery == TO_SEPARATOR) {
    while (k.kind != END && (k.kind != SEPARATOR || t->braces > t->recovery_braces))
      k = step(t);
    t->recovery = t->recovery_braces ? NOT_RECOVERING : TO_DECLARATION;
  } else if (t->recovery == TO_DECLARATION) {
    while (k.kind != END && !begins_declaration(&k))
      k = step(t);
    t->recovery = NOT_RECOVERING;
  }
  return k;
}

// `add NAME` and `extra NAME` at the beginning of a statement or member and `after_step {` are
// keywords, else names.
static int contextual(struct lm_layout *t, const token *k, bool begins) {
  if (k->kind != LM_TOKEN_NAME || !begins)
    return k->kind;
  const token *n = peek(t);
  bool of_name = n->kind == LM_TOKEN_NAME && !n->after_newline;
  if (of_name && !strcmp(k->value.name.text, "add"))
    return LM_TOKEN_ADD;
  if (of_name && !strcmp(k->value.name.text, "extra"))
    return LM_TOKEN_EXTRA;
  return n->kind == '{' && !strcmp(k->value.name.text, "after_step") ? LM_TOKEN_AFTER_STEP
                                                                     : k->kind;
}

int lm_dsl_lex(union lm_dsl_value *value, lm_loc *loc, lm_parser *ps) {
  struct lm_layout *t = ps->layout;
  if (!t->started) {
    t->started = true;
    *loc = (lm_loc){t->scan.file, 0, 1, 1};
    return t->base ? LM_TOKEN_START_ITEM : LM_TOKEN_START_FILE;
  }
  bool begins = after_separator(t);
  token k = next(t);
  *value = k.value;
  *loc = k.loc;
  if (k.kind != LM_SCAN_BAD)
    return contextual(t, &k, begins || k.after_newline);
  lm_layout_recover(t);
  return LM_TOKEN_LM_DSL_error;
}

// ---- the current token in messages

lm_sym lm_layout_name(const struct lm_layout *t) {
  return t->current.kind == LM_TOKEN_NAME ? t->current.value.name.text : NULL;
}

static bool is_word(char c) {
  return (c >= '0' && c <= '9') || (c != '"' && is_word_start(c));
}

lm_sym lm_layout_word_before(const struct lm_layout *t, lm_loc *out_at) {
  const char *text = t->source->text;
  const char *end = text + t->current.offset;
  while (end > text && (end[-1] == ' ' || end[-1] == '\t'))
    end--;
  const char *from = end;
  while (from > text && is_word(from[-1]))
    from--;
  if (from == end)
    return NULL;
  size_t back = (size_t)(text + t->current.offset - from);
  *out_at = (lm_loc){t->current.loc.file, (uint16_t)(end - from), t->current.loc.line,
                     t->current.loc.col - (uint32_t)back};
  return lm_intern_n(t->ctx->intern, from, (size_t)(end - from));
}

const char *lm_layout_text_after(const struct lm_layout *t) {
  return t->source->text + t->current.offset + t->current.loc.len;
}

bool lm_layout_begins_statement(const struct lm_layout *t, lm_loc word) {
  const char *text = t->source->text;
  const char *at = text + t->current.offset - (t->current.loc.col - word.col);
  while (at > text && (at[-1] == ' ' || at[-1] == '\t'))
    at--;
  return at == text || strchr("\n;{", at[-1]);
}

void lm_layout_found(const struct lm_layout *t, lm_buf *out) {
  const token *g = &t->current;
  int len = g->loc.len < 40 ? g->loc.len : 40;
  if (t->current_origin == INSERTED_LINE_END)
    lm_buf_puts(out, "the end of the line");
  else if (g->kind == END)
    lm_buf_puts(out, "the end of the input");
  else if (g->kind == LM_TOKEN_STRING)
    lm_buf_puts(out, "a string");
  else {
    const char *kind = g->kind == LM_TOKEN_NAME     ? "name "
                       : g->kind == LM_TOKEN_NUMBER ? "number "
                                                    : "";
    lm_buf_printf(out, "%s'%.*s'", kind, len, t->source->text + g->offset);
  }
}
