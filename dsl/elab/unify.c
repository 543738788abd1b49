// unify.c - unification of the arguments of a call with the types of the parameters.
//
// Axes unify by position. A name of the signature that is not bound yet is bound to the caller's
// axis. A name that is an axis of the instance keeps its meaning, and the caller's axis is renamed
// to it for the duration of the call.
#include "dsl/elab/call.h"

static void report_mismatch(lm_elab *e, el_invocation *v, uint32_t i, const ast_type *t,
                            const el_val *x, const char *reason) {
  lm_diag *d = EL_ERR(e, v->locs[i], E031, lm_arena_printf(e->a, "the call of %s", v->what));
  lm_diag_label(e->c, d, "%s", reason);
  lm_diag_note(e->c, d, v->sig->params[i].name.loc, "parameter %s: %s", v->sig->params[i].name.text,
               el_type_text(e, t));
  lm_diag_note(e->c, d, x->loc, "%s: %s", x->name ? x->name : "argument", el_show(e, x));
}

el_axis *el_mapped(const el_mapping *m, el_axis *a) {
  int k = el_axes_find(&m->from, a);
  return k < 0 ? a : m->to.v[k];
}

// Binds one name of the signature to one axis of the argument. NULL: done; else the reason why not.
static const char *bind_axis(lm_elab *e, el_invocation *v, lm_sym name, el_axis *actual) {
  el_axis *a = el_mapped(&v->map, actual);
  el_axis *have = el_axis_lookup(e, name);
  if (have == a)
    return NULL;
  if (!have) {
    if (v->n_bound < LM_COUNT(v->bound)) {
      v->bound_by[v->n_bound] = name;
      v->bound[v->n_bound++] = a;
    }
    el_axis_bind_name(e, name, a);
    return NULL;
  }
  for (uint32_t k = 0; k < v->n_bound; k++)
    if (v->bound_by[k] == name)
      return lm_arena_printf(e->a, "'%s' is already bound to axis '%s', not to %s'%s'", name,
                             have->name, have->name == actual->name ? "another axis named " : "",
                             actual->name);
  if (!lm_size_equal(have->size, a->size) &&
      (lm_size_is_const(have->size) == lm_size_is_const(a->size) || e->m)) {
    el_val x = el_sized(have->size);
    el_val y = el_sized(a->size);
    return lm_arena_printf(e->a, "axis '%s' has size %s here, got '%s' of size %s", name,
                           el_show(e, &x), actual->name, el_show(e, &y));
  }
  if (el_axes_has(&v->map.to, have))
    return lm_arena_printf(e->a, "'%s' is already bound to an axis other than '%s'", name,
                           actual->name);
  if (a != actual)
    return lm_arena_printf(e->a, "axis '%s' would be both '%s' and '%s'", actual->name, a->name,
                           name);
  el_axes_push(e, &v->map.from, actual);
  el_axes_push(e, &v->map.to, have);
  return NULL;
}

// The row of a type that takes the axes which its other dims leave: the one that the instance does
// not determine, else the last one. -1: the type has no rows.
static int open_row(const lm_elab *e, const ast_type *t) {
  int row = -1;
  for (uint32_t i = 0; i < t->n_dims; i++)
    if (t->dims[i].row && (row < 0 || el_row_is_of_instance(e, t->dims[row].row)))
      row = (int)i;
  return row;
}

// NULL: the next axes of the argument, from index *k, are the axes of the row; else why not.
static const char *match_row(lm_elab *e, const el_invocation *v, const char *name,
                             const el_axes *row, const el_axes *axes, uint32_t n, uint32_t *k) {
  el_axes now = {0};
  el_axes old = {0};
  for (uint32_t j = 0; j < n; j++)
    el_axes_push(e, &now, el_mapped(&v->map, axes->v[(*k)++]));
  for (uint32_t j = 0; j < row->n; j++)
    el_axes_push(e, &old, el_mapped(&v->map, row->v[j]));
  if (el_axes_same(&old, &now))
    return NULL;
  return lm_arena_printf(e->a, "%s is %s, got %s", name, el_show_axes(e, &old),
                         el_show_axes(e, &now));
}

