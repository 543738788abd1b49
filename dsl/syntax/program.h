// program.h - all files of one program and whose names are visible where.
//
// A file sees its own declarations, what it imports, and the prelude (stdlib/prelude.lm). Recipes
// also see all of std.optim. Files are parsed once; a cycle of imports is an error. The modules
// `std.nn`, `std.optim` come from the binary.
#ifndef LM_PROGRAM_H
#define LM_PROGRAM_H
#include "dsl/syntax/ast.h"

typedef struct lm_file lm_file;
typedef struct lm_program lm_program;

typedef struct lm_decl_ref {
  ast_decl *decl;
  const lm_file *file;
} lm_decl_ref; // decl NULL: not found

typedef struct lm_symbol {
  lm_sym name;
  lm_decl_ref ref;
  lm_loc at;
} lm_symbol; // at: the declaration or the import

struct lm_file {
  const char *path; // as given, or "std.nn"
  const char *dir;  // paths in the file are relative to it
  bool is_std;
  // a declaration or an import could not be read, and that is reported: an unknown name may be its
  bool incomplete;
  ast_file *tree;
  lm_symbol *symbols;
  uint32_t n_symbols, cap_symbols;
  uint32_t *index, index_cap; // hash of a name -> 1 + its place in symbols
};

struct lm_program {
  lm_ctx *c;
  lm_file **files;
  uint32_t n_files, cap_files; // [0]: the file that was asked for
  lm_file *prelude, *optim, *nn;
};

// The library alone, parsed once for all programs of contexts that are made on c
// (lm_ctx_create_on).
lm_program *lm_library_load(lm_ctx *c);
// Loads a file and all that it imports; `library`: as above, or NULL to parse what is needed of it.
// Diagnostics go to the context; NULL only if the file can't be read.
lm_program *lm_program_load_with(lm_ctx *c, const char *path, const lm_program *library);
lm_program *lm_program_load(lm_ctx *c, const char *path);
// A top-level name as `file` sees it: own, imported, prelude. For recipes' optimizers and schedules
// ask `optim` next.
lm_decl_ref lm_program_find(const lm_program *p, const lm_file *file, lm_sym name);
// Names of that kind visible in `file`, for "did you mean": DC_FN, DC_BLOCK, …; all kinds when kind
// < 0.
const char *const *lm_program_names(lm_program *p, const lm_file *file, int kind, int *n);
enum {
  LM_EMITS_MAX = 128 // metrics that a loss may emit
};

// The names of the functions of the language (primitives.def); *n of them.
const char *const *lm_primitive_names(int *n);
#endif
