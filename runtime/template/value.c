// value.c - strings with origins, lists, dicts, and the conversion from JSON.
#define _GNU_SOURCE
#include <string.h>

#include "runtime/base/utf8.h"
#include "runtime/template/ast.h"

enum {
  BYTES_A_STEP = 64,
  ELEMENTS_A_STEP = 8
};

lm_status jt_fault(const lm_template *t, uint32_t line, const char *fmt, va_list ap) {
  lm_buf b = {0};
  lm_buf_vprintf(&b, fmt, ap);
  lm_status s = lm_fail(LM_USER, "%s:%u: %s", t->what, line, b.p);
  lm_buf_free(&b);
  return s;
}

jt_value jt_fail(jt_run *r, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  if (!r->fault)
    r->fault = jt_fault(r->t, r->line, fmt, ap);
  va_end(ap);
  return jt_undefined(jt_text(""));
}

static void steps_take(jt_run *r, int64_t n) {
  r->steps -= n;
  if (r->steps < 0)
    jt_fail(r, "the template takes more than %d steps", LM_TEMPLATE_STEPS);
}

void jt_pay(jt_run *r, size_t bytes) {
  steps_take(r, (int64_t)(bytes / BYTES_A_STEP));
}

void jt_pay_for(jt_run *r, size_t elements) {
  steps_take(r, (int64_t)(elements / ELEMENTS_A_STEP));
}

jt_string jt_text(const char *p) {
  return (jt_string){.p = p, .n = (uint32_t)strlen(p)};
}

bool jt_is(jt_string s, const char *text) {
  return s.n == strlen(text) && !memcmp(s.p, text, s.n);
}

bool jt_string_equal(jt_string x, jt_string y) {
  return x.n == y.n && (!x.n || !memcmp(x.p, y.p, x.n));
}

const char *jt_kind_name(const jt_value *v) {
  static const char *const names[] = {
      [JT_UNDEFINED] = "undefined", [JT_NONE] = "none",       [JT_BOOL] = "a boolean",
      [JT_INT] = "an integer",      [JT_FLOAT] = "a float",   [JT_STRING] = "a string",
      [JT_LIST] = "a list",         [JT_DICT] = "a mapping",  [JT_NAMESPACE] = "a namespace",
      [JT_MACRO] = "a macro",       [JT_METHOD] = "a method", [JT_FUNCTION] = "a function",
      [JT_LOOP] = "a loop"};
  static const char *const forms[] = {[JT_OF_LIST] = "a list",
                                      [JT_OF_TUPLE] = "a tuple",
                                      [JT_OF_VIEW] = "a view",
                                      [JT_OF_ITERATOR] = "an iterator"};
  return v->kind == JT_LIST ? forms[v->list->form] : names[v->kind];
}

// ---- strings

jt_string jt_part(jt_string s, size_t first, size_t n) {
  return (jt_string){s.p + first, (uint32_t)n, s.one, s.from ? s.from + first : NULL};
}

static bool out_reserve(jt_run *r, jt_out *o, size_t n) {
  if (n > LM_TEMPLATE_OUTPUT - o->n) {
    jt_fail(r, "a text exceeds the maximum of 1 MiB");
    return false;
  }
  if (n <= o->cap - o->n)
    return true;
  uint32_t cap = o->cap ? 2 * o->cap : 128;
  while (cap < o->n + n)
    cap *= 2;
  char *p = lm_arena_alloc(r->a, cap);
  lm_origin *from = lm_arena_alloc(r->a, cap * sizeof *from);
  unsigned char *generated = o->records ? lm_arena_alloc(r->a, cap) : NULL;
  if (o->n && o->records)
    memcpy(generated, o->generated, o->n);
  if (o->n) {
    memcpy(p, o->p, o->n);
    memcpy(from, o->from, o->n * sizeof *from);
  }
  o->p = p;
  o->from = from;
  o->generated = generated;
  o->cap = cap;
  return true;
}

void jt_out_add(jt_run *r, jt_out *o, jt_string s) {
  jt_pay(r, s.n);
  if (r->fault || !s.n || !out_reserve(r, o, s.n))
    return;
  memcpy(o->p + o->n, s.p, s.n);
  for (uint32_t i = 0; i < s.n; i++)
    o->from[o->n + i] = jt_origin_at(s, i);
  if (o->records)
    memset(o->generated + o->n, o->generation, s.n);
  o->n += s.n;
}

