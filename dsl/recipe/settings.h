// settings.h - the tree of settings between the syntax tree and lm_recipe. Private to recipe*.c.
//
// recipe_merge.c merges the items of the layers (base, child, --set) into a tree of settings.
// recipe_value.c checks each value against the schema; a value with an error is reported and
// replaced by its default. So every value is well-formed when recipe_read.c resolves names and
// fills in lm_recipe. recipe_settings.c merges the layers of a declaration; recipe.c has the public
// functions.
#ifndef LM_SETTINGS_H
#define LM_SETTINGS_H
#include "dsl/recipe/recipe.h"
#include "dsl/recipe/schema.h"
#include "runtime/base/diag_code.h"

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
  const ast_expr *sel;   // name, pattern or quantity after the key; NULL if none
  const ast_expr *value; // NULL: a section, or a rule without one
  bool broken;           // the given value has an error; value is the default or NULL
  lm_loc loc;            // of the key
  const lm_file *file;   // the scope of the value
  lm_recipe_origin *origin;
  lm_arg_origin *args;
  uint32_t n_args, cap_args; // origins of the arguments if the value is a call
  lm_settings children;      // of a section
};

typedef struct lm_resolver {
  lm_ctx *c;
  lm_program *p;
  lm_recipe *r;
  lm_file *set_file; // the scope of --set: names of the first file, paths of the working directory
  ast_items data_sets; // items of --set data.KEY without `data`, for the recipe's data section
  const ast_expr **defaults; // by index in LM_SCHEMA; parsed at the first use
  bool incomplete; // an item or base has a reported error, so missing keys are not reported
} lm_resolver;

typedef struct lm_settings_layer {
  const lm_file *file;
  const char *who; // "recipe NAME" or "--set"; the same pointer for all values of the layer
  bool once;       // a key that is set twice in this layer is an error
} lm_settings_layer;

// ---- recipe_merge.c
void lm_settings_apply(lm_resolver *R, lm_settings *s, const char *section, const ast_items *items,
                       const lm_settings_layer *layer);
// The setting of a key without a selector; NULL if it is not set.
lm_setting *lm_settings_find(const lm_settings *s, const char *path);
lm_recipe_origin *lm_recipe_origin_new(lm_resolver *R, lm_loc at, const char *who,
                                       const ast_expr *value);

// ---- recipe_help.c
// Adds to `d` what the section or call at `path` of the schema, whose keys or arguments are the n
// `names`, has for the word: help of words.def, or a similar name. False if there is neither.
bool lm_recipe_help(lm_ctx *c, lm_diag *d, const char *path, const char *word,
                    const char *const *names, int n);
// Shows how to write the value `e` of `key` where only its notation is wrong.
void lm_recipe_help_notation(lm_resolver *R, lm_diag *d, const lm_schema_key *key,
                             const ast_expr *e);
// Says where the files of a recipe's data belong.
void lm_recipe_help_files(lm_ctx *c, lm_diag *d);
// An expression as text for messages, at most 60 bytes of it.
const char *lm_recipe_text(lm_ctx *c, const ast_expr *e);

// ---- recipe_unknown.c
// Reports that `section` has no key `name`. written: in the file, not by --set. `s` are the
// settings of the section so far.
void lm_unknown_key(lm_resolver *R, const lm_settings *s, const char *section, const ast_name *name,
                    bool written);

// ---- recipe_value.c
// value + per_param * (number of parameters)
typedef struct lm_amount {
  double value, per_param;
  lm_sym unit; // NULL: a plain number
} lm_amount;
// The name of a unit in messages: "percent", "seconds", "tokens".
const char *lm_unit_name(lm_sym unit);
// Evaluates a constant expression; false after an error.
bool lm_amount_eval(lm_resolver *R, const lm_file *file, const ast_expr *e, bool params_allowed,
                    lm_amount *out);
// The value of a checked expression in base units, percent as a fraction.
double lm_number_eval(lm_resolver *R, const lm_file *file, const ast_expr *e);
// Checks a value against its key; false after an error.
bool lm_value_check(lm_resolver *R, const lm_schema_key *key, const ast_expr *e,
                    const lm_file *file);
void lm_value_collect_unsupported(lm_resolver *R, const lm_schema_key *key, const ast_expr *e,
                                  lm_loc at);
void lm_unsupported_add(lm_resolver *R, lm_loc at, const char *feature);
// The default of a key, NULL if it has none.
const ast_expr *lm_value_default(lm_resolver *R, const lm_schema_key *key);
// The argument `name` of a checked call that is the value of `key`: the given argument, else the
// default, else NULL.
const ast_expr *lm_form_arg(lm_resolver *R, const lm_schema_key *key, const ast_expr *call,
                            const char *name);
lm_sym lm_callee(const ast_expr *call); // f of f(...); NULL if the callee is not a name
// The name of a key in messages: "precision.compute", "patience of early".
const char *lm_key_label(lm_ctx *c, const lm_schema_key *key);
// The name of the i-th positional argument of a call that is the value of `key`; NULL if the callee
// takes fewer. lm_form_param accepts only forms of the schema, lm_call_param also declarations.
const char *lm_form_param(const lm_schema_key *key, const ast_expr *call, uint32_t i);
const char *lm_call_param(lm_resolver *R, const lm_schema_key *key, const ast_expr *call,
                          const lm_file *file, uint32_t i);

// The declaration of a name as `file` sees it, or in std.optim.
lm_decl_ref lm_callable_find(lm_resolver *R, const lm_file *file, lm_sym name);
// The number of leading parameters that the runtime provides: step and run of a schedule.
uint32_t lm_call_implied(const lm_schema_key *key);

// ---- recipe_settings.c
// A resolver with a new recipe that has only the name and location of `decl`.
lm_resolver lm_resolver_new(lm_ctx *c, const lm_program *p, const ast_decl *decl);
// Applies items of --set to the settings of a section.
void lm_settings_set(lm_resolver *R, lm_settings *s, const char *section, const ast_items *items);
// The settings of a data or recipe declaration merged with the declarations that it extends.
void lm_settings_of(lm_resolver *R, lm_decl_ref ref, const char *section, lm_settings *out);

// ---- recipe_read.c
void lm_recipe_read(lm_resolver *R, const lm_settings *s);
#endif
