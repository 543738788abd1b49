// print.c - values as text: Python's str and repr, and JSON as json.dumps writes it.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "runtime/base/utf8.h"
#include "runtime/template/ast.h"

static void puts_own(jt_run *r, jt_out *o, const char *text, lm_origin from) {
  jt_out_puts(r, o, text, strlen(text), from);
}

// ---- numbers

// Python's repr of a float: the fewest digits that read back, in scientific notation outside of
// 1e-4 … 1e16.
static void float_print(double d, char *out, size_t room) {
  char digits[40];
  if (isnan(d) || isinf(d)) {
    snprintf(out, room, "%s", isnan(d) ? "nan" : d < 0 ? "-inf" : "inf");
    return;
  }
  int n = 1;
  for (; n <= 17; n++) {
    snprintf(digits, sizeof digits, "%.*e", n - 1, d);
    if (strtod(digits, NULL) == d)
      break;
  }
  char *e = strchr(digits, 'e');
  int exponent = atoi(e + 1);
  if (exponent >= -4 && exponent < 16) {
    int behind = n - 1 - exponent;
    snprintf(out, room, "%.*f", behind < 1 ? 1 : behind, d);
    return;
  }
  *e = 0;
  snprintf(out, room, "%se%c%02d", digits, exponent < 0 ? '-' : '+', abs(exponent));
}

// True if the value has no parts; prints it.
static bool scalar_print(const jt_value *v, bool json, char *out, size_t room) {
  switch (v->kind) {
  case JT_NONE: snprintf(out, room, "%s", json ? "null" : "None"); return true;
  case JT_BOOL:
    snprintf(out, room, "%s", json ? v->b ? "true" : "false" : v->b ? "True" : "False");
    return true;
  case JT_INT: snprintf(out, room, "%lld", (long long)v->i); return true;
  case JT_FLOAT:
    if (json && !isfinite(v->d))
      snprintf(out, room, "%s", isnan(v->d) ? "NaN" : v->d < 0 ? "-Infinity" : "Infinity");
    else
      float_print(v->d, out, room);
    return true;
  default: return false;
  }
}

// ---- Python's repr

static void repr(jt_run *r, const jt_value *v, jt_out *o);

static bool is_printable(uint32_t c) {
  switch (utf8proc_category((utf8proc_int32_t)c)) {
  case UTF8PROC_CATEGORY_CN:
  case UTF8PROC_CATEGORY_CC:
  case UTF8PROC_CATEGORY_CF:
  case UTF8PROC_CATEGORY_CS:
  case UTF8PROC_CATEGORY_CO:
  case UTF8PROC_CATEGORY_ZL:
  case UTF8PROC_CATEGORY_ZP: return false;
  case UTF8PROC_CATEGORY_ZS: return c == ' ';
  default: return true;
  }
}

