// program.c - loads a file and its imports, each once, and finds the declaration of a name.
#include "dsl/syntax/program.h"
#include "runtime/base/diag_code.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct lm_embedded {
  const char *path, *text;
};
extern const struct lm_embedded lm_stdlib[]; // the modules embedded in the binary; ends with {0, 0}

enum {
  MAX_FILES = 256
};

// A file while its program loads.
typedef struct loading {
  lm_file *file;
  const char *key; // identifies the file: its real path, or the path of an embedded module
  bool done;       // all imports are loaded
  lm_loc import_at;
} loading;

typedef struct loader {
  lm_program *p;
  lm_ctx *c;
  const lm_program *library; // the parsed standard library, or NULL
  loading *v;
  uint32_t n, cap;
} loader;

static lm_file *file_load(loader *l, const char *path, const char *key,
                          const struct lm_embedded *std, lm_loc at);

// ---- symbols: an array in source order, and a hash table of indices into it, keyed by the pointer
// of the interned name

static uint32_t *slot_of(const lm_file *f, lm_sym name) {
  uint32_t i = (uint32_t)(((uintptr_t)name >> 4) * 0x9e3779b1u) & (f->index_cap - 1);
  while (f->index[i] && f->symbols[f->index[i] - 1].name != name)
    i = (i + 1) & (f->index_cap - 1);
  return &f->index[i];
}

static lm_symbol *symbol_find(const lm_file *f, lm_sym name) {
  if (!f || !f->index_cap)
    return NULL;
  uint32_t *slot = slot_of(f, name);
  return *slot ? &f->symbols[*slot - 1] : NULL;
}

static void index_grow(lm_ctx *c, lm_file *f) {
  if (2 * (f->n_symbols + 1) <= f->index_cap)
    return;
  f->index_cap = f->index_cap ? 2 * f->index_cap : 64;
  f->index = LM_NEW_N(c->arena, uint32_t, f->index_cap);
  for (uint32_t i = 0; i < f->n_symbols; i++)
    *slot_of(f, f->symbols[i].name) = i + 1;
}

static void symbol_add(lm_ctx *c, lm_file *f, lm_sym name, lm_decl_ref ref, lm_loc at) {
  const lm_symbol *old = symbol_find(f, name);
  if (old && old->ref.decl == ref.decl && ref.decl->kind != DC_LET)
    return; // imported twice
  if (old) {
    lm_diag *d = LM_REPORT(c, at, E103, name);
    lm_diag_note(c, d, old->at, "first here");
    return;
  }
  index_grow(c, f);
  LM_PUSH(c->arena, f->symbols, f->n_symbols, f->cap_symbols) = (lm_symbol){name, ref, at};
  *slot_of(f, name) = f->n_symbols;
}

const char *const *lm_primitive_names(int *n) {
  static const char *const names[] = {
#define PRIMITIVE(name, function, min, max, form) #name,
#include "dsl/syntax/primitives.def"
#undef PRIMITIVE
  };
  *n = (int)LM_COUNT(names);
  return names;
}

static bool is_primitive(const char *name) {
  int n;
  const char *const *names = lm_primitive_names(&n);
  for (int i = 0; i < n; i++)
    if (!strcmp(names[i], name))
      return true;
  return false;
}

// Calls of the name are not reported; they call the primitive.
static void report_primitive(lm_ctx *c, const ast_decl *d) {
  lm_diag *g = LM_REPORT(c, d->name.loc, E105, d->name.text);
  lm_diag_help(c, g, "choose another name");
}

static void declare(lm_ctx *c, lm_file *f, ast_decl *d) {
  lm_decl_ref ref = {d, f};
  f->incomplete |= d->kind == DC_ERROR;
  if (d->kind == DC_IMPORT || d->kind == DC_ERROR)
    return;
  if (d->kind == DC_FN && !f->is_std && is_primitive(d->name.text)) {
    report_primitive(c, d);
    return;
  }
  if (d->kind != DC_LET)
    symbol_add(c, f, d->name.text, ref, d->name.loc);
  for (uint32_t i = 0; i < d->let_names.n; i++)
    symbol_add(c, f, d->let_names.v[i].text, ref, d->let_names.v[i].loc);
}

// ---- embedded modules

static const char *module_name(lm_arena *a, const struct lm_embedded *e) { // "nn" for stdlib/nn.lm
  const char *base = strrchr(e->path, '/') ? strrchr(e->path, '/') + 1 : e->path;
  return lm_arena_strndup(a, base, strcspn(base, "."));
}

static const struct lm_embedded *embedded_find(lm_arena *a, const char *module) {
  for (const struct lm_embedded *e = lm_stdlib; e->path; e++)
    if (!strcmp(module_name(a, e), module))
      return e;
  return NULL;
}

