// recipe_get.c - accessors of settings: values with their defaults, amounts, paths, and the
// declarations that names refer to.
#include "dsl/recipe/recipe_read.h"
#include <string.h>
#include <strings.h>

// ---- values

lm_setting *lm_read_setting(const lm_reader *d, const char *path) {
  return lm_settings_find(d->s, path);
}

const lm_file *lm_read_file(const lm_reader *d, const lm_setting *s) {
  return s ? s->file : d->R->p->files[0];
}

lm_reader lm_read_inside(const lm_reader *d, const char *section, lm_settings *none) {
  const lm_setting *s = lm_read_setting(d, section);
  return (lm_reader){d->R, d->r, s ? &s->children : none};
}

const ast_expr *lm_read_value(const lm_reader *d, const char *path) {
  const lm_setting *s = lm_read_setting(d, path);
  return s ? s->value : lm_value_default(d->R, lm_schema_find(path));
}

double lm_read_number(const lm_reader *d, const char *path, double default_value) {
  const ast_expr *e = lm_read_value(d, path);
  return e ? lm_number_eval(d->R, lm_read_file(d, lm_read_setting(d, path)), e) : default_value;
}

// A literal is read as an integer, because a double is exact only up to 2^53.
int64_t lm_read_whole(const lm_reader *d, const char *path, int64_t default_value) {
  const ast_expr *e = lm_read_value(d, path);
  return e && e->kind == EX_NUMBER && e->is_int
             ? e->inum
             : (int64_t)lm_read_number(d, path, (double)default_value);
}

lm_recipe_unit lm_read_unit(lm_sym unit) {
  static const struct {
    const char *name;
    lm_recipe_unit unit;
  } units[] = {
      {"steps", LM_RECIPE_UNIT_STEPS},   {"tokens", LM_RECIPE_UNIT_TOKENS},
      {"epochs", LM_RECIPE_UNIT_EPOCHS}, {"s", LM_RECIPE_UNIT_SECONDS},
      {"seqs", LM_RECIPE_UNIT_SEQS},
  };
  for (size_t i = 0; unit && i < LM_COUNT(units); i++)
    if (!strcmp(units[i].name, unit))
      return units[i].unit;
  return LM_RECIPE_UNIT_NONE;
}

lm_recipe_every lm_read_every(const lm_reader *d, const lm_file *file, const ast_expr *e) {
  lm_amount a;
  if (!e || !lm_amount_eval(d->R, file, e, false, &a))
    return (lm_recipe_every){0};
  return (lm_recipe_every){lm_read_unit(a.unit), a.value};
}

// A path is relative to the file that contains it. Paths of --set and of defaults are in no file
// and stay relative to the working directory.
const char *lm_read_path(const lm_reader *d, const char *path, lm_loc at) {
  for (uint32_t i = 0; i < d->R->p->n_files; i++)
    if (d->R->p->files[i]->tree->source == at.file)
      return lm_path_join(d->R->c->arena, d->R->p->files[i]->dir, path);
  return path;
}

const ast_expr *lm_read_arg(const lm_reader *d, const char *path, const ast_expr *call,
                            const char *name) {
  return lm_form_arg(d->R, lm_schema_find(path), call, name);
}
const char *lm_read_arg_path(const lm_reader *d, const char *path, const ast_expr *call,
                             const char *name) {
  const ast_expr *e = lm_read_arg(d, path, call, name);
  return e ? lm_read_path(d, e->text, e->loc) : NULL;
}
const char *lm_read_arg_text(const lm_reader *d, const char *path, const ast_expr *call,
                             const char *name) {
  const ast_expr *e = lm_read_arg(d, path, call, name);
  return e ? e->text : NULL;
}
double lm_read_arg_number(const lm_reader *d, const char *path, const ast_expr *call,
                          const char *name, const lm_file *file) {
  const ast_expr *e = lm_read_arg(d, path, call, name);
  return e ? lm_number_eval(d->R, file, e) : 0;
}

bool lm_read_is_word(const ast_expr *e, const char *word) {
  return e && e->kind == EX_NAME && !strcmp(e->text, word);
}

void lm_read_suggest(const lm_reader *d, lm_diag *at, const char *near) {
  if (near)
    lm_diag_help(d->R->c, at, "did you mean '%s'?", near);
}