void jt_out_puts(jt_run *r, jt_out *o, const char *p, size_t n, lm_origin one) {
  jt_out_add(r, o,
             (jt_string){
                 .p = p,
                 .n = (uint32_t)n,
                 .one = one,
             });
}

jt_string jt_out_string(const jt_out *o) {
  return (jt_string){
      .p = o->n ? o->p : "",
      .n = o->n,
      .from = o->from,
  };
}

size_t jt_chars(jt_run *r, jt_string s) {
  jt_pay(r, s.n);
  return lm_utf8_count(s.p, s.n);
}

size_t jt_char_at(jt_run *r, jt_string s, size_t i) {
  size_t at = 0;
  jt_pay(r, s.n);
  for (; at < s.n; at++)
    if (!lm_utf8_continues(s.p[at]) && !i--)
      break;
  return at;
}

bool jt_is_space(uint32_t c) {
  return lm_utf8_is_space(c) || (c >= 0x1c && c <= 0x1f);
}

jt_string jt_strip(jt_string s, bool left, bool right) {
  uint32_t c;
  size_t first = 0;
  size_t end = s.n;
  for (int n; left && (n = lm_utf8_decode(s.p + first, end - first, &c)) && jt_is_space(c);)
    first += (size_t)n;
  while (right && end > first) {
    size_t before = lm_utf8_before(s.p, end);
    if (!lm_utf8_decode(s.p + before, end - before, &c) || !jt_is_space(c))
      break;
    end = before;
  }
  return jt_part(s, first, end - first);
}

int64_t jt_find(jt_run *r, jt_string s, jt_string part, size_t from) {
  jt_pay(r, s.n);
  if (from > s.n)
    return -1;
  if (!part.n)
    return (int64_t)from;
  const char *at = memmem(s.p + from, s.n - from, part.p, part.n);
  return at ? at - s.p : -1;
}

// ---- lists

jt_list *jt_list_new(jt_run *r, jt_sequence form) {
  jt_list *l = LM_NEW(r->a, jt_list);
  l->form = (uint8_t)form;
  return l;
}

void jt_list_add(jt_run *r, jt_list *l, jt_value v) {
  if (l->n % ELEMENTS_A_STEP == 0)
    steps_take(r, 1);
  if (!r->fault)
    LM_PUSH(r->a, l->v, l->n, l->cap) = v;
}

jt_value jt_list_value(jt_list *l) {
  return (jt_value){.kind = JT_LIST, .list = l};
}

// ---- dicts

jt_dict *jt_dict_new(jt_run *r) {
  return LM_NEW(r->a, jt_dict);
}

jt_value jt_dict_value(jt_dict *d) {
  return (jt_value){.kind = JT_DICT, .dict = d};
}

const jt_value *jt_dict_find(jt_run *r, const jt_dict *d, const jt_value *key) {
  jt_pay_for(r, d->n);
  for (uint32_t i = 0; i < d->n && !r->fault; i++)
    if (jt_equal(r, &d->keys[i], key))
      return &d->values[i];
  return NULL;
}

static void dict_push(jt_run *r, jt_dict *d, jt_value key, jt_value v) {
  uint32_t n = d->n;
  LM_PUSH(r->a, d->keys, n, d->cap_keys) = key;
  LM_PUSH(r->a, d->values, d->n, d->cap_values) = v;
}

void jt_dict_set(jt_run *r, jt_dict *d, jt_value key, jt_value v) {
  jt_value *known = (jt_value *)jt_dict_find(r, d, &key);
  if (r->fault)
    return;
  if (known)
    *known = v;
  else
    dict_push(r, d, key, v);
}

jt_list *jt_pairs(jt_run *r, const jt_dict *d, jt_sequence form) {
  jt_list *all = jt_list_new(r, form);
  for (uint32_t i = 0; i < d->n && !r->fault; i++) {
    jt_list *pair = jt_list_new(r, JT_OF_TUPLE);
    jt_list_add(r, pair, d->keys[i]);
    jt_list_add(r, pair, d->values[i]);
    jt_list_add(r, all, jt_list_value(pair));
  }
  return all;
}

