// call.c - calls of functions and methods: name resolution and the matching of arguments with
// parameters.
//
// A library function is emitted once per signature as a function of the module and called. Every
// other function is inlined.
#include "dsl/elab/call.h"
#include "dsl/elab/edit.h"
#include "dsl/elab/source.h"
#include <string.h>

// ---- matching of arguments with parameters
static void report_argument(lm_elab *e, const el_invocation *v, const ast_arg *a) {
  uint32_t n = v->sig->n_params, m = 0;
  if (a->kind == ARG_POS)
    EL_ERR(e, a->loc, E084, v->what, n, n == 1 ? "" : "s");
  else if (a->kind != ARG_NAMED)
    EL_ERR(e, a->loc, E094, v->what);
  if (a->kind != ARG_NAMED)
    return;
  const char *names[64];
  for (; m < n && m < LM_COUNT(names); m++)
    names[m] = v->sig->params[m].name.text;
  const char *near = lm_nearest(a->name, names, (int)m);
  lm_diag *d = EL_ERR(e, a->loc, E078, v->what, a->name);
  if (near)
    lm_diag_help(e->c, d, "did you mean '%s'?", near);
  else
    lm_diag_help(e->c, d, "it takes %s", lm_sig_names(e->c, v->sig, 0));
}

// The value of parameter p: the axes of `a` if its type is `axis`, else the value of `a`.
static el_val argument_value(lm_elab *e, const el_invocation *v, uint32_t p, const ast_arg *a) {
  el_val axes = {.k = V_AXES};
  if (!el_type_is(v->sig->params[p].type, "axis"))
    return el_eval(e, a->expr);
  return el_axis_list(e, a->expr, &axes.axes) ? axes : el_error();
}

// The parameter of argument `a`, which is the k-th positional one if it has no name; n_params if
// there is none.
static uint32_t parameter_of(const el_invocation *v, const ast_arg *a, uint32_t *k) {
  uint32_t n = v->sig->n_params, p = 0;
  if (a->kind != ARG_NAMED)
    p = (*k)++;
  while (a->kind == ARG_NAMED && p < n && v->sig->params[p].name.text != a->name)
    p++;
  return a->kind == ARG_NAMED || a->kind == ARG_POS ? p : n;
}

// After a misspelt name the parameter that it stood for would be missing too, so that is not
// reported.
static bool check_missing(lm_elab *e, const el_invocation *v, const ast_expr *x, bool misnamed) {
  bool ok = true;
  for (uint32_t i = 0; i < v->sig->n_params; i++) {
    const ast_param *p = &v->sig->params[i];
    if (v->given[i])
      continue;
    v->locs[i] = x->loc;
    if (p->init || misnamed)
      continue;
    lm_diag *d = EL_ERR(e, x->loc, E079, v->what, p->name.text);
    lm_diag_note(e->c, d, p->name.loc, "declared here");
    ok = false;
  }
  return ok;
}

static void allocate_arguments(lm_elab *e, el_invocation *v) {
  uint32_t n = v->sig->n_params + 1;
  v->args = LM_NEW_N(e->a, el_val, n);
  v->locs = LM_NEW_N(e->a, lm_loc, n);
  v->given = LM_NEW_N(e->a, bool, n);
}

// Matches positional and named arguments with the parameters, and evaluates them.
static bool match(lm_elab *e, el_invocation *v, const ast_expr *x) {
  uint32_t k = 0;
  bool ok = true, misnamed = false;
  allocate_arguments(e, v);
  for (uint32_t i = 0; i < x->n_args; i++) {
    const ast_arg *a = &x->args[i];
    uint32_t p = parameter_of(v, a, &k);
    if (p >= v->sig->n_params) {
      report_argument(e, v, a);
      ok = false;
      misnamed |= a->kind != ARG_POS;
      continue;
    }
    if (v->given[p])
      ok = EL_REJECT(e, a->loc, E095, v->what, v->sig->params[p].name.text);
    v->given[p] = true;
    v->locs[p] = a->expr->loc;
    v->args[p] = argument_value(e, v, p, a);
  }
  return check_missing(e, v, x, misnamed) && ok;
}

// ---- entry points
// Marks a declaration as not evaluated if no call could run its body, so that it is checked on
// symbolic arguments.
static void unvisit(lm_elab *e, const ast_decl *d) {
  for (uint32_t i = 0; i < e->n_visited; i++)
    if (e->visited[i] == d)
      e->visited[i--] = e->visited[--e->n_visited];
}

bool el_is_visited(const lm_elab *e, const ast_decl *d) {
  for (uint32_t i = 0; i < e->n_visited; i++)
    if (e->visited[i] == d)
      return true;
  return false;
}