static void report_unknown_module(loader *l, const char *module, lm_loc at) {
  const char *names[64];
  int n = 0;
  for (const struct lm_embedded *e = lm_stdlib; e->path && n < 64; e++)
    names[n++] = module_name(l->c->arena, e);
  lm_diag *d = LM_REPORT(l->c, at, E101, module);
  const char *near = lm_nearest(module, names, n);
  if (near) {
    lm_diag_help(l->c, d, "did you mean std.%s?", near);
    return;
  }
  const char *list = names[0];
  for (int i = 1; i < n; i++)
    list = lm_arena_printf(l->c->arena, "%s, %s", list, names[i]);
  lm_diag_help(l->c, d, "the modules of std are %s", list);
}

// ---- imports

static lm_file *load_std(loader *l, const char *module, lm_loc at, bool required) {
  const struct lm_embedded *std = embedded_find(l->c->arena, module);
  const char *name = lm_arena_printf(l->c->arena, "std.%s", module);
  for (uint32_t i = 0; l->library && i < l->library->n_files; i++)
    if (!strcmp(l->library->files[i]->path, name))
      return l->library->files[i];
  if (std)
    return file_load(l, name, std->path, std, at);
  if (required)
    report_unknown_module(l, module, at);
  return NULL;
}

// True if `import nn` was probably meant to be `import std.nn`.
static bool is_module_of_library(loader *l, const ast_decl *d) {
  return d->import_path.n == 1 && embedded_find(l->c->arena, d->import_path.v[0].text);
}

static lm_file *load_path(loader *l, const char *path, lm_loc at) {
  char real[PATH_MAX];
  const char *key = realpath(path, real) ? lm_arena_strndup(l->c->arena, real, strlen(real)) : path;
  return file_load(l, path, key, NULL, at);
}

static lm_file *load_import(loader *l, const lm_file *from, const ast_decl *d) {
  const ast_names *parts = &d->import_path;
  lm_loc at = parts->n ? parts->v[0].loc : d->name.loc;
  if (d->import_file)
    return load_path(l, lm_path_join(l->c->arena, from->dir, d->import_file), at);
  lm_buf path = {0};
  bool std = !strcmp(parts->v[0].text, "std") && parts->n > 1;
  for (uint32_t i = std; i < parts->n; i++)
    lm_buf_printf(&path, "%s%s", i > std ? "/" : "", parts->v[i].text);
  if (!std)
    lm_buf_puts(&path, ".lm");
  const char *text = lm_arena_strndup(l->c->arena, path.p, path.n);
  lm_buf_free(&path);
  if (std)
    return load_std(l, text, at, true);
  const char *file = lm_path_join(l->c->arena, from->dir, text);
  if (access(file, F_OK) && is_module_of_library(l, d)) {
    lm_diag *x = LM_REPORT(l->c, at, E001, lm_arena_printf(l->c->arena, "there is no %s", file));
    lm_diag_help(l->c, x, "did you mean std.%s?", d->import_path.v[0].text);
    return NULL;
  }
  return load_path(l, file, at);
}

static bool is_own(const lm_file *f, const lm_symbol *s) {
  return s->ref.file == f;
}

static bool has_fn(const lm_file *f, lm_sym name) {
  for (uint32_t i = 0; i < f->tree->n; i++)
    if (f->tree->v[i]->kind == DC_FN && f->tree->v[i]->name.text == name)
      return true;
  return false;
}

// The name of the first declaration of the file that has a parameter of this name, or NULL.
static const char *owner_of_param(const lm_file *from, lm_sym name) {
  for (uint32_t i = 0; i < from->n_symbols; i++) {
    const ast_decl *d = from->symbols[i].ref.decl;
    for (uint32_t k = 0; is_own(from, &from->symbols[i]) && k < d->sig.n_params; k++)
      if (d->sig.params[k].name.text == name)
        return from->symbols[i].name;
  }
  return NULL;
}

// Primitives and names of the prelude may also be imported from a module of the library.
static void import_name(loader *l, lm_file *f, const lm_file *from, const ast_name *name) {
  const lm_symbol *s = symbol_find(from, name->text);
  if (!s && is_primitive(name->text) && (from->is_std || has_fn(from, name->text)))
    return; // a function with the name of a primitive is reported at its declaration
  if (from->is_std && !s)
    s = symbol_find(l->p->prelude, name->text);
  if (s && (is_own(from, s) || is_own(l->p->prelude, s))) {
    symbol_add(l->c, f, name->text, s->ref, name->loc);
    return;
  }
  f->incomplete = true;
  if (from->incomplete)
    return;
  const char **names = LM_NEW_N(l->c->arena, const char *, from->n_symbols + 1);
  int n = 0;
  for (uint32_t i = 0; i < from->n_symbols; i++)
    if (is_own(from, &from->symbols[i]))
      names[n++] = from->symbols[i].name;
  lm_diag *d = LM_REPORT(l->c, name->loc, E104, from->path, name->text);
  const char *near = lm_nearest(name->text, names, n);
  const char *owner = owner_of_param(from, name->text);
  if (owner)
    lm_diag_help(l->c, d, "'%s' is a parameter of '%s', which can be imported", name->text, owner);
  else if (near)
    lm_diag_help(l->c, d, "did you mean '%s'?", near);
}

