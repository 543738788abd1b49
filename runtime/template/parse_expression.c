// parse_expression.c - expressions, with the precedences of jinja2.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/template/ast.h"

enum {
  DEEPEST = 100 // levels of nesting
};

static bool enter(jt_parser *p) {
  if (++p->depth > DEEPEST)
    jt_refuse(p, jt_peek(p)->line, "expressions are nested more than %d deep", DEEPEST);
  return !p->fault;
}

// ---- primary expressions

static jt_node *constant(jt_parser *p, jt_value v) {
  jt_node *x = jt_node_new(p, JN_CONST);
  x->value = v;
  return x;
}

static void digits_copy(const jt_token *t, char *out, size_t room) {
  size_t n = 0;
  for (uint32_t i = 0; i < t->n && n + 1 < room; i++)
    if (t->p[i] != '_')
      out[n++] = t->p[i];
  out[n] = 0;
}

static jt_node *number(jt_parser *p) {
  const jt_token *t = jt_peek(p);
  char digits[64];
  digits_copy(t, digits, sizeof digits);
  errno = 0;
  jt_value v =
      t->kind == JT_WHOLE ? jt_int(strtoll(digits, NULL, 10)) : jt_float(strtod(digits, NULL));
  if (errno || t->n >= sizeof digits)
    jt_refuse(p, t->line, "the number %.*s is too large", (int)t->n, t->p);
  p->at++;
  return constant(p, v);
}

static jt_node *strings(jt_parser *p) {
  lm_buf all = {0};
  while (jt_at(p, JT_TEXT, NULL)) { // neighbours are one string
    jt_string s = jt_unescape(p, jt_peek(p));
    lm_buf_add(&all, s.p, s.n);
    p->at++;
  }
  jt_string s = {.p = lm_arena_strndup(p->t->a, all.p ? all.p : "", all.n), .n = (uint32_t)all.n};
  lm_buf_free(&all);
  return constant(p, jt_str(s));
}

static jt_node *name(jt_parser *p) {
  static const struct {
    const char *text;
    jt_value value;
  } constants[] = {{"true", {.kind = JT_BOOL, .b = true}},
                   {"True", {.kind = JT_BOOL, .b = true}},
                   {"false", {.kind = JT_BOOL, .b = false}},
                   {"False", {.kind = JT_BOOL, .b = false}},
                   {"none", {.kind = JT_NONE}},
                   {"None", {.kind = JT_NONE}}};
  static const char *const words[] = {"if", "else", "elif", "and", "or", "not", "in", "is", "for"};
  jt_string text = jt_text(jt_token_text(p, jt_peek(p)));
  for (size_t i = 0; i < LM_COUNT(constants); i++)
    if (jt_is(text, constants[i].text)) {
      p->at++;
      return constant(p, constants[i].value);
    }
  for (size_t i = 0; i < LM_COUNT(words); i++)
    if (jt_is(text, words[i]))
      jt_refuse(p, jt_peek(p)->line, "unexpected '%s'", words[i]);
  if (jt_is(text, "varargs") || jt_is(text, "kwargs") || jt_is(text, "caller"))
    jt_refuse(p, jt_peek(p)->line, "'%s' is unsupported", text.p);
  jt_node *x = jt_node_new(p, JN_LOOKUP);
  x->text = text;
  p->at++;
  return x;
}

// True if another element of a list that ends with `close` follows; takes the comma before it. A
// comma may also follow the last.
static bool has_element(jt_parser *p, const jt_node *list, const char *close) {
  if (p->fault || jt_at(p, JT_SIGN, close))
    return false;
  if (list->n_list)
    jt_expect(p, JT_SIGN, ",");
  return !p->fault && !jt_at(p, JT_SIGN, close);
}

static jt_node *list(jt_parser *p) {
  jt_node *x = jt_node_new(p, JN_LIST);
  p->at++;
  while (has_element(p, x, "]"))
    jt_node_push(p, x, jt_parse_expression(p));
  jt_expect(p, JT_SIGN, "]");
  return x;
}

