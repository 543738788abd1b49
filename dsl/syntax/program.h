// program.h - the files of a program and the scopes of their names.
//
// The scope of a file is its own declarations, its imports, and the prelude (stdlib/prelude.lm).
// Recipes also see std.optim. Each file is parsed once; a cycle of imports is an error. The modules
// std.nn and std.optim are embedded in the binary.
#ifndef LM_PROGRAM_H
#define LM_PROGRAM_H
#include "dsl/syntax/ast.h"

typedef struct lm_file lm_file;
typedef struct lm_program lm_program;

typedef struct lm_decl_ref {
  ast_decl *decl; // NULL: not found
  const lm_file *file;
} lm_decl_ref;

typedef struct lm_symbol {
  lm_sym name;
  lm_decl_ref ref;
  lm_loc at; // the declaration or the import
} lm_symbol;

struct lm_file {
  const char *path; // as it was given, or "std.nn"
  const char *dir;  // paths in the file are relative to it
  bool is_std;
  // A declaration or an import has an error. An unknown name is then not reported, because the
  // skipped part may declare it.
  bool incomplete;
  ast_file *tree;
  lm_symbol *symbols;
  uint32_t n_symbols, cap_symbols;
  uint32_t *index, index_cap; // hash table: 1 + index in symbols; 0: empty
};

struct lm_program {
  lm_ctx *c;
  lm_file **files;
  uint32_t n_files, cap_files; // [0]: the main file
  lm_file *prelude, *optim, *nn;
  lm_program *library; // all modules, for the help of unknown functions; NULL: not loaded yet
};

// The standard library, parsed once for all programs whose contexts are created by
// lm_ctx_create_on(c).
lm_program *lm_library_load(lm_ctx *c);
// Loads a file and its imports. `library`: the result of lm_library_load, or NULL to parse the
// modules that are needed. Errors go to the context; NULL only if the main file cannot be read.
lm_program *lm_program_load_with(lm_ctx *c, const char *path, const lm_program *library);
lm_program *lm_program_load(lm_ctx *c, const char *path);
// The declaration of a top-level name in the scope of `file`. For optimizers and schedules of a
// recipe, look in p->optim next.
lm_decl_ref lm_program_find(const lm_program *p, const lm_file *file, lm_sym name);
// The names of kind DC_FN, DC_BLOCK and so on in the scope of `file`; of all kinds if kind < 0.
const char *const *lm_program_names(lm_program *p, const lm_file *file, int kind, int *n);
enum {
  LM_EMITS_MAX = 128 // maximum number of metrics that a loss may emit
};

// The names of the *n primitives (primitives.def).
const char *const *lm_primitive_names(int *n);
#endif
