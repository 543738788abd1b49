// schema.c - the keys of schema.def: lookup, descriptions for messages, and docs/recipe.md.
#include "dsl/recipe/schema.h"
#include "dsl/recipe/recipe.h"
#include <string.h>

enum {
  NOW,
  RESUMABLE,
  LATER
};
#define LM_KEY(path, form, types, words, units, min, max, default_text, when, help)                \
  {path,                                                                                           \
   LM_FORM_##form,                                                                                 \
   types,                                                                                          \
   words,                                                                                          \
   units,                                                                                          \
   min,                                                                                            \
   max,                                                                                            \
   default_text,                                                                                   \
   (when) == LATER,                                                                                \
   (when) == RESUMABLE,                                                                            \
   help},
const lm_schema_key LM_SCHEMA[] = {
#include "dsl/recipe/schema.def"
};
#undef LM_KEY
const int LM_SCHEMA_COUNT = LM_COUNT(LM_SCHEMA);

// ---- keys

const lm_schema_key *lm_schema_find(const char *path) {
  for (int i = 0; i < LM_SCHEMA_COUNT; i++)
    if (!strcmp(LM_SCHEMA[i].path, path))
      return &LM_SCHEMA[i];
  return NULL;
}

const lm_schema_key *lm_schema_next(const char *prefix, char separator,
                                    const lm_schema_key *previous) {
  size_t n = strlen(prefix);
  for (const lm_schema_key *k = previous ? previous + 1 : LM_SCHEMA;
       k < LM_SCHEMA + LM_SCHEMA_COUNT; k++)
    if (!strncmp(k->path, prefix, n) && k->path[n] == separator && !strpbrk(k->path + n + 1, ".:"))
      return k;
  return NULL;
}

const lm_schema_key *lm_schema_child(const char *prefix, char separator, const char *name) {
  const lm_schema_key *k = NULL;
  while ((k = lm_schema_next(prefix, separator, k)))
    if (!strcmp(lm_schema_name(k), name))
      return k;
  return NULL;
}

const char *lm_schema_name(const lm_schema_key *k) {
  const char *name = k->path;
  for (const char *p = k->path; *p; p++)
    if (*p == '.' || *p == ':')
      name = p + 1;
  return name;
}

int lm_schema_names(const char *prefix, char separator, const char **out, int max) {
  int n = 0;
  for (const lm_schema_key *k = NULL; n < max && (k = lm_schema_next(prefix, separator, k));)
    out[n++] = lm_schema_name(k);
  return n;
}

bool lm_schema_is_required(const lm_schema_key *k) {
  return *k->default_text == '!';
}
bool lm_schema_has_default(const lm_schema_key *k) {
  return *k->default_text && *k->default_text != '!';
}

// ---- lists of words

typedef struct word {
  const char *s;
  size_t n;
  bool planned;
} word;

static bool word_next(const char **list, word *out) {
  *list += strspn(*list, " ");
  size_t n = strcspn(*list, " ");
  if (!n)
    return false;
  bool planned = (*list)[n - 1] == '?';
  *out = (word){*list, n - planned, planned};
  *list += n;
  return true;
}

bool lm_schema_has_word(const char *list, const char *text, bool *out_planned) {
  for (word w; word_next(&list, &w);) {
    if (w.n != strlen(text) || memcmp(w.s, text, w.n))
      continue;
    *out_planned = w.planned;
    return true;
  }
  return false;
}

int lm_schema_words(lm_ctx *c, const char *list, const char *out[LM_SCHEMA_WORDS]) {
  int n = 0;
  for (word w; n < LM_SCHEMA_WORDS && word_next(&list, &w);)
    out[n++] = lm_arena_strndup(c->arena, w.s, w.n);
  return n;
}

const char *lm_schema_nearest_word(lm_ctx *c, const char *list, const char *text) {
  const char *names[LM_SCHEMA_WORDS];
  return lm_nearest(text, names, lm_schema_words(c, list, names));
}

