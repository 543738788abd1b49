// method.c - the methods of strings, lists and mappings. The sandbox of jinja2 forbids those that
// change a value.
#include <string.h>
#include <utf8proc.h>

#include "runtime/base/utf8.h"
#include "runtime/template/eval.h"

typedef jt_value method_fn(jt_run *r, const jt_value *of, const jt_args *a);

// ---- case

// True if the upper or lower case of a character has another number of characters, or depends on
// its neighbours (SpecialCasing.txt): unsupported.
static bool is_special(uint32_t c) {
  return c == 0xdf || c == 0x130 || c == 0x149 || c == 0x1f0 || c == 0x390 || c == 0x3a3 ||
         c == 0x3b0 || c == 0x587 || (c >= 0x1e96 && c <= 0x1e9e) || (c >= 0x1f50 && c <= 0x1f57) ||
         (c >= 0x1f80 && c <= 0x1ffc) || (c >= 0xfb00 && c <= 0xfb17);
}

static uint32_t char_case(jt_run *r, uint32_t c, bool upper, bool title) {
  if (c < 0x80)
    return upper ? (c >= 'a' && c <= 'z' ? c - 32 : c) : c >= 'A' && c <= 'Z' ? c + 32 : c;
  if (is_special(c))
    jt_fail(r, "the case of U+%04X is unsupported", c);
  utf8proc_int32_t x = (utf8proc_int32_t)c;
  return (uint32_t)(!upper  ? utf8proc_tolower(x)
                    : title ? utf8proc_totitle(x)
                            : utf8proc_toupper(x));
}

static bool is_cased(uint32_t c) {
  switch (utf8proc_category((utf8proc_int32_t)c)) {
  case UTF8PROC_CATEGORY_LU:
  case UTF8PROC_CATEGORY_LL:
  case UTF8PROC_CATEGORY_LT: return true;
  default: return false;
  }
}

// how: 'u'pper, 'l'ower, 'c'apitalize, 't'itle.
jt_string jt_change_case(jt_run *r, jt_string s, char how) {
  jt_out o = {0};
  bool begins = true; // a word, or the string
  for (size_t at = 0, n; at < s.n && !r->fault; at += n) {
    uint32_t c = 0;
    char text[4];
    n = (size_t)lm_utf8_decode(s.p + at, s.n - at, &c);
    bool upper = how == 'u' || (how != 'l' && begins);
    begins = how == 't' && !is_cased(c);
    int made = lm_utf8_encode(char_case(r, c, upper, how != 'u'), text);
    jt_pay(r, 16);
    jt_out_puts(r, &o, text, (size_t)made, jt_origin_at(s, (uint32_t)at));
  }
  return jt_out_string(&o);
}

static jt_value upper(jt_run *r, const jt_value *of, const jt_args *a) {
  return jt_str(jt_change_case(r, of->s, 'u'));
}
static jt_value lower(jt_run *r, const jt_value *of, const jt_args *a) {
  return jt_str(jt_change_case(r, of->s, 'l'));
}
static jt_value capitalize(jt_run *r, const jt_value *of, const jt_args *a) {
  return jt_str(jt_change_case(r, of->s, 'c'));
}
static jt_value title(jt_run *r, const jt_value *of, const jt_args *a) {
  return jt_str(jt_change_case(r, of->s, 't'));
}

// ---- strings

static jt_string text_arg(jt_run *r, const jt_args *a, uint32_t i, const char *name) {
  const jt_value *v = jt_arg(a, i, name);
  if (v && v->kind == JT_STRING)
    return v->s;
  jt_fail(r, "argument %u is %s, expected a string", i + 1, v ? jt_kind_name(v) : "missing");
  return jt_text("");
}

