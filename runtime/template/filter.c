// filter.c - the filters behind `|`.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/utf8.h"
#include "runtime/template/eval.h"

typedef jt_value filter_fn(jt_run *r, jt_value v, const jt_args *a);

static jt_string text_or(jt_run *r, const jt_args *a, uint32_t i, const char *name,
                         const char *absent) {
  const jt_value *v = jt_arg(a, i, name);
  return v ? jt_to_string(r, v) : jt_text(absent);
}

static bool flag(const jt_args *a, uint32_t i, const char *name, bool absent) {
  const jt_value *v = jt_arg(a, i, name);
  return v ? jt_truth(v) : absent;
}

// ---- strings

static jt_value to_string(jt_run *r, jt_value v, const jt_args *a) {
  return v.kind == JT_STRING ? v : jt_str(jt_to_string(r, &v));
}

static jt_value safe(jt_run *r, jt_value v, const jt_args *a) {
  v = to_string(r, v, a);
  v.safe = true;
  return v;
}

static jt_value method_of(jt_run *r, jt_value v, const char *name, const jt_args *a) {
  jt_value s = to_string(r, v, a);
  return r->fault ? s : jt_method(r, &s, jt_text(name), a);
}
static jt_value trim(jt_run *r, jt_value v, const jt_args *a) {
  const jt_value *chars = jt_arg(a, 0, "chars");
  jt_args one = {
      .v = (jt_value *)chars,
      .n = chars != NULL,
  };
  return method_of(r, v, "strip", &one);
}
static jt_value upper(jt_run *r, jt_value v, const jt_args *a) {
  return method_of(r, v, "upper", a);
}
static jt_value lower(jt_run *r, jt_value v, const jt_args *a) {
  return method_of(r, v, "lower", a);
}
static jt_value capitalize(jt_run *r, jt_value v, const jt_args *a) {
  return method_of(r, v, "capitalize", a);
}

// A word begins behind white space and -({[<, as in jinja2.
static jt_value title(jt_run *r, jt_value v, const jt_args *a) {
  jt_string s = jt_to_string(r, &v);
  jt_out o = {0};
  bool begins = true;
  for (size_t at = 0, n; at < s.n && !r->fault; at += n) {
    uint32_t c = 0;
    n = (size_t)lm_utf8_decode(s.p + at, s.n - at, &c);
    jt_out_add(r, &o, jt_change_case(r, jt_part(s, at, n), begins ? 'u' : 'l'));
    begins = jt_is_space(c) || (c < 0x80 && c && strchr("-({[<", (int)c));
  }
  return jt_str(jt_out_string(&o));
}

static jt_value replace(jt_run *r, jt_value v, const jt_args *a) {
  jt_value parts[3];
  jt_args all = {
      .v = parts,
      .n = 2,
  };
  parts[0] = jt_str(text_or(r, a, 0, "old", ""));
  parts[1] = jt_str(text_or(r, a, 1, "new", ""));
  const jt_value *count = jt_arg(a, 2, "count");
  if (count && count->kind != JT_NONE)
    parts[all.n++] = *count;
  return method_of(r, v, "replace", &all);
}

static jt_string spaces(jt_run *r, int64_t n) {
  jt_out o = {0};
  for (int64_t i = 0; i < n && !r->fault; i++)
    jt_out_puts(r, &o, " ", 1, LM_ORIGIN_TEMPLATE);
  return jt_out_string(&o);
}

// Lines behind the first begin with `width` spaces or with the text; blank ones do not.
static jt_value indent(jt_run *r, jt_value v, const jt_args *a) {
  const jt_value *width = jt_arg(a, 0, "width");
  jt_string s = jt_to_string(r, &v);
  jt_string by = jt_text("    ");
  bool first = flag(a, 1, "first", false);
  bool blank = flag(a, 2, "blank", false);
  jt_out o = {0};
  if (width)
    by = width->kind == JT_INT ? spaces(r, width->i) : jt_to_string(r, width);
  if (s.n && memchr(s.p, '\r', s.n))
    return jt_fail(r, "indent of a text with carriage returns is unsupported");
  for (size_t at = 0, n; at <= s.n && !r->fault; at += n + 1) {
    const char *end = at < s.n ? memchr(s.p + at, '\n', s.n - at) : NULL;
    n = end ? (size_t)(end - s.p) - at : s.n - at;
    if (at ? n || blank : first)
      jt_out_add(r, &o, by);
    jt_out_add(r, &o, jt_part(s, at, n + (end != NULL)));
    jt_pay(r, 16);
  }
  return jt_str(jt_out_string(&o));
}

