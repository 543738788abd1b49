// function.c - the functions that a template may call.
#define _GNU_SOURCE
#include <string.h>
#include <time.h>

#include "runtime/template/eval.h"

static jt_value range(jt_run *r, const jt_args *a) {
  int64_t part[3] = {0, 0, 1};
  if (!jt_args_fit(r, a, "range()", 1, 3, ""))
    return jt_none();
  for (uint32_t i = 0; i < a->n; i++) {
    if (a->v[i].kind != JT_INT)
      return jt_fail(r, "range() of %s", jt_kind_name(&a->v[i]));
    part[a->n == 1 ? 1 : i] = a->v[i].i;
  }
  if (!part[2])
    return jt_fail(r, "range() with the step 0");
  if (part[2] != (int32_t)part[2] || part[0] != (int32_t)part[0] || part[1] != (int32_t)part[1])
    return jt_fail(r, "range() of numbers beyond 32 bits");
  jt_list *l = jt_list_new(r, JT_OF_VIEW);
  for (int64_t i = part[0]; (part[2] > 0 ? i < part[1] : i > part[1]) && !r->fault; i += part[2])
    jt_list_add(r, l, jt_int(i));
  return jt_list_value(l);
}

static jt_value namespace(jt_run *r, const jt_args *a) {
  jt_value v = {
      .kind = JT_NAMESPACE,
      .dict = jt_dict_new(r),
  };
  if (a->n > 1 || (a->n && a->v[0].kind != JT_DICT))
    return jt_fail(r, "namespace() takes at most one mapping");
  for (uint32_t i = 0; a->n && i < a->v[0].dict->n; i++)
    jt_dict_set(r, v.dict, a->v[0].dict->keys[i], a->v[0].dict->values[i]);
  for (uint32_t i = 0; i < a->n_named; i++)
    jt_dict_set(r, v.dict, jt_str(a->names[i]), a->named[i]);
  return v;
}

static jt_value raise_exception(jt_run *r, const jt_args *a) {
  const jt_value *v = jt_arg(a, 0, "message");
  jt_string text = v ? jt_to_string(r, v) : jt_text("");
  return jt_fail(r, "the template refuses the conversation: %.*s",
                 text.n > 1000 ? 1000 : (int)text.n, text.p);
}

static jt_value strftime_now(jt_run *r, const jt_args *a) {
  char text[256];
  struct tm local;
  time_t now = (time_t)r->in->now;
  if (!jt_args_fit(r, a, "strftime_now()", 1, 1, "format") || a->n != 1 ||
      a->v[0].kind != JT_STRING)
    return jt_fail(r, "strftime_now() needs a format");
  if (!r->in->now)
    return jt_fail(r, "the template asks for the date of today, which a date must replace here");
  jt_string s = a->v[0].s;
  size_t n = 0;
  gmtime_r(&now, &local);
  if (s.n && s.n < sizeof text / 2)
    n = strftime(text, sizeof text, lm_arena_strndup(r->a, s.p, s.n), &local);
  if (!n && s.n)
    return jt_fail(r, "the format of strftime_now() is unsupported");
  jt_string out = {
      .p = lm_arena_strndup(r->a, text, n),
      .n = (uint32_t)n,
  };
  return jt_str(out);
}

static const struct {
  const char *name;
  jt_value (*call)(jt_run *r, const jt_args *a);
} functions[] = {{"range", range},
                 {"namespace", namespace},
                 {"raise_exception", raise_exception},
                 {"strftime_now", strftime_now}};
// Functions of jinja2 that are defined there and unsupported here.
static const char *const others[] = {"dict", "lipsum", "cycler", "joiner"};

bool jt_has_function(jt_string name) {
  for (size_t i = 0; i < LM_COUNT(functions); i++)
    if (jt_is(name, functions[i].name))
      return true;
  for (size_t i = 0; i < LM_COUNT(others); i++)
    if (jt_is(name, others[i]))
      return true;
  return false;
}

jt_value jt_function(jt_run *r, jt_string name, const jt_args *a) {
  for (size_t i = 0; i < LM_COUNT(functions); i++)
    if (jt_is(name, functions[i].name))
      return functions[i].call(r, a);
  return jt_fail(r, "function '%.*s' is unsupported", (int)name.n, name.p);
}