static int64_t whole_arg(jt_run *r, const jt_args *a, uint32_t i, const char *name,
                         int64_t absent) {
  const jt_value *v = jt_arg(a, i, name);
  if (v && v->kind != JT_INT)
    jt_fail(r, "argument %u is %s, expected an integer", i + 1, jt_kind_name(v));
  return v && v->kind == JT_INT ? v->i : absent;
}

static bool has_char(jt_string set, jt_string s, size_t at, size_t n) {
  for (size_t i = 0; i + n <= set.n; i++)
    if (!memcmp(set.p + i, s.p + at, n) && !lm_utf8_continues(set.p[i]))
      return true;
  return false;
}

static jt_string strip_chars(jt_run *r, jt_string s, jt_string set, bool left, bool right) {
  size_t first = 0;
  size_t end = s.n;
  while (left && first < end && has_char(set, s, first, lm_utf8_length(s.p + first)))
    first += lm_utf8_length(s.p + first);
  while (right && end > first) {
    size_t before = lm_utf8_before(s.p, end);
    if (!has_char(set, s, before, end - before))
      break;
    end = before;
  }
  jt_pay(r, (s.n - (end - first)) * (size_t)set.n);
  return jt_part(s, first, end - first);
}

static jt_value strip_of(jt_run *r, const jt_value *of, const jt_args *a, bool left, bool right) {
  const jt_value *chars = jt_arg(a, 0, "chars");
  jt_pay(r, of->s.n);
  if (!chars || chars->kind == JT_NONE)
    return jt_str(jt_strip(of->s, left, right));
  return jt_str(strip_chars(r, of->s, text_arg(r, a, 0, "chars"), left, right));
}
static jt_value strip(jt_run *r, const jt_value *of, const jt_args *a) {
  return strip_of(r, of, a, true, true);
}
static jt_value lstrip(jt_run *r, const jt_value *of, const jt_args *a) {
  return strip_of(r, of, a, true, false);
}
static jt_value rstrip(jt_run *r, const jt_value *of, const jt_args *a) {
  return strip_of(r, of, a, false, true);
}

// Words between white space, at most `most` cuts; the rest is the last.
static jt_list *split_spaces(jt_run *r, jt_string s, int64_t most) {
  jt_list *l = jt_list_new(r, JT_OF_LIST);
  for (s = jt_strip(s, true, false); s.n && !r->fault; s = jt_strip(s, true, false)) {
    size_t n = 0;
    uint32_t c;
    for (int k; (k = lm_utf8_decode(s.p + n, s.n - n, &c)) && !jt_is_space(c);)
      n += (size_t)k;
    if (most >= 0 && l->n == (uint64_t)most)
      n = s.n;
    jt_pay(r, n + 64);
    jt_list_add(r, l, jt_str(jt_part(s, 0, n)));
    s = jt_part(s, n, s.n - n);
    if (most >= 0 && l->n > (uint64_t)most)
      break;
  }
  return l;
}

static jt_value split(jt_run *r, const jt_value *of, const jt_args *a) {
  const jt_value *sep = jt_arg(a, 0, "sep");
  int64_t most = whole_arg(r, a, 1, "maxsplit", -1);
  if (!sep || sep->kind == JT_NONE)
    return jt_list_value(split_spaces(r, of->s, most));
  jt_string by = text_arg(r, a, 0, "sep");
  jt_list *l = jt_list_new(r, JT_OF_LIST);
  size_t from = 0;
  if (!by.n)
    return jt_fail(r, "split() by an empty string");
  for (int64_t at; !r->fault && (most < 0 || l->n < (uint64_t)most);) {
    at = jt_find(r, jt_part(of->s, from, of->s.n - from), by, 0);
    if (at < 0)
      break;
    jt_list_add(r, l, jt_str(jt_part(of->s, from, (size_t)at)));
    from += (size_t)at + by.n;
  }
  jt_list_add(r, l, jt_str(jt_part(of->s, from, of->s.n - from)));
  return jt_list_value(l);
}