void el_visit(lm_elab *e, const ast_decl *d) {
  if (!el_is_visited(e, d))
    LM_PUSH(e->a, e->visited, e->n_visited, e->cap_visited) = d;
}

static el_val run_fn(lm_elab *e, el_invocation *v, lm_decl_ref ref) {
  el_val out;
  if (el_can_be_library(v, ref.file, e) && el_call_library(e, v, ref.decl, ref.file, &out))
    return out;
  out = el_run_invocation(e, v, ref.file, NULL, &ref.decl->body);
  if (v->ran)
    el_visit(e, ref.decl);
  return out;
}

// A number that is passed for a parameter with axes becomes a tensor of the parameter's kind.
static void adapt_numbers(lm_elab *e, el_invocation *v) {
  for (uint32_t i = 0; i < v->sig->n_params; i++) {
    const ast_type *t = v->sig->params[i].type;
    el_val *x = &v->args[i];
    if (t && t->n_dims && x->k == V_TENSOR && x->kind == K_NUM)
      *x = el_adapt(e, x, el_type_is(t, "int") ? K_INT : K_F32, v->locs[i]);
  }
}

// Calls `apply` of a block instead of a function.
static el_val call_block(lm_elab *e, const ast_expr *x, el_replacement *instead,
                         const el_ref *block) {
  instead->active = instead->used = true;
  el_val r = el_call_method(e, x, block, LM_SYM(e->c, "apply"));
  instead->active = false;
  return r;
}

static el_val call_fn(lm_elab *e, const ast_expr *x, lm_decl_ref ref) {
  el_replacement *instead = el_replacement_find(e, ref.decl);
  bool by_block = instead && instead->by.decl->kind == DC_BLOCK;
  el_ref block;
  if (by_block && el_site_call_block(e, ref.decl, &block))
    return call_block(e, x, instead, &block);
  if (instead && !by_block)
    ref = instead->by;
  el_invocation v = {
      .sig = &ref.decl->sig,
      .what = ref.decl->name.text,
      .at = x->loc,
  };
  if (!match(e, &v, x))
    return el_error();
  adapt_numbers(e, &v);
  if (by_block && e->edits->records)
    el_site_record_call(e, ref.decl, v.args, v.sig->n_params, x->loc);
  instead = by_block ? NULL : instead;
  if (instead)
    instead->active = instead->used = true;
  el_val r = run_fn(e, &v, ref);
  if (instead)
    instead->active = false;
  if (r.k != V_ERROR) {
    el_warn_order(e, v.sig, v.what, x);
    el_warn_exchanged(e, ref.decl, x);
  }
  return r;
}

static void args_take(lm_elab *e, el_invocation *v, const el_val *args, uint32_t n) {
  allocate_arguments(e, v);
  for (uint32_t i = 0; i < n; i++) {
    v->args[i] = args[i];
    v->locs[i] = v->sig->params[i].name.loc;
    v->given[i] = true;
  }
}

el_val el_invoke_fn(lm_elab *e, lm_decl_ref ref, const el_val *args, uint32_t n, lm_loc at) {
  el_invocation v = {
      .sig = &ref.decl->sig,
      .what = ref.decl->name.text,
      .at = at,
  };
  LM_ASSERT(n == v.sig->n_params);
  args_take(e, &v, args, n);
  return run_fn(e, &v, ref);
}

static el_val run_method(lm_elab *e, el_invocation *v, const el_ref *ref,
                         const ast_member *method) {
  el_val r;
  el_ref self = *ref;
  self.each = NULL; // its own methods are those of its block
  el_memo memo = el_memo_begin(e, v, ref->inst, method);
  if (el_memo_find(e, &memo, &r))
    return r;
  r = el_run_invocation(e, v, ref->inst->file, &self, &method->body);
  if (!v->ran)
    unvisit(e, ref->inst->decl);
  el_memo_end(e, &memo, r);
  return r;
}

const ast_member *el_method_find(const el_inst *inst, lm_sym name) {
  for (uint32_t i = 0; i < inst->decl->members.n; i++) {
    const ast_member *m = inst->decl->members.v[i];
    if (m->kind == MB_METHOD && m->names.v[0].text == name)
      return m;
  }
  return NULL;
}

// The callee is an error already; its arguments are evaluated to report the errors in them.
static el_val eval_arguments(lm_elab *e, const ast_expr *x) {
  for (uint32_t i = 0; i < x->n_args; i++)
    if (x->args[i].kind == ARG_POS || x->args[i].kind == ARG_NAMED)
      el_eval(e, x->args[i].expr);
  return el_error();
}