static jt_value tojson(jt_run *r, jt_value v, const jt_args *a) {
  const jt_value *indent = jt_arg(a, 1, "indent");
  const jt_value *separators = jt_arg(a, 2, "separators");
  jt_json o = {.ascii = flag(a, 0, "ensure_ascii", false), .sort = flag(a, 3, "sort_keys", false)};
  jt_out out = {0};
  o.lines = indent && indent->kind != JT_NONE;
  if (separators && separators->kind != JT_NONE)
    return jt_fail(r, "tojson with separators is unsupported");
  if (o.lines && indent->kind == JT_STRING)
    o.indent = indent->s;
  else if (o.lines && indent->kind == JT_INT)
    o.indent = spaces(r, indent->i);
  jt_to_json(r, &v, &o, 0, &out);
  return jt_str(jt_out_string(&out));
}

// ---- numbers

static jt_value to_int(jt_run *r, jt_value v, const jt_args *a) {
  const jt_value *absent = jt_arg(a, 0, "default");
  jt_value none = absent ? *absent : jt_int(0);
  if (jt_is_number(&v)) {
    double d = jt_number(&v);
    return v.kind == JT_FLOAT ? fabs(d) < 9e18 ? jt_int((int64_t)d) : none : jt_int(jt_whole(&v));
  }
  if (v.kind != JT_STRING)
    return none;
  jt_string s = jt_strip(v.s, true, true);
  char digits[24];
  char *end;
  if (!s.n || s.n >= sizeof digits || memchr(s.p, '_', s.n))
    return s.n ? jt_fail(r, "int of '%.*s' is unsupported", s.n > 40 ? 40 : (int)s.n, s.p) : none;
  memcpy(digits, s.p, s.n);
  digits[s.n] = 0;
  long long i = strtoll(digits, &end, 10);
  if (!*end)
    return jt_int(i);
  double d = strtod(digits, &end);
  return *end || !(fabs(d) < 9e18) || strpbrk(digits, "xX") ? none : jt_int((int64_t)d);
}

static jt_value to_float(jt_run *r, jt_value v, const jt_args *a) {
  const jt_value *absent = jt_arg(a, 0, "default");
  char digits[64];
  char *end;
  if (jt_is_number(&v))
    return jt_float(jt_number(&v));
  jt_string s = v.kind == JT_STRING ? jt_strip(v.s, true, true) : jt_text("");
  if (s.n && s.n < sizeof digits && !memchr(s.p, '_', s.n)) {
    memcpy(digits, s.p, s.n);
    digits[s.n] = 0;
    double d = strtod(digits, &end);
    if (!*end && !strpbrk(digits, "xXpP("))
      return jt_float(d);
  }
  return absent ? *absent : jt_float(0);
}

static jt_value absolute(jt_run *r, jt_value v, const jt_args *a) {
  if (!jt_is_number(&v) || (v.kind == JT_INT && v.i == INT64_MIN))
    return jt_fail(r, "abs of %s", jt_kind_name(&v));
  return v.kind == JT_FLOAT ? jt_float(fabs(v.d)) : jt_int(llabs(jt_whole(&v)));
}

// ---- sequences

static jt_value length(jt_run *r, jt_value v, const jt_args *a) {
  switch (v.kind) {
  case JT_UNDEFINED: return jt_int(0);
  case JT_STRING: return jt_int((int64_t)jt_chars(r, v.s));
  case JT_DICT: return jt_int(v.dict->n);
  case JT_LIST:
    if (v.list->form != JT_OF_ITERATOR)
      return jt_int(v.list->n);
    // fall through
  default: return jt_fail(r, "%s has no length", jt_kind_name(&v));
  }
}

static jt_value defaults(jt_run *r, jt_value v, const jt_args *a) {
  const jt_value *d = jt_arg(a, 0, "default_value");
  bool missing = v.kind == JT_UNDEFINED || (flag(a, 1, "boolean", false) && !jt_truth(&v));
  return !missing ? v : d ? *d : jt_str(jt_text(""));
}

static jt_value to_list(jt_run *r, jt_value v, const jt_args *a) {
  const jt_list *from = jt_elements(r, v, "list");
  jt_list *l = jt_list_new(r, JT_OF_LIST);
  l->from = from->from;
  for (uint32_t i = 0; i < from->n; i++)
    jt_list_add(r, l, from->v[i]);
  return jt_list_value(l);
}