// The last cuts first; only by a separator.
static jt_value rsplit(jt_run *r, const jt_value *of, const jt_args *a) {
  int64_t most = whole_arg(r, a, 1, "maxsplit", -1);
  jt_value all = split(r, of, &(jt_args){.v = a->v, .n = a->n ? 1 : 0});
  if (r->fault || most < 0 || all.list->n <= (uint64_t)most + 1)
    return all;
  if (!a->n || a->v[0].kind != JT_STRING)
    return jt_fail(r, "rsplit() by white space with a maximum is unsupported");
  jt_list *l = jt_list_new(r, JT_OF_LIST);
  uint32_t joined = all.list->n - (uint32_t)most;
  size_t n = (joined - 1) * (size_t)a->v[0].s.n;
  for (uint32_t i = 0; i < joined; i++)
    n += all.list->v[i].s.n;
  jt_list_add(r, l, jt_str(jt_part(of->s, 0, n)));
  for (uint32_t i = joined; i < all.list->n; i++)
    jt_list_add(r, l, all.list->v[i]);
  return jt_list_value(l);
}

static jt_value splitlines(jt_run *r, const jt_value *of, const jt_args *a) {
  jt_list *l = jt_list_new(r, JT_OF_LIST);
  jt_string s = of->s;
  for (size_t from = 0, at = 0; from < s.n && !r->fault; from = ++at) {
    while (at < s.n && !strchr("\n\r\v\f\x1c\x1d\x1e", s.p[at]))
      at++;
    jt_list_add(r, l, jt_str(jt_part(s, from, at - from)));
    at += at + 1 < s.n && s.p[at] == '\r' && s.p[at + 1] == '\n';
  }
  for (size_t i = 0; i + 1 < s.n; i++) // U+0085, U+2028, U+2029
    if (!memcmp(s.p + i, "\xc2\x85", 2) ||
        (i + 2 < s.n && !memcmp(s.p + i, "\xe2\x80", 2) && ((unsigned char)s.p[i + 2] | 1) == 0xa9))
      return jt_fail(r, "splitlines() of a text with U+0085, U+2028 or U+2029 is unsupported");
  jt_pay(r, 2 * (size_t)s.n);
  return jt_list_value(l);
}

static bool has_end(jt_string s, jt_string end, bool front) {
  return end.n <= s.n && !memcmp(s.p + (front ? 0 : s.n - end.n), end.p, end.n);
}

static jt_value ends(jt_run *r, const jt_value *of, const jt_args *a, bool front) {
  const jt_value *v = jt_arg(a, 0, "");
  if (a->n != 1)
    return jt_fail(r, "startswith() and endswith() with a range are unsupported");
  if (v->kind != JT_LIST || v->list->form != JT_OF_TUPLE)
    return jt_bool(has_end(of->s, text_arg(r, a, 0, ""), front));
  for (uint32_t i = 0; i < v->list->n; i++)
    if (v->list->v[i].kind == JT_STRING && has_end(of->s, v->list->v[i].s, front))
      return jt_bool(true);
  return jt_bool(false);
}
static jt_value startswith(jt_run *r, const jt_value *of, const jt_args *a) {
  return ends(r, of, a, true);
}
static jt_value endswith(jt_run *r, const jt_value *of, const jt_args *a) {
  return ends(r, of, a, false);
}

// Between all characters, if `from` is empty.
static void replace_empty(jt_run *r, jt_string s, jt_string to, int64_t most, jt_out *o) {
  int64_t made = 0;
  for (size_t at = 0, n; !r->fault; at += n) {
    if (made++ != most || most < 0)
      jt_out_add(r, o, to);
    else
      made--;
    if (at >= s.n)
      return;
    n = lm_utf8_length(s.p + at);
    jt_out_add(r, o, jt_part(s, at, n));
    jt_pay(r, 16);
  }
}

