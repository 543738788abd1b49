// syntax_error.c - the messages of syntax errors: "found X, expected Y or Z", with a help for
// common mistakes.
#include "dsl/syntax/parse.h"
#include <string.h>

enum {
  MAX_LISTED = 6 // tokens that a message names
};

// Tokens that messages name together: if `sign` is expected, `text` replaces all members.
typedef struct group {
  const char *sign, *text, *members[22];
} group;

static const group GROUPS[] = {
    {"'import'",
     "a declaration (import, fn, block, model, optimizer, format, data, recipe, let)",
     {"'import'", "'fn'", "'block'", "'model'", "'optimizer'", "'format'", "'data'", "'recipe'",
      "'let'", "';'", "the end of the input"}},
    {"'param'",
     "a member (dim, param, state, sub, map or a method)",
     {"'dim'", "'param'", "'state'", "'sub'", "'map'", "a name", "'after_step'", "'extra'", "';'",
      "'}'"}},
    {"'return'",
     "a statement (let, return, emit, for, add, or NAME = ...)",
     {"'let'", "'return'", "'emit'", "'for'", "'add'", "a name", "';'", "'}'"}},
    {"a number",
     "an expression",
     {"a name", "a string", "a pattern", "a number", "a quantity", "'('", "'['", "'-'", "'if'",
      "'..'"}},
    {"'+'",
     "an operator",
     {"'+'", "'-'", "'*'", "'/'", "'mod'", "'^'", "'&'", "'|'", "'=='", "'!='", "'<'", "'>'",
      "'<='", "'>='", "'in'", "'divides'", "'('", "'['", "'.'"}},
};

static bool has(const lm_expected *w, const char *text) {
  for (int i = 0; i < w->n; i++)
    if (!strcmp(w->v[i], text))
      return true;
  return false;
}

static void drop(lm_expected *w, const char *text) {
  int k = 0;
  for (int i = 0; i < w->n; i++)
    if (strcmp(w->v[i], text))
      w->v[k++] = w->v[i];
  w->n = k;
}

// An item may begin a path, a section or a call; '=' is the most probable token, so it comes first.
static void put_assignment_first(lm_expected *w) {
  if (!has(w, "'='") || !has(w, "'{'"))
    return;
  drop(w, "'='");
  memmove(w->v + 1, w->v, sizeof *w->v * (size_t)w->n++);
  w->v[0] = "'='";
}

// Replaces the members of each group by the text of the group.
static void group_tokens(lm_expected *w) {
  const char *groups[LM_COUNT(GROUPS)];
  int n_groups = 0;
  put_assignment_first(w);
  for (size_t g = 0; g < LM_COUNT(GROUPS); g++) {
    if (!has(w, GROUPS[g].sign))
      continue;
    for (int i = 0; GROUPS[g].members[i]; i++)
      drop(w, GROUPS[g].members[i]);
    groups[n_groups++] = GROUPS[g].text;
  }
  for (int i = 0; i < n_groups; i++)
    w->v[w->n++] = groups[i];
}

static bool is_comparison(const char *token) {
  return token[0] == '\'' && strchr("<>=!", token[1]) && strcmp(token, "'='");
}

// True if the unexpected token is a keyword, by its text, because layout.c inserts a ';' before a
// word that begins a member or a statement.
static bool is_keyword(const char *found) {
  return found[0] == '\'' && found[1] >= 'a' && found[1] <= 'z';
}

// The unit for a name after the word `before`, such as min for 5 minutes; NULL if there is none.
static const char *unit_meant(lm_sym before, lm_sym name) {
  static const char *const units[] = {"tokens", "steps", "epochs", "docs", "seqs", "hours"};
  static const char *const words[][2] = {
      {"minute", "min"},    {"mins", "min"},   {"second", "s"},      {"sec", "s"},
      {"hr", "hours"},      {"iter", "steps"}, {"document", "docs"}, {"row", "seqs"},
      {"sequence", "seqs"}, {"gb", "GB"},      {"mb", "MB"},         {"gib", "GiB"},
      {"mib", "MiB"}};
  for (size_t i = 0; name && i < LM_COUNT(words); i++)
    if (!strncmp(name, words[i][0], strlen(words[i][0])))
      return words[i][1];
  bool is_number = name && before && strspn(before, "0123456789");
  return is_number ? lm_nearest(name, units, LM_COUNT(units)) : NULL;
}

typedef struct word_pair {
  const char *found, *meant;
} word_pair;

