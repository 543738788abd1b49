// parse.c - statements of a template.
#include <string.h>

#include "runtime/base/utf8.h"
#include "runtime/template/ast.h"

enum {
  DEEPEST = 100 // statements within statements
};

void jt_refuse(jt_parser *p, uint32_t line, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  if (!p->fault)
    p->fault = jt_fault(p->t, line, fmt, ap);
  va_end(ap);
}

// ---- tokens

// Behind a fault there is only the end.
static const jt_token *token_at(const jt_parser *p, uint32_t i) {
  const jt_token *end = &p->tokens[p->n_tokens - 1];
  return p->fault || i >= p->n_tokens ? end : &p->tokens[i];
}

const jt_token *jt_peek(const jt_parser *p) {
  return token_at(p, p->at);
}

const jt_token *jt_look(const jt_parser *p) {
  return token_at(p, p->at + 1);
}

bool jt_token_is(const jt_token *t, jt_token_kind kind, const char *text) {
  return t->kind == kind && (!text || (strlen(text) == t->n && !memcmp(text, t->p, t->n)));
}

bool jt_at(const jt_parser *p, jt_token_kind kind, const char *text) {
  return jt_token_is(jt_peek(p), kind, text);
}

bool jt_skip(jt_parser *p, jt_token_kind kind, const char *text) {
  bool there = jt_at(p, kind, text);
  p->at += there;
  return there;
}

const char *jt_token_text(jt_parser *p, const jt_token *t) {
  return t->kind == JT_END ? "the end of the template" : lm_arena_strndup(p->t->a, t->p, t->n);
}

void jt_expect(jt_parser *p, jt_token_kind kind, const char *text) {
  if (jt_skip(p, kind, text))
    return;
  const char *wanted = text                   ? text
                       : kind == JT_END_TAG   ? "%}"
                       : kind == JT_END_PRINT ? "}}"
                                              : "a name";
  jt_refuse(p, jt_peek(p)->line, "expected %s, found %s", wanted, jt_token_text(p, jt_peek(p)));
}

jt_string jt_take_name(jt_parser *p) {
  jt_string name = jt_text(jt_token_text(p, jt_peek(p)));
  jt_expect(p, JT_NAME, NULL);
  return name;
}

jt_node *jt_node_new(jt_parser *p, jt_node_kind kind) {
  jt_node *x = LM_NEW(p->t->a, jt_node);
  x->kind = kind;
  x->line = jt_peek(p)->line;
  return x;
}

void jt_node_push(jt_parser *p, jt_node *to, jt_node *x) {
  LM_PUSH(p->t->a, to->list, to->n_list, to->cap_list) = x;
}

// ---- statements

static jt_node *statements(jt_parser *p, const char *const *ends);

static jt_node *one_target(jt_parser *p) {
  jt_node *x = jt_node_new(p, JN_LOOKUP);
  x->text = jt_take_name(p);
  if (!jt_skip(p, JT_SIGN, "."))
    return x;
  jt_node *member = jt_node_new(p, JN_ATTRIBUTE);
  member->a = x;
  member->text = jt_take_name(p);
  return member;
}

// What `for` and `set` assign.
static jt_node *target(jt_parser *p) {
  bool parentheses = jt_skip(p, JT_SIGN, "(");
  jt_node *x = one_target(p);
  if (jt_at(p, JT_SIGN, ",")) {
    jt_node *all = jt_node_new(p, JN_TUPLE);
    jt_node_push(p, all, x);
    while (jt_skip(p, JT_SIGN, ","))
      jt_node_push(p, all, one_target(p));
    x = all;
  }
  if (parentheses)
    jt_expect(p, JT_SIGN, ")");
  return x;
}

// Takes `end %}`, the rest of the tag behind a body.
static void end_take(jt_parser *p, const char *end) {
  jt_expect(p, JT_NAME, end);
  jt_expect(p, JT_END_TAG, NULL);
}

// Takes the end of a tag, the statements behind it, and their `{% end %}`.
static jt_node *body_parse(jt_parser *p, const char *end) {
  const char *const ends[] = {end, NULL};
  jt_expect(p, JT_END_TAG, NULL);
  jt_node *body = statements(p, ends);
  end_take(p, end);
  return body;
}