el_val el_call_method(lm_elab *e, const ast_expr *x, const el_ref *ref, lm_sym name) {
  const ast_member *m = el_method_find(ref->inst, name);
  if (ref->inst->broken || (!m && el_has_errors(ref->inst->decl)) ||
      !el_kinds_agree(e, x, ref, name))
    return eval_arguments(e, x);
  if (!m) {
    lm_diag *d = EL_ERR(e, x->loc, E080, ref->inst->decl->name.text, name);
    lm_diag_note(e->c, d, ref->inst->decl->name.loc, "declared here");
    return el_error();
  }
  el_invocation v = {.sig = &m->sig,
                     .what = lm_arena_printf(e->a, "%s.%s", ref->inst->decl->name.text, name),
                     .at = x->loc};
  if (!match(e, &v, x)) {
    unvisit(e, ref->inst->decl);
    return el_error();
  }
  el_val r = run_method(e, &v, ref, m);
  if (r.k != V_ERROR)
    el_warn_order(e, v.sig, v.what, x);
  return name == LM_SYM(e->c, "apply") ? el_site_sub(e, ref, r, x->loc) : r;
}

static el_val wrong_method(lm_elab *e, const ast_member *m, const char *what, uint32_t n,
                           lm_loc at) {
  lm_diag *d = EL_ERR(e, m->loc, E081, what, n);
  if (at.file)
    lm_diag_note(e->c, d, at, "called here");
  return el_error();
}

el_val el_invoke_method(lm_elab *e, const el_ref *ref, lm_sym name, const el_val *args, uint32_t n,
                        lm_loc at) {
  const ast_member *m = el_method_find(ref->inst, name);
  el_invocation v = {.sig = &m->sig,
                     .what = lm_arena_printf(e->a, "%s.%s", ref->inst->decl->name.text, name),
                     .at = at};
  if (n != m->sig.n_params)
    return wrong_method(e, m, v.what, n, at);
  args_take(e, &v, args, n);
  return run_method(e, &v, ref, m);
}

el_val el_invoke_named(lm_elab *e, const el_ref *ref, lm_sym name, el_val first, lm_loc at) {
  const ast_member *m = el_method_find(ref->inst, name);
  el_invocation v = {.sig = &m->sig,
                     .what = lm_arena_printf(e->a, "%s.%s", ref->inst->decl->name.text, name),
                     .at = at};
  allocate_arguments(e, &v);
  for (uint32_t i = 0; i < v.sig->n_params; i++) {
    const ast_param *p = &v.sig->params[i];
    const el_bind *b = i ? el_names_find(&e->frame->names, p->name.text) : NULL;
    v.locs[i] = p->name.loc;
    v.given[i] = !i || b;
    if (v.given[i]) {
      v.args[i] = i ? b->val : first;
      continue;
    }
    if (p->init)
      continue;
    lm_diag *d = EL_ERR(e, p->name.loc, E32C, v.what, p->name.text);
    lm_diag_note(e->c, d, at, "used here");
    lm_diag_note(e->c, d, el_edit_of(ref->inst)->at, "added by this edit");
    return el_error();
  }
  return run_method(e, &v, ref, m);
}

static const char *nearest_function(lm_elab *e, lm_sym name) {
  int n[3];
  const char *const *names[] = {
      lm_primitive_names(&n[0]),
      lm_program_names(e->prog, e->frame->file, DC_FN, &n[1]),
      lm_program_names(e->prog, e->frame->file, DC_FORMAT, &n[2]),
  };
  const char **all = LM_NEW_N(e->a, const char *, n[0] + n[1] + n[2] + 1);
  int count = 0;
  for (int k = 0; k < 3; k++)
    for (int i = 0; i < n[k]; i++)
      all[count++] = names[k][i];
  return lm_nearest(name, all, count);
}

const char *el_library_module(const lm_elab *e, lm_sym name, unsigned kinds) {
  if (!e->prog->library)
    e->prog->library = lm_library_load(e->c);
  const lm_program *library = e->prog->library;
  for (uint32_t i = 0; i < library->n_files; i++) {
    lm_decl_ref ref = lm_program_find(library, library->files[i], name);
    if (ref.decl && ref.file == library->files[i] && strcmp(ref.file->path, "std.optim") &&
        kinds >> ref.decl->kind & 1)
      return ref.file->path;
  }
  return NULL;
}

void el_help_function(lm_elab *e, lm_diag *d, lm_sym name) {
  int n;
  const char *const *primitives = lm_primitive_names(&n);
  for (int i = 0; i < n; i++)
    if (!strcmp(primitives[i], name)) {
      lm_diag_help(e->c, d, "it is a function: %s(…)", name);
      return;
    }
  const char *module = el_library_module(e, name, 1u << DC_FN);
  if (module)
    lm_diag_help(e->c, d, "it is a function: import %s: %s, and then %s(…)", module, name, name);
}