static jt_value replace(jt_run *r, const jt_value *of, const jt_args *a) {
  jt_string from = text_arg(r, a, 0, "old");
  jt_string to = text_arg(r, a, 1, "new");
  jt_string s = of->s;
  int64_t most = whole_arg(r, a, 2, "count", -1);
  jt_out o = {0};
  if (!from.n)
    replace_empty(r, s, to, most, &o);
  for (int64_t at, made = 0; from.n && !r->fault && (most < 0 || made < most); made++) {
    at = jt_find(r, s, from, 0);
    if (at < 0)
      break;
    jt_out_add(r, &o, jt_part(s, 0, (size_t)at));
    jt_out_add(r, &o, to);
    s = jt_part(s, (size_t)at + from.n, s.n - (size_t)at - from.n);
  }
  if (from.n)
    jt_out_add(r, &o, s);
  return jt_str(jt_out_string(&o));
}

static jt_value find(jt_run *r, const jt_value *of, const jt_args *a) {
  int64_t at = jt_find(r, of->s, text_arg(r, a, 0, ""), 0);
  if (a->n != 1)
    return jt_fail(r, "find() with a range is unsupported");
  return jt_int(at < 0 ? at : (int64_t)lm_utf8_count(of->s.p, (size_t)at));
}

static jt_value rfind(jt_run *r, const jt_value *of, const jt_args *a) {
  jt_string part = text_arg(r, a, 0, "");
  jt_pay(r, of->s.n);
  if (a->n != 1)
    return jt_fail(r, "rfind() with a range is unsupported");
  for (int64_t at = (int64_t)of->s.n - part.n; at >= 0; at--)
    if (!memcmp(of->s.p + at, part.p, part.n) && !(at < of->s.n && lm_utf8_continues(of->s.p[at])))
      return jt_int((int64_t)lm_utf8_count(of->s.p, (size_t)at));
  return jt_int(-1);
}

static jt_value count(jt_run *r, const jt_value *of, const jt_args *a) {
  int64_t n = 0;
  if (of->kind == JT_LIST) {
    for (uint32_t i = 0; a->n == 1 && i < of->list->n; i++)
      n += jt_equal(r, &of->list->v[i], &a->v[0]);
    return jt_int(n);
  }
  jt_string part = text_arg(r, a, 0, "");
  jt_string s = of->s;
  if (!part.n)
    return jt_int((int64_t)jt_chars(r, s) + 1);
  for (int64_t at; !r->fault && (at = jt_find(r, s, part, 0)) >= 0; n++)
    s = jt_part(s, (size_t)at + part.n, s.n - (size_t)at - part.n);
  return jt_int(n);
}

static jt_value join(jt_run *r, const jt_value *of, const jt_args *a) {
  jt_out o = {0};
  if (!jt_args_fit(r, a, "join()", 1, 1, ""))
    return jt_none();
  const jt_list *l = jt_elements(r, a->v[0], "join()");
  for (uint32_t i = 0; i < l->n && !r->fault; i++) {
    if (i)
      jt_out_add(r, &o, of->s);
    if (l->v[i].kind != JT_STRING)
      jt_fail(r, "join() of %s", jt_kind_name(&l->v[i]));
    else
      jt_out_add(r, &o, l->v[i].s);
  }
  return jt_str(jt_out_string(&o));
}

