// test.c - the tests behind `is`.
#include <utf8proc.h>

#include "runtime/base/utf8.h"
#include "runtime/template/eval.h"

typedef bool test_fn(jt_run *r, const jt_value *v, const jt_value *other);

static bool is_defined(jt_run *r, const jt_value *v, const jt_value *o) {
  return v->kind != JT_UNDEFINED;
}
static bool is_undefined(jt_run *r, const jt_value *v, const jt_value *o) {
  return v->kind == JT_UNDEFINED;
}
static bool is_none(jt_run *r, const jt_value *v, const jt_value *o) {
  return v->kind == JT_NONE;
}
static bool is_true(jt_run *r, const jt_value *v, const jt_value *o) {
  return v->kind == JT_BOOL && v->b;
}
static bool is_false(jt_run *r, const jt_value *v, const jt_value *o) {
  return v->kind == JT_BOOL && !v->b;
}
static bool is_boolean(jt_run *r, const jt_value *v, const jt_value *o) {
  return v->kind == JT_BOOL;
}
static bool is_integer(jt_run *r, const jt_value *v, const jt_value *o) {
  return v->kind == JT_INT;
}
static bool is_float(jt_run *r, const jt_value *v, const jt_value *o) {
  return v->kind == JT_FLOAT;
}
static bool is_number(jt_run *r, const jt_value *v, const jt_value *o) {
  return jt_is_number(v);
}
static bool is_string(jt_run *r, const jt_value *v, const jt_value *o) {
  return v->kind == JT_STRING;
}
static bool is_mapping(jt_run *r, const jt_value *v, const jt_value *o) {
  return v->kind == JT_DICT;
}
static bool is_iterable(jt_run *r, const jt_value *v, const jt_value *o) {
  return v->kind == JT_STRING || v->kind == JT_LIST || v->kind == JT_DICT ||
         v->kind == JT_UNDEFINED || v->kind == JT_LOOP;
}
// True if a value has a length and elements; as in jinja2 also of a mapping and a string.
static bool is_sequence(jt_run *r, const jt_value *v, const jt_value *o) {
  bool list = v->kind == JT_LIST && v->list->form <= JT_OF_TUPLE;
  if (v->kind == JT_LIST && v->list->form == JT_OF_VIEW)
    jt_fail(r, "'is sequence' of a view is unsupported");
  return v->kind == JT_STRING || v->kind == JT_DICT || list;
}
static bool is_callable(jt_run *r, const jt_value *v, const jt_value *o) {
  return v->kind == JT_MACRO || v->kind == JT_METHOD || v->kind == JT_FUNCTION ||
         v->kind == JT_UNDEFINED; // as jinja2's
}
static bool is_odd(jt_run *r, const jt_value *v, const jt_value *o) {
  if (v->kind != JT_INT)
    jt_fail(r, "'is odd' and 'is even' of %s", jt_kind_name(v));
  return v->i % 2 != 0;
}
static bool is_even(jt_run *r, const jt_value *v, const jt_value *o) {
  return !is_odd(r, v, o);
}
static bool is_divisible(jt_run *r, const jt_value *v, const jt_value *o) {
  if (v->kind != JT_INT || o->kind != JT_INT || o->i < 1)
    jt_fail(r, "'is divisibleby' needs integers");
  return !r->fault && v->i % o->i == 0;
}
static bool is_equal(jt_run *r, const jt_value *v, const jt_value *o) {
  return jt_equal(r, v, o);
}
static bool is_unequal(jt_run *r, const jt_value *v, const jt_value *o) {
  return !jt_equal(r, v, o);
}
static bool is_less(jt_run *r, const jt_value *v, const jt_value *o) {
  return jt_order(r, v, o) < 0;
}
static bool is_less_or_equal(jt_run *r, const jt_value *v, const jt_value *o) {
  return jt_order(r, v, o) <= 0;
}
static bool is_greater(jt_run *r, const jt_value *v, const jt_value *o) {
  return jt_order(r, v, o) > 0;
}
static bool is_greater_or_equal(jt_run *r, const jt_value *v, const jt_value *o) {
  return jt_order(r, v, o) >= 0;
}
static bool is_in(jt_run *r, const jt_value *v, const jt_value *o) {
  return jt_contains(r, o, v);
}

// True if a string has letters, all of one case.
static bool has_case(jt_run *r, const jt_value *v, bool upper) {
  bool any = false;
  uint32_t c = 0;
  jt_string s = jt_to_string(r, v);
  jt_pay(r, 16 * (size_t)s.n);
  for (size_t at = 0; at < s.n;) {
    at += (size_t)lm_utf8_decode(s.p + at, s.n - at, &c);
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    if (k == UTF8PROC_CATEGORY_LT || k == (upper ? UTF8PROC_CATEGORY_LL : UTF8PROC_CATEGORY_LU))
      return false;
    any |= k == (upper ? UTF8PROC_CATEGORY_LU : UTF8PROC_CATEGORY_LL);
  }
  return any;
}
static bool is_upper(jt_run *r, const jt_value *v, const jt_value *o) {
  return has_case(r, v, true);
}
static bool is_lower(jt_run *r, const jt_value *v, const jt_value *o) {
  return has_case(r, v, false);
}

static const struct {
  const char *name;
  test_fn *test;
  uint32_t args;
} tests[] = {{"defined", is_defined, 0},
             {"undefined", is_undefined, 0},
             {"none", is_none, 0},
             {"true", is_true, 0},
             {"false", is_false, 0},
             {"boolean", is_boolean, 0},
             {"integer", is_integer, 0},
             {"float", is_float, 0},
             {"number", is_number, 0},
             {"string", is_string, 0},
             {"mapping", is_mapping, 0},
             {"iterable", is_iterable, 0},
             {"sequence", is_sequence, 0},
             {"callable", is_callable, 0},
             {"odd", is_odd, 0},
             {"even", is_even, 0},
             {"upper", is_upper, 0},
             {"lower", is_lower, 0},
             {"divisibleby", is_divisible, 1},
             {"eq", is_equal, 1},
             {"equalto", is_equal, 1},
             {"ne", is_unequal, 1},
             {"lt", is_less, 1},
             {"lessthan", is_less, 1},
             {"le", is_less_or_equal, 1},
             {"gt", is_greater, 1},
             {"greaterthan", is_greater, 1},
             {"ge", is_greater_or_equal, 1},
             {"in", is_in, 1}};

bool jt_has_test(jt_string name) {
  for (size_t i = 0; i < LM_COUNT(tests); i++)
    if (jt_is(name, tests[i].name))
      return true;
  return false;
}

bool jt_test(jt_run *r, jt_string name, const jt_value *v, const jt_args *a) {
  for (size_t i = 0; i < LM_COUNT(tests); i++)
    if (jt_is(name, tests[i].name))
      return jt_args_fit(r, a, tests[i].name, tests[i].args, tests[i].args, "") &&
             tests[i].test(r, v, a->v);
  jt_fail(r, "test '%.*s' is unsupported", (int)name.n, name.p);
  return false;
}
