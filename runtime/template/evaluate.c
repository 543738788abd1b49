// evaluate.c - the values of expressions.
#include <math.h>
#include <string.h>

#include "runtime/template/eval.h"

// ---- scopes

jt_scope *jt_scope_new(jt_run *r, jt_scope *outer) {
  jt_scope *s = LM_NEW(r->a, jt_scope);
  s->outer = outer;
  return s;
}

static jt_value *scope_find(jt_run *r, jt_scope *s, jt_string name, bool outer) {
  for (; s; s = outer ? s->outer : NULL) {
    jt_pay_for(r, s->n);
    for (uint32_t i = 0; i < s->n; i++)
      if (jt_string_equal(s->v[i].name, name))
        return &s->v[i].value;
  }
  return NULL;
}

void jt_scope_set(jt_run *r, jt_scope *s, jt_string name, jt_value v) {
  jt_value *known = scope_find(r, s, name, false);
  if (known)
    *known = v;
  else
    LM_PUSH(r->a, s->v, s->n, s->cap) = (jt_variable){name, v};
}

// ---- operators

static jt_value mismatch(jt_run *r, const char *sign, const jt_value *x, const jt_value *y) {
  if (jt_parts_fail(r, x) || jt_parts_fail(r, y))
    return jt_none();
  return jt_fail(r, "'%s' of %s and %s", sign, jt_kind_name(x), jt_kind_name(y));
}

static int64_t floor_divide(int64_t a, int64_t b) {
  return a / b - (a % b != 0 && (a % b < 0) != (b < 0));
}

static jt_value whole_binary(jt_run *r, char sign, bool floors, int64_t a, int64_t b) {
  int64_t out = 0;
  bool overflow = false;
  if (strchr("/%", sign) && (!b || (b == -1 && a == INT64_MIN)))
    return jt_fail(r, "division by zero");
  switch (sign) {
  case '+': overflow = __builtin_add_overflow(a, b, &out); break;
  case '-': overflow = __builtin_sub_overflow(a, b, &out); break;
  case '*': overflow = __builtin_mul_overflow(a, b, &out); break;
  case '%': out = a - floor_divide(a, b) * b; break;
  default:
    if (!floors)
      return jt_float((double)a / (double)b);
    out = floor_divide(a, b);
  }
  return overflow ? jt_fail(r, "an integer exceeds 64 bits") : jt_int(out);
}

static jt_value real_binary(jt_run *r, char sign, bool floors, double a, double b) {
  if (strchr("/%", sign) && b == 0)
    return jt_fail(r, "division by zero");
  switch (sign) {
  case '+': return jt_float(a + b);
  case '-': return jt_float(a - b);
  case '*': return jt_float(a * b);
  case '%': return jt_float(a - floor(a / b) * b);
  default: return jt_float(floors ? floor(a / b) : a / b);
  }
}

static jt_value strings_add(jt_run *r, jt_string x, jt_string y) {
  jt_out o = {0};
  jt_out_add(r, &o, x);
  jt_out_add(r, &o, y);
  return jt_str(jt_out_string(&o));
}

static jt_value string_repeat(jt_run *r, jt_string s, int64_t n) {
  jt_out o = {0};
  if (n > LM_TEMPLATE_OUTPUT && s.n)
    return jt_fail(r, "a text exceeds the maximum of 1 MiB");
  for (int64_t i = 0; i < n && s.n && !r->fault; i++)
    jt_out_add(r, &o, s);
  jt_pay(r, o.n);
  return jt_str(jt_out_string(&o));
}

static jt_value lists_add(jt_run *r, const jt_list *x, const jt_list *y) {
  jt_list *l = jt_list_new(r, (jt_sequence)x->form);
  l->from = x->from;
  for (uint32_t i = 0; i < x->n && !r->fault; i++)
    jt_list_add(r, l, x->v[i]);
  for (uint32_t i = 0; i < y->n && !r->fault; i++)
    jt_list_add(r, l, y->v[i]);
  return jt_list_value(l);
}

