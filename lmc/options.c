// options.c - arguments of commands.
#include "lmc/options.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "driver/text.h"
#include "runtime/base/diag.h"

enum {
  OPTIONS_MAX = 64
};

int lm_opt_find(const lm_opt *table, const char *name, size_t n) {
  for (int i = 0; table[i].name; i++)
    if (strlen(table[i].name) == n && !memcmp(table[i].name, name, n))
      return i;
  return -1;
}

static int find_letter(const lm_opt *table, char letter) {
  for (int i = 0; table[i].name; i++)
    if (table[i].letter == letter)
      return i;
  return -1;
}

// `n` is the length of the option's name behind its dashes.
static lm_status unknown(lm_arena *arena, const lm_opt *table, const char *arg, size_t n) {
  size_t dashes = arg[1] == '-' ? 2 : 1;
  const char *name = lm_arena_strndup(arena, arg + dashes, n);
  const char *shown = lm_arena_strndup(arena, arg, dashes + n);
  const char *names[OPTIONS_MAX];
  int n_names = 0;
  for (; table[n_names].name; n_names++)
    names[n_names] = table[n_names].name;
  const char *near = n > 1 ? lm_meant(name, names, n_names) : NULL;
  if (near)
    return lm_fail(LM_USER, "there is no option %s; did you mean --%s?", shown, near);
  if (n > 1 && lm_opt_find(table, "set", 3) >= 0)
    return lm_fail(LM_USER,
                   "there is no option %s; --set KEY=VALUE sets a value of the recipe, and --help "
                   "lists the options",
                   shown);
  return lm_fail(LM_USER, "there is no option %s; --help lists them", shown);
}

static lm_status number_read(const lm_opt *o, const char *text, double *out) {
  char *end;
  errno = 0;
  double x = strtod(text, &end);
  bool whole = o->kind == LM_OPT_WHOLE;
  if (!*text || *end || errno || !isfinite(x) || (whole && (x != floor(x) || fabs(x) > 9e15)))
    return lm_fail(LM_USER, "--%s takes a %snumber, not '%s'", o->name, whole ? "whole " : "",
                   text);
  *out = x;
  if (!(o->least || o->most) || (x >= o->least && x <= o->most))
    return NULL;
  lm_buf b = {0};
  lm_buf_bounds(&b, o->least, o->most, x, "");
  lm_status s = lm_fail(LM_USER, "--%s is %s, not %s", o->name, b.p, text);
  lm_buf_free(&b);
  return s;
}

// Whether the value is the path of a file or folder, which cannot be empty.
static bool is_path(const lm_opt *o) {
  return o->value &&
         (!strcmp(o->value, "DIR") || !strcmp(o->value, "FILE") || !strcmp(o->value, "PATH"));
}

static lm_status value_set(lm_args *a, int i, const char *text) {
  const lm_opt *o = &a->table[i];
  lm_opt_value *v = &a->values[i];
  if (v->given && o->kind != LM_OPT_LIST)
    return lm_fail(LM_USER, "--%s is given twice", o->name);
  if (text && !*text && is_path(o))
    return lm_fail(LM_USER, "--%s needs a value: %s", o->name, o->value);
  if (text && is_path(o))
    LM_TRY(lm_annotate(lm_path_check(a->arena, text), "--%s", o->name));
  v->given = true;
  v->text = text;
  if (o->kind == LM_OPT_LIST)
    LM_PUSH(a->arena, v->list, v->n_list, v->cap_list) = text;
  return o->kind == LM_OPT_WHOLE || o->kind == LM_OPT_NUMBER ? number_read(o, text, &v->number)
                                                             : NULL;
}

// argv[*at] is an option; moves *at to its last argument.
static lm_status option_read(lm_args *a, int argc, char **argv, int *at) {
  const char *arg = argv[*at], *value = NULL;
  bool is_long = arg[1] == '-';
  size_t n = is_long ? strcspn(arg + 2, "=") : 1;
  size_t one_dash = is_long ? 0 : strcspn(arg + 1, "=");
  int i = is_long ? lm_opt_find(a->table, arg + 2, n) : find_letter(a->table, arg[1]);
  if (one_dash > 1 && (i < 0 || lm_opt_find(a->table, arg + 1, one_dash) >= 0))
    return unknown(a->arena, a->table, arg, one_dash);
  if (i < 0)
    return unknown(a->arena, a->table, arg, n);
  if (is_long && arg[2 + n] == '=')
    value = arg + 3 + n;
  if (!is_long && arg[2])
    value = arg + 2;
  if (a->table[i].kind == LM_OPT_FLAG)
    return value ? lm_fail(LM_USER, "--%s takes no value", a->table[i].name) : value_set(a, i, "");
  if (a->table[i].kind == LM_OPT_MAYBE && !value)
    return value_set(a, i, NULL);
  if (!value && *at + 1 >= argc)
    return lm_fail(LM_USER, "--%s needs a value: %s", a->table[i].name, a->table[i].value);
  return value_set(a, i, value ? value : argv[++*at]);
}

// An argument that is not an option. Directly after an option whose value must follow a =, it may
// have been meant as that value.
static void rest_add(lm_args *a, const char *before, const char *arg) {
  LM_PUSH(a->arena, a->rest, a->n_rest, a->cap_rest) = arg;
  int i = !strncmp(before, "--", 2) ? lm_opt_find(a->table, before + 2, strlen(before + 2)) : -1;
  if (i < 0 || a->table[i].kind != LM_OPT_MAYBE)
    return;
  a->maybe = a->table[i].name;
  a->after_maybe = arg;
}

lm_status lm_args_parse(lm_arena *arena, const lm_opt *table, int argc, char **argv, lm_args *out,
                        bool *out_help) {
  *out = (lm_args){
      .arena = arena, .table = table, .values = LM_NEW_N(arena, lm_opt_value, OPTIONS_MAX)};
  *out_help = false;
  bool options = true;
  for (int i = 0; i < argc; i++) {
    const char *arg = argv[i];
    if (options && (!strcmp(arg, "--help") || !strcmp(arg, "-h"))) {
      *out_help = true;
      return NULL;
    }
    if (options && !strcmp(arg, "--"))
      options = false;
    else if (options && arg[0] == '-' && arg[1])
      LM_TRY(option_read(out, argc, argv, &i));
    else
      rest_add(out, i ? argv[i - 1] : "", arg);
  }
  return NULL;
}

// ---- reading

static const lm_opt_value *value_of(const lm_args *a, const char *name) {
  int i = lm_opt_find(a->table, name, strlen(name));
  if (i < 0)
    LM_BUG("no option --%s is declared", name);
  return &a->values[i];
}

bool lm_args_given(const lm_args *a, const char *name) {
  return value_of(a, name)->given;
}

const char *lm_args_text(const lm_args *a, const char *name, const char *fallback) {
  const lm_opt_value *v = value_of(a, name);
  return v->given && v->text ? v->text : fallback;
}

double lm_args_number(const lm_args *a, const char *name, double fallback) {
  const lm_opt_value *v = value_of(a, name);
  return v->given ? v->number : fallback;
}

int64_t lm_args_whole(const lm_args *a, const char *name, int64_t fallback) {
  const lm_opt_value *v = value_of(a, name);
  return v->given ? (int64_t)v->number : fallback;
}

const char *const *lm_args_list(const lm_args *a, const char *name, int *out_n) {
  const lm_opt_value *v = value_of(a, name);
  *out_n = (int)v->n_list;
  return v->list;
}