const char *lm_schema_list(lm_ctx *c, const char *list) {
  lm_buf b = {0};
  word w;
  for (bool more = word_next(&list, &w), first = true; more; first = false) {
    word after;
    bool last = !word_next(&list, &after);
    const char *unit = w.n == 1 && *w.s == '%'   ? "percent"
                       : w.n == 1 && *w.s == 's' ? "seconds"
                                                 : NULL;
    lm_buf_puts(&b, first ? "" : last ? " or " : ", ");
    if (unit)
      lm_buf_puts(&b, unit);
    else
      lm_buf_add(&b, w.s, w.n);
    if (w.planned)
      lm_buf_puts(&b, " (not available yet)");
    more = !last;
    w = after;
  }
  const char *text = lm_arena_strndup(c->arena, b.p ? b.p : "", b.n);
  lm_buf_free(&b);
  return text;
}

// ---- descriptions of keys

static const char *names_of_forms(lm_ctx *c, const lm_schema_key *k) {
  lm_buf b = {0};
  for (const lm_schema_key *f = NULL; (f = lm_schema_next(k->path, ':', f));)
    lm_buf_printf(&b, "%s%s(...)", b.n ? " or " : "", lm_schema_name(f));
  const char *text = lm_arena_strndup(c->arena, b.p ? b.p : "", b.n);
  lm_buf_free(&b);
  return text;
}

const char *lm_schema_expectation(lm_ctx *c, const lm_schema_key *k) {
  static const struct {
    unsigned type;
    const char *text;
  } plain[] = {
      {T_INT, "an integer"},
      {T_NUM, "a number"},
      {T_STRS, "a list of strings"},
      {T_PATH, "a path in quotes"},
      {T_PATTERNS, "a list of patterns"},
      {T_REF, "a name"},
      {T_WEIGHTS, "numbers by name: (a = 1, b = 2)"},
      {T_ARGS, "arguments by name: (a = 1, b = 2)"},
      {T_CALL, "a call"},
      {T_MODEL, "a model with its arguments, or the name of an instance"},
  };
  lm_buf b = {0};
  for (size_t i = 0; i < LM_COUNT(plain); i++)
    if (k->types & plain[i].type)
      lm_buf_printf(&b, "%s%s", b.n ? " or " : "", plain[i].text);
  if (k->types & T_STR)
    lm_buf_printf(&b, *k->words ? "one of the strings %s" : "a string",
                  lm_schema_list(c, k->words));
  if (k->types & T_QTY)
    lm_buf_printf(&b, "%sa number of %s", b.n ? " or " : "", lm_schema_list(c, k->units));
  if (k->types & T_FORM)
    lm_buf_printf(&b, "%s%s", b.n ? " or " : "", names_of_forms(c, k));
  if (k->types & T_WORD)
    lm_buf_printf(&b, "%s%s", b.n ? " or " : "",
                  *k->words ? lm_schema_list(c, k->words) : "a name");
  if (k->types & T_WORDS)
    lm_buf_printf(&b, "a list of %s",
                  k->form == LM_FORM_NAMED ? "names" : lm_schema_list(c, k->words));
  const char *text = lm_arena_strndup(c->arena, b.p ? b.p : "", b.n);
  lm_buf_free(&b);
  return text;
}