static jt_value binary(jt_run *r, jt_string sign, const jt_value *x, const jt_value *y) {
  bool floors = sign.n == 2;
  if (jt_is_number(x) && jt_is_number(y)) {
    bool real = x->kind == JT_FLOAT || y->kind == JT_FLOAT;
    return real ? real_binary(r, *sign.p, floors, jt_number(x), jt_number(y))
                : whole_binary(r, *sign.p, floors, jt_whole(x), jt_whole(y));
  }
  if (x->safe || y->safe)
    return jt_fail(r, "'%s' of a string that `safe` marks is unsupported", sign.p);
  if (*sign.p == '+' && x->kind == JT_STRING && y->kind == JT_STRING)
    return strings_add(r, x->s, y->s);
  bool lists = x->kind == JT_LIST && y->kind == JT_LIST && x->list->form == y->list->form;
  if (*sign.p == '+' && lists && x->list->form <= JT_OF_TUPLE)
    return lists_add(r, x->list, y->list);
  if (*sign.p == '*' && x->kind == JT_STRING && y->kind == JT_INT)
    return string_repeat(r, x->s, y->i);
  if (*sign.p == '*' && x->kind == JT_INT && y->kind == JT_STRING)
    return string_repeat(r, y->s, x->i);
  return mismatch(r, sign.p, x, y);
}

static bool compare(jt_run *r, jt_string sign, const jt_value *x, const jt_value *y) {
  if (jt_is(sign, "=="))
    return jt_equal(r, x, y);
  if (jt_is(sign, "!="))
    return !jt_equal(r, x, y);
  if (jt_is(sign, "in"))
    return jt_contains(r, y, x);
  if (jt_is(sign, "not in"))
    return !jt_contains(r, y, x);
  int order = jt_order(r, x, y);
  bool equals = sign.n == 2;
  return (equals && order == 0) || (*sign.p == '<' ? order < 0 : order > 0);
}

static jt_value compare_all(jt_run *r, jt_scope *s, const jt_node *x) {
  jt_value left = jt_evaluate(r, s, x->list[0]);
  for (uint32_t i = 0; i < x->n_names && !r->fault; i++) {
    jt_value right = jt_evaluate(r, s, x->list[i + 1]);
    if (r->fault || !compare(r, x->names[i], &left, &right))
      return jt_bool(false);
    left = right;
  }
  return jt_bool(true);
}

static jt_value negate(jt_run *r, const jt_value *v) {
  if (v->kind == JT_FLOAT)
    return jt_float(-v->d);
  if (v->kind == JT_BOOL || v->kind == JT_INT)
    return whole_binary(r, '-', false, 0, jt_whole(v));
  return jt_fail(r, "'-' of %s", jt_kind_name(v));
}

// ---- names, calls

static jt_value lookup(jt_run *r, jt_scope *s, jt_string name) {
  const jt_value *v = scope_find(r, s, name, true);
  if (v)
    return *v;
  if (jt_has_function(name))
    return (jt_value){.kind = JT_FUNCTION, .s = name};
  return jt_undefined(name);
}

static jt_args arguments(jt_run *r, jt_scope *s, const jt_node *x) {
  jt_args a = {0};
  uint32_t plain = x->n_list - x->n_names;
  for (uint32_t i = 0; i < x->n_list && !r->fault; i++) {
    jt_value v = jt_evaluate(r, s, x->list[i]);
    if (i < plain) {
      LM_PUSH(r->a, a.v, a.n, a.cap) = v;
      continue;
    }
    uint32_t n = a.n_named;
    LM_PUSH(r->a, a.names, n, a.cap_names) = x->names[i - plain];
    LM_PUSH(r->a, a.named, a.n_named, a.cap_named) = v;
  }
  return a;
}

static jt_value call_value(jt_run *r, const jt_value *f, const jt_args *a) {
  switch (f->kind) {
  case JT_MACRO: return jt_macro_call(r, f->macro, a);
  case JT_FUNCTION: return jt_function(r, f->s, a);
  case JT_METHOD: return jt_method(r, f->object, f->s, a);
  case JT_UNDEFINED: return jt_fail(r, "'%.*s' is undefined", (int)f->s.n, f->s.p);
  default: return jt_fail(r, "%s cannot be called", jt_kind_name(f));
  }
}

static jt_value call(jt_run *r, jt_scope *s, const jt_node *x) {
  jt_value f = jt_evaluate(r, s, x->a);
  jt_args a = arguments(r, s, x);
  r->line = x->line;
  return r->fault ? f : call_value(r, &f, &a);
}

// ---- literals

static jt_value sequence(jt_run *r, jt_scope *s, const jt_node *x) {
  jt_list *l = jt_list_new(r, x->kind == JN_TUPLE ? JT_OF_TUPLE : JT_OF_LIST);
  for (uint32_t i = 0; i < x->n_list && !r->fault; i++)
    jt_list_add(r, l, jt_evaluate(r, s, x->list[i]));
  return jt_list_value(l);
}