static jt_value end_of(jt_run *r, jt_value v, const char *what, bool last) {
  bool iterator = v.kind == JT_LIST && v.list->form == JT_OF_ITERATOR;
  if (last && iterator)
    return jt_fail(r, "an iterator has no last element");
  const jt_list *l = jt_elements(r, v, what);
  return l->n ? l->v[last ? l->n - 1 : 0] : jt_undefined(jt_text("the element of an empty list"));
}
static jt_value first(jt_run *r, jt_value v, const jt_args *a) {
  return end_of(r, v, "first", false);
}
static jt_value last(jt_run *r, jt_value v, const jt_args *a) {
  return end_of(r, v, "last", true);
}

static jt_value items(jt_run *r, jt_value v, const jt_args *a) {
  if (v.kind == JT_UNDEFINED)
    return jt_list_value(jt_list_new(r, JT_OF_ITERATOR));
  if (v.kind != JT_DICT)
    return jt_fail(r, "items of %s", jt_kind_name(&v));
  return jt_list_value(jt_pairs(r, v.dict, JT_OF_ITERATOR));
}

static jt_value reverse(jt_run *r, jt_value v, const jt_args *a) {
  if (v.kind == JT_STRING) {
    jt_value back = jt_int(-1), none = jt_none();
    return jt_slice(r, &v, &none, &none, &back);
  }
  const jt_list *from = jt_elements(r, v, "reverse");
  jt_list *l = jt_list_new(r, JT_OF_ITERATOR);
  for (uint32_t i = from->n; i-- > 0 && !r->fault;)
    jt_list_add(r, l, from->v[i]);
  return jt_list_value(l);
}

// The member of each element with a name, which may be a path: "function.name".
static jt_value member(jt_run *r, jt_value v, jt_string path) {
  for (size_t at = 0, n; at <= path.n && !r->fault; at += n + 1) {
    const char *dot = at < path.n ? memchr(path.p + at, '.', path.n - at) : NULL;
    n = dot ? (size_t)(dot - path.p) - at : path.n - at;
    jt_value key = jt_str(jt_part(path, at, n));
    if (n && key.s.p[0] >= '0' && key.s.p[0] <= '9')
      return jt_fail(r, "an attribute that is a number is unsupported");
    v = jt_item(r, &v, &key);
  }
  return v;
}

static jt_value join(jt_run *r, jt_value v, const jt_args *a) {
  jt_string by = text_or(r, a, 0, "d", "");
  const jt_value *attribute = jt_arg(a, 1, "attribute");
  const jt_list *l = jt_elements(r, v, "join");
  jt_out o = {0};
  for (uint32_t i = 0; i < l->n && !r->fault; i++) {
    jt_value x = l->v[i];
    if (attribute && attribute->kind == JT_STRING)
      x = member(r, x, attribute->s);
    if (i)
      jt_out_add(r, &o, by);
    jt_out_add(r, &o, jt_to_string(r, &x));
  }
  return jt_str(jt_out_string(&o));
}

// The positional arguments from the k-th on.
static jt_args args_after(const jt_args *a, uint32_t k) {
  if (a->n <= k)
    return (jt_args){0};
  return (jt_args){
      .v = a->v + k,
      .n = a->n - k,
  };
}

// As in jinja2, a value that is false has no elements.
static const jt_list *elements_or_none(jt_run *r, jt_value v, const char *what) {
  return jt_truth(&v) ? jt_elements(r, v, what) : jt_list_new(r, JT_OF_LIST);
}

static jt_value map(jt_run *r, jt_value v, const jt_args *a) {
  const jt_value *attribute = jt_arg(a, UINT32_MAX, "attribute");
  const jt_value *absent = jt_arg(a, UINT32_MAX, "default");
  const jt_list *from = elements_or_none(r, v, "map");
  jt_list *l = jt_list_new(r, JT_OF_ITERATOR);
  bool by_filter = !attribute && a->n && a->v[0].kind == JT_STRING && !a->n_named;
  bool by_name = attribute && attribute->kind == JT_STRING && !a->n;
  if (!by_filter && !by_name)
    return jt_fail(r, "these arguments of map are unsupported");
  if (by_filter && !jt_has_filter(a->v[0].s))
    return jt_fail(r, "filter '%.*s' is unsupported", (int)a->v[0].s.n, a->v[0].s.p);
  jt_args rest = args_after(a, 1);
  for (uint32_t i = 0; i < from->n && !r->fault; i++) {
    jt_value x = by_filter ? jt_filter(r, a->v[0].s, from->v[i], &rest)
                           : member(r, from->v[i], attribute->s);
    jt_list_add(r, l, x.kind == JT_UNDEFINED && absent ? *absent : x);
  }
  return jt_list_value(l);
}