// The equivalent of a word of other languages; NULL if there is none.
static const char *meant_by(const word_pair *pairs, size_t n, const char *word) {
  for (size_t i = 0; i < n; i++)
    if (!strcmp(pairs[i].found, word))
      return pairs[i].meant;
  return NULL;
}

// The keyword of a declaration that `name` was probably meant to be; NULL if there is none.
static const char *start_meant(const char *name) {
  static const char *const starts[] = {"import", "fn",   "block",  "model", "optimizer",
                                       "format", "data", "recipe", "let"};
  static const word_pair others[] = {{"def", "fn"},      {"func", "fn"},      {"function", "fn"},
                                     {"class", "block"}, {"struct", "block"}, {"module", "block"},
                                     {"const", "let"},   {"var", "let"},      {"use", "import"}};
  const char *meant = meant_by(others, LM_COUNT(others), name);
  return meant ? meant : lm_nearest(name, starts, LM_COUNT(starts));
}

// If only one token is expected after a name: the keyword of a statement or member that the name
// `before` was probably meant to be; NULL if there is none.
static const char *first_word_meant(const lm_expected *expected, const char *before) {
  static const char *const statements[] = {"let", "return", "emit", "for"};
  static const char *const members[] = {"dim", "param", "state", "sub", "map"};
  static const word_pair others[] = {{"var", "let"}, {"const", "let"}};
  if (!before || expected->n != 1)
    return NULL;
  bool statement = has(expected, "'='"), member = has(expected, "'('");
  const char *meant = statement ? meant_by(others, LM_COUNT(others), before) : NULL;
  if (meant)
    return meant;
  if (statement)
    return lm_nearest(before, statements, LM_COUNT(statements));
  return member ? lm_nearest(before, members, LM_COUNT(members)) : NULL;
}

static const char *operator_meant(const char *name) {
  static const word_pair pairs[] = {{"and", "'&'"}, {"or", "'|'"}, {"is", "'=='"}, {"xor", "'!='"}};
  return name ? meant_by(pairs, LM_COUNT(pairs), name) : NULL;
}

// The help for an expression where a statement is expected, and for a method with a keyword; NULL
// if the error is another one. The name `before` begins the statement or member.
static const char *start_help(const lm_expected *expected, const char *before, const char *token) {
  static const char *const functions[] = {"def", "func", "function"};
  bool is_operator = token[0] == '\'' && strchr("+-*/^&|<>([.", token[1]);
  if (expected->n != 1)
    return NULL;
  if (is_operator && has(expected, "'='"))
    return "an expression is not a statement: write return …, or let NAME = …";
  for (size_t i = 0; i < LM_COUNT(functions) && has(expected, "'('"); i++)
    if (!strcmp(functions[i], before) && !strcmp(token, "a name"))
      return "a method has no keyword; it begins with its name: apply(x: …) -> … { … }";
  return NULL;
}

// The help for a word that is probably a mistake; NULL if there is none.
static const char *word_help(lm_parser *ps, const lm_expected *expected, const char *token) {
  lm_loc at;
  bool is_name = !strcmp(token, "a name"), operator_expected = has(expected, "an operator");
  lm_sym name = is_name ? lm_layout_name(ps->layout) : NULL;
  lm_sym before = lm_layout_word_before(ps->layout, &at);
  bool declares = name && has(expected, GROUPS[0].text);
  bool assigns = before && expected->n == 1 && has(expected, "'('") && !strcmp(token, "'='");
  if (assigns)
    return lm_arena_printf(ps->ctx->arena,
                           "a member begins with its kind: sub %s = …, dim %s = …, param %s: …",
                           before, before, before);
  bool begins = before && lm_layout_begins_statement(ps->layout, at);
  const char *help = begins ? start_help(expected, before, token) : NULL;
  if (help)
    return help;
  const char *near = declares ? start_meant(name) : first_word_meant(expected, before);
  const char *operator_text = operator_expected ? operator_meant(name) : NULL;
  const char *unit = operator_expected ? unit_meant(before, name) : NULL;
  if (near)
    return lm_arena_printf(ps->ctx->arena, "did you mean '%s'?", near);
  if (operator_text)
    return lm_arena_printf(ps->ctx->arena, "write %s", operator_text);
  if (before && !strcmp(before, "not") && operator_expected)
    return "not is a function: write not(x)";
  if (before && !strcmp(token, "','") && strspn(before, "0123456789") == strlen(before))
    return lm_number_comma_help(ps->ctx, before, lm_layout_text_after(ps->layout));
  if (before && !strcmp(before, "for") && !strcmp(token, "'('"))
    return "a loop has no parentheses: for l in layers carry x { x = l(x) }";
  return unit ? lm_arena_printf(ps->ctx->arena, "the unit is written '%s'", unit) : NULL;
}

