// recipe_read.h - what recipe_read.c, recipe_data.c, recipe_call.c and recipe_get.c share. Private
// to them.
#ifndef LM_RECIPE_READ_H
#define LM_RECIPE_READ_H
#include "dsl/recipe/settings.h"

typedef struct lm_reader {
  lm_resolver *R;
  lm_recipe *r;
  const lm_settings *s; // of the section being read
} lm_reader;

// ---- recipe_get.c
lm_setting *lm_read_setting(const lm_reader *d, const char *path);    // NULL if it is not given
const lm_file *lm_read_file(const lm_reader *d, const lm_setting *s); // whose names it means
const ast_expr *lm_read_value(const lm_reader *d,
                              const char *path); // or its default; NULL if it has neither
double lm_read_number(const lm_reader *d, const char *path, double otherwise);
int64_t lm_read_whole(const lm_reader *d, const char *path, int64_t otherwise);
lm_recipe_unit lm_read_unit(lm_sym unit);
lm_recipe_every lm_read_every(const lm_reader *d, const lm_file *file, const ast_expr *e);
const char *lm_read_path(const lm_reader *d, const char *path, lm_loc at);
bool lm_read_is_word(const ast_expr *e, const char *word);
// Arguments of a value that is a call of one of the forms of `path`: as given, else the default.
const ast_expr *lm_read_arg(const lm_reader *d, const char *path, const ast_expr *call,
                            const char *name);
const char *lm_read_arg_path(const lm_reader *d, const char *path, const ast_expr *call,
                             const char *name);
const char *lm_read_arg_text(const lm_reader *d, const char *path, const ast_expr *call,
                             const char *name);
double lm_read_arg_number(const lm_reader *d, const char *path, const ast_expr *call,
                          const char *name, const lm_file *file);
void lm_read_check_complete(const lm_reader *d, const char *section, lm_loc at,
                            const char *where); // all required keys
void lm_read_suggest(const lm_reader *d, lm_diag *at, const char *near);
lm_decl_ref lm_read_decl(const lm_reader *d, const lm_file *file, ast_decl_kind kind, lm_sym name,
                         lm_loc at);
const char *lm_read_nearest(lm_resolver *R, const lm_file *file, ast_decl_kind kind,
                            const char *name);

// ---- recipe_call.c
// The first `implied` parameters are not the caller's to give.
lm_recipe_call lm_read_call(const lm_reader *d, const ast_expr *e, const lm_file *file,
                            ast_decl_kind kind, uint32_t implied);
// With quantities as numbers of what the parameters of `decl` count.
const ast_arg *lm_read_args(const lm_reader *d, const ast_decl *decl, uint32_t implied,
                            const ast_arg *args, uint32_t n, const lm_file *file);
int lm_read_param(const ast_sig *sig, const char *name); // -1: none of that name
void lm_read_unknown_arg(const lm_reader *d, const ast_decl *decl, uint32_t implied,
                         const ast_arg *a);

// ---- recipe_data.c
void lm_read_data(const lm_reader *recipe);
#endif