// "{}" and "{0}" and "{name}", without a conversion or a format.
static jt_value format(jt_run *r, const jt_value *of, const jt_args *a) {
  jt_out o = {0};
  jt_string s = of->s;
  uint32_t next = 0;
  for (size_t at = 0; at < s.n && !r->fault;) {
    bool twice = at + 1 < s.n && s.p[at] == s.p[at + 1];
    const char *end = s.p[at] == '{' && !twice ? memchr(s.p + at, '}', s.n - at) : NULL;
    if (strchr("{}", s.p[at]) && s.p[at] && !twice && !end)
      return jt_fail(r, "a single brace in a format");
    if (!end) {
      jt_out_add(r, &o, jt_part(s, at, 1));
      at += 1 + (twice && (s.p[at] == '{' || s.p[at] == '}'));
      continue;
    }
    jt_string name = jt_part(s, at + 1, (size_t)(end - s.p) - at - 1);
    bool number = name.n && name.p[0] >= '0' && name.p[0] <= '9';
    uint32_t i = number ? (uint32_t)(name.p[0] - '0') : name.n ? UINT32_MAX : next++;
    const jt_value *v = jt_arg(a, i, lm_arena_strndup(r->a, name.p, name.n));
    if (!v || (number && name.n > 1))
      return jt_fail(r, "the format field '%.*s' is unsupported", (int)name.n, name.p);
    jt_out_add(r, &o, jt_to_string(r, v));
    at = (size_t)(end - s.p) + 1;
  }
  return jt_str(jt_out_string(&o));
}

static jt_value all_chars(jt_run *r, const jt_value *of, bool digits) {
  uint32_t c = 0;
  jt_pay(r, 16 * (size_t)of->s.n);
  for (size_t at = 0; at < of->s.n;) {
    at += (size_t)lm_utf8_decode(of->s.p + at, of->s.n - at, &c);
    if (digits && c >= 0x80)
      return jt_fail(r, "isdigit() of U+%04X is unsupported", c);
    if (digits ? c < '0' || c > '9' : !jt_is_space(c))
      return jt_bool(false);
  }
  return jt_bool(of->s.n > 0);
}
static jt_value isdigit_of(jt_run *r, const jt_value *of, const jt_args *a) {
  return all_chars(r, of, true);
}
static jt_value isspace_of(jt_run *r, const jt_value *of, const jt_args *a) {
  return all_chars(r, of, false);
}

// ---- lists and mappings

static jt_value index_of(jt_run *r, const jt_value *of, const jt_args *a) {
  for (uint32_t i = 0; a->n == 1 && i < of->list->n; i++)
    if (jt_equal(r, &of->list->v[i], &a->v[0]))
      return jt_int(i);
  return jt_fail(r, "index() finds no such element");
}

static jt_value get(jt_run *r, const jt_value *of, const jt_args *a) {
  const jt_value *key = jt_arg(a, 0, "");
  const jt_value *absent = jt_arg(a, 1, "");
  if (!key)
    return jt_fail(r, "get() needs a key");
  const jt_value *v = jt_dict_find(r, of->dict, key);
  return v ? *v : absent ? *absent : jt_none();
}

static jt_value items(jt_run *r, const jt_value *of, const jt_args *a) {
  return jt_list_value(jt_pairs(r, of->dict, JT_OF_VIEW));
}
static jt_value members(jt_run *r, const jt_value *of, const jt_value *v) {
  jt_list *l = jt_list_new(r, JT_OF_VIEW);
  for (uint32_t i = 0; i < of->dict->n; i++)
    jt_list_add(r, l, v[i]);
  return jt_list_value(l);
}
static jt_value keys(jt_run *r, const jt_value *of, const jt_args *a) {
  return members(r, of, of->dict->keys);
}
static jt_value values(jt_run *r, const jt_value *of, const jt_args *a) {
  return members(r, of, of->dict->values);
}

// ---- tables

typedef struct {
  const char *name;
  method_fn *call; // NULL: unsupported
  uint32_t most;   // arguments
  const char *names;
} method;

