// site.c - blocks at sites: values of a model that `after` passes through a block, and calls of a
// function that `replace FUNCTION = BLOCK(…)` computes by one.
//
//   after @layers.*.attn = bottleneck(m = 8)    x + attn(y, pos, seg)
//   ->
//   param layers.#.attn.bottleneck.down: …      x + bottleneck.apply(attn(y, pos, seg))
//
// A first elaboration without edits records each site and the types of its values. Arguments that
// the line leaves out are the sizes of the axes of that name in the signature of `apply`.
#include <string.h>

#include "dsl/elab/call.h"
#include "dsl/elab/edit.h"
#include "dsl/elab/inst.h"

// ---- recording

static bool same_loc(lm_loc a, lm_loc b) {
  return a.file == b.file && a.line == b.line && a.col == b.col;
}

static void record(lm_elab *e, const el_inst *inst, el_site found) {
  found.path = inst->path;
  found.call = inst->owner ? inst->call : NULL;
  el_site **end = &e->sites;
  for (; *end; end = &(*end)->next) {
    el_site *s = *end;
    if (s->path != found.path || s->call != found.call || s->name != found.name ||
        s->fn != found.fn)
      continue;
    if (!same_loc(s->at, found.at) && !s->other.file)
      s->other = found.at;
    return;
  }
  *end = LM_NEW(e->a, el_site);
  **end = found;
}

static el_val *value_copy(lm_elab *e, el_val v) {
  el_val *copy = LM_NEW(e->a, el_val);
  *copy = v;
  return copy;
}

// The instance whose method the current function computes for; NULL: none.
static const el_ref *self_of(const lm_elab *e) {
  const el_frame *f = e->frame;
  while (f && !f->self)
    f = f->up;
  return f ? f->self : NULL;
}

void el_site_record_call(lm_elab *e, const ast_decl *fn, const el_val *args, uint32_t n,
                         lm_loc at) {
  const el_ref *self = self_of(e);
  if (self)
    record(e, self->inst,
           (el_site){
               .fn = fn,
               .at = at,
               .args = args,
               .n = n,
           });
}

// ---- arguments

// The sizes of axes that a parameter of `apply` names, as arguments of the block.
static void sizes_add(lm_elab *e, const ast_type *t, const el_val *v, const ast_sig *block,
                      ast_expr *call) {
  uint32_t row = 0;
  while (t && row < t->n_dims && !t->dims[row].row)
    row++;
  for (uint32_t k = 0; t && v->k == V_TENSOR && k < t->n_dims; k++) {
    const ast_dim *d = &t->dims[k];
    uint32_t behind = t->n_dims - k;
    int64_t size;
    if (d->row && k > row)
      return; // two rows: the axes between them are any
    if (d->row || d->expr->kind != EX_NAME || behind > v->axes.n || k >= v->axes.n)
      continue;
    el_axis *axis = v->axes.v[k < row ? k : v->axes.n - behind];
    for (uint32_t i = 0; i < block->n_params; i++) {
      lm_sym name = block->params[i].name.text;
      if (name != d->expr->text || el_argument(call->args, call->n_args, block, i) || axis->dyn ||
          !lm_size_whole(axis->size, &size))
        continue;
      ast_expr *number = LM_NEW(e->a, ast_expr);
      *number = (ast_expr){
          .kind = EX_NUMBER,
          .loc = call->loc,
          .num = (double)size,
          .inum = size,
          .is_int = true,
          .height = 1,
      };
      LM_PUSH(e->a, call->args, call->n_args, call->cap_args) = (ast_arg){
          .kind = ARG_NAMED,
          .loc = call->loc,
          .name = name,
          .expr = number,
      };
    }
  }
}

static const ast_expr *call_of(lm_elab *e, el_site *s, const el_edit *by) {
  for (const el_call_of *x = s->calls; x; x = x->next)
    if (x->of == by)
      return x->call;
  const ast_member *apply =
      el_method_find(&(el_inst){.decl = by->block.decl}, LM_SYM(e->c, "apply"));
  ast_expr *call = LM_NEW(e->a, ast_expr);
  *call = *by->call;
  call->cap_args = call->n_args;
  call->args = LM_NEW_N(e->a, ast_arg, call->n_args + 1);
  for (uint32_t i = 0; i < call->n_args; i++)
    call->args[i] = by->call->args[i];
  for (uint32_t i = 0; i < apply->sig.n_params && i < s->n; i++)
    sizes_add(e, apply->sig.params[i].type, &s->args[i], &by->block.decl->sig, call);
  el_call_of *made = LM_NEW(e->a, el_call_of);
  *made = (el_call_of){
      .of = by,
      .call = call,
      .next = s->calls,
  };
  s->calls = made;
  return call;
}

// ---- instances

static bool has_site(const el_inst *inst, const el_site *s) {
  return s->path == inst->path && s->call == (inst->owner ? inst->call : NULL);
}

static lm_sym path_of(lm_elab *e, const el_inst *inst, const el_site *s) {
  return el_inst_path(e, inst, s->name ? s->name : LM_SYM(e->c, ""));
}

