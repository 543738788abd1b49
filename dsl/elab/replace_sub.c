// replace_sub.c - `replace @SUB = BLOCK(…)` in `with { … }`: another block instead of a sub.
//
//   replace @layers.*.n1 = RmsNorm()       sub n1 = LayerNorm(d, eps = 1e-5)
//   ->
//   sub n1 = RmsNorm(d = d, eps = 1e-5)    where RmsNorm has the parameters d and eps
//
// Arguments that the line leaves out are those of the replaced sub with the same name. A parameter
// that both blocks have stays one of the model: `from` reads it, and lines before this one freeze
// it. The others are added.
#include <string.h>

#include "dsl/elab/call.h"
#include "dsl/elab/edit.h"
#include "dsl/elab/inst.h"

// ---- the call

static ast_expr *constant(lm_elab *e, const ast_expr *x, const el_val *v) {
  ast_expr *out = LM_NEW(e->a, ast_expr);
  int64_t whole = 0;
  *out = (ast_expr){
      .loc = x->loc,
      .height = 1,
  };
  switch (v->k) {
  case V_NUM:
    out->kind = EX_NUMBER;
    out->num = v->num;
    out->is_int = v->has_size && lm_size_whole(v->size, &whole);
    out->inum = whole;
    return out;
  case V_BOOL:
    out->kind = EX_NAME;
    out->text = LM_SYM(e->c, v->num != 0 ? "true" : "false");
    return out;
  case V_STRING:
    out->kind = EX_STRING;
    out->text = v->text;
    return out;
  default: return NULL;
  }
}

bool el_sub_arguments(lm_elab *e, el_edit *edit) {
  ast_expr *call = LM_NEW(e->a, ast_expr);
  *call = *edit->call;
  call->args = LM_NEW_N(e->a, ast_arg, call->n_args + 1);
  for (uint32_t i = 0; i < call->n_args; i++) {
    const ast_arg *a = &edit->call->args[i];
    call->args[i] = *a;
    if (a->kind != ARG_POS && a->kind != ARG_NAMED)
      continue; // reported when the block is instantiated
    el_val v = el_eval(e, a->expr);
    if (v.k == V_ERROR)
      return false;
    ast_expr *value = constant(e, a->expr, &v);
    if (!value)
      return EL_REJECT(e, a->expr->loc, E08D, edit->block.decl->name.text, el_show(e, &v));
    call->args[i].expr = value;
  }
  edit->call = call;
  edit->calls = LM_NEW(e->a, el_call_of *);
  return true;
}

static const ast_param *param_named(const ast_sig *sig, lm_sym name, uint32_t *k) {
  for (*k = 0; *k < sig->n_params; ++*k)
    if (sig->params[*k].name.text == name)
      return &sig->params[*k];
  return NULL;
}

// The line's call with the arguments of the replaced one.
static const ast_expr *call_of(lm_elab *e, const el_edit *edit, const ast_expr *replaced,
                               const ast_sig *former) {
  for (const el_call_of *x = *edit->calls; x; x = x->next)
    if (x->of == replaced)
      return x->call;
  const ast_sig *sig = &edit->block.decl->sig;
  ast_expr *call = LM_NEW(e->a, ast_expr);
  *call = *edit->call;
  call->cap_args = call->n_args;
  call->args = LM_NEW_N(e->a, ast_arg, call->n_args + 1);
  for (uint32_t i = 0; i < call->n_args; i++)
    call->args[i] = edit->call->args[i];
  for (uint32_t k = 0, at; k < sig->n_params; k++) {
    lm_sym name = sig->params[k].name.text;
    const ast_param *own = param_named(former, name, &at);
    if (!own || el_argument(edit->call->args, edit->call->n_args, sig, k))
      continue;
    const ast_expr *given = el_argument(replaced->args, replaced->n_args, former, at);
    if (!given && (!own->init || own->init->kind != EX_NUMBER))
      continue; // the block's own default, or a missing argument
    LM_PUSH(e->a, call->args, call->n_args, call->cap_args) = (ast_arg){
        .kind = ARG_NAMED,
        .loc = call->loc,
        .name = name,
        .expr = (ast_expr *)(given ? given : own->init),
    };
  }
  el_call_of *made = LM_NEW(e->a, el_call_of);
  *made = (el_call_of){
      .of = replaced,
      .call = call,
      .next = *edit->calls,
  };
  *edit->calls = made;
  return call;
}

static bool replaces(const el_edit *x) {
  return x->kind == EL_EDIT_REPLACE && !x->fn;
}