static void escaped_add(jt_run *r, jt_out *o, uint32_t c, lm_origin from) {
  char text[16];
  snprintf(text, sizeof text, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
  puts_own(r, o, text, from);
}

static void string_repr(jt_run *r, jt_string s, jt_out *o) {
  bool single = s.n && memchr(s.p, '\'', s.n);
  bool both = single && memchr(s.p, '"', s.n);
  char quote = single && !both ? '"' : '\'';
  static const char letters[] = "nrt\\", bytes[] = "\n\r\t\\";
  jt_out_puts(r, o, &quote, 1, s.n ? jt_origin_at(s, 0) : s.one);
  for (size_t at = 0, n; at < s.n && !r->fault; at += n) {
    uint32_t c = 0;
    n = (size_t)lm_utf8_decode(s.p + at, s.n - at, &c);
    lm_origin from = jt_origin_at(s, (uint32_t)at);
    const char *known = c < 0x80 && c ? strchr(bytes, (char)c) : NULL;
    if (known || c == (uint32_t)quote)
      jt_out_puts(r, o, (char[]){'\\', known ? letters[known - bytes] : quote}, 2, from);
    else if (!is_printable(c))
      escaped_add(r, o, c, from);
    else
      jt_out_add(r, o, jt_part(s, at, n));
  }
  jt_out_puts(r, o, &quote, 1, s.n ? jt_origin_at(s, s.n - 1) : s.one);
}

static void list_repr(jt_run *r, const jt_list *l, jt_out *o) {
  bool tuple = l->form == JT_OF_TUPLE;
  if (l->form > JT_OF_TUPLE) {
    jt_fail(r, "an iterator or a view cannot be printed");
    return;
  }
  puts_own(r, o, tuple ? "(" : "[", l->from);
  for (uint32_t i = 0; i < l->n && !r->fault; i++) {
    puts_own(r, o, i ? ", " : "", l->from);
    repr(r, &l->v[i], o);
  }
  puts_own(r, o, tuple ? l->n == 1 ? ",)" : ")" : "]", l->from);
}

static void dict_repr(jt_run *r, const jt_dict *d, jt_out *o) {
  puts_own(r, o, "{", d->from);
  for (uint32_t i = 0; i < d->n && !r->fault; i++) {
    puts_own(r, o, i ? ", " : "", d->from);
    repr(r, &d->keys[i], o);
    puts_own(r, o, ": ", d->from);
    repr(r, &d->values[i], o);
  }
  puts_own(r, o, "}", d->from);
}

static void repr(jt_run *r, const jt_value *v, jt_out *o) {
  char text[64];
  jt_pay(r, 64);
  if (scalar_print(v, false, text, sizeof text))
    puts_own(r, o, text, LM_ORIGIN_TEMPLATE);
  else if (v->kind == JT_STRING)
    string_repr(r, v->s, o);
  else if (v->kind == JT_LIST)
    list_repr(r, v->list, o);
  else if (v->kind == JT_DICT)
    dict_repr(r, v->dict, o);
  else if (v->kind == JT_UNDEFINED)
    puts_own(r, o, "Undefined", LM_ORIGIN_TEMPLATE);
  else
    jt_fail(r, "%s cannot be printed", jt_kind_name(v));
}

// True if v is the list of parts of a message's content, or one of them.
static bool is_content(const jt_value *v, int64_t *out_message) {
  lm_origin from = v->kind == JT_LIST   ? v->list->from
                   : v->kind == JT_DICT ? v->dict->from
                                        : LM_ORIGIN_TEMPLATE;
  *out_message = lm_origin_message(from);
  return *out_message >= 0 && lm_origin_field(from) == LM_FIELD_CONTENT;
}

bool jt_parts_fail(jt_run *r, const jt_value *v) {
  int64_t message;
  if (!r->in->texts || !is_content(v, &message))
    return false;
  jt_fail(r,
          "the content of message %lld is a list of parts, of which the template takes none: "
          "write their texts as one text",
          (long long)message);
  return true;
}

jt_string jt_to_string(jt_run *r, const jt_value *v) {
  if (v->kind == JT_STRING)
    return v->s;
  if (v->kind == JT_UNDEFINED)
    return jt_text("");
  jt_parts_fail(r, v);
  jt_out o = {0};
  repr(r, v, &o);
  return jt_out_string(&o);
}

// ---- JSON

// True if JSON or `ascii` escapes the character; prints the escape.
static bool json_escape(uint32_t c, bool ascii, char *out, size_t room) {
  static const char letters[] = "\"\\nrtbf", bytes[] = "\"\\\n\r\t\b\f";
  const char *known = c && c < 0x80 ? strchr(bytes, (char)c) : NULL;
  if (known)
    snprintf(out, room, "\\%c", letters[known - bytes]);
  else if (c < 0x20 || (ascii && c >= 0x7f && c < 0x10000 && c != 0x7f))
    snprintf(out, room, "\\u%04x", c);
  else if (ascii && c >= 0x10000)
    snprintf(out, room, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10),
             0xdc00 + ((c - 0x10000) & 0x3ff));
  else
    return false;
  return true;
}

static void json_text(jt_run *r, jt_string s, bool ascii, jt_out *o) {
  jt_out_puts(r, o, "\"", 1, s.n ? jt_origin_at(s, 0) : s.one);
  for (size_t at = 0, plain = 0, n; at <= s.n && !r->fault; at += n) {
    uint32_t c = 0;
    char text[16];
    n = at < s.n ? (size_t)lm_utf8_decode(s.p + at, s.n - at, &c) : 1;
    bool escape = at < s.n && json_escape(c, ascii, text, sizeof text);
    if (at < s.n && !escape)
      continue;
    jt_out_add(r, o, jt_part(s, plain, at - plain));
    if (escape)
      puts_own(r, o, text, jt_origin_at(s, (uint32_t)at));
    plain = at + n;
  }
  jt_out_puts(r, o, "\"", 1, s.n ? jt_origin_at(s, s.n - 1) : s.one);
}