// select, reject, and by an attribute selectattr, rejectattr.
static jt_value choose(jt_run *r, jt_value v, const jt_args *a, bool by_name, bool wanted) {
  const jt_list *from = elements_or_none(r, v, "a selection");
  jt_list *l = jt_list_new(r, JT_OF_ITERATOR);
  uint32_t at = by_name;
  if (a->n_named || a->n < at || (a->n > at && a->v[at].kind != JT_STRING) ||
      (by_name && a->v[0].kind != JT_STRING))
    return jt_fail(r, "these arguments of a selection are unsupported");
  bool test = a->n > at;
  jt_args rest = args_after(a, at + test);
  for (uint32_t i = 0; i < from->n && !r->fault; i++) {
    jt_value x = by_name ? member(r, from->v[i], a->v[0].s) : from->v[i];
    bool is = test ? jt_test(r, a->v[at].s, &x, &rest) : jt_truth(&x);
    if (is == wanted)
      jt_list_add(r, l, from->v[i]);
  }
  return jt_list_value(l);
}
static jt_value select_(jt_run *r, jt_value v, const jt_args *a) {
  return choose(r, v, a, false, true);
}
static jt_value reject(jt_run *r, jt_value v, const jt_args *a) {
  return choose(r, v, a, false, false);
}
static jt_value selectattr(jt_run *r, jt_value v, const jt_args *a) {
  return choose(r, v, a, true, true);
}
static jt_value rejectattr(jt_run *r, jt_value v, const jt_args *a) {
  return choose(r, v, a, true, false);
}

// ---- order

static jt_value folded(jt_run *r, jt_value v, bool sensitive) {
  return v.kind == JT_STRING && !sensitive ? jt_str(jt_change_case(r, v.s, 'l')) : v;
}

static jt_value unique(jt_run *r, jt_value v, const jt_args *a) {
  const jt_list *from = jt_elements(r, v, "unique");
  jt_list *l = jt_list_new(r, JT_OF_ITERATOR);
  jt_list *seen = jt_list_new(r, JT_OF_LIST);
  bool sensitive = flag(a, 0, "case_sensitive", false);
  jt_value known = jt_list_value(seen);
  if (jt_arg(a, 1, "attribute"))
    return jt_fail(r, "unique by an attribute is unsupported");
  for (uint32_t i = 0; i < from->n && !r->fault; i++) {
    jt_value x = folded(r, from->v[i], sensitive);
    if (jt_contains(r, &known, &x))
      continue;
    jt_list_add(r, seen, x);
    jt_list_add(r, l, from->v[i]);
  }
  return jt_list_value(l);
}

typedef struct {
  jt_value key, value;
} sorted;

// Merges, which keeps the order of equal keys: v[first … end - 1] by their keys.
static void sort_range(jt_run *r, sorted *v, sorted *room, uint32_t first, uint32_t end,
                       bool back) {
  uint32_t middle = first + (end - first) / 2;
  uint32_t i = first;
  uint32_t k = middle;
  uint32_t to = first;
  if (end - first < 2 || r->fault)
    return;
  sort_range(r, v, room, first, middle, back);
  sort_range(r, v, room, middle, end, back);
  jt_pay_for(r, end - first);
  while (i < middle || k < end) {
    int order = i == middle ? 1 : k == end ? -1 : jt_order(r, &v[i].key, &v[k].key);
    bool left = i < middle && (k == end || (back ? order >= 0 : order <= 0));
    room[to++] = left ? v[i++] : v[k++];
  }
  memcpy(v + first, room + first, (end - first) * sizeof *v);
}

static jt_value sort_by(jt_run *r, const jt_list *from, const jt_value *by, bool sensitive,
                        bool back) {
  sorted *v = LM_NEW_N(r->a, sorted, from->n + 1), *room = LM_NEW_N(r->a, sorted, from->n + 1);
  jt_list *l = jt_list_new(r, JT_OF_LIST);
  for (uint32_t i = 0; i < from->n && !r->fault; i++) {
    jt_value key = by && by->kind == JT_STRING ? member(r, from->v[i], by->s)
                   : by && by->kind == JT_INT  ? jt_item(r, &from->v[i], by)
                                               : from->v[i];
    v[i] = (sorted){folded(r, key, sensitive), from->v[i]};
  }
  sort_range(r, v, room, 0, from->n, back);
  for (uint32_t i = 0; i < from->n && !r->fault; i++)
    jt_list_add(r, l, v[i].value);
  return jt_list_value(l);
}

