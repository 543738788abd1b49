// settings.h - values of a recipe on their way to lm_recipe. Private to recipe*.c.
//
// recipe_merge.c puts the items of one layer after the other (base, child, --set) into a tree of
// settings, checked by recipe_value.c against the schema as they come; what is wrong is reported
// and left out. So recipe_read.c, which fills in lm_recipe and resolves names, finds every value
// well-formed. recipe.c has the ways in.
#ifndef LM_SETTINGS_H
#define LM_SETTINGS_H
#include "dsl/recipe/recipe.h"
#include "dsl/recipe/schema.h"

typedef struct lm_setting lm_setting;
typedef struct lm_settings {
  lm_setting **v;
  uint32_t n, cap;
} lm_settings;
typedef struct lm_arg_origin {
  lm_sym name;
  const lm_recipe_origin *origin;
} lm_arg_origin;

struct lm_setting {
  const lm_schema_key *key;
  const ast_expr *sel;   // name, pattern or quantity behind the key; NULL if none
  const ast_expr *value; // NULL: a section, or a rule without one
  bool broken;           // it was given, but not as it must be: value is the default, or NULL
  lm_loc loc;            // of the key
  const lm_file *file;   // whose names the value means
  lm_recipe_origin *origin;
  lm_arg_origin *args;
  uint32_t n_args, cap_args; // of a value that is a call, by the arguments' names
  lm_settings children;      // of a section
};

typedef struct lm_resolver {
  lm_ctx *c;
  lm_program *p;
  lm_recipe *r;
  lm_file *set_file;   // --set: names of the first file, paths from the working directory
  ast_items data_sets; // --set data.…: without `data`, for the data section that the recipe names
  const ast_expr **defaults; // by place in the schema; parsed when first asked for
  bool base_missing;         // a chain of `extends` is broken: what is not given may have been
} lm_resolver;

// With a recipe that holds nothing yet but its name, that of `of`.
lm_resolver lm_resolver_new(lm_ctx *c, const lm_program *p, const ast_decl *of);

typedef struct lm_settings_layer {
  const lm_file *file;
  const char *who; // the same pointer for all of a layer
  bool once;       // a key may stand once in this layer
} lm_settings_layer;

// ---- recipe_merge.c
void lm_settings_apply(lm_resolver *R, lm_settings *s, const char *section, const ast_items *items,
                       const lm_settings_layer *layer);
lm_setting *lm_settings_find(const lm_settings *s, const char *path); // without a selector
lm_recipe_origin *lm_recipe_origin_new(lm_resolver *R, lm_loc at, const char *who,
                                       const ast_expr *value);

// ---- recipe_value.c
typedef struct lm_amount {
  double value, per_param;
  lm_sym unit;
} lm_amount; // unit NULL: a plain number
bool lm_amount_eval(lm_resolver *R, const lm_file *file, const ast_expr *e, bool params_allowed,
                    lm_amount *out);
// The number an expression stands for, in base units, percent as a fraction. It was checked before.
double lm_number_eval(lm_resolver *R, const lm_file *file, const ast_expr *e);
bool lm_value_check(lm_resolver *R, const lm_schema_key *key, const ast_expr *e,
                    const lm_file *file);
void lm_value_collect_unsupported(lm_resolver *R, const lm_schema_key *key, const ast_expr *e,
                                  lm_loc at);
void lm_unsupported_add(lm_resolver *R, lm_loc at, const char *feature);
const ast_expr *lm_value_default(lm_resolver *R, const lm_schema_key *key); // NULL if it has none
// The argument `name` of a call checked against the forms of `key`: as given, else the default,
// else NULL.
const ast_expr *lm_form_arg(lm_resolver *R, const lm_schema_key *key, const ast_expr *call,
                            const char *name);
lm_sym lm_callee(const ast_expr *call); // f of f(…), NULL if it is no name
const char *lm_key_label(lm_ctx *c,
                         const lm_schema_key *key); // "precision.compute", "patience of early"
// Name of the i-th positional argument of a call that is the value of `key`; NULL if it takes
// fewer. Of a form, and of whatever is called.
const char *lm_form_param(const lm_schema_key *key, const ast_expr *call, uint32_t i);
const char *lm_call_param(lm_resolver *R, const lm_schema_key *key, const ast_expr *call,
                          const lm_file *file, uint32_t i);

// ---- recipe_read.c
void lm_recipe_read(lm_resolver *R, const lm_settings *s);
lm_decl_ref lm_callable_find(lm_resolver *R, const lm_file *file, lm_sym name); // also in std.optim
uint32_t lm_call_implied(
    const lm_schema_key *key); // parameters that the caller gives: step and run of a schedule
// Those of --set on top of a section.
void lm_settings_set(lm_resolver *R, lm_settings *s, const char *section, const ast_items *items);
// Settings of a data or recipe declaration with all it extends, base first.
void lm_settings_of(lm_resolver *R, lm_decl_ref ref, const char *section, lm_settings *out);
#endif