const char *lm_schema_usage(lm_ctx *c, const lm_schema_key *k) {
  const char *name = lm_schema_name(k);
  switch (k->form) {
  case LM_FORM_NAMED: return lm_arena_printf(c->arena, "%s NAME = ...", name);
  case LM_FORM_RULES:
    if (*k->words)
      return lm_arena_printf(c->arena, "%s @pattern, %s %s", name, name, k->words);
    return lm_arena_printf(c->arena, k->types ? "%s @pattern = (...)" : "%s @pattern", name);
  case LM_FORM_CALLED:
  case LM_FORM_LISTED: return lm_arena_printf(c->arena, "%s %s", name, names_of_forms(c, k));
  case LM_FORM_SECTION: return lm_arena_printf(c->arena, "%s { ... }", name);
  case LM_FORM_SECTIONS:
    return lm_arena_printf(c->arena,
                           k->types & T_QTY        ? "%s 10%% { ... }"
                           : k->types & T_OPTIONAL ? "%s { ... }"
                                                   : "%s NAME { ... }",
                           name);
  default:
    return lm_arena_printf(c->arena, k->types & T_WEIGHTS ? "%s = (a = 1, b = 2)" : "%s = ...",
                           name);
  }
}

// ---- the reference page

static void write_cell(lm_buf *out, const char *text) {
  for (; *text; text++) {
    if (*text == '|')
      lm_buf_puts(out, "\\");
    lm_buf_add(out, text, 1);
  }
}

static void write_row(lm_ctx *c, const lm_schema_key *k, lm_buf *out) {
  const char *name = strchr(k->path, '.') + 1;
  lm_buf_printf(out, "| `%s`%s | ", name, k->planned ? " (not available yet)" : "");
  if (k->form == LM_FORM_FORM)
    lm_buf_puts(out, "a call");
  else if (k->form == LM_FORM_ARG || k->form == LM_FORM_VALUE)
    write_cell(out, lm_schema_expectation(c, k));
  else
    lm_buf_printf(out, "`%s`", lm_schema_usage(c, k));
  const char *default_text = lm_schema_is_required(k) ? "required" : k->default_text;
  lm_buf_printf(out, " | %s%s%s | %s |\n", lm_schema_has_default(k) ? "`" : "", default_text,
                lm_schema_has_default(k) ? "`" : "", k->help);
}

static const char DURATIONS[] =
    "\n## Units of arguments\n\n"
    "Arguments of a model, an optimizer, a group or a schedule are plain numbers. Percent is a\n"
    "notation for a plain number (`floor = 5%` is 0.05); any other unit is an error. A parameter\n"
    "that is declared with the type `steps`, such as `warmup: steps = 0` of `warmup_cosine`, is a\n"
    "duration and needs a unit:\n\n"
    "| unit | parameter of a schedule | parameter of an optimizer |\n|---|---|---|\n"
    "| `40 steps` | 40 steps | 40 steps |\n"
    "| `160Ki tokens` | the number of steps that train on 160Ki tokens: tokens / `batch` | the "
    "same |\n"
    "| `10%` | 10% of the run's steps, in any unit of `run` | an error |\n"
    "| `1 epochs` | 1 epoch as a share of the run, if the unit of `run` is epochs; an error "
    "with steps or tokens | an error |\n\n"
    "A duration without a unit is an error, except 0.\n";

void lm_schema_write_reference(lm_buf *out) {
  lm_ctx *c = lm_ctx_create();
  lm_buf_puts(out, "# Keys of data and recipe sections\n\n"
                   "Generated from dsl/recipe/schema.def. `key:form` is a call that may be the "
                   "value of `key`;\n`key:form.argument` are the arguments of the call in order. "
                   "Keys and values that are marked\n\"not available yet\" are checked, and "
                   "are an error in a recipe that is run.\n");
  lm_buf_puts(out, DURATIONS);
  static const char *const sections[] = {"data.", "recipe."};
  for (size_t s = 0; s < LM_COUNT(sections); s++) {
    lm_buf_printf(out, "\n## %.*s\n\n| key | value | default | description |\n|---|---|---|---|\n",
                  (int)strlen(sections[s]) - 1, sections[s]);
    for (int i = 0; i < LM_SCHEMA_COUNT; i++)
      if (!strncmp(LM_SCHEMA[i].path, sections[s], strlen(sections[s])))
        write_row(c, &LM_SCHEMA[i], out);
  }
  lm_ctx_destroy(c);
}
