// compare.c - truth, equality, order and membership of values, as in Python.
#include <string.h>

#include "runtime/template/ast.h"

bool jt_truth(const jt_value *v) {
  switch (v->kind) {
  case JT_UNDEFINED:
  case JT_NONE: return false;
  case JT_BOOL: return v->b;
  case JT_INT: return v->i != 0;
  case JT_FLOAT: return v->d != 0;
  case JT_STRING: return v->s.n > 0;
  case JT_LIST: return v->list->form == JT_OF_ITERATOR || v->list->n > 0;
  case JT_DICT: return v->dict->n > 0;
  default: return true;
  }
}

bool jt_is_number(const jt_value *v) {
  return v->kind == JT_BOOL || v->kind == JT_INT || v->kind == JT_FLOAT;
}

double jt_number(const jt_value *v) {
  return v->kind == JT_BOOL ? v->b : v->kind == JT_INT ? (double)v->i : v->d;
}

int64_t jt_whole(const jt_value *v) {
  return v->kind == JT_BOOL ? v->b : v->i;
}

static int numbers_order(const jt_value *x, const jt_value *y) {
  if (x->kind != JT_FLOAT && y->kind != JT_FLOAT)
    return (jt_whole(x) > jt_whole(y)) - (jt_whole(x) < jt_whole(y));
  double a = jt_number(x);
  double b = jt_number(y);
  return (a > b) - (a < b);
}

static bool lists_equal(jt_run *r, const jt_list *x, const jt_list *y) {
  if (x == y)
    return true;
  if (x->form != y->form || x->form > JT_OF_TUPLE || x->n != y->n)
    return false;
  jt_pay(r, 64);
  jt_pay_for(r, x->n);
  for (uint32_t i = 0; i < x->n && !r->fault; i++)
    if (!jt_equal(r, &x->v[i], &y->v[i]))
      return false;
  return true;
}

static bool dicts_equal(jt_run *r, const jt_dict *x, const jt_dict *y) {
  if (x == y)
    return true;
  if (x->n != y->n)
    return false;
  jt_pay(r, 64);
  for (uint32_t i = 0; i < x->n && !r->fault; i++) {
    const jt_value *other = jt_dict_find(r, y, &x->keys[i]);
    if (!other || !jt_equal(r, &x->values[i], other))
      return false;
  }
  return true;
}

bool jt_equal(jt_run *r, const jt_value *x, const jt_value *y) {
  if (jt_is_number(x) && jt_is_number(y))
    return numbers_order(x, y) == 0;
  if (x->kind != y->kind)
    return false;
  switch (x->kind) {
  case JT_STRING: jt_pay(r, x->s.n); return jt_string_equal(x->s, y->s);
  case JT_LIST: return lists_equal(r, x->list, y->list);
  case JT_DICT: return dicts_equal(r, x->dict, y->dict);
  case JT_NAMESPACE: return x->dict == y->dict;
  case JT_MACRO: return x->macro == y->macro;
  case JT_LOOP: return x->loop == y->loop;
  case JT_FUNCTION: return jt_string_equal(x->s, y->s);
  case JT_METHOD: return false;
  default: return true;
  }
}

int jt_string_order(jt_string x, jt_string y) { // of UTF-8, bytes have the order of code points
  uint32_t n = x.n < y.n ? x.n : y.n;
  int order = n ? memcmp(x.p, y.p, n) : 0;
  return order ? order : (x.n > y.n) - (x.n < y.n);
}

int jt_order(jt_run *r, const jt_value *x, const jt_value *y) {
  if (jt_is_number(x) && jt_is_number(y))
    return numbers_order(x, y);
  if (x->kind == JT_STRING && y->kind == JT_STRING) {
    jt_pay(r, x->s.n);
    return jt_string_order(x->s, y->s);
  }
  jt_fail(r, "%s and %s have no order", jt_kind_name(x), jt_kind_name(y));
  return 0;
}

bool jt_contains(jt_run *r, const jt_value *in, const jt_value *v) {
  if (in->kind == JT_STRING) {
    if (v->kind != JT_STRING)
      jt_fail(r, "'in' of a string needs a string, not %s", jt_kind_name(v));
    return v->kind == JT_STRING && jt_find(r, in->s, v->s, 0) >= 0;
  }
  if (in->kind == JT_DICT)
    return jt_dict_find(r, in->dict, v) != NULL;
  jt_list *l = jt_elements(r, *in, "'in'");
  jt_pay_for(r, l->n);
  for (uint32_t i = 0; i < l->n && !r->fault; i++)
    if (jt_equal(r, &l->v[i], v))
      return true;
  return false;
}