const ast_expr *el_sub_replaced(lm_elab *e, const ast_expr *call, el_inst_site *where) {
  el_inst sub = {
      .path = where->path,
      .n_stack = where->n_stack,
  };
  memcpy(sub.index, where->index, sizeof sub.index);
  memcpy(sub.stack_name, where->stack_name, sizeof sub.stack_name);
  el_edit *last = NULL;
  for (uint32_t i = 0; i < e->edits->n; i++)
    if (replaces(&e->edits->v[i]) &&
        lm_pattern_match(e->c, e->edits->v[i].pattern, el_inst_path(e, &sub, LM_SYM(e->c, "")),
                         NULL))
      last = &e->edits->v[i];
  if (!last || call->kind != EX_CALL || call->a->kind != EX_NAME)
    return call;
  lm_decl_ref former = lm_program_find(e->prog, where->owner->file, call->a->text);
  if (!former.decl)
    return call; // reported when it is instantiated
  last->hits += !e->edits->records;
  where->decl = last->block;
  where->replaced_by = last;
  where->replaces = former;
  return call_of(e, last, call, &former.decl->sig);
}

// ---- parameters

// The block of the sub of that name in the block of `of`; no declaration: it has none.
static lm_decl_ref sub_block(const lm_elab *e, lm_decl_ref of, const char *name) {
  for (uint32_t i = 0; of.decl && i < of.decl->members.n; i++) {
    const ast_member *m = of.decl->members.v[i];
    bool call = m->kind == MB_SUB && !strcmp(m->names.v[0].text, name) &&
                m->init->kind == EX_CALL && m->init->a->kind == EX_NAME;
    if (call)
      return lm_program_find(e->prog, of.file, m->init->a->text);
  }
  return (lm_decl_ref){0};
}

// The replaced block that an instance stands for; the instance is a replaced sub, or in one.
static lm_decl_ref former_block(const lm_elab *e, const el_inst *inst) {
  if (inst->replaced_by)
    return inst->replaces;
  const char *last = strrchr(inst->path, '.');
  return sub_block(e, former_block(e, inst->owner), last ? last + 1 : inst->path);
}

static bool has_param(lm_decl_ref block, lm_sym param) {
  for (uint32_t i = 0; block.decl && i < block.decl->members.n; i++) {
    const ast_member *m = block.decl->members.v[i];
    for (uint32_t k = 0; m->kind == MB_PARAM && k < m->names.n; k++)
      if (m->names.v[k].text == param)
        return true;
  }
  return false;
}

const el_edit *el_edit_of_param(const lm_elab *e, const el_inst *inst, lm_sym param) {
  const el_edit *by = el_edit_of(inst);
  const el_inst *replaced = inst;
  while (replaced && !replaced->replaced_by)
    replaced = replaced->owner;
  if (by || !replaced)
    return by;
  return has_param(former_block(e, inst), param) ? NULL : replaced->replaced_by;
}

typedef struct paths {
  lm_elab *e;
  lm_sym *v;
  uint32_t n, cap;
} paths;

static bool former_collect(void *user, const el_inst *inst) {
  paths *out = user;
  lm_elab *e = out->e;
  const ast_decl *former = inst->replaced_by ? inst->replaces.decl : NULL;
  for (uint32_t i = 0; former && i < former->members.n; i++) {
    const ast_member *m = former->members.v[i];
    for (uint32_t k = 0; m->kind == MB_PARAM && k < m->names.n; k++)
      if (!has_param((lm_decl_ref){.decl = inst->decl}, m->names.v[k].text))
        LM_PUSH(e->a, out->v, out->n, out->cap) = el_inst_path(e, inst, m->names.v[k].text);
  }
  return false;
}

const lm_sym *el_subs_former(lm_elab *e, el_inst *model, uint32_t *n) {
  paths all = {.e = e};
  el_inst_visit(model, former_collect, &all);
  *n = all.n;
  return all.v;
}

// ---- patterns

typedef struct sought {
  lm_elab *e;
  const char *pattern;
} sought;

static bool is_sought(void *user, const el_inst *inst) {
  const sought *x = user;
  if (!inst->owner)
    return false;
  lm_sym path = el_inst_path(x->e, inst, LM_SYM(x->e->c, ""));
  return lm_pattern_match(x->e->c, x->pattern, path, NULL);
}

void el_subs_check(lm_elab *e, const el_inst *model) {
  for (uint32_t i = 0; e->edits && i < e->edits->n; i++) {
    const el_edit *x = &e->edits->v[i];
    int n = 0;
    const char **alts = replaces(x) ? lm_pattern_expand(e->c, x->pattern, &n) : NULL;
    for (int k = 0; k < n; k++) {
      bool found = el_inst_visit(model, is_sought, &(sought){e, alts[k]});
      if (found || (x->hits && e->c->n_errors)) // or it is broken
        continue;
      lm_diag *d = EL_ERR(e, x->at, E32D, alts[k]);
      lm_diag_note(e->c, d, model->decl->name.loc, "%s is declared here", model->decl->name.text);
    }
  }
}