static jt_node *pairs(jt_parser *p) {
  jt_node *x = jt_node_new(p, JN_PAIRS);
  p->at++;
  while (has_element(p, x, "}")) {
    jt_node_push(p, x, jt_parse_expression(p));
    jt_expect(p, JT_SIGN, ":");
    jt_node_push(p, x, jt_parse_expression(p));
  }
  jt_expect(p, JT_SIGN, "}");
  return x;
}

static jt_node *in_parentheses(jt_parser *p) {
  jt_node *empty = jt_node_new(p, JN_TUPLE);
  p->at++;
  if (jt_skip(p, JT_SIGN, ")"))
    return empty;
  jt_node *x = jt_parse_tuple(p);
  jt_expect(p, JT_SIGN, ")");
  return x;
}

static jt_node *primary(jt_parser *p) {
  const jt_token *t = jt_peek(p);
  switch (t->kind) {
  case JT_NAME: return name(p);
  case JT_TEXT: return strings(p);
  case JT_WHOLE:
  case JT_REAL: return number(p);
  default: break;
  }
  if (jt_at(p, JT_SIGN, "("))
    return in_parentheses(p);
  if (jt_at(p, JT_SIGN, "["))
    return list(p);
  if (jt_at(p, JT_SIGN, "{"))
    return pairs(p);
  jt_refuse(p, t->line, "unexpected %s", jt_token_text(p, t));
  return jt_node_new(p, JN_CONST);
}

// ---- behind a primary expression

// The arguments behind `(`.
static void call_arguments(jt_parser *p, jt_node *call) {
  while (has_element(p, call, ")")) {
    const jt_token *t = jt_peek(p);
    bool named = t->kind == JT_NAME && jt_token_is(jt_look(p), JT_SIGN, "=");
    if (jt_at(p, JT_SIGN, "*") || jt_at(p, JT_SIGN, "**"))
      jt_refuse(p, t->line, "arguments with '*' are unsupported");
    if (named) {
      LM_PUSH(p->t->a, call->names, call->n_names, call->cap_names) = jt_text(jt_token_text(p, t));
      p->at += 2;
    } else if (call->n_names) {
      jt_refuse(p, t->line, "an argument without a name follows one with a name");
    }
    jt_node_push(p, call, jt_parse_expression(p));
  }
  jt_expect(p, JT_SIGN, ")");
}

static jt_node *call_of(jt_parser *p, jt_node *f) {
  jt_node *x = jt_node_new(p, JN_CALL);
  x->a = f;
  p->at++;
  call_arguments(p, x);
  return x;
}

static jt_node *attribute_of(jt_parser *p, jt_node *of) {
  jt_node *x = jt_node_new(p, JN_ATTRIBUTE);
  p->at++;
  const jt_token *t = jt_peek(p);
  x->a = of;
  if (t->kind == JT_WHOLE) { // x.0 is x[0]
    x->kind = JN_ITEM;
    x->b = number(p);
    return x;
  }
  x->text = jt_take_name(p);
  return x;
}

// Behind `[`: an index or a slice.
static jt_node *item_of(jt_parser *p, jt_node *of) {
  jt_node *x = jt_node_new(p, JN_ITEM);
  x->a = of;
  p->at++;
  jt_node *parts[3] = {0};
  int n = 0;
  bool colon = false;
  while (!jt_at(p, JT_SIGN, "]") && !p->fault) {
    if (jt_skip(p, JT_SIGN, ":")) {
      colon = true;
      if (++n > 2)
        jt_refuse(p, jt_peek(p)->line, "a slice has more than three parts");
    } else if (!p->fault && !parts[n < 3 ? n : 2]) {
      parts[n < 3 ? n : 2] = jt_parse_expression(p);
    } else {
      jt_refuse(p, jt_peek(p)->line, "unexpected %s", jt_token_text(p, jt_peek(p)));
    }
  }
  if (!colon && !parts[0])
    jt_refuse(p, jt_peek(p)->line, "an index is missing");
  jt_expect(p, JT_SIGN, "]");
  x->b = parts[0];
  if (colon) {
    x->kind = JN_SLICE;
    for (int i = 0; i < 3; i++)
      jt_node_push(p, x, parts[i]);
  }
  return x;
}

