// recipe_model.c - the model of a recipe: a call, or the name of an instance with its weights and
// edits.
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "dsl/recipe/recipe_read.h"
#include "dsl/syntax/imports.h"

static bool begins(const ast_expr *x, const char *prefix) {
  return !strncmp(x->text, prefix, strlen(prefix));
}

// ---- weights

static void read_base(const lm_reader *d, const ast_expr *from) {
  lm_recipe *r = d->r;
  if (from->kind != EX_STRING || begins(from, "peft:")) {
    LM_REPORT(d->R->c, from->loc, E22D);
    return;
  }
  r->from_hf = begins(from, "hf:");
  r->from = lm_read_path(d, from->text + (r->from_hf ? strlen("hf:") : 0), from->loc);
  r->from_loc = from->loc;
}

// `from "PATH"` or `from ("PATH", "peft:DIR")`.
static void read_weights(const lm_reader *d, const lm_decl_ref *named) {
  const ast_expr *from = named->decl->from;
  if (!from)
    return;
  if (from->kind != EX_TUPLE) {
    read_base(d, from);
    return;
  }
  const ast_expr *peft = from->n_args == 2 ? from->args[1].expr : NULL;
  if (!peft || peft->kind != EX_STRING || !begins(peft, "peft:")) {
    LM_REPORT(d->R->c, from->loc, E315);
    return;
  }
  read_base(d, from->args[0].expr);
  d->r->peft = lm_read_path(d, peft->text + strlen("peft:"), peft->loc);
  d->r->peft_loc = peft->loc;
}

// ---- the call of an instance

static const lm_file *file_of(const lm_reader *d, lm_loc at) {
  const lm_program *p = d->R->p;
  uint32_t i = 0;
  while (i < p->n_files && p->files[i]->tree->source != at.file)
    i++;
  return i < p->n_files ? p->files[i] : NULL;
}

// The path of a file as an import or a `from` in `here` writes it.
static const char *path_from(lm_arena *a, const lm_file *here, const char *path) {
  char from[PATH_MAX], to[PATH_MAX];
  return realpath(here->path, from) && realpath(path, to)
             ? lm_import_relative(a, lm_arena_strndup(a, from, strlen(from)), to)
             : path;
}

// `from` of an instance of another file.
static void from_write(const lm_reader *d, const lm_file *here, const ast_expr *from, lm_buf *out) {
  if (from->kind != EX_STRING) {
    lm_expr_write(from, out);
    return;
  }
  const char *path = from->text + (begins(from, "hf:") ? strlen("hf:") : 0);
  path = path_from(d->R->c->arena, here, lm_read_path(d, path, from->loc));
  lm_buf_json(out, lm_arena_printf(d->R->c->arena, "%s%s", begins(from, "hf:") ? "hf:" : "", path));
}

// `named` gives the name of the instance `other`: the help is the call to write.
static void other_help(const lm_reader *d, const ast_decl *named, const lm_file *here,
                       lm_decl_ref other, lm_diag *x) {
  lm_ctx *c = d->R->c;
  const ast_expr *call = other.decl->inst;
  const ast_expr *from = named->from ? named->from : other.decl->from;
  lm_buf text = {0};
  lm_expr_write(call, &text);
  lm_buf_puts(&text, from ? " from " : "");
  if (from)
    from_write(d, here, from, &text);
  lm_diag_note(c, x, other.decl->loc, "model %s", other.decl->name.text);
  lm_diag_help(c, x, "write the call of %s: model %s = %s%s", other.decl->name.text,
               named->name.text, text.p, named->items.n ? " with { … }" : "");
  lm_buf_free(&text);
  lm_decl_ref model = lm_program_find(d->R->p, other.file, lm_callee(call));
  if (model.decl && !lm_program_find(d->R->p, here, model.decl->name.text).decl)
    lm_diag_note(c, x, (lm_loc){0}, "%s is in another file: import \"%s\": %s",
                 model.decl->name.text, path_from(c->arena, here, model.file->path),
                 model.decl->name.text);
}

static const ast_expr *instance_call(const lm_reader *d, const ast_decl *named) {
  const ast_expr *inst = named->inst;
  if (lm_callee(inst))
    return inst;
  const lm_file *here = file_of(d, inst->loc);
  lm_diag *x = LM_REPORT(d->R->c, inst->loc, E20F);
  lm_decl_ref other = {0};
  if (here && inst->kind == EX_NAME)
    other = lm_program_find(d->R->p, here, inst->text);
  if (other.decl && other.decl->kind == DC_MODEL)
    lm_diag_help(d->R->c, x, "write %s()", inst->text);
  if (other.decl && other.decl->kind == DC_MODEL_INST && lm_callee(other.decl->inst))
    other_help(d, named, here, other, x);
  return NULL;
}

// ---- the model

lm_recipe_call lm_recipe_model_of(lm_ctx *c, const lm_program *p, lm_decl_ref ref) {
  lm_resolver R = lm_resolver_new(c, p, ref.decl);
  lm_settings none = {0};
  lm_reader d = {&R, R.r, &none};
  const ast_expr *call = instance_call(&d, ref.decl);
  read_weights(&d, &ref);
  return call ? lm_read_call(&d, call, ref.file, DC_MODEL, 0) : (lm_recipe_call){0};
}

static const ast_expr *read_named_model(const lm_reader *d, const ast_expr *e,
                                        const lm_file **file) {
  lm_decl_ref ref = lm_program_find(d->R->p, *file, e->text);
  if (ref.decl && ref.decl->kind == DC_MODEL) {
    lm_diag *x = LM_REPORT(d->R->c, e->loc, E219, e->text);
    lm_diag_help(d->R->c, x, "write %s()", e->text);
    return NULL;
  }
  if (!ref.decl && (*file)->incomplete)
    return NULL;
  if (!ref.decl || ref.decl->kind != DC_MODEL_INST) {
    lm_diag *x = LM_REPORT(d->R->c, e->loc, E207, "model", e->text);
    const char *near = lm_read_nearest(d->R, *file, DC_MODEL_INST, e->text);
    lm_read_suggest(d, x, near ? near : lm_read_nearest(d->R, *file, DC_MODEL, e->text));
    return NULL;
  }
  read_weights(d, &ref);
  if (ref.decl->items.n) {
    d->r->edits = &ref.decl->items;
    d->r->edits_file = ref.file;
  }
  d->r->model_decl = ref;
  *file = ref.file;
  return instance_call(d, ref.decl);
}

void lm_read_model(const lm_reader *d) {
  const ast_expr *e = lm_read_value(d, "recipe.model");
  if (!e)
    return;
  const lm_file *file = lm_read_file(d, lm_read_setting(d, "recipe.model"));
  if (e->kind == EX_NAME)
    e = read_named_model(d, e, &file);
  if (!e)
    return;
  d->r->model = lm_read_call(d, e, file, DC_MODEL, 0);
  if (!d->r->model_decl.decl)
    d->r->model_decl = d->r->model.target;
}
