// update.c - the declaration of an optimizer: its members and its states.
#include "dsl/elab/call.h"
#include "dsl/lower/optimizer.h"
#include <string.h>

static const char form[] = "update(p: f32, g: f32, k: f32) -> f32";

// ---- the type of `update`

static lm_diag *report_form(lm_elab *e, lm_loc at) {
  lm_diag *d = EL_ERR(e, at, E0B3);
  lm_diag_help(e->c, d,
               "%s returns the new value of one element p, from its gradient g in step k; k is "
               "optional",
               form);
  return d;
}

static lm_sym name_of(const ast_dim *d) {
  return d->row ? d->row : d->expr->kind == EX_NAME ? d->expr->text : NULL;
}

// The names of the second axes of the sizes of i and o.
static void dims_find(const ast_decl *d, lm_update_type *out) {
  for (uint32_t i = 0; i < d->members.n; i++) {
    const ast_member *m = d->members.v[i];
    for (uint32_t k = 0; m->kind == MB_DIM && k < m->names.n; k++)
      for (int a = 0; a < 2; a++)
        if (m->exprs.v[k]->kind == EX_NAME && m->exprs.v[k]->text == out->axes[a])
          out->axes[2 + a] = m->names.v[k].text;
  }
}

lm_update_type lm_update_type_of(const ast_decl *d, const ast_member *update) {
  const ast_type *t = update->sig.n_params ? update->sig.params[0].type : NULL;
  lm_update_type out = {LM_UPDATE_ELEMENT};
  if (!t || !t->n_dims)
    return out;
  out.form = t->n_dims == 1 ? LM_UPDATE_TENSOR : LM_UPDATE_MATRIX;
  for (uint32_t i = 0; i < t->n_dims && i < 2; i++)
    out.axes[i] = name_of(&t->dims[i]);
  if (out.form == LM_UPDATE_MATRIX)
    dims_find(d, &out);
  return out;
}

// True if t is f32, f32[..p] or f32[i, o].
static bool is_value_type(const ast_type *t) {
  if (!el_type_is(t, "f32") || (t->has_dims && !t->n_dims) || t->n_dims > 2)
    return false;
  if (t->n_dims == 1)
    return t->dims[0].row;
  return !t->n_dims || (!t->dims[0].row && !t->dims[1].row && name_of(&t->dims[0]) &&
                        name_of(&t->dims[1]) && name_of(&t->dims[0]) != name_of(&t->dims[1]));
}

static bool same_type(const ast_type *x, const ast_type *y) {
  bool same = x->n_dims == y->n_dims;
  for (uint32_t i = 0; same && i < x->n_dims; i++)
    same = name_of(&x->dims[i]) == name_of(&y->dims[i]);
  return same;
}

// A type may be left out; it is then that of an element.
static bool check_type(lm_elab *e, const ast_type *t, const ast_type *like) {
  static const ast_type element;
  if (t ? is_value_type(t) && same_type(t, like ? like : &element) : !like || !like->n_dims)
    return true;
  report_form(e, t ? t->loc : like->loc);
  return false;
}

bool lm_check_order(lm_elab *e, const ast_sig *sig, const char *const *names, uint32_t n,
                    const char *what) {
  lm_buf order = {0};
  for (uint32_t i = 0; i < n; i++)
    lm_buf_printf(&order, "%s%s", i ? ", " : "", names[i]);
  const char *text = lm_arena_printf(e->a, "(%s)", order.p);
  lm_buf_free(&order);
  for (uint32_t i = 0; i < sig->n_params; i++)
    for (uint32_t k = 0; k < n; k++) {
      const ast_name *name = &sig->params[i].name;
      if (i == k || strcmp(name->text, names[k]))
        continue;
      EL_ERR(e, name->loc, E0F0, what, n == 2 ? "its first arguments" : "its arguments", text,
             name->text, i + 1);
      return false;
    }
  return true;
}