// The least element, or the greatest.
static jt_value extreme(jt_run *r, jt_value v, const jt_args *a, int sign) {
  const jt_list *l = jt_elements(r, v, "min or max");
  bool sensitive = flag(a, 0, "case_sensitive", false);
  jt_value best = l->n ? l->v[0] : jt_undefined(jt_text("the extreme of an empty list"));
  for (uint32_t i = 1; i < l->n && !r->fault; i++) {
    jt_value x = folded(r, l->v[i], sensitive);
    jt_value y = folded(r, best, sensitive);
    if (sign * jt_order(r, &x, &y) > 0)
      best = l->v[i];
  }
  return best;
}
static jt_value min(jt_run *r, jt_value v, const jt_args *a) {
  return extreme(r, v, a, -1);
}
static jt_value max(jt_run *r, jt_value v, const jt_args *a) {
  return extreme(r, v, a, 1);
}

static jt_value sort(jt_run *r, jt_value v, const jt_args *a) {
  const jt_list *from = jt_elements(r, v, "sort");
  return sort_by(r, from, jt_arg(a, 2, "attribute"), flag(a, 1, "case_sensitive", false),
                 flag(a, 0, "reverse", false));
}

static jt_value dictsort(jt_run *r, jt_value v, const jt_args *a) {
  const jt_value *by = jt_arg(a, 1, "by");
  if (v.kind != JT_DICT)
    return jt_fail(r, "dictsort of %s", jt_kind_name(&v));
  bool by_value = by && by->kind == JT_STRING && jt_is(by->s, "value");
  jt_value position = jt_int(by_value);
  return sort_by(r, jt_pairs(r, v.dict, JT_OF_LIST), &position, flag(a, 0, "case_sensitive", false),
                 flag(a, 2, "reverse", false));
}

// ---- the table

static const struct {
  const char *name;
  filter_fn *call;
  uint32_t most; // arguments
  const char *names;
} filters[] = {{"tojson", tojson, 4, "ensure_ascii indent separators sort_keys"},
               {"length", length, 0, ""},
               {"count", length, 0, ""},
               {"trim", trim, 1, "chars"},
               {"string", to_string, 0, ""},
               {"safe", safe, 0, ""},
               {"default", defaults, 2, "default_value boolean"},
               {"d", defaults, 2, "default_value boolean"},
               {"join", join, 2, "d attribute"},
               {"items", items, 0, ""},
               {"upper", upper, 0, ""},
               {"lower", lower, 0, ""},
               {"capitalize", capitalize, 0, ""},
               {"title", title, 0, ""},
               {"dictsort", dictsort, 3, "case_sensitive by reverse"},
               {"list", to_list, 0, ""},
               {"replace", replace, 3, "old new count"},
               {"select", select_, 9, ""},
               {"reject", reject, 9, ""},
               {"selectattr", selectattr, 9, ""},
               {"rejectattr", rejectattr, 9, ""},
               {"map", map, 9, "attribute default"},
               {"first", first, 0, ""},
               {"last", last, 0, ""},
               {"unique", unique, 2, "case_sensitive attribute"},
               {"reverse", reverse, 0, ""},
               {"sort", sort, 3, "reverse case_sensitive attribute"},
               {"min", min, 1, "case_sensitive"},
               {"max", max, 1, "case_sensitive"},
               {"indent", indent, 3, "width first blank"},
               {"int", to_int, 1, "default"},
               {"float", to_float, 1, "default"},
               {"abs", absolute, 0, ""}};

bool jt_has_filter(jt_string name) {
  for (size_t i = 0; i < LM_COUNT(filters); i++)
    if (jt_is(name, filters[i].name))
      return true;
  return false;
}

jt_value jt_filter(jt_run *r, jt_string name, jt_value v, const jt_args *a) {
  for (size_t i = 0; i < LM_COUNT(filters); i++)
    if (jt_is(name, filters[i].name))
      return jt_args_fit(r, a, filters[i].name, 0, filters[i].most, filters[i].names)
                 ? filters[i].call(r, v, a)
                 : jt_none();
  return jt_fail(r, "filter '%.*s' is unsupported", (int)name.n, name.p);
}