static void resolve_import(loader *l, lm_file *f, const ast_decl *d) {
  const lm_file *from = load_import(l, f, d);
  f->incomplete |= !from || (from->incomplete && !d->names.n);
  if (!from)
    return;
  for (uint32_t i = 0; i < d->names.n; i++)
    import_name(l, f, from, &d->names.v[i]);
  for (uint32_t i = 0; !d->names.n && i < from->n_symbols; i++)
    if (is_own(from, &from->symbols[i]))
      symbol_add(l->c, f, from->symbols[i].name, from->symbols[i].ref, d->loc);
}

// ---- files

static void report_cycle(loader *l, uint32_t again, lm_loc at) {
  lm_diag *d = LM_REPORT(l->c, at, E102, l->v[again].file->path);
  for (uint32_t i = again + 1; i < l->n; i++)
    if (!l->v[i].done)
      lm_diag_note(l->c, d, l->v[i].import_at, "imports %s", l->v[i].file->path);
}

static void load_prelude(loader *l) {
  if (!l->p->prelude)
    l->p->prelude = load_std(l, "prelude", (lm_loc){0}, false);
}

static lm_file *file_load(loader *l, const char *path, const char *key,
                          const struct lm_embedded *std, lm_loc at) {
  for (uint32_t i = 0; i < l->n; i++) {
    if (strcmp(l->v[i].key, key))
      continue;
    if (!l->v[i].done)
      report_cycle(l, i, at);
    return l->v[i].done ? l->v[i].file : NULL;
  }
  if (l->n == MAX_FILES) {
    LM_REPORT(l->c, at, E106, MAX_FILES);
    return NULL;
  }
  ast_file *tree =
      std ? lm_parse_file(l->c, lm_source_add(l->c, path, std->text, strlen(std->text)))
          : lm_parse_path(l->c, path, at);
  if (!tree)
    return NULL;
  lm_file *f = LM_NEW(l->c->arena, lm_file);
  *f = (lm_file){
      .path = path, .dir = lm_path_dir(l->c->arena, path), .is_std = std != NULL, .tree = tree};
  uint32_t i = l->n;
  LM_PUSH(l->c->arena, l->v, l->n, l->cap) = (loading){f, key, false, at};
  LM_PUSH(l->c->arena, l->p->files, l->p->n_files, l->p->cap_files) = f;
  for (uint32_t k = 0; k < tree->n; k++)
    declare(l->c, f, tree->v[k]);
  if (!std)
    load_prelude(l);
  for (uint32_t k = 0; k < tree->n; k++)
    if (tree->v[k]->kind == DC_IMPORT)
      resolve_import(l, f, tree->v[k]);
  l->v[i].done = true;
  return f;
}

lm_program *lm_library_load(lm_ctx *c) {
  lm_program *p = LM_NEW(c->arena, lm_program);
  p->c = c;
  loader l = {
      .p = p,
      .c = c,
  };
  for (const struct lm_embedded *e = lm_stdlib; e->path; e++)
    load_std(&l, module_name(c->arena, e), (lm_loc){0}, true);
  return p;
}

lm_program *lm_program_load_with(lm_ctx *c, const char *path, const lm_program *library) {
  lm_program *p = LM_NEW(c->arena, lm_program);
  p->c = c;
  loader l = {
      .p = p,
      .c = c,
      .library = library,
  };
  if (!load_path(&l, path, (lm_loc){0}))
    return NULL;
  p->optim = load_std(&l, "optim", (lm_loc){0}, false);
  p->nn = load_std(&l, "nn", (lm_loc){0}, false);
  for (uint32_t i = 0; library && i < library->n_files; i++)
    LM_PUSH(c->arena, p->files, p->n_files, p->cap_files) = library->files[i];
  return p;
}

lm_program *lm_program_load(lm_ctx *c, const char *path) {
  return lm_program_load_with(c, path, NULL);
}

// ---- names

lm_decl_ref lm_program_find(const lm_program *p, const lm_file *file, lm_sym name) {
  const lm_symbol *s = symbol_find(file, name);
  if (!s)
    s = symbol_find(p->prelude, name);
  return s ? s->ref : (lm_decl_ref){0};
}

static bool is_kind(const lm_symbol *s, int kind) {
  return kind < 0 || (int)s->ref.decl->kind == kind;
}

const char *const *lm_program_names(lm_program *p, const lm_file *file, int kind, int *n) {
  const lm_file *const seen[] = {file, p->prelude};
  uint32_t max = file->n_symbols + (p->prelude ? p->prelude->n_symbols : 0);
  const char **names = LM_NEW_N(p->c->arena, const char *, max + 1);
  *n = 0;
  for (size_t k = 0; k < LM_COUNT(seen); k++)
    for (uint32_t i = 0; seen[k] && i < seen[k]->n_symbols; i++)
      if (is_kind(&seen[k]->symbols[i], kind))
        names[(*n)++] = seen[k]->symbols[i].name;
  return names;
}