static bool check_update(lm_elab *e, const ast_member *m) {
  static const char *const names[] = {"p", "g", "k"};
  const ast_sig *sig = &m->sig;
  if (sig->n_params != 2 && sig->n_params != 3) {
    report_form(e, m->loc);
    return false;
  }
  if (!lm_check_order(e, sig, names, LM_COUNT(names), "update"))
    return false;
  for (uint32_t i = 0; i < sig->n_params; i++) {
    if (!check_type(e, sig->params[i].type, i < 2 ? sig->params[0].type : NULL))
      return false;
    if (sig->params[i].init) {
      report_form(e, sig->params[i].init->loc);
      return false;
    }
  }
  if (!check_type(e, sig->ret, sig->params[0].type))
    return false;
  if (!sig->where.n)
    return true;
  lm_diag *d = EL_ERR(e, sig->where.v[0]->loc, E0E9);
  lm_diag_help(e->c, d, "write constraints on the optimizer's parameters after its parameter list");
  return false;
}

// eval(p: T) -> T, T the type of the first parameter of `update`.
static bool check_eval(lm_elab *e, const ast_member *m, const ast_member *update) {
  const ast_sig *sig = &m->sig;
  const ast_type *like = update && update->sig.n_params ? update->sig.params[0].type : NULL;
  static const ast_type element;
  const ast_type *want = like ? like : &element;
  bool ok = sig->n_params == 1 && !sig->params[0].init && !sig->where.n;
  for (uint32_t i = 0; ok && i < 2; i++) {
    const ast_type *t = i ? sig->ret : sig->params[0].type;
    ok = t ? is_value_type(t) && same_type(t, want) : !want->n_dims;
  }
  if (!ok)
    EL_ERR(e, m->loc, E908);
  return ok;
}

static bool has_param(const ast_sig *sig, lm_sym name) {
  for (uint32_t i = 0; i < sig->n_params; i++)
    if (sig->params[i].name.text == name)
      return true;
  return false;
}

static bool is_state_before(const ast_decl *d, const ast_name *name) {
  for (uint32_t i = 0; i < d->members.n; i++) {
    const ast_member *m = d->members.v[i];
    for (uint32_t k = 0; m->kind == MB_STATE && k < m->names.n; k++) {
      if (&m->names.v[k] == name)
        return false;
      if (m->names.v[k].text == name->text)
        return true;
    }
  }
  return false;
}

// The axes of the states of a type. False: `update` sees no such axes.
static bool state_axes(const ast_decl *d, const ast_type *t, const ast_member *update,
                       lm_lowered_state *out) {
  lm_update_type of = update ? lm_update_type_of(d, update) : (lm_update_type){0};
  if (!el_type_is(t, "f32"))
    return false;
  if (!t->has_dims)
    return true;
  if (of.form == LM_UPDATE_TENSOR && t->n_dims == 1)
    return t->dims[0].row && t->dims[0].row == of.axes[0];
  out->has_own_axes = true;
  for (uint32_t i = 0, next = 0; i < t->n_dims; i++) {
    uint32_t k = next;
    while (k < 4 && (t->dims[i].row || name_of(&t->dims[i]) != of.axes[k]))
      k++;
    if (k == 4 || of.form != LM_UPDATE_MATRIX)
      return false;
    out->axis[k] = true;
    next = k + 1;
  }
  if (out->axis[0] && out->axis[1] && t->n_dims == 2)
    out->has_own_axes = false;
  return of.form != LM_UPDATE_ELEMENT && t->n_dims <= 2;
}

static bool check_state(lm_elab *e, const ast_decl *d, const ast_member *m,
                        const ast_member *update) {
  bool ok = state_axes(d, m->type, update, &(lm_lowered_state){0});
  if (!ok)
    EL_ERR(e, m->type->loc, E0EC);
  for (uint32_t k = 0; k < m->names.n; k++) {
    const ast_name *n = &m->names.v[k];
    bool taken = has_param(&d->sig, n->text) || (update && has_param(&update->sig, n->text));
    if (!taken && !is_state_before(d, n))
      continue;
    EL_ERR(e, n->loc, E0EB, d->name.text, n->text);
    ok = false;
  }
  return ok;
}

