// recipe_unknown.c - the error for a key that a section does not have, with the key that was
// probably meant: one elsewhere, that of a word of other programs, or one with a similar name.
#include <string.h>
#include "dsl/recipe/settings.h"

static const char *section_name(const char *section) {
  return !strcmp(section, "data")     ? "a data section"
         : !strcmp(section, "recipe") ? "a recipe"
                                      : strchr(section, '.') + 1;
}

// The dotted path of a key without the names of forms: "precision.compute", "data.pack.seq". NULL
// if the path contains a selector.
static const char *path_without_forms(lm_resolver *R, const lm_schema_key *key) {
  lm_buf b = {0};
  bool named = false;
  for (const char *p = key->path; *p;) {
    size_t n = 1 + strcspn(p + 1, ".:");
    if (*p != ':')
      lm_buf_add(&b, p, n);
    p += n;
    const lm_schema_key *above =
        lm_schema_find(lm_arena_strndup(R->c->arena, key->path, (size_t)(p - key->path)));
    named |= *p && above && above->form != LM_FORM_VALUE && above->form != LM_FORM_CALLED &&
             above->form != LM_FORM_SECTION && above->form != LM_FORM_FORM;
  }
  const char *path = named ? NULL : lm_arena_strndup(R->c->arena, b.p, b.n);
  lm_buf_free(&b);
  return path;
}

// The path as --set and `lmc explain` take it: "optimizer", "data.pack".
static const char *path_in_recipe(const lm_schema_key *key) {
  return strncmp(key->path, "recipe.", 7) ? key->path : key->path + 7;
}

// The path of a key of this name elsewhere: an argument of a value of the recipe, or a nested key
// of the schema; of a data section only for --set. NULL if there is none.
static const char *key_elsewhere(lm_resolver *R, const lm_settings *s, const char *name,
                                 bool written) {
  const char *arg;
  for (uint32_t i = 0; i < s->n; i++)
    for (uint32_t k = 0; s->v[i]->value && !s->v[i]->sel &&
                         (arg = lm_call_param(R, s->v[i]->key, s->v[i]->value, s->v[i]->file, k));
         k++)
      if (!strcmp(arg, name))
        return lm_arena_printf(R->c->arena, "%s.%s", path_in_recipe(s->v[i]->key), name);
  for (int i = 0; i < LM_SCHEMA_COUNT; i++) {
    bool data = !strncmp(LM_SCHEMA[i].path, "data.", 5);
    if (strcmp(lm_schema_name(&LM_SCHEMA[i]), name) || LM_SCHEMA[i].form == LM_FORM_FORM ||
        (data && written))
      continue;
    const char *path = path_without_forms(R, &LM_SCHEMA[i]);
    if (path)
      return data ? path : strchr(path, '.') + 1;
  }
  return NULL;
}

// The same key in the other kind of section: `batch` of a data section. NULL if there is none.
static const char *key_of_other(lm_resolver *R, const char *section, const char *name) {
  bool data = !strcmp(section, "data");
  if (!data && strcmp(section, "recipe"))
    return NULL;
  const lm_schema_key *key = lm_schema_child(data ? "recipe" : "data", '.', name);
  if (!key)
    return NULL;
  return lm_arena_printf(R->c->arena, "it is a key of %s: %s NAME { %s }",
                         data ? "a recipe" : "a data section", data ? "recipe" : "data",
                         lm_schema_usage(R->c, key));
}

void lm_unknown_key(lm_resolver *R, const lm_settings *s, const char *section, const ast_name *name,
                    bool written) {
  const char *names[64];
  int n = lm_schema_names(section, '.', names, LM_COUNT(names));
  lm_diag *d = LM_REPORT(R->c, name->loc, E201, section_name(section), name->text);
  bool by_path = !strcmp(section, "recipe") || !written;
  const char *path = by_path ? key_elsewhere(R, s, name->text, written) : NULL;
  const char *help = path ? NULL : key_of_other(R, section, name->text);
  if (path)
    lm_diag_help(R->c, d, "did you mean '%s'?", path);
  else if (help)
    lm_diag_help(R->c, d, "%s", help);
  else
    lm_recipe_help(R->c, d, section, name->text, names, n);
}