void lm_read_check_complete(const lm_reader *d, const char *section, lm_loc at, const char *where) {
  lm_buf names = {0};
  const lm_schema_key *first = NULL;
  int n = 0;
  for (const lm_schema_key *k = NULL; (k = lm_schema_next(section, '.', k));) {
    if (k->form != LM_FORM_VALUE || !lm_schema_is_required(k) || lm_read_setting(d, k->path))
      continue;
    if (!n++)
      first = k;
    lm_buf_printf(&names, "%s'%s'", n > 1 ? ", " : "", lm_schema_name(k));
  }
  if (n && !d->R->incomplete) {
    lm_diag *e = LM_REPORT(d->R->c, at, E247, where, names.p);
    if (n == 1)
      lm_diag_help(d->R->c, e, "add %s  # %s", lm_schema_usage(d->R->c, first), first->help);
  }
  lm_buf_free(&names);
}

// ---- declarations

static const char *kind_name(ast_decl_kind kind) {
  return kind == DC_MODEL       ? "model"
         : kind == DC_OPTIMIZER ? "optimizer"
         : kind == DC_DATA      ? "data section"
         : kind == DC_RECIPE    ? "recipe"
                                : "schedule";
}

const char *lm_read_nearest(lm_resolver *R, const lm_file *file, ast_decl_kind kind,
                            const char *name) {
  int n, n_library;
  const char *const *own = lm_program_names(R->p, file, kind, &n);
  const char *near = lm_nearest(name, own, n);
  if (near || !R->p->optim)
    return near;
  const char *const *library = lm_program_names(R->p, R->p->optim, kind, &n_library);
  return lm_nearest(name, library, n_library);
}

static bool is_of(const char *name, const char *const *names, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (!strcasecmp(name, names[i]))
      return true;
  return false;
}

// What to write for an optimizer of other programs; NULL if there is none.
static const char *optimizer_meant(const char *name) {
  static const char *const matrices[] = {"shampoo", "soap", "kron", "psgd", "galore"};
  static const char *const bytes[] = {"adamw8bit", "adamw_8bit", "adamw_bnb_8bit", "adam8bit",
                                      "paged_adamw_8bit"};
  if (is_of(name, matrices, LM_COUNT(matrices)))
    return "the library does not have it; an optimizer of matrices is declared with "
           "update(p: f32[i, o], g: f32[i, o]) -> f32[i, o]";
  if (is_of(name, bytes, LM_COUNT(bytes)))
    return "precision { moments = dyn8() } stores the states of any optimizer in 8 bits";
  return NULL;
}

// The optimizers or schedules of the library: "adamw, adam, …".
static const char *library_list(lm_resolver *R, ast_decl_kind kind) {
  const ast_file *tree = R->p->optim->tree;
  const char *list = "";
  for (uint32_t i = 0; i < tree->n; i++) {
    const ast_decl *x = tree->v[i];
    bool other =
        x->kind == DC_FN && (!x->sig.n_params || strcmp(x->sig.params[0].name.text, "step"));
    if (x->kind == kind && !other)
      list = lm_arena_printf(R->c->arena, "%s%s%s", list, *list ? ", " : "", x->name.text);
  }
  return list;
}

static void suggest_decl(const lm_reader *d, lm_diag *e, const lm_file *file, ast_decl_kind kind,
                         const char *name) {
  const char *meant = kind == DC_OPTIMIZER ? optimizer_meant(name) : NULL;
  const char *near = lm_read_nearest(d->R, file, kind, name);
  if (meant)
    lm_diag_help(d->R->c, e, "%s", meant);
  else if (!near && (kind == DC_OPTIMIZER || kind == DC_FN) && d->R->p->optim)
    lm_diag_help(d->R->c, e, "the library has %s", library_list(d->R, kind));
  else
    lm_read_suggest(d, e, near);
}

lm_decl_ref lm_read_decl(const lm_reader *d, const lm_file *file, ast_decl_kind kind, lm_sym name,
                         lm_loc at) {
  lm_decl_ref ref = lm_callable_find(d->R, file, name);
  if (ref.decl && ref.decl->kind == kind)
    return ref;
  if (!ref.decl && file->incomplete)
    return ref;
  if (ref.decl) {
    lm_diag *e =
        LM_REPORT(d->R->c, at, E20D, name, kind == DC_OPTIMIZER ? "an" : "a", kind_name(kind));
    lm_diag_note(d->R->c, e, ref.decl->loc, "declared here");
    return (lm_decl_ref){0};
  }
  lm_diag *e = LM_REPORT(d->R->c, at, E207, kind_name(kind), name);
  suggest_decl(d, e, file, kind, name);
  return (lm_decl_ref){0};
}