static jt_node *postfix(jt_parser *p, jt_node *x) {
  while (!p->fault) {
    if (jt_at(p, JT_SIGN, "."))
      x = attribute_of(p, x);
    else if (jt_at(p, JT_SIGN, "["))
      x = item_of(p, x);
    else if (jt_at(p, JT_SIGN, "("))
      x = call_of(p, x);
    else
      break;
  }
  return x;
}

static jt_node *test_of(jt_parser *p, jt_node *of) {
  jt_node *x = jt_node_new(p, JN_TEST);
  jt_node *not = jt_node_new(p, JN_NOT);
  p->at++;
  bool negated = jt_skip(p, JT_NAME, "not");
  const jt_token *t = jt_peek(p);
  x->a = of;
  x->text = jt_take_name(p);
  if (!p->fault && !jt_has_test(x->text))
    jt_refuse(p, t->line, "test '%s' is unsupported", x->text.p);
  const jt_token *next = jt_peek(p);
  bool word = next->kind == JT_NAME && !jt_at(p, JT_NAME, "else") && !jt_at(p, JT_NAME, "or") &&
              !jt_at(p, JT_NAME, "and");
  bool opens = next->kind == JT_SIGN && next->n == 1 && strchr("[{", *next->p);
  if (jt_skip(p, JT_SIGN, "("))
    call_arguments(p, x);
  else if (word || opens || next->kind == JT_TEXT || next->kind == JT_WHOLE ||
           next->kind == JT_REAL)
    jt_node_push(p, x, postfix(p, primary(p)));
  not ->a = x;
  return negated ? not : x;
}

jt_node *jt_parse_filters(jt_parser *p, jt_node *of, bool begun) {
  while (!p->fault && (begun || jt_at(p, JT_SIGN, "|"))) {
    jt_node *x = jt_node_new(p, JN_FILTER);
    p->at += !begun;
    begun = false;
    const jt_token *t = jt_peek(p);
    x->a = of;
    x->text = jt_take_name(p);
    if (!p->fault && !jt_has_filter(x->text))
      jt_refuse(p, t->line, "filter '%s' is unsupported", x->text.p);
    if (jt_skip(p, JT_SIGN, "("))
      call_arguments(p, x);
    of = x;
  }
  return of;
}

static jt_node *filters_and_tests(jt_parser *p, jt_node *x) {
  while (!p->fault) {
    if (jt_at(p, JT_SIGN, "|"))
      x = jt_parse_filters(p, x, false);
    else if (jt_at(p, JT_NAME, "is"))
      x = test_of(p, x);
    else if (jt_at(p, JT_SIGN, "("))
      x = call_of(p, x);
    else
      break;
  }
  return x;
}

// ---- operators

static jt_node *unary(jt_parser *p, bool with_filters) {
  jt_node *x = jt_node_new(p, JN_NEGATE);
  if (!enter(p))
    return x;
  if (jt_skip(p, JT_SIGN, "-"))
    x->a = unary(p, false);
  else if (jt_skip(p, JT_SIGN, "+"))
    x = unary(p, false);
  else
    x = postfix(p, primary(p));
  if (with_filters)
    x = filters_and_tests(p, x);
  p->depth--;
  return x;
}

// Takes one of the signs, which end with NULL; NULL: the next token is none of them.
static const char *sign_take(jt_parser *p, const char *const *signs) {
  for (; *signs; signs++)
    if (jt_skip(p, JT_SIGN, *signs))
      return *signs;
  return NULL;
}

// Operators of one precedence, which group from left to right.
static jt_node *operators(jt_parser *p, const char *const *signs,
                          jt_node *(*operand)(jt_parser *p)) {
  jt_node *x = operand(p);
  for (const char *sign; (sign = sign_take(p, signs));) {
    jt_node *y = operand(p);
    jt_node *both = jt_node_new(p, JN_BINARY);
    both->text = jt_text(sign);
    both->a = x;
    both->b = y;
    x = both;
  }
  return x;
}