static const method of_string[] = {{"upper", upper, 0, ""},
                                   {"lower", lower, 0, ""},
                                   {"capitalize", capitalize, 0, ""},
                                   {"title", title, 0, ""},
                                   {"strip", strip, 1, ""},
                                   {"lstrip", lstrip, 1, ""},
                                   {"rstrip", rstrip, 1, ""},
                                   {"split", split, 2, "sep maxsplit"},
                                   {"rsplit", rsplit, 2, ""},
                                   {"splitlines", splitlines, 0, ""},
                                   {"startswith", startswith, 1, ""},
                                   {"endswith", endswith, 1, ""},
                                   {"replace", replace, 3, ""},
                                   {"find", find, 1, ""},
                                   {"rfind", rfind, 1, ""},
                                   {"count", count, 1, ""},
                                   {"join", join, 1, ""},
                                   {"format", format, 10, NULL},
                                   {"isdigit", isdigit_of, 0, ""},
                                   {"isspace", isspace_of, 0, ""},
                                   {"casefold", 0},
                                   {"center", 0},
                                   {"encode", 0},
                                   {"expandtabs", 0},
                                   {"format_map", 0},
                                   {"index", 0},
                                   {"isalnum", 0},
                                   {"isalpha", 0},
                                   {"isascii", 0},
                                   {"isdecimal", 0},
                                   {"isidentifier", 0},
                                   {"islower", 0},
                                   {"isnumeric", 0},
                                   {"isprintable", 0},
                                   {"istitle", 0},
                                   {"isupper", 0},
                                   {"ljust", 0},
                                   {"maketrans", 0},
                                   {"partition", 0},
                                   {"removeprefix", 0},
                                   {"removesuffix", 0},
                                   {"rindex", 0},
                                   {"rjust", 0},
                                   {"rpartition", 0},
                                   {"swapcase", 0},
                                   {"translate", 0},
                                   {"zfill", 0},
                                   {0}};
static const method of_list[] = {{"index", index_of, 1, ""},
                                 {"count", count, 1, ""},
                                 {"append", 0},
                                 {"clear", 0},
                                 {"copy", 0},
                                 {"extend", 0},
                                 {"insert", 0},
                                 {"pop", 0},
                                 {"remove", 0},
                                 {"reverse", 0},
                                 {"sort", 0},
                                 {0}};
static const method of_dict[] = {{"get", get, 2, ""},   {"items", items, 0, ""},
                                 {"keys", keys, 0, ""}, {"values", values, 0, ""},
                                 {"clear", 0},          {"copy", 0},
                                 {"fromkeys", 0},       {"pop", 0},
                                 {"popitem", 0},        {"setdefault", 0},
                                 {"update", 0},         {0}};
static const method of_number[] = {
    {"as_integer_ratio", 0}, {"bit_count", 0}, {"bit_length", 0}, {"conjugate", 0},
    {"denominator", 0},      {"imag", 0},      {"numerator", 0},  {"real", 0},
    {"is_integer", 0},       {"hex", 0},       {"to_bytes", 0},   {0}};
static const method of_view[] = {{"index", 0}, {"count", 0},   {"start", 0}, {"stop", 0},
                                 {"step", 0},  {"mapping", 0}, {0}};

static const method *method_find(const jt_value *of, jt_string name) {
  const method *m = jt_is_number(of)               ? of_number
                    : of->kind == JT_STRING        ? of_string
                    : of->kind == JT_DICT          ? of_dict
                    : of->kind != JT_LIST          ? NULL
                    : of->list->form > JT_OF_TUPLE ? of_view
                                                   : of_list;
  for (; m && m->name; m++)
    if (jt_is(name, m->name))
      return m;
  return NULL;
}

bool jt_is_method(const jt_value *of, jt_string name) {
  return method_find(of, name) != NULL;
}

jt_value jt_method(jt_run *r, const jt_value *of, jt_string name, const jt_args *a) {
  const method *m = method_find(of, name);
  if (m && of->safe)
    return jt_fail(r, "method '%s' of a string that `safe` marks is unsupported", m->name);
  if (!m || !m->call)
    return jt_fail(r, "method '%.*s' of %s is unsupported", (int)name.n, name.p, jt_kind_name(of));
  if (m->names && !jt_args_fit(r, a, m->name, 0, m->most, m->names))
    return jt_none();
  jt_pay(r, 64);
  return m->call(r, of, a);
}