static bool is_for(lm_elab *e, const el_edit *x, const el_inst *inst, const el_site *s) {
  if (s->fn)
    return x->fn == s->fn;
  return x->kind == EL_EDIT_AFTER && (s->name || inst->owner) &&
         el_edit_last(e, x->kind, path_of(e, inst, s), x->block.decl) == x;
}

// True if the site is one value; reports why not.
static bool is_one(lm_elab *e, const el_edit *by, const el_inst *inst, const el_site *s) {
  if (!s->other.file)
    return true;
  lm_diag *d = s->fn ? EL_ERR(e, by->at, E32A, inst->decl->name.text, s->fn->name.text)
                     : EL_ERR(e, by->at, E329, inst->decl->name.text, s->name);
  lm_diag_note(e->c, d, s->at, "one");
  lm_diag_note(e->c, d, s->other, "the other");
  return false;
}

static el_inst *insert(lm_elab *e, el_inst *inst, el_site *s, const el_edit *by) {
  lm_sym block = by->block.decl->name.text;
  const char *owner = inst->path;
  if (s->name)
    owner = lm_arena_printf(e->a, "%s%s%s", owner, *owner ? "." : "", s->name);
  el_inst_site where = {
      .decl = by->block,
      .owner = inst,
      .path = LM_SYM(e->c, lm_arena_printf(e->a, "%s%s%s", owner, *owner ? "." : "", block)),
      .n_stack = inst->n_stack,
      .added_by = by,
  };
  memcpy(where.stack, inst->stack, sizeof where.stack);
  memcpy(where.index, inst->index, sizeof where.index);
  memcpy(where.stack_name, inst->stack_name, sizeof where.stack_name);
  el_frame frame =
               {
                   .file = e->edits->file,
                   .real = K_REAL,
               },
           *was = e->frame;
  e->frame = &frame;
  el_inst *made = el_inst_make(e, call_of(e, s, by), e->edits->file, &where);
  e->frame = was;
  return made && !made->broken ? made : NULL;
}

static void site_edit(lm_elab *e, el_inst *inst, el_site *s) {
  el_inserted **end = &inst->inserted;
  while (*end)
    end = &(*end)->next;
  for (uint32_t i = 0; i < e->edits->n; i++) {
    el_edit *x = &e->edits->v[i];
    if (x->failed || !is_for(e, x, inst, s))
      continue;
    el_inst *made = is_one(e, x, inst, s) ? insert(e, inst, s, x) : NULL;
    x->failed = !made;
    if (!made)
      continue;
    x->hits++;
    *end = LM_NEW(e->a, el_inserted);
    **end = (el_inserted){
        .inst = made,
        .by = x,
        .site = s,
    };
    end = &(*end)->next;
  }
}

void el_sites_edit(lm_elab *e, el_inst *inst) {
  if (!e->edits || e->edits->records || !e->edits->has_sites)
    return;
  for (el_site *s = e->sites; s; s = s->next)
    if (has_site(inst, s))
      site_edit(e, inst, s);
  for (uint32_t i = 0; i < inst->n_subs; i++) {
    if (inst->subs[i].one)
      el_sites_edit(e, inst->subs[i].one);
    for (int64_t k = 0; inst->subs[i].many && k < inst->subs[i].many->n; k++)
      el_sites_edit(e, inst->subs[i].many->of[k]);
  }
}

// ---- values

// Operations on a `real` read the number that the model without the block computes with, not the
// rounded one that is stored for the GEMMs of the block.
static el_val unrounded(lm_elab *e, el_val v) {
  if (v.kind != K_REAL)
    return v;
  lm_value *wide = lm_emit1(&e->b, LM_OP_UNROUNDED, v.v);
  v.v = lm_emit_cast(&e->b, wide, (lm_dtype)v.v->type.dtype);
  return v;
}

// v after the blocks at a site of the instance. name: that of a `let`, or NULL.
static el_val pass(lm_elab *e, const el_ref *ref, lm_sym name, el_val v, lm_loc at) {
  for (const el_inserted *x = ref->inst->inserted; x && !e->bare && v.k != V_ERROR; x = x->next) {
    if (x->site->fn || x->site->name != name)
      continue;
    el_ref own = *ref;
    own.inst = x->inst;
    own.indexed = NULL;
    own.each = NULL;
    el_val in = unrounded(e, v);
    el_val r = el_invoke_named(e, &own, LM_SYM(e->c, "apply"), in, at);
    bool changes = r.v != in.v; // a block that returns its operand has no number to compute
    r = el_edit_result(e, x->inst, "apply", r, &v, at);
    v = changes || r.k == V_ERROR ? el_edited(e, r, &v) : v;
  }
  return v;
}

static bool is_enabled(const lm_elab *e, const el_val *v) {
  return e->edits && e->m && v->k == V_TENSOR && v->v;
}

