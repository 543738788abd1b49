// imports.h - imports of a program's files: their locations in the text, and the text with
// imports that lead to the copies of the files.
#ifndef LM_IMPORTS_H
#define LM_IMPORTS_H
#include "dsl/syntax/program.h"

typedef struct lm_import_span {
  size_t begin, end; // bytes of the source
} lm_import_span;

// The path or the dotted names of an import.
lm_import_span lm_import_span_of(const lm_source *s, const ast_decl *d);
// The imported file's path as the import gives it; NULL: an import of the library, or no import.
const char *lm_import_path(lm_arena *a, const ast_decl *d);
// The path `to`, relative to the folder of the file `from`; both are absolute.
const char *lm_import_relative(lm_arena *a, const char *from, const char *to);
// The text of files[file], in which every import of another of the files is relative to the
// importing file. paths: the absolute paths of the files, NULL for the library's; the copies lie
// relative to each other as these do.
void lm_imports_rewrite(const lm_program *p, uint32_t file, const char *const *paths, lm_buf *out);
#endif