static const char *unify(lm_elab *e, el_invocation *v, const ast_type *t, const el_axes *axes) {
  int row = open_row(e, t);
  const el_axes *batch = el_type_batch(e, t);
  uint32_t fixed = batch->n;
  for (uint32_t i = 0; i < t->n_dims; i++)
    if ((int)i != row)
      fixed += t->dims[i].row ? el_row_find(e, t->dims[i].row)->axes.n : 1;
  if (row < 0 ? axes->n != fixed : axes->n < fixed)
    return lm_arena_printf(e->a, "expected %s%u axes, got %s", row < 0 ? "" : "at least ", fixed,
                           el_show_axes(e, axes));
  uint32_t extra = axes->n - fixed, k = 0;
  const char *why = match_row(e, v, "the batch", batch, axes, batch->n, &k);
  if (why)
    return why;
  for (uint32_t i = 0; i < t->n_dims; i++) {
    if (!t->dims[i].row) {
      lm_sym name = el_dim_name(e, &t->dims[i]);
      const char *reason = name ? bind_axis(e, v, name, axes->v[k]) : NULL;
      if (reason)
        return reason;
      k++;
      continue;
    }
    el_row *have = el_row_find(e, t->dims[i].row);
    uint32_t n = (int)i == row ? extra : have->axes.n;
    if (have) {
      why = match_row(e, v, lm_arena_printf(e->a, "row '..%s'", t->dims[i].row), &have->axes, axes,
                      n, &k);
      if (why)
        return why;
      continue;
    }
    el_axes got = {0};
    for (uint32_t j = 0; j < n; j++)
      el_axes_push(e, &got, axes->v[k++]);
    el_row_bind(e, t->dims[i].row, got);
  }
  return NULL;
}

// Checks the kind of an argument and adapts numbers. False: reported.
static bool fit_kind(lm_elab *e, el_invocation *v, uint32_t i, const ast_type *t, el_val *x,
                     bool is_fn) {
  if (x->k == V_NUM || (x->k == V_TENSOR && x->kind == K_NUM)) {
    if (el_type_is(t, "bool"))
      return EL_REJECT(e, v->locs[i], E072, v->what, v->sig->params[i].name.text, "bool",
                       el_show(e, x));
    bool scalar = x->k == V_NUM || x->axes.n == 0;
    if (scalar && !t->n_dims)
      return true; // scalars stay numbers, which adapt to the tensors they are combined with
    *x = el_adapt(e, x,
                  el_type_is(t, "int")                   ? K_INT
                  : el_type_is(t, "real") && v->real_set ? v->real
                                                         : K_F32,
                  v->locs[i]);
  }
  if (x->k == V_BOOL && el_type_is(t, "bool") && !t->n_dims)
    return true;
  if (x->k != V_TENSOR) {
    if (x->k != V_ERROR)
      EL_ERR(e, v->locs[i], E072, v->what, v->sig->params[i].name.text, el_type_text(e, t),
             el_show(e, x));
    return false;
  }
  if (el_type_is(t, "real") && is_fn && (x->kind == K_REAL || x->kind == K_F32)) {
    if (!v->real_set) {
      v->real = x->kind;
      v->real_set = true;
    }
    if (v->real == x->kind)
      return true;
  } else if ((el_type_is(t, "real") && x->kind == K_REAL) ||
             (el_type_is(t, "f32") && x->kind == K_F32) ||
             (el_type_is(t, "int") && x->kind == K_INT) ||
             (el_type_is(t, "bool") && x->kind == K_BOOL)) {
    return true;
  }
  bool ok = true;
  el_kind want =
      el_type_is(t, "real") && is_fn && v->real_set ? v->real : el_kind_of_type(e, t, &ok);
  if (!ok)
    return false;
  lm_diag *d = EL_ERR(e, v->locs[i], E072, v->what, v->sig->params[i].name.text, el_kind_name(want),
                      el_show(e, x));
  el_note_value(e, d, x);
  if (want != K_BOOL)
    lm_diag_help(e->c, d, "cast it: %s(…)", el_kind_name(want));
  return false;
}

// `steps`: a number of steps, known at compile time or at run time.
static bool fit_duration(lm_elab *e, const el_invocation *v, uint32_t i, const el_val *x) {
  if (x->k == V_NUM || (x->k == V_TENSOR && x->kind == K_NUM && !x->axes.n))
    return true;
  return EL_REJECT(e, v->locs[i], E072, v->what, v->sig->params[i].name.text, "a number of steps",
                   el_show(e, x));
}

bool el_unify_param(lm_elab *e, el_invocation *v, uint32_t i, bool is_fn) {
  const ast_type *t = v->sig->params[i].type;
  el_val *x = &v->args[i];
  if (!t || el_type_is(t, "axis"))
    return true;
  if (!el_type_check(e, t))
    return false;
  if (el_type_is(t, "Batch")) {
    if (x->k != V_RECORD)
      return EL_REJECT(e, v->locs[i], E072, v->what, v->sig->params[i].name.text, "a Batch",
                       el_show(e, x));
    for (uint32_t k = 0; k < x->n; k++) {
      const char *reason = unify(e, v, t, &x->items[k].axes);
      if (reason) {
        report_mismatch(e, v, i, t, x, reason);
        return false;
      }
    }
    return true;
  }
  if (el_is_duration(t))
    return fit_duration(e, v, i, x);
  if (!fit_kind(e, v, i, t, x, is_fn))
    return false;
  if (x->k != V_TENSOR || (x->kind == K_NUM && !x->axes.n))
    return true;
  const char *reason = unify(e, v, t, &x->axes);
  if (reason) {
    report_mismatch(e, v, i, t, x, reason);
    return false;
  }
  return true;
}