el_val el_site_let(lm_elab *e, const ast_name *name, el_val v) {
  const el_ref *self = e->frame->self;
  if (!is_enabled(e, &v) || !self)
    return v;
  if (e->edits->records)
    record(e, self->inst,
           (el_site){
               .name = name->text,
               .at = name->loc,
               .args = value_copy(e, v),
               .n = 1,
           });
  return pass(e, self, name->text, v, name->loc);
}

void el_site_params(lm_elab *e, const ast_sig *sig) {
  const el_ref *self = e->frame->self;
  const ast_member *apply =
      e->edits && self ? el_method_find(self->inst, LM_SYM(e->c, "apply")) : NULL;
  if (!apply || sig != &apply->sig)
    return;
  for (uint32_t i = 0; i < sig->n_params; i++) {
    const ast_name *name = &sig->params[i].name;
    const el_val *x = &el_names_find(&e->frame->names, name->text)->val;
    el_val y = el_site_let(e, name, *x);
    if (y.v == x->v)
      continue;
    y.name = name->text;
    y.loc = name->loc;
    el_mark_live(e, &y);
    el_bind_name(e, name->text, y, false);
  }
}

el_val el_site_sub(lm_elab *e, const el_ref *ref, el_val v, lm_loc at) {
  if (!is_enabled(e, &v) || !ref->inst->owner)
    return v;
  if (e->edits->records)
    record(e, ref->inst,
           (el_site){
               .at = ref->inst->at,
               .args = value_copy(e, v),
               .n = 1,
           });
  return pass(e, ref, NULL, v, at);
}

bool el_site_call_block(lm_elab *e, const ast_decl *fn, el_ref *out) {
  const el_ref *self = self_of(e);
  for (const el_inserted *x = self ? self->inst->inserted : NULL; x && !e->bare; x = x->next) {
    if (x->site->fn != fn)
      continue;
    *out = *self;
    out->inst = x->inst;
    out->indexed = NULL;
    out->each = NULL;
    return true;
  }
  return false;
}

// ---- patterns

typedef struct sought {
  lm_elab *e;
  const char *pattern;
  const el_inserted *added;
} sought;

static bool has_sought(void *user, const el_inst *inst) {
  const sought *x = user;
  for (const el_site *s = x->e->sites; s; s = s->next)
    if (!s->fn && has_site(inst, s) && (s->name || inst->owner) &&
        lm_pattern_match(x->e->c, x->pattern, path_of(x->e, inst, s), NULL))
      return true;
  return false;
}

static const char *nearest_site(const lm_elab *e, const char *pattern) {
  const char *names[256], *last = strrchr(pattern, '.');
  int n = 0;
  for (const el_site *s = e->sites; s && n < (int)LM_COUNT(names); s = s->next) {
    const char *own = strrchr(s->path, '.');
    if (!s->fn)
      names[n++] = s->name ? s->name : own ? own + 1 : s->path;
  }
  return lm_nearest(last ? last + 1 : pattern + 1, names, n);
}

// A block that an edit adds, if the pattern names a value of it.
static bool has_added(void *user, const el_inst *inst) {
  sought *x = user;
  for (const el_inserted *k = inst->inserted; k; k = k->next) {
    const char *owner = k->inst->path;
    for (const char *dot = strchr(x->pattern, '.'); dot; dot = strchr(dot + 1, '.')) {
      const char *start = lm_arena_strndup(x->e->a, x->pattern, (size_t)(dot - x->pattern));
      if (!lm_pattern_match(x->e->c, start, owner, NULL))
        continue;
      x->added = k;
      return true;
    }
  }
  return false;
}

static bool note_added(lm_elab *e, lm_diag *d, const el_inst *model, const char *pattern) {
  sought x = {e, pattern, NULL};
  if (!el_inst_visit(model, has_added, &x))
    return false;
  lm_diag_note(e->c, d, x.added->by->at, "%s is added here", x.added->inst->path);
  lm_diag_help(e->c, d, "edits are for values of the model: change the block %s instead",
               x.added->inst->decl->name.text);
  return true;
}

static void check_pattern(lm_elab *e, const el_inst *model, const el_edit *x) {
  int n;
  const char **alts = lm_pattern_expand(e->c, x->pattern, &n);
  for (int k = 0; k < n; k++) {
    if (el_inst_visit(model, has_sought, &(sought){e, alts[k], NULL}))
      continue;
    const char *near = nearest_site(e, alts[k]);
    lm_diag *d = EL_ERR(e, x->at, E328, alts[k]);
    lm_diag_note(e->c, d, model->decl->name.loc, "%s is declared here", model->decl->name.text);
    if (!note_added(e, d, model, alts[k]) && near)
      lm_diag_help(e->c, d, "there is a value '%s'", near);
  }
}

void el_sites_check(lm_elab *e, const el_inst *model) {
  for (uint32_t i = 0; e->edits && i < e->edits->n; i++)
    if (e->edits->v[i].kind == EL_EDIT_AFTER && !e->edits->v[i].failed)
      check_pattern(e, model, &e->edits->v[i]);
}