static el_val report_unknown_function(lm_elab *e, const ast_expr *x) {
  if (el_is_incomplete(e))
    return el_error();
  int n_nn = 0;
  lm_sym name = x->a->text;
  lm_file *nn = e->prog->nn;
  const char *module = el_library_module(e, name, 1u << DC_FN | 1u << DC_FORMAT);
  const char *near = nearest_function(e, name);
  const char *const *in_nn = nn ? lm_program_names(e->prog, nn, DC_FN, &n_nn) : NULL;
  const char *near_nn = lm_nearest(name, in_nn, n_nn);
  lm_diag *d = EL_ERR(e, x->loc, E082, name);
  if (module)
    lm_diag_help(e->c, d, "import %s: %s", module, name);
  else if (el_help_word(e, d, name))
    return el_error();
  else if (!near && near_nn)
    lm_diag_help(e->c, d, "did you mean '%s'? import std.nn: %s", near_nn, near_nn);
  else if (near)
    lm_diag_help(e->c, d, "did you mean '%s'?", near);
  return el_error();
}

static const struct el_sub *sub_find(const el_ref *self, lm_sym name) {
  for (uint32_t i = 0; self && i < self->inst->n_subs; i++)
    if (self->inst->subs[i].name == name)
      return &self->inst->subs[i];
  return NULL;
}

static el_val call_sub(lm_elab *e, const ast_expr *x, const struct el_sub *s) {
  if (s->many)
    return EL_FAIL(e, x->loc, E083, s->name, s->name);
  if (!s->one)
    return el_error();
  el_ref ref = el_ref_sub(e, e->frame->self, s->one);
  return el_call_method(e, x, &ref, LM_SYM(e->c, "apply"));
}

static el_val call_bound(lm_elab *e, const ast_expr *x, const el_val *v) {
  if (v->k == V_INST && !el_is_optimizer(v))
    return el_call_method(e, x, &v->ref, LM_SYM(e->c, "apply"));
  if (v->k != V_ERROR)
    EL_ERR(e, x->loc, E097, x->a->text, el_show(e, v));
  return eval_arguments(e, x);
}

static el_val report_not_function(lm_elab *e, const ast_expr *x, const ast_decl *decl) {
  lm_diag *d = EL_ERR(e, x->loc, E098, x->a->text);
  if (decl->kind == DC_BLOCK || decl->kind == DC_MODEL)
    lm_diag_help(e->c, d, "instantiate it as a member: sub NAME = %s(…)", x->a->text);
  return el_error();
}

// A name denotes, in this order: a value of the scope, a sub or method of the instance, a function
// of the file, a primitive.
static el_val call_name(lm_elab *e, const ast_expr *x) {
  lm_sym name = x->a->text;
  el_ref *self = e->frame->self;
  const el_bind *b = el_names_find(&e->frame->names, name);
  if (b)
    return call_bound(e, x, &b->val);
  const struct el_sub *sub = sub_find(self, name);
  if (sub)
    return call_sub(e, x, sub);
  if (self && el_method_find(self->inst, name))
    return el_call_method(e, x, self, name);
  lm_decl_ref ref = lm_program_find(e->prog, e->frame->file, name);
  if (ref.decl && ref.decl->kind == DC_FN)
    return call_fn(e, x, ref);
  if (ref.decl && ref.decl->kind == DC_FORMAT)
    return el_format_make(e, x, ref);
  bool found;
  el_val v = el_primitive(e, x, &found);
  if (found)
    return v;
  return ref.decl ? report_not_function(e, x, ref.decl) : report_unknown_function(e, x);
}

el_val el_call(lm_elab *e, const ast_expr *x) {
  if (x->a->kind == EX_NAME)
    return call_name(e, x);
  if (x->a->kind == EX_FIELD) {
    el_val a = el_eval(e, x->a->a);
    if (el_is_optimizer(&a))
      return e->wrapper ? e->wrapper->call(e->wrapper, e, x, a.ref.inst)
                        : EL_FAIL(e, x->loc, E334, "inner", "inner");
    bool bare = a.k == V_INST && x->a->text == LM_SYM(e->c, "bare");
    if (bare && !el_method_find(a.ref.inst, x->a->text) && !sub_find(&a.ref, x->a->text))
      return el_call_bare(e, x, &a.ref);
    if (a.k == V_INST && !sub_find(&a.ref, x->a->text))
      return el_call_method(e, x, &a.ref, x->a->text);
    if (a.k == V_ERROR)
      return eval_arguments(e, x);
  }
  el_val f = el_eval(e, x->a);
  if (f.k == V_INST)
    return el_call_method(e, x, &f.ref, LM_SYM(e->c, "apply"));
  if (f.k != V_ERROR)
    EL_ERR(e, x->loc, E099, el_show(e, &f));
  return el_error();
}
