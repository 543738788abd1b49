// recipe_read.h - private interface of recipe_read.c, recipe_model.c, recipe_data.c,
// recipe_parallel.c, recipe_call.c and recipe_get.c.
#ifndef LM_RECIPE_READ_H
#define LM_RECIPE_READ_H
#include "dsl/recipe/settings.h"

typedef struct lm_reader {
  lm_resolver *R;
  lm_recipe *r;
  const lm_settings *s; // of the section being read
} lm_reader;

// ---- recipe_get.c
// The setting of a key; NULL if it is not set.
lm_setting *lm_read_setting(const lm_reader *d, const char *path);
// The scope of the names in the value of `s`.
const lm_file *lm_read_file(const lm_reader *d, const lm_setting *s);
// The value of a key, or its default; NULL if it has neither.
// The settings of a section; *none if the recipe does not have it.
lm_reader lm_read_inside(const lm_reader *d, const char *section, lm_settings *none);
const ast_expr *lm_read_value(const lm_reader *d, const char *path);
double lm_read_number(const lm_reader *d, const char *path, double default_value);
int64_t lm_read_whole(const lm_reader *d, const char *path, int64_t default_value);
lm_recipe_unit lm_read_unit(lm_sym unit);
lm_recipe_every lm_read_every(const lm_reader *d, const lm_file *file, const ast_expr *e);
const char *lm_read_path(const lm_reader *d, const char *path, lm_loc at);
bool lm_read_is_word(const ast_expr *e, const char *word);
// An argument of `call`, the value of the key `path`: the given argument, else its default; NULL,
// or 0, if there is neither.
const ast_expr *lm_read_arg(const lm_reader *d, const char *path, const ast_expr *call,
                            const char *name);
const char *lm_read_arg_path(const lm_reader *d, const char *path, const ast_expr *call,
                             const char *name);
const char *lm_read_arg_text(const lm_reader *d, const char *path, const ast_expr *call,
                             const char *name);
double lm_read_arg_number(const lm_reader *d, const char *path, const ast_expr *call,
                          const char *name, const lm_file *file);
// Reports the required keys of `section` that are not set; `where` names the section in the
// message.
void lm_read_check_complete(const lm_reader *d, const char *section, lm_loc at, const char *where);
// Adds "did you mean" to a diagnostic unless `near` is NULL.
void lm_read_suggest(const lm_reader *d, lm_diag *at, const char *near);
// The declaration of that kind and name; reported if there is none.
lm_decl_ref lm_read_decl(const lm_reader *d, const lm_file *file, ast_decl_kind kind, lm_sym name,
                         lm_loc at);
// The most similar name of that kind, in `file` or the library; NULL if there is none.
const char *lm_read_nearest(lm_resolver *R, const lm_file *file, ast_decl_kind kind,
                            const char *name);

// ---- recipe_call.c
// Resolves and checks a call. The first `implied` parameters get their arguments from the runtime
// (step and run of a schedule) and cannot be given.
lm_recipe_call lm_read_call(const lm_reader *d, const ast_expr *e, const lm_file *file,
                            ast_decl_kind kind, uint32_t implied);
// A copy of the arguments in which quantities are numbers in the unit of their parameter.
const ast_arg *lm_read_args(const lm_reader *d, const ast_decl *decl, uint32_t implied,
                            const ast_arg *args, uint32_t n, const lm_file *file);
// The index of a parameter, -1 if there is none of that name.
int lm_read_param(const ast_sig *sig, const char *name);
// Reports an argument that `decl` does not have.
void lm_read_unknown_arg(const lm_reader *d, const ast_decl *decl, uint32_t implied,
                         const ast_arg *a);

// ---- recipe_model.c
// Fills in the model of the recipe, its weights and edits.
void lm_read_model(const lm_reader *d);

// ---- recipe_parallel.c
// Fills in the mesh of the recipe.
void lm_read_parallel(const lm_reader *recipe);

// ---- recipe_data.c
// Fills in the data section of the recipe.
void lm_read_data(const lm_reader *recipe);

// ---- recipe_precision.c
void lm_read_precision(const lm_reader *recipe);
#endif