// The help for a token that is probably a mistake; NULL if there is none.
static const char *token_help(lm_parser *ps, const lm_expected *expected, const char *token,
                              const char *found) {
  bool operator_expected = has(expected, "an operator");
  if (has(expected, "'{'") && !strcmp(found, "the end of the line"))
    return "put '{' on the same line as the declaration that it belongs to";
  if (!strcmp(token, "'.'") && has(expected, "an expression"))
    return "a number begins with a digit: 0.5, not .5";
  if (!strcmp(token, "'('") && has(expected, "'['") && has(expected, "'='"))
    return "axes are written in brackets: real[b, t, d]";
  if (has(expected, "'carry'"))
    return "a loop names its carries: for l in layers carry x { x = l(x) }";
  if (!strcmp(token, "':'") && has(expected, "']'"))
    return "a part of an axis is slice(x, t -> u, first, step)";
  if (!strcmp(token, "','") && has(expected, "'in'"))
    return "a loop has one name: for l in layers carry x { x = l(x) }";
  if (!strcmp(found, "'='") && operator_expected)
    return "the operator for equality is '=='";
  if (!strcmp(token, "a pattern") && operator_expected)
    return "a matrix multiplication is dot(x, w, axis)";
  bool is_star = !strcmp(found, "'*'");
  if (is_star && has(expected, "'='") && has(expected, "'{'"))
    return "names of parameters are matched by patterns, which begin with '@': @norm*, @**.n1";
  if (is_comparison(token) && operator_expected)
    return "comparisons cannot be chained: write a < b & b < c";
  if (!strcmp(token, "'mod'") && has(expected, "an expression"))
    return "mod is an infix operator: write a mod b";
  if (!strcmp(found, "'where'") && has(expected, "an expression"))
    return "the elementwise choice is select(condition, x, y)";
  if (!strcmp(found, "'if'") && operator_expected)
    return "a choice is written if c then x else y; select(c, x, y) chooses elements";
  if (!strcmp(found, "'if'"))
    return "if is an expression: let y = if c then x else z";
  if (!strcmp(found, "'with'") || (!strcmp(found, "'from'") && operator_expected))
    return "declare an instance outside of the recipe: model Tuned = M() from \"PATH\" with { … }; "
           "then write model = Tuned";
  if (!strcmp(found, "'from'"))
    return "an import is written import std.nn: rmsnorm";
  bool is_argument = has(expected, "an expression") && has(expected, "')'");
  if (is_keyword(found) && (is_argument || has(expected, "a name")))
    return lm_arena_printf(ps->ctx->arena, "%s is a keyword and cannot be a name", found);
  return NULL;
}

static void add_hints(lm_parser *ps, lm_diag *d, const lm_expected *expected, const char *token,
                      const char *found) {
  char which;
  lm_loc unclosed = lm_layout_unclosed(ps->layout, &which);
  const char *help = word_help(ps, expected, token);
  if (!help)
    help = token_help(ps, expected, token, found);
  if (help)
    lm_diag_help(ps->ctx, d, "%s", help);
  if (unclosed.line < d->loc.line && has(expected, which == '(' ? "')'" : "']'"))
    lm_diag_note(ps->ctx, d, unclosed, "'%c' is opened here", which);
}

static void list_tokens(const lm_expected *expected, lm_buf *out) {
  int n = expected->n < MAX_LISTED ? expected->n : MAX_LISTED;
  for (int i = 0; i < n; i++) {
    const char *token = expected->v[i];
    lm_buf_puts(out, !i ? "" : i == n - 1 ? " or " : ", ");
    lm_buf_puts(out, strcmp(token, "';'") ? token : "the end of the line");
  }
}

void lm_syntax_error(lm_parser *ps, lm_loc at, const char *token, lm_expected *expected) {
  lm_buf found = {0}, list = {0};
  if (lm_layout_stopped(ps->layout))
    return;
  group_tokens(expected);
  lm_layout_found(ps->layout, &found);
  list_tokens(expected, &list);
  lm_diag *d = LM_REPORT(ps->ctx, at, E010, found.p, list.p ? list.p : "nothing");
  add_hints(ps, d, expected, token, found.p);
  lm_buf_free(&found);
  lm_buf_free(&list);
}