// The same of a body that is a function: `break` and `continue` do not leave it.
static jt_node *function_parse(jt_parser *p, const char *end) {
  int loops = p->loops;
  p->loops = 0;
  jt_node *body = body_parse(p, end);
  p->loops = loops;
  return body;
}

// Behind the body of `if` or `for`: the statements of `else`, if there is one; takes the end.
static jt_node *otherwise_parse(jt_parser *p, const char *end) {
  if (jt_skip(p, JT_NAME, "else"))
    return body_parse(p, end);
  end_take(p, end);
  return NULL;
}

static jt_node *if_parse(jt_parser *p) {
  static const char *const ends[] = {"elif", "else", "endif", NULL};
  jt_node *x = jt_node_new(p, JN_IF);
  p->at++;
  x->a = jt_parse_tuple(p);
  jt_expect(p, JT_END_TAG, NULL);
  x->body = statements(p, ends);
  if (jt_at(p, JT_NAME, "elif")) {
    if (++p->depth > DEEPEST)
      jt_refuse(p, x->line, "statements are nested more than %d deep", DEEPEST);
    else
      x->otherwise = if_parse(p); // takes the end
    p->depth--;
    return x;
  }
  x->otherwise = otherwise_parse(p, "endif");
  return x;
}

static jt_node *for_parse(jt_parser *p) {
  static const char *const ends[] = {"else", "endfor", NULL};
  jt_node *x = jt_node_new(p, JN_FOR);
  p->at++;
  x->target = target(p);
  jt_expect(p, JT_NAME, "in");
  x->a = jt_parse_iterated(p);
  if (jt_skip(p, JT_NAME, "if"))
    x->b = jt_parse_expression(p);
  if (jt_at(p, JT_NAME, "recursive"))
    jt_refuse(p, x->line, "a recursive loop is unsupported");
  jt_expect(p, JT_END_TAG, NULL);
  p->loops++;
  x->body = statements(p, ends);
  p->loops--;
  x->otherwise = otherwise_parse(p, "endfor");
  return x;
}

static jt_node *set_parse(jt_parser *p) {
  jt_node *x = jt_node_new(p, JN_SET);
  p->at++;
  x->target = target(p);
  if (jt_skip(p, JT_SIGN, "=")) {
    x->a = jt_parse_tuple(p);
    jt_expect(p, JT_END_TAG, NULL);
    return x;
  }
  x->kind = JN_SET_BLOCK;
  x->a = jt_parse_filters(p, NULL, false);
  x->body = body_parse(p, "endset");
  return x;
}

static jt_node *filter_parse(jt_parser *p) {
  jt_node *x = jt_node_new(p, JN_FILTER_BLOCK);
  p->at++;
  x->a = jt_parse_filters(p, NULL, true);
  x->body = body_parse(p, "endfilter");
  return x;
}

// The parameters of a macro: targets in `list`, each with its default in `a`.
static void parameters_parse(jt_parser *p, jt_node *macro) {
  jt_expect(p, JT_SIGN, "(");
  while (!jt_at(p, JT_SIGN, ")") && !p->fault) {
    if (macro->n_list)
      jt_expect(p, JT_SIGN, ",");
    jt_node *x = jt_node_new(p, JN_LOOKUP);
    x->text = jt_take_name(p);
    if (jt_skip(p, JT_SIGN, "="))
      x->a = jt_parse_expression(p);
    jt_node_push(p, macro, x);
  }
  jt_expect(p, JT_SIGN, ")");
}

static jt_node *macro_parse(jt_parser *p) {
  jt_node *x = jt_node_new(p, JN_DEFINE);
  p->at++;
  x->text = jt_take_name(p);
  parameters_parse(p, x);
  x->body = function_parse(p, "endmacro");
  return x;
}

static jt_node *generation_parse(jt_parser *p) {
  jt_node *x = jt_node_new(p, JN_GENERATION);
  p->at++;
  p->t->generation = true;
  x->body = function_parse(p, "endgeneration");
  return x;
}