static jt_value pairs(jt_run *r, jt_scope *s, const jt_node *x) {
  jt_dict *d = jt_dict_new(r);
  for (uint32_t i = 0; i < x->n_list && !r->fault; i += 2) {
    jt_value key = jt_evaluate(r, s, x->list[i]);
    if (key.kind != JT_STRING && !jt_is_number(&key) && key.kind != JT_NONE)
      return jt_fail(r, "%s is no key of a mapping", jt_kind_name(&key));
    jt_dict_set(r, d, key, jt_evaluate(r, s, x->list[i + 1]));
  }
  return jt_dict_value(d);
}

static jt_value concatenate(jt_run *r, jt_scope *s, const jt_node *x) {
  jt_out o = {0};
  for (uint32_t i = 0; i < x->n_list && !r->fault; i++) {
    jt_value v = jt_evaluate(r, s, x->list[i]);
    jt_out_add(r, &o, jt_to_string(r, &v));
  }
  return jt_str(jt_out_string(&o));
}

static jt_value logical(jt_run *r, jt_scope *s, const jt_node *x) {
  jt_value v = jt_evaluate(r, s, x->a);
  return jt_truth(&v) == (x->kind == JN_OR) ? v : jt_evaluate(r, s, x->b);
}

static jt_value choice(jt_run *r, jt_scope *s, const jt_node *x) {
  jt_value v = jt_evaluate(r, s, x->b);
  return jt_evaluate(r, s, jt_truth(&v) ? x->a : x->c);
}

static jt_value filter(jt_run *r, jt_scope *s, const jt_node *x) {
  jt_value v = jt_evaluate(r, s, x->a);
  jt_args a = arguments(r, s, x);
  r->line = x->line;
  return r->fault ? v : jt_filter(r, x->text, v, &a);
}

static jt_value test(jt_run *r, jt_scope *s, const jt_node *x) {
  jt_value v = jt_evaluate(r, s, x->a);
  jt_args a = arguments(r, s, x);
  r->line = x->line;
  return jt_bool(!r->fault && jt_test(r, x->text, &v, &a));
}

static jt_value item(jt_run *r, jt_scope *s, const jt_node *x) {
  jt_value of = jt_evaluate(r, s, x->a);
  jt_value key = jt_evaluate(r, s, x->b);
  r->line = x->line;
  return r->fault ? of : jt_item(r, &of, &key);
}

static jt_value slice(jt_run *r, jt_scope *s, const jt_node *x) {
  jt_value of = jt_evaluate(r, s, x->a), part[3];
  for (int i = 0; i < 3; i++)
    part[i] = x->list[i] ? jt_evaluate(r, s, x->list[i]) : jt_none();
  r->line = x->line;
  return r->fault ? of : jt_slice(r, &of, &part[0], &part[1], &part[2]);
}

static jt_value attribute(jt_run *r, jt_scope *s, const jt_node *x) {
  jt_value of = jt_evaluate(r, s, x->a);
  r->line = x->line;
  return r->fault ? of : jt_attribute(r, &of, x->text);
}

jt_value jt_evaluate(jt_run *r, jt_scope *s, const jt_node *x) {
  if (!x || r->fault)
    return jt_undefined(jt_text("the value"));
  r->line = x->line;
  jt_pay(r, 64);
  jt_value v, w;
  switch (x->kind) {
  case JN_CONST: return x->value;
  case JN_LOOKUP: return lookup(r, s, x->text);
  case JN_LIST:
  case JN_TUPLE: return sequence(r, s, x);
  case JN_PAIRS: return pairs(r, s, x);
  case JN_ATTRIBUTE: return attribute(r, s, x);
  case JN_ITEM: return item(r, s, x);
  case JN_SLICE: return slice(r, s, x);
  case JN_CALL: return call(r, s, x);
  case JN_FILTER: return filter(r, s, x);
  case JN_TEST: return test(r, s, x);
  case JN_NOT: v = jt_evaluate(r, s, x->a); return jt_bool(!jt_truth(&v));
  case JN_NEGATE: v = jt_evaluate(r, s, x->a); return negate(r, &v);
  case JN_AND:
  case JN_OR: return logical(r, s, x);
  case JN_CHOICE: return choice(r, s, x);
  case JN_CONCAT: return concatenate(r, s, x);
  case JN_COMPARE: return compare_all(r, s, x);
  case JN_BINARY:
    v = jt_evaluate(r, s, x->a);
    w = jt_evaluate(r, s, x->b);
    r->line = x->line;
    return r->fault ? v : binary(r, x->text, &v, &w);
  default: LM_BUG("a statement %d is evaluated", x->kind);
  }
}