// dim q = i: a second axis of the size of an axis of the matrix.
static bool check_dim(lm_elab *e, const ast_decl *d, const ast_member *m,
                      const ast_member *update) {
  lm_update_type t = update ? lm_update_type_of(d, update) : (lm_update_type){0};
  bool ok = t.form == LM_UPDATE_MATRIX;
  for (uint32_t k = 0; ok && k < m->names.n; k++) {
    lm_sym name = m->names.v[k].text;
    // of two dims of one axis the last one is in t
    ok = (name == t.axes[2] || name == t.axes[3]) && t.axes[2] != t.axes[3] && name != t.axes[0] &&
         name != t.axes[1] && !has_param(&d->sig, name) && !has_param(&update->sig, name);
  }
  if (!ok)
    EL_ERR(e, m->loc, E32F);
  return ok;
}

static bool check_other_member(lm_elab *e, const ast_decl *d, const ast_member *m) {
  static const char *const keywords[] = {
      [MB_PARAM] = "param", [MB_SUB] = "sub", [MB_MAP] = "map", [MB_AFTER] = "after_step"};
  bool method = m->kind == MB_METHOD;
  const char *what = method ? m->names.v[0].text : keywords[m->kind];
  lm_diag *err = EL_ERR(e, m->loc, E0B7, what);
  const char *near = method ? lm_nearest(what, (const char *[]){"update"}, 1) : NULL;
  if (near)
    lm_diag_help(e->c, err, "did you mean '%s'?", near);
  else if (method)
    lm_diag_help(e->c, err,
                 "declare it as a function of the file, `fn %s(…)`, and call it in %s.update", what,
                 d->name.text);
  return false;
}

const ast_member *lm_optimizer_extra(const ast_decl *d) {
  for (uint32_t i = 0; i < d->members.n; i++)
    if (d->members.v[i]->kind == MB_EXTRA)
      return d->members.v[i];
  return NULL;
}

static const ast_member *method_find(const ast_decl *d, const char *name) {
  for (uint32_t i = 0; i < d->members.n; i++) {
    const ast_member *m = d->members.v[i];
    if (m->kind == MB_METHOD && !strcmp(m->names.v[0].text, name))
      return m;
  }
  return NULL;
}

static const ast_member *update_find(const ast_decl *d) {
  return method_find(d, "update");
}

const ast_member *lm_optimizer_eval(const ast_decl *d) {
  return method_find(d, "eval");
}

const ast_member *lm_optimizer_extra_method(const ast_decl *d) {
  const ast_member *extra = lm_optimizer_extra(d);
  return extra ? method_find(d, extra->names.v[0].text) : NULL;
}

const ast_expr *lm_optimizer_extra_every(const ast_member *extra) {
  const ast_expr *x = extra->init;
  bool one = x->kind == EX_TUPLE && x->n_args == 1 && x->args[0].kind == ARG_NAMED;
  return one && !strcmp(x->args[0].name, "every") ? x->args[0].expr : NULL;
}

// extra NAME = (every = …), of which an optimizer has one, beside a method of that name.
static bool check_extra(lm_elab *e, const ast_decl *d, const ast_member *m) {
  const char *name = m->names.v[0].text;
  bool taken = !strcmp(name, "update") || !strcmp(name, "eval");
  if (m == lm_optimizer_extra(d) && lm_optimizer_extra_every(m) && method_find(d, name) && !taken)
    return true;
  return EL_REJECT(e, m->loc, E330);
}

// NAME(p: T, g: T, k: f32, norm: f32, weight: f32) -> T, or without result; the last three
// parameters are optional.
static bool check_extra_method(lm_elab *e, const ast_member *m, const ast_member *update) {
  static const char *const names[] = {"p", "g", "k", "norm", "weight"};
  static const ast_type element;
  const ast_sig *sig = &m->sig;
  const ast_type *like = update && update->sig.n_params ? update->sig.params[0].type : NULL;
  bool ok = sig->n_params >= 2 && sig->n_params <= LM_COUNT(names) && !sig->where.n;
  for (uint32_t i = 0; ok && i < sig->n_params; i++) {
    const ast_type *t = sig->params[i].type, *want = i < 2 && like ? like : &element;
    const char *name = sig->params[i].name.text;
    ok = (t ? is_value_type(t) && same_type(t, want) : !want->n_dims) && !sig->params[i].init;
    for (uint32_t k = 0; k < LM_COUNT(names); k++)
      ok &= i == k || strcmp(name, names[k]) != 0;
  }
  if (ok && sig->ret)
    ok = is_value_type(sig->ret) && same_type(sig->ret, like ? like : &element);
  return ok || EL_REJECT(e, m->loc, E331, m->names.v[0].text);
}