static jt_node *jump_parse(jt_parser *p, jt_node_kind kind) {
  jt_node *x = jt_node_new(p, kind);
  p->at++;
  if (!p->loops)
    jt_refuse(p, x->line, "'%s' outside of a loop", kind == JN_BREAK ? "break" : "continue");
  jt_expect(p, JT_END_TAG, NULL);
  return x;
}

static jt_node *tag_parse(jt_parser *p) {
  const jt_token *t = jt_peek(p);
  static const struct {
    const char *name;
    jt_node *(*parse)(jt_parser *p);
  } tags[] = {{"if", if_parse},         {"for", for_parse},     {"set", set_parse},
              {"filter", filter_parse}, {"macro", macro_parse}, {"generation", generation_parse}};
  for (size_t i = 0; i < LM_COUNT(tags); i++)
    if (jt_at(p, JT_NAME, tags[i].name))
      return tags[i].parse(p);
  if (jt_at(p, JT_NAME, "break"))
    return jump_parse(p, JN_BREAK);
  if (jt_at(p, JT_NAME, "continue"))
    return jump_parse(p, JN_CONTINUE);
  if (t->kind == JT_NAME)
    jt_refuse(p, t->line, "{%% %s %%} is unsupported", jt_token_text(p, t));
  else
    jt_refuse(p, t->line, "expected the name of a tag, found %s", jt_token_text(p, t));
  return jt_node_new(p, JN_CONST);
}

static jt_node *output_parse(jt_parser *p) {
  jt_node *x = jt_node_new(p, JN_OUTPUT);
  const jt_token *t = jt_peek(p);
  p->at++;
  if (t->kind == JT_DATA) {
    x->a = jt_node_new(p, JN_CONST);
    x->a->value = jt_str((jt_string){.p = t->p, .n = t->n});
    return x;
  }
  x->a = jt_parse_tuple(p);
  jt_expect(p, JT_END_PRINT, NULL);
  return x;
}

static bool at_one_of(const jt_parser *p, const char *const *ends) {
  for (; ends && *ends; ends++)
    if (jt_at(p, JT_NAME, *ends))
      return true;
  return false;
}

// The statements before one of the tags `ends`, whose name is the next token then, or before the
// end of the template (ends NULL).
static jt_node *statements(jt_parser *p, const char *const *ends) {
  jt_node *first = NULL, **last = &first;
  if (++p->depth > DEEPEST)
    jt_refuse(p, jt_peek(p)->line, "statements are nested more than %d deep", DEEPEST);
  while (!p->fault && !jt_at(p, JT_END, NULL)) {
    bool tag = jt_skip(p, JT_BEGIN_TAG, NULL);
    if (tag && at_one_of(p, ends))
      break;
    *last = tag ? tag_parse(p) : output_parse(p);
    last = &(*last)->next;
  }
  if (ends && jt_at(p, JT_END, NULL) && !p->fault)
    jt_refuse(p, jt_peek(p)->line, "expected {%% %s %%}, found the end of the template",
              ends[1] ? ends[1] : ends[0]);
  p->depth--;
  return first;
}

// ---- templates

lm_status lm_template_parse(const char *text, size_t n, const char *what, lm_template **out) {
  *out = NULL;
  if (n > LM_TEMPLATE_SIZE)
    return lm_fail(LM_USER, "%s: a template of %zu bytes exceeds the maximum of 1 MiB", what, n);
  if (lm_utf8_valid(text, n) < n || memchr(text, 0, n))
    return lm_fail(LM_USER, "%s: not UTF-8 text", what);
  lm_arena *a = lm_arena_create();
  lm_template *t = LM_NEW(a, lm_template);
  *t = (lm_template){
      .a = a,
      .what = lm_arena_strndup(a, what, strlen(what)),
  };
  jt_parser p = {.t = t};
  jt_lex(&p, text, n);
  t->body = statements(&p, NULL);
  if (p.fault)
    lm_arena_destroy(a);
  else
    *out = t;
  return p.fault;
}

void lm_template_destroy(lm_template *t) {
  if (t)
    lm_arena_destroy(t->a);
}

bool lm_template_has_generation(const lm_template *t) {
  return t->generation;
}
