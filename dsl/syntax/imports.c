// imports.c - imports rewritten for a copy of the program.
#include "dsl/syntax/imports.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

// ---- the location of an import in the text

static size_t offset_of(const lm_source *s, uint32_t line, uint32_t col) {
  const char *at = s->text;
  for (uint32_t i = 1; at && i < line; i++) {
    at = memchr(at, '\n', s->n - (size_t)(at - s->text));
    at += at != NULL;
  }
  size_t offset = at ? (size_t)(at - s->text) + col - 1 : s->n;
  return offset < s->n ? offset : s->n;
}

lm_import_span lm_import_span_of(const lm_source *s, const ast_decl *d) {
  const ast_names *parts = &d->import_path;
  lm_loc first = parts->n ? parts->v[0].loc : d->name.loc;
  lm_loc last = parts->n ? parts->v[parts->n - 1].loc : d->name.loc;
  size_t end = offset_of(s, last.line, last.col) + last.len;
  return (lm_import_span){offset_of(s, first.line, first.col), end < s->n ? end : s->n};
}

const char *lm_import_path(lm_arena *a, const ast_decl *d) {
  const ast_names *parts = &d->import_path;
  if (d->kind != DC_IMPORT || (!d->import_file && !strcmp(parts->v[0].text, "std")))
    return NULL;
  if (d->import_file)
    return d->import_file;
  const char *path = parts->v[0].text;
  for (uint32_t i = 1; i < parts->n; i++)
    path = lm_arena_printf(a, "%s/%s", path, parts->v[i].text);
  return lm_arena_printf(a, "%s.lm", path);
}

// ---- where it leads

const char *lm_import_relative(lm_arena *a, const char *from, const char *to) {
  size_t common = 0;
  for (size_t i = 0; from[i] && from[i] == to[i]; i++)
    if (from[i] == '/')
      common = i + 1;
  const char *path = lm_arena_strndup(a, to + common, strlen(to + common));
  for (const char *p = from + common; (p = strchr(p, '/')); p++)
    path = lm_arena_printf(a, "../%s", path);
  return path;
}

// The absolute path of the imported file, if it is one of the program's.
static const char *target_of(const lm_program *p, const lm_file *f, const char *const *paths,
                             const char *import) {
  char real[PATH_MAX];
  lm_arena *a = p->c->arena;
  if (!realpath(lm_path_join(a, lm_path_dir(a, f->path), import), real))
    return NULL;
  for (uint32_t i = 0; i < p->n_files; i++)
    if (paths[i] && !strcmp(paths[i], real))
      return paths[i];
  return NULL;
}

void lm_imports_rewrite(const lm_program *p, uint32_t file, const char *const *paths, lm_buf *out) {
  const lm_file *f = p->files[file];
  const lm_source *s = &p->c->sources[f->tree->source];
  size_t done = 0;
  for (uint32_t i = 0; i < f->tree->n; i++) {
    const ast_decl *d = f->tree->v[i];
    const char *import = lm_import_path(p->c->arena, d);
    const char *target = import ? target_of(p, f, paths, import) : NULL;
    const char *path = target ? lm_import_relative(p->c->arena, paths[file], target) : import;
    if (!import || !strcmp(path, import))
      continue;
    lm_import_span span = lm_import_span_of(s, d);
    lm_buf_add(out, s->text + done, span.begin - done);
    lm_buf_json(out, path);
    done = span.end;
  }
  lm_buf_add(out, s->text + done, s->n - done);
}