static bool check_member(lm_elab *e, const ast_decl *d, const ast_member *m,
                         const ast_member *update) {
  if (m->kind == MB_ERROR)
    return true; // reported
  if (m->kind == MB_STATE)
    return check_state(e, d, m, update);
  if (m->kind == MB_DIM)
    return check_dim(e, d, m, update);
  if (m == update)
    return check_update(e, m);
  if (m == lm_optimizer_eval(d))
    return check_eval(e, m, update);
  if (m->kind == MB_EXTRA)
    return check_extra(e, d, m);
  if (m == lm_optimizer_extra_method(d))
    return check_extra_method(e, m, update);
  if (m->kind == MB_METHOD && method_find(d, m->names.v[0].text) != m)
    return EL_REJECT(e, m->loc, E0ED, d->name.text, m->names.v[0].text);
  return check_other_member(e, d, m);
}

// Parameters that are optimizers have no default, which could be the optimizer itself.
static bool check_params(lm_elab *e, const ast_decl *d) {
  bool ok = true;
  for (uint32_t i = 0; i < d->sig.n_params; i++) {
    const ast_param *p = &d->sig.params[i];
    if (lm_is_optimizer_param(p) && (p->init || p->type->has_dims))
      ok = EL_REJECT(e, p->init ? p->init->loc : p->type->loc, E339, p->name.text, d->name.text);
  }
  return ok;
}

const ast_member *lm_optimizer_members(lm_elab *e, const ast_decl *d) {
  const ast_member *update = update_find(d);
  bool ok = check_params(e, d) && update != NULL && !el_has_errors(d);
  for (uint32_t i = 0; i < d->members.n; i++)
    ok &= check_member(e, d, d->members.v[i], update);
  if (!update && !el_has_errors(d))
    EL_ERR(e, d->loc, E0EA, d->name.text, form);
  return ok ? update : NULL;
}

// ---- states

static lm_lowered_state state_of(lm_elab *e, const ast_decl *d, const ast_member *m,
                                 const ast_member *update) {
  lm_lowered_state s = {.is_param = m->init->kind == EX_NAME && !strcmp(m->init->text, "p")};
  state_axes(d, m->type, update, &s);
  if (s.is_param && s.has_own_axes)
    EL_ERR(e, m->init->loc, E0B4, "p, which has more axes");
  if (s.is_param)
    return s;
  el_val v = el_eval(e, m->init);
  bool known = el_number_value(&v, &s.value);
  if (!known && v.k != V_ERROR)
    EL_ERR(e, m->init->loc, E0B4, el_show(e, &v));
  return s;
}

void lm_optimizer_states(lm_elab *e, const ast_decl *d, const char *prefix,
                         lm_lowered_states *all) {
  for (uint32_t i = 0; i < d->members.n; i++) {
    const ast_member *m = d->members.v[i];
    if (m->kind != MB_STATE)
      continue;
    lm_lowered_state s = state_of(e, d, m, update_find(d));
    for (uint32_t k = 0; k < m->names.n; k++) {
      s.name = LM_SYM(e->c, lm_arena_printf(e->a, "%s%s", prefix, m->names.v[k].text));
      LM_PUSH(e->a, all->v, all->n, all->cap) = s;
    }
  }
}

el_axes lm_optimizer_state_axes(lm_elab *e, const lm_lowered_state *s, const el_axes *of_p,
                                el_axis *const *matrix) {
  el_axes own = {0};
  if (!s->has_own_axes)
    return *of_p;
  for (uint32_t k = 0; k < 4; k++)
    if (s->axis[k])
      el_axes_push(e, &own, matrix[k]);
  return own;
}
