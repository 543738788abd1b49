// access.c - attributes, items and slices of values, and arguments of calls.
#include <string.h>

#include "runtime/template/eval.h"

// ---- arguments

const jt_value *jt_arg(const jt_args *a, uint32_t i, const char *name) {
  if (i < a->n)
    return &a->v[i];
  for (uint32_t k = 0; k < a->n_named; k++)
    if (jt_is(a->names[k], name))
      return &a->named[k];
  return NULL;
}

// True if `names` has the word.
static bool has_word(const char *names, jt_string word) {
  for (size_t n; *names; names += n + (names[n] == ' ')) {
    n = strcspn(names, " ");
    if (n == word.n && !memcmp(names, word.p, n))
      return true;
  }
  return false;
}

bool jt_args_fit(jt_run *r, const jt_args *a, const char *what, uint32_t least, uint32_t most,
                 const char *names) {
  if (a->n > most || a->n + a->n_named < least)
    jt_fail(r, "%s has %u arguments", what, a->n + a->n_named);
  for (uint32_t i = 0; i < a->n_named; i++)
    if (!has_word(names, a->names[i]))
      jt_fail(r, "%s has no argument '%s'", what, a->names[i].p);
  return !r->fault;
}

// ---- attributes and items

static jt_value method_of(jt_run *r, const jt_value *of, jt_string name) {
  jt_value *object = LM_NEW(r->a, jt_value);
  *object = *of;
  return (jt_value){
      .kind = JT_METHOD,
      .s = name,
      .object = object,
  };
}

static jt_value of_undefined(jt_run *r, const jt_value *of) {
  return jt_fail(r, "'%.*s' is undefined", (int)of->s.n, of->s.p);
}

// What an undefined attribute is. A template that takes text alone calls a method of the text.
static jt_value undefined_of(jt_run *r, const jt_value *of, jt_string name) {
  jt_value text = jt_str(jt_text(""));
  if (of->kind == JT_LIST && jt_is_method(&text, name))
    jt_parts_fail(r, of);
  return jt_undefined(name);
}

jt_value jt_attribute(jt_run *r, const jt_value *of, jt_string name) {
  jt_value key = jt_str(name);
  const jt_value *v = NULL;
  if (name.n > 1 && name.p[0] == '_' && name.p[1] == '_')
    return jt_fail(r, "attribute '%.*s' is unsupported", (int)name.n, name.p);
  switch (of->kind) {
  case JT_UNDEFINED: return of_undefined(r, of);
  case JT_LOOP: return jt_loop_attribute(r, of->loop, name);
  case JT_NAMESPACE: v = jt_dict_find(r, of->dict, &key); break;
  case JT_DICT:
    if (jt_is_method(of, name)) // as in Python, a method hides a key
      return method_of(r, of, name);
    v = jt_dict_find(r, of->dict, &key);
    break;
  case JT_MACRO: return jt_fail(r, "attribute '%.*s' of a macro", (int)name.n, name.p);
  default:
    if (jt_is_method(of, name))
      return method_of(r, of, name);
  }
  return v ? *v : undefined_of(r, of, name);
}

static int64_t length_of(jt_run *r, const jt_value *v) {
  return v->kind == JT_STRING ? (int64_t)jt_chars(r, v->s) : v->list->n;
}

static bool is_indexed(const jt_value *v) {
  return v->kind == JT_STRING || (v->kind == JT_LIST && v->list->form != JT_OF_ITERATOR);
}

static jt_string character(jt_run *r, jt_string s, int64_t i) {
  size_t first = jt_char_at(r, s, (size_t)i);
  size_t end = first + jt_char_at(r, jt_part(s, first, s.n - first), 1);
  return jt_part(s, first, end - first);
}

static jt_value element(jt_run *r, const jt_value *of, int64_t i) {
  int64_t n = length_of(r, of);
  i += i < 0 ? n : 0;
  if (i < 0 || i >= n)
    return jt_undefined(jt_text("an element behind the end"));
  return of->kind == JT_STRING ? jt_str(character(r, of->s, i)) : of->list->v[i];
}

jt_value jt_item(jt_run *r, const jt_value *of, const jt_value *key) {
  if (of->kind == JT_UNDEFINED)
    return of_undefined(r, of);
  if (of->kind == JT_DICT) {
    const jt_value *v = jt_dict_find(r, of->dict, key);
    if (v)
      return *v;
  }
  if (is_indexed(of) && (key->kind == JT_INT || key->kind == JT_BOOL))
    return element(r, of, jt_whole(key));
  if (key->kind == JT_STRING)
    return jt_attribute(r, of, key->s);
  return jt_undefined(jt_text("the element"));
}

// ---- slices

static int64_t clamp(int64_t x, int64_t least, int64_t most) {
  return x < least ? least : x > most ? most : x;
}

// A bound of a slice of n elements: absent, it is `absent`.
static int64_t bound(const jt_value *v, int64_t n, bool back, int64_t absent) {
  if (v->kind != JT_INT)
    return absent;
  int64_t i = clamp(v->i, -n - 1, n + 1);
  i += i < 0 ? n : 0;
  return clamp(i, back ? -1 : 0, back ? n - 1 : n);
}

static jt_value string_slice(jt_run *r, jt_string s, int64_t first, int64_t end, int64_t step) {
  jt_out o = {0};
  if (step == 1) {
    size_t from = jt_char_at(r, s, (size_t)first);
    size_t to = end <= first ? from : jt_char_at(r, s, (size_t)end);
    return jt_str(jt_part(s, from, to - from));
  }
  const jt_list *l = jt_elements(r, jt_str(s), "a slice");
  for (int64_t i = first; (step > 0 ? i < end : i > end) && !r->fault; i += step)
    jt_out_add(r, &o, l->v[i].s);
  return jt_str(jt_out_string(&o));
}

static jt_value list_slice(jt_run *r, const jt_list *of, int64_t first, int64_t end, int64_t step) {
  jt_list *l = jt_list_new(r, (jt_sequence)of->form);
  l->from = of->from;
  for (int64_t i = first; (step > 0 ? i < end : i > end) && !r->fault; i += step)
    jt_list_add(r, l, of->v[i]);
  return jt_list_value(l);
}

jt_value jt_slice(jt_run *r, const jt_value *of, const jt_value *first, const jt_value *end,
                  const jt_value *step) {
  const jt_value *parts[] = {first, end, step};
  for (int i = 0; i < 3; i++)
    if (parts[i]->kind != JT_INT && parts[i]->kind != JT_NONE)
      return jt_fail(r, "%s in a slice", jt_kind_name(parts[i]));
  if (of->kind == JT_UNDEFINED)
    return of_undefined(r, of);
  if (!is_indexed(of))
    return jt_undefined(jt_text("the slice"));
  int64_t n = length_of(r, of);
  int64_t by = step->kind == JT_INT ? clamp(step->i, -n - 1, n + 1) : 1;
  if (!by)
    return jt_fail(r, "a slice has the step 0");
  int64_t from = bound(first, n, by < 0, by < 0 ? n - 1 : 0);
  int64_t to = bound(end, n, by < 0, by < 0 ? -1 : n);
  return of->kind == JT_STRING ? string_slice(r, of->s, from, to, by)
                               : list_slice(r, of->list, from, to, by);
}