static jt_list *characters(jt_run *r, jt_string s) {
  jt_list *l = jt_list_new(r, JT_OF_LIST);
  for (size_t at = 0, n; at < s.n && !r->fault; at += n) {
    n = lm_utf8_length(s.p + at);
    jt_list_add(r, l, jt_str(jt_part(s, at, n)));
  }
  return l;
}

jt_list *jt_elements(jt_run *r, jt_value v, const char *what) {
  jt_list *l = jt_list_new(r, JT_OF_LIST);
  switch (v.kind) {
  case JT_UNDEFINED: return l;
  case JT_STRING: return characters(r, v.s);
  case JT_DICT:
    for (uint32_t i = 0; i < v.dict->n; i++)
      jt_list_add(r, l, v.dict->keys[i]);
    return l;
  case JT_LIST:
    if (v.list->form != JT_OF_ITERATOR)
      return v.list;
    if (v.list->used)
      jt_fail(r, "an iterator is iterated more than once");
    v.list->used = true;
    return v.list;
  default: jt_fail(r, "%s cannot be iterated by %s", jt_kind_name(&v), what); return l;
  }
}

// ---- JSON

static jt_value from_array(jt_run *r, const json_t *j, lm_origin from) {
  jt_list *l = jt_list_new(r, JT_OF_LIST);
  l->from = from;
  for (size_t i = 0; i < json_array_size(j); i++)
    jt_list_add(r, l, jt_from_json(r, json_array_get(j, i), from));
  return jt_list_value(l);
}

static jt_value json_name(const char *key, lm_origin from) {
  jt_string s = jt_text(key);
  s.one = from;
  return jt_str(s);
}

static jt_value from_object(jt_run *r, const json_t *j, lm_origin from) {
  jt_dict *d = jt_dict_new(r);
  const char *key;
  json_t *value;
  d->from = from;
  json_object_foreach((json_t *)j, key, value)
      dict_push(r, d, json_name(key, from), jt_from_json(r, value, from));
  jt_pay_for(r, d->n);
  return jt_dict_value(d);
}

jt_value jt_from_json(jt_run *r, const json_t *j, lm_origin from) {
  switch (json_typeof(j)) {
  case JSON_OBJECT: return from_object(r, j, from);
  case JSON_ARRAY: return from_array(r, j, from);
  case JSON_STRING:
    if (json_string_length(j) > LM_TEMPLATE_OUTPUT)
      return jt_fail(r, "a text of the conversation exceeds the maximum of 1 MiB");
    return jt_str((jt_string){
        .p = json_string_value(j),
        .n = (uint32_t)json_string_length(j),
        .one = from,
    });
  case JSON_INTEGER: return jt_int(json_integer_value(j));
  case JSON_REAL: return jt_float(json_real_value(j));
  case JSON_TRUE: return jt_bool(true);
  case JSON_FALSE: return jt_bool(false);
  default: return jt_none();
  }
}

static lm_message_field field_of(const char *key) {
  return !strcmp(key, "role")      ? LM_FIELD_ROLE
         : !strcmp(key, "content") ? LM_FIELD_CONTENT
                                   : LM_FIELD_OTHER;
}

static jt_value message(jt_run *r, const json_t *j, uint32_t index) {
  jt_dict *d = jt_dict_new(r);
  const char *key;
  json_t *value;
  d->from = lm_origin_of(index, LM_FIELD_OTHER);
  json_object_foreach((json_t *)j, key, value) {
    lm_origin from = lm_origin_of(index, field_of(key));
    dict_push(r, d, json_name(key, from), jt_from_json(r, value, from));
  }
  return jt_dict_value(d);
}

jt_value jt_from_messages(jt_run *r, const json_t *messages, size_t n) {
  jt_list *l = jt_list_new(r, JT_OF_LIST);
  l->from = LM_ORIGIN_GIVEN;
  for (size_t i = 0; i < n && i < json_array_size(messages); i++)
    jt_list_add(r, l, message(r, json_array_get(messages, i), (uint32_t)i));
  return jt_list_value(l);
}
