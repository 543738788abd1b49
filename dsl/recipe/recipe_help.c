// recipe_help.c - what to write instead of a key that a section does not have (words of other
// programs, words.def; keys elsewhere; similar names), and of a value in another notation.
#include <string.h>
#include "dsl/recipe/settings.h"

static const struct {
  const char *path, *words, *help, *name;
} words[] = {
#define WORD(PATH, WORDS, HELP) {PATH, WORDS, HELP, NULL},
#define NEAR(PATH, WORDS, NAME) {PATH, WORDS, NULL, NAME},
#include "dsl/recipe/words.def"
#undef WORD
#undef NEAR
};

static bool has_name(const char *const *names, int n, const char *name) {
  for (int i = 0; i < n; i++)
    if (!strcmp(names[i], name))
      return true;
  return false;
}

bool lm_recipe_help(lm_ctx *c, lm_diag *d, const char *path, const char *word,
                    const char *const *names, int n) {
  const char *near = NULL;
  bool planned;
  for (size_t i = 0; i < LM_COUNT(words); i++) {
    if (strcmp(words[i].path, path) || !lm_schema_has_word(words[i].words, word, &planned))
      continue;
    if (words[i].help) {
      lm_diag_help(c, d, "%s", words[i].help);
      return true;
    }
    if (has_name(names, n, words[i].name))
      near = words[i].name;
  }
  if (!near)
    near = lm_nearest(word, names, n);
  if (near)
    lm_diag_help(c, d, "did you mean '%s'?", near);
  return near != NULL;
}

const char *lm_recipe_text(lm_ctx *c, const ast_expr *e) {
  lm_buf b = {0};
  lm_expr_write(e, &b);
  const char *text =
      lm_arena_printf(c->arena, "%.*s%s", b.n > 60 ? 60 : (int)b.n, b.p, b.n > 60 ? "..." : "");
  lm_buf_free(&b);
  return text;
}

// The name of the library that a call of `text` was probably meant to use; NULL if there is none.
static const char *library_name(lm_resolver *R, const lm_schema_key *key, const char *text) {
  int n = 0;
  ast_decl_kind kind = strcmp(key->path, "recipe.optimizer") ? DC_FN : DC_OPTIMIZER;
  const char *const *names = R->p->optim ? lm_program_names(R->p, R->p->optim, kind, &n) : NULL;
  for (int i = 0; i < n; i++)
    if (!strcmp(names[i], text))
      return text;
  return lm_nearest(text, names, n);
}

// True if `key` takes the number or the quantity `e`.
static bool takes(const lm_schema_key *key, const ast_expr *e) {
  bool planned;
  if (e->kind == EX_NUMBER)
    return key->types & (T_INT | T_NUM);
  return e->kind == EX_QUANTITY && key->types & T_QTY &&
         lm_schema_has_word(key->units, e->unit, &planned);
}

// The form whose first argument takes the number or quantity; NULL if there is none.
static const char *form_of_number(const lm_schema_key *key, const ast_expr *e) {
  const lm_schema_key *f = NULL;
  while ((f = lm_schema_next(key->path, ':', f))) {
    const lm_schema_key *first = lm_schema_next(f->path, '.', NULL);
    if (first && takes(first, e))
      return lm_schema_name(f);
  }
  return NULL;
}

// The argument beside `key` that takes the number: `train` of bpe(256). NULL if there is none.
static const char *argument_beside(lm_resolver *R, const lm_schema_key *key, const ast_expr *e) {
  const char *dot = strrchr(key->path, '.');
  const char *form = lm_arena_strndup(R->c->arena, key->path, (size_t)(dot - key->path));
  const lm_schema_key *k = NULL;
  while (key->form == LM_FORM_ARG && (k = lm_schema_next(form, '.', k)))
    if (takes(k, e))
      return lm_schema_name(k);
  return NULL;
}

// The form whose first argument is a path, such as `text` of `x.txt`: the one that has the name of
// the path's suffix, else the first one. NULL if there is none.
static const char *form_of_path(const lm_schema_key *key, const char *path) {
  const char *suffix = strrchr(path, '.');
  const lm_schema_key *named = suffix ? lm_schema_child(key->path, ':', suffix + 1) : NULL;
  for (const lm_schema_key *f = named ? named : lm_schema_next(key->path, ':', NULL); f;
       f = lm_schema_next(key->path, ':', f)) {
    const lm_schema_key *first = lm_schema_next(f->path, '.', NULL);
    if (first && first->types & T_PATH)
      return lm_schema_name(f);
  }
  return NULL;
}

// A path that is written as a string or, by --set, without quotes: x.txt; NULL if it is none.
static const char *path_text(lm_resolver *R, const ast_expr *e) {
  return e->kind == EX_STRING ? e->text : e->kind == EX_FIELD ? lm_recipe_text(R->c, e) : NULL;
}

void lm_recipe_help_files(lm_ctx *c, lm_diag *d) {
  lm_diag_help(c, d,
               "files are sources of the section: source NAME = text(\"x.txt\"), "
               "or --set 'data.source.NAME=text(\"x.txt\")'");
}

// One path is expected, but a list is written.
static void help_paths(lm_ctx *c, lm_diag *d, const lm_schema_key *key) {
  if (!strncmp(key->path, "data.source", strlen("data.source")))
    lm_diag_help(c, d,
                 "a pattern names several files: text(\"texts/*.txt\"); files elsewhere are "
                 "another source: source more = text(\"more.txt\")");
}

void lm_recipe_help_notation(lm_resolver *R, lm_diag *d, const lm_schema_key *key,
                             const ast_expr *e) {
  if (!strcmp(key->path, "recipe.data")) {
    lm_recipe_help_files(R->c, d);
    return;
  }
  const char *name = lm_schema_name(key);
  bool text = e->kind == EX_NAME || e->kind == EX_STRING;
  const char *call = text && key->types & T_CALL ? library_name(R, key, e->text) : NULL;
  const char *form = key->types & T_FORM ? form_of_number(key, e) : NULL;
  const char *beside = key->types & T_PATH ? argument_beside(R, key, e) : NULL;
  const char *file = key->types & T_FORM ? path_text(R, e) : NULL;
  if (file)
    form = form_of_path(key, file);
  bool path = e->kind == EX_CALL && e->a->kind == EX_FIELD && key->types & T_CALL;
  if (path)
    call = library_name(R, key, e->a->text);
  bool element =
      (e->kind == EX_NAME && key->types & T_WORDS) || (e->kind == EX_STRING && key->types & T_STRS);
  if (call)
    lm_diag_help(R->c, d, "write %s = %s(…)", name, call);
  else if (form && file)
    lm_diag_help(R->c, d, "write %s(\"%s\")", form, file);
  else if (form && key->form == LM_FORM_NAMED)
    lm_diag_help(R->c, d, "write %s(%s)", form, e->spelling);
  else if (form)
    lm_diag_help(R->c, d, "write %s = %s(%s)", name, form, e->spelling);
  else if (beside)
    lm_diag_help(R->c, d, "write %s = %s", beside, e->spelling);
  else if (element)
    lm_diag_help(R->c, d, "write %s = [%s]", name, lm_recipe_text(R->c, e));
  else if (e->kind == EX_LIST && key->types & T_PATH)
    help_paths(R->c, d, key);
}