static void json_line(jt_run *r, const jt_json *o, int level, lm_origin from, jt_out *out) {
  if (!o->lines)
    return;
  puts_own(r, out, "\n", from);
  for (int i = 0; i < level; i++)
    jt_out_puts(r, out, o->indent.p, o->indent.n, from);
}

static void json_sequence(jt_run *r, const jt_list *l, const jt_json *o, int level, jt_out *out) {
  if (l->form > JT_OF_TUPLE) {
    jt_fail(r, "an iterator or a view is not JSON");
    return;
  }
  puts_own(r, out, "[", l->from);
  for (uint32_t i = 0; i < l->n && !r->fault; i++) {
    puts_own(r, out, i ? o->lines ? "," : ", " : "", l->from);
    json_line(r, o, level + 1, l->from, out);
    jt_to_json(r, &l->v[i], o, level + 1, out);
  }
  if (l->n)
    json_line(r, o, level, l->from, out);
  puts_own(r, out, "]", l->from);
}

static void json_key(jt_run *r, const jt_value *key, const jt_json *o, jt_out *out) {
  char text[64];
  if (key->kind == JT_STRING)
    json_text(r, key->s, o->ascii, out);
  else if (scalar_print(key, true, text, sizeof text))
    json_text(r, jt_text(lm_arena_strndup(r->a, text, strlen(text))), o->ascii, out);
  else
    jt_fail(r, "%s is no key of a JSON object", jt_kind_name(key));
}

typedef struct {
  jt_value key;
  uint32_t index;
} sorted_key;

static int key_compare(const void *x, const void *y) {
  return jt_string_order(((const sorted_key *)x)->key.s, ((const sorted_key *)y)->key.s);
}

static uint32_t *dict_order(jt_run *r, const jt_dict *d, bool sort) {
  uint32_t *order = LM_NEW_N(r->a, uint32_t, d->n + 1);
  sorted_key *keys = LM_NEW_N(r->a, sorted_key, d->n + 1);
  for (uint32_t i = 0; i < d->n; i++) {
    keys[i] = (sorted_key){d->keys[i], i};
    if (sort && d->keys[i].kind != JT_STRING)
      jt_fail(r, "keys that are not strings cannot be sorted");
  }
  if (sort && !r->fault)
    qsort(keys, d->n, sizeof *keys, key_compare);
  for (uint32_t i = 0; i < d->n; i++)
    order[i] = keys[i].index;
  return order;
}

static void json_mapping(jt_run *r, const jt_dict *d, const jt_json *o, int level, jt_out *out) {
  uint32_t *order = dict_order(r, d, o->sort);
  puts_own(r, out, "{", d->from);
  for (uint32_t i = 0; i < d->n && !r->fault; i++) {
    puts_own(r, out, i ? o->lines ? "," : ", " : "", d->from);
    json_line(r, o, level + 1, d->from, out);
    json_key(r, &d->keys[order[i]], o, out);
    puts_own(r, out, ": ", d->from);
    jt_to_json(r, &d->values[order[i]], o, level + 1, out);
  }
  if (d->n)
    json_line(r, o, level, d->from, out);
  puts_own(r, out, "}", d->from);
}

void jt_to_json(jt_run *r, const jt_value *v, const jt_json *o, int level, jt_out *out) {
  char text[64];
  jt_pay(r, 64);
  if (r->fault)
    return;
  if (scalar_print(v, true, text, sizeof text))
    puts_own(r, out, text, LM_ORIGIN_TEMPLATE);
  else if (v->kind == JT_STRING)
    json_text(r, v->s, o->ascii, out);
  else if (v->kind == JT_LIST)
    json_sequence(r, v->list, o, level, out);
  else if (v->kind == JT_DICT)
    json_mapping(r, v->dict, o, level, out);
  else
    jt_fail(r, "%s is not JSON", jt_kind_name(v));
}