static jt_node *factor(jt_parser *p) {
  jt_node *x = unary(p, true);
  if (jt_at(p, JT_SIGN, "**"))
    jt_refuse(p, jt_peek(p)->line, "operator '**' is unsupported");
  return x;
}

static jt_node *term(jt_parser *p) {
  return operators(p, (const char *const[]){"*", "/", "//", "%", NULL}, factor);
}

static jt_node *concat(jt_parser *p) {
  jt_node *x = term(p);
  if (!jt_at(p, JT_SIGN, "~"))
    return x;
  jt_node *all = jt_node_new(p, JN_CONCAT);
  jt_node_push(p, all, x);
  while (jt_skip(p, JT_SIGN, "~"))
    jt_node_push(p, all, term(p));
  return all;
}

static jt_node *sum(jt_parser *p) {
  return operators(p, (const char *const[]){"+", "-", NULL}, concat);
}

static const char *comparison(jt_parser *p) {
  const char *sign = sign_take(p, (const char *const[]){"==", "!=", "<", "<=", ">", ">=", NULL});
  if (sign)
    return sign;
  if (jt_skip(p, JT_NAME, "in"))
    return "in";
  bool not_in = jt_at(p, JT_NAME, "not") && jt_token_is(jt_look(p), JT_NAME, "in");
  p->at += not_in ? 2 : 0;
  return not_in ? "not in" : NULL;
}

static jt_node *compare(jt_parser *p) {
  jt_node *x = sum(p), *all = NULL;
  for (const char *sign; !p->fault && (sign = comparison(p));) {
    if (!all) {
      all = jt_node_new(p, JN_COMPARE);
      jt_node_push(p, all, x);
    }
    LM_PUSH(p->t->a, all->names, all->n_names, all->cap_names) = jt_text(sign);
    jt_node_push(p, all, sum(p));
  }
  return all ? all : x;
}

static jt_node *negation(jt_parser *p) {
  if (!jt_at(p, JT_NAME, "not"))
    return compare(p);
  jt_node *x = jt_node_new(p, JN_NOT);
  p->at++;
  if (enter(p))
    x->a = negation(p);
  p->depth--;
  return x;
}

static jt_node *logical(jt_parser *p, bool all) {
  jt_node *x = all ? negation(p) : logical(p, true);
  while (!p->fault && jt_skip(p, JT_NAME, all ? "and" : "or")) {
    jt_node *y = jt_node_new(p, all ? JN_AND : JN_OR);
    y->a = x;
    y->b = all ? negation(p) : logical(p, true);
    x = y;
  }
  return x;
}

jt_node *jt_parse_expression(jt_parser *p) {
  jt_node *x = jt_node_new(p, JN_CONST);
  if (!enter(p))
    return x;
  x = logical(p, false);
  while (!p->fault && jt_skip(p, JT_NAME, "if")) {
    jt_node *y = jt_node_new(p, JN_CHOICE);
    y->a = x;
    y->b = logical(p, false);
    y->c = jt_skip(p, JT_NAME, "else") ? jt_parse_expression(p) : NULL;
    x = y;
  }
  p->depth--;
  return x;
}

static bool at_tuple_end(const jt_parser *p) {
  return jt_at(p, JT_SIGN, ")") || jt_at(p, JT_END_TAG, NULL) || jt_at(p, JT_END_PRINT, NULL);
}

static jt_node *tuple_of(jt_parser *p, jt_node *(*element)(jt_parser *p)) {
  jt_node *x = element(p);
  if (!jt_at(p, JT_SIGN, ","))
    return x;
  jt_node *all = jt_node_new(p, JN_TUPLE);
  jt_node_push(p, all, x);
  while (jt_skip(p, JT_SIGN, ",")) {
    if (at_tuple_end(p))
      break;
    jt_node_push(p, all, element(p));
  }
  return all;
}

static jt_node *unconditional(jt_parser *p) {
  return logical(p, false);
}

jt_node *jt_parse_tuple(jt_parser *p) {
  return tuple_of(p, jt_parse_expression);
}

jt_node *jt_parse_iterated(jt_parser *p) {
  return tuple_of(p, unconditional);
}
