// call.c - calls of functions and methods: matching arguments, unifying axes, checking
// results.
//
// Axes unify by position. A name of the signature that stands for nothing yet is bound to the
// caller's axis; a name that is an axis of the instance has the caller's axis renamed to it.
// Library functions are emitted once per signature as functions of their own and called; everything
// else is inlined.
#include "dsl/elab/call.h"
#include <string.h>

enum {
  MOST_CALLS = 100
};

bool el_type_is(const ast_type *t, const char *name) {
  return t && t->name && strcmp(t->name, name) == 0;
}

static bool same_axis(const ast_dim *a, const ast_dim *b) {
  return !a->row && !b->row && a->expr->kind == EX_NAME && b->expr->kind == EX_NAME &&
         a->expr->text == b->expr->text;
}

// Axis i of a type against those before it.
static bool check_dim(lm_elab *e, const ast_type *t, uint32_t i) {
  const ast_dim *d = &t->dims[i];
  bool rows = false, twice = false;
  for (uint32_t k = 0; k < i; k++) {
    rows |= d->row && t->dims[k].row;
    twice |= same_axis(d, &t->dims[k]);
  }
  if (rows)
    el_err(e, d->loc, "E031", "a type has at most one row variable");
  if (twice)
    el_err(e, d->loc, "E056", "axis '%s' twice in one tensor", d->expr->text);
  return !rows && !twice;
}

bool el_type_check(lm_elab *e, const ast_type *t) {
  for (uint32_t i = 0; t && i < t->n_dims; i++)
    if (!check_dim(e, t, i))
      return false;
  for (uint32_t i = 0; t && i < t->n_tuple; i++)
    if (!el_type_check(e, t->tuple[i]))
      return false;
  return true;
}

bool el_is_duration(const ast_type *t) {
  return el_type_is(t, "steps") && !t->has_dims;
}

el_kind el_kind_of_type(lm_elab *e, const ast_type *t, bool *out_ok) {
  *out_ok = true;
  if (el_type_is(t, "real"))
    return e->frame->real;
  if (el_type_is(t, "f32"))
    return K_F32;
  if (el_type_is(t, "int"))
    return K_INT;
  if (el_type_is(t, "bool"))
    return K_BOOL;
  *out_ok = false;
  const char *names[] = {"real", "f32", "int", "bool", "axis", "Batch"};
  lm_diag *d = el_err(e, t->loc, "E070", "unknown type '%s'", t->name ? t->name : "(…)");
  const char *near = t->name ? lm_nearest(t->name, names, 6) : NULL;
  if (near)
    lm_diag_help(e->c, d, "did you mean '%s'?", near);
  else
    lm_diag_help(e->c, d, "types are real, f32, int, bool, axis and Batch");
  return K_REAL;
}

el_row *el_row_find(lm_elab *e, lm_sym name) {
  for (el_row *r = e->frame->rows; r; r = r->up)
    if (r->name == name)
      return r;
  return NULL;
}

void el_row_bind(lm_elab *e, lm_sym name, el_axes axes) {
  el_row *r = LM_NEW(e->a, el_row);
  *r = (el_row){name, axes, e->frame->rows};
  e->frame->rows = r;
}

lm_sym el_dim_name(lm_elab *e, const ast_dim *d) {
  if (d->row)
    return d->row;
  if (d->expr->kind == EX_NAME)
    return d->expr->text;
  el_err(e, d->loc, "E071", "an axis needs a name here");
  return NULL;
}

static const char *type_text(lm_elab *e, const ast_type *t) {
  const char *s = lm_arena_printf(e->a, "%s[", t->name);
  for (uint32_t i = 0; i < t->n_dims; i++)
    s = lm_arena_printf(e->a, "%s%s%s%s", s, i ? ", " : "", t->dims[i].row ? ".." : "",
                        t->dims[i].row                     ? t->dims[i].row
                        : t->dims[i].expr->kind == EX_NAME ? t->dims[i].expr->text
                                                           : "…");
  return lm_arena_printf(e->a, "%s]", s);
}

static void misfit(lm_elab *e, el_invocation *v, uint32_t i, const ast_type *t, const el_val *x,
                   const char *why) {
  lm_diag *d = el_err(e, v->locs[i], "E031", "axis mismatch in the call of %s", v->what);
  lm_diag_label(e->c, d, "%s", why);
  lm_diag_note(e->c, d, v->sig->params[i].name.loc, "parameter %s: %s", v->sig->params[i].name.text,
               type_text(e, t));
  lm_diag_note(e->c, d, x->loc, "%s: %s", x->name ? x->name : "argument", el_show(e, x));
}

static el_axis *mapped(const el_mapping *m, el_axis *a) {
  int k = el_axes_find(&m->from, a);
  return k < 0 ? a : m->to.v[k];
}

// Binds one name of the signature to one axis of the argument; false with a reason.
static const char *bind_axis(lm_elab *e, el_invocation *v, lm_sym name, el_axis *actual) {
  el_axis *a = mapped(&v->map, actual);
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
      return lm_arena_printf(e->a, "'%s' is axis '%s' already, not %s'%s'", name, have->name,
                             have->name == actual->name ? "another axis called " : "",
                             actual->name);
  if (!lm_size_equal(have->size, a->size) &&
      (lm_size_is_const(have->size) == lm_size_is_const(a->size) || e->m)) {
    el_val x = el_sized(have->size);
    el_val y = el_sized(a->size);
    return lm_arena_printf(e->a, "axis '%s' is %s here, got '%s' of %s", name, el_show(e, &x),
                           actual->name, el_show(e, &y));
  }
  if (el_axes_has(&v->map.to, have))
    return lm_arena_printf(e->a, "'%s' stands for another axis than '%s' already", name,
                           actual->name);
  if (a != actual)
    return lm_arena_printf(e->a, "axis '%s' is both '%s' and '%s'", actual->name, a->name, name);
  el_axes_push(e, &v->map.from, actual);
  el_axes_push(e, &v->map.to, have);
  return NULL;
}

static const char *unify(lm_elab *e, el_invocation *v, const ast_type *t, const el_axes *axes) {
  int row = -1;
  for (uint32_t i = 0; i < t->n_dims; i++) {
    if (t->dims[i].row)
      row = (int)i;
  }
  uint32_t fixed = t->n_dims - (row >= 0);
  if (row < 0 ? axes->n != fixed : axes->n < fixed)
    return lm_arena_printf(e->a, "expected %s%u axes, got %s", row < 0 ? "" : "at least ", fixed,
                           el_show_axes(e, axes));
  uint32_t extra = axes->n - fixed, k = 0;
  for (uint32_t i = 0; i < t->n_dims; i++) {
    if ((int)i != row) {
      lm_sym name = el_dim_name(e, &t->dims[i]);
      const char *why = name ? bind_axis(e, v, name, axes->v[k]) : NULL;
      if (why)
        return why;
      k++;
      continue;
    }
    el_axes got = {0};
    for (uint32_t j = 0; j < extra; j++)
      el_axes_push(e, &got, axes->v[k++]);
    el_row *have = el_row_find(e, t->dims[i].row);
    if (!have) {
      el_row_bind(e, t->dims[i].row, got);
      continue;
    }
    el_axes now = {0};
    for (uint32_t j = 0; j < got.n; j++)
      el_axes_push(e, &now, mapped(&v->map, got.v[j]));
    el_axes old = {0};
    for (uint32_t j = 0; j < have->axes.n; j++)
      el_axes_push(e, &old, mapped(&v->map, have->axes.v[j]));
    if (!el_axes_same(&old, &now))
      return lm_arena_printf(e->a, "row '..%s' is %s, got %s", t->dims[i].row,
                             el_show_axes(e, &old), el_show_axes(e, &now));
  }
  return NULL;
}

// Checks the kind of an argument and adapts numbers; false: reported.
static bool fit_kind(lm_elab *e, el_invocation *v, uint32_t i, const ast_type *t, el_val *x,
                     bool is_fn) {
  if (x->k == V_NUM || (x->k == V_TENSOR && x->kind == K_NUM)) {
    if (el_type_is(t, "bool"))
      return el_reject(e, v->locs[i], "E072", "%s takes bool, got %s", v->what, el_show(e, x));
    bool scalar = x->k == V_NUM || x->axes.n == 0;
    if (scalar && !t->n_dims)
      return true; // scalars stay numbers and adapt where they meet a tensor
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
      el_err(e, v->locs[i], "E072", "%s: parameter %s takes %s, got %s", v->what,
             v->sig->params[i].name.text, type_text(e, t), el_show(e, x));
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
  bool ok;
  el_kind want =
      el_type_is(t, "real") && is_fn && v->real_set ? v->real : el_kind_of_type(e, t, &ok);
  lm_diag *d = el_err(e, v->locs[i], "E072", "%s: parameter %s takes %s, got %s", v->what,
                      v->sig->params[i].name.text, el_kind_name(want), el_show(e, x));
  el_note_value(e, d, x);
  if (want != K_BOOL)
    lm_diag_help(e->c, d, "cast it: %s(…)", el_kind_name(want));
  return false;
}

// `steps`: a number of steps, known at compile time or by the run alone.
static bool fit_duration(lm_elab *e, const el_invocation *v, uint32_t i, const el_val *x) {
  if (x->k == V_NUM || (x->k == V_TENSOR && x->kind == K_NUM && !x->axes.n))
    return true;
  lm_diag *d = el_err(e, v->locs[i], "E072", "%s: parameter %s takes a number of steps, got %s",
                      v->what, v->sig->params[i].name.text, el_show(e, x));
  if (x->k == V_QUANTITY)
    lm_diag_help(
        e->c, d,
        "units belong to recipes; inside the language a number of steps is a plain number");
  return false;
}

static bool unify_param(lm_elab *e, el_invocation *v, uint32_t i, bool is_fn) {
  const ast_type *t = v->sig->params[i].type;
  el_val *x = &v->args[i];
  if (!t || el_type_is(t, "axis"))
    return true;
  if (!el_type_check(e, t))
    return false;
  if (el_type_is(t, "Batch")) {
    if (x->k != V_RECORD)
      return el_reject(e, v->locs[i], "E072", "%s takes a Batch, got %s", v->what, el_show(e, x));
    for (uint32_t k = 0; k < x->n; k++) {
      const char *why = unify(e, v, t, &x->items[k].axes);
      if (why) {
        misfit(e, v, i, t, x, why);
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
  const char *why = unify(e, v, t, &x->axes);
  if (why) {
    misfit(e, v, i, t, x, why);
    return false;
  }
  return true;
}

// Two axes of the arguments and the instance must not be one axis of the IR; those that are get a
// fresh one.
static void separate(lm_elab *e, el_invocation *v) {
  if (!e->m)
    return;
  el_axes seen = {0};
  if (e->frame->self)
    for (el_axis_bind *b = e->frame->self->inst->axes; b; b = b->up)
      if (b->axis->ir)
        el_axes_push(e, &seen, b->axis);
  for (uint32_t i = 0; i < v->sig->n_params; i++) {
    const el_val *x = &v->args[i];
    for (uint32_t k = 0; k < (x->k == V_TENSOR ? x->axes.n : 0); k++) {
      el_axis *a = x->axes.v[k];
      if (el_axes_has(&v->map.from, a) || el_axes_has(&seen, a))
        continue;
      bool clash = false;
      for (uint32_t j = 0; j < seen.n; j++)
        clash |= seen.v[j]->ir == el_axis_ir(e, a);
      if (clash) {
        el_axis *fresh = el_axis_again(e, a);
        for (uint32_t j = 0; j < seen.n; j++)
          el_axes_push(e, &e->frame->live, seen.v[j]);
        el_axis_ir(e, fresh);
        el_axes_push(e, &v->map.from, a);
        el_axes_push(e, &v->map.to, fresh);
        a = fresh;
      }
      el_axes_push(e, &seen, a);
    }
  }
}

static void remap_scope(lm_elab *e, el_invocation *v, el_axis_bind *axes_end, el_row *rows_end) {
  for (el_axis_bind *b = e->frame->axes; b != axes_end; b = b->up)
    b->axis = mapped(&v->map, b->axis);
  for (el_row *r = e->frame->rows; r != rows_end; r = r->up) {
    el_axes now = {0};
    for (uint32_t i = 0; i < r->axes.n; i++)
      el_axes_push(e, &now, mapped(&v->map, r->axes.v[i]));
    r->axes = now;
  }
}

static bool result_axes(lm_elab *e, const ast_type *t, el_axes *out) {
  for (uint32_t i = 0; i < t->n_dims; i++) {
    lm_sym name = el_dim_name(e, &t->dims[i]);
    if (!name)
      return false;
    el_row *r = t->dims[i].row ? el_row_find(e, name) : NULL;
    if (r) {
      for (uint32_t k = 0; k < r->axes.n; k++)
        el_axes_push(e, out, r->axes.v[k]);
      continue;
    }
    el_axis *a = t->dims[i].row ? NULL : el_axis_lookup(e, name);
    if (!a)
      return el_reject(e, t->dims[i].loc, "E041", "no axis '%s' here", name);
    el_axes_push(e, out, a);
  }
  return true;
}

static void report_no_tuple(lm_elab *e, const ast_type *t, const el_val *v, const char *what) {
  lm_diag *d = el_err(e, v->loc.file ? v->loc : t->loc, "E074",
                      "%s returns %s, declared as a tuple of %u", what, el_show(e, v), t->n_tuple);
  lm_diag_note(e->c, d, t->loc, "declared here");
  if (v->k == V_TENSOR)
    lm_diag_help(e->c, d, "return one value for each: return (a, b)");
}

// The returned value against the declared type; adapts numbers.
el_val el_check_result(lm_elab *e, const ast_type *t, el_val v, const char *what) {
  if (!t || v.k == V_ERROR)
    return v;
  if (!t->name) {
    if (v.k != V_TUPLE || v.n != t->n_tuple) {
      report_no_tuple(e, t, &v, what);
      return el_error();
    }
    for (uint32_t i = 0; i < v.n; i++)
      v.items[i] = el_check_result(e, t->tuple[i], v.items[i], what);
    return v;
  }
  bool ok;
  el_kind kind = el_kind_of_type(e, t, &ok);
  if (!ok)
    return el_error();
  lm_loc at = v.loc.file ? v.loc : t->loc;
  if ((v.k == V_NUM || (v.k == V_TENSOR && v.kind == K_NUM && !v.axes.n)) && !t->n_dims)
    return v;
  if (v.k == V_NUM || (v.k == V_TENSOR && v.kind == K_NUM))
    v = el_adapt(e, &v, kind, at);
  el_axes want = {0};
  if (v.k == V_ERROR || !result_axes(e, t, &want))
    return el_error();
  if (v.k == V_TENSOR && v.kind == kind && el_axes_same(&v.axes, &want))
    return v;
  el_val declared = el_tensor(kind, &want, NULL);
  lm_diag *d = el_err(e, at, "E074", "%s returns %s, declared %s", what, el_show(e, &v),
                      el_show(e, &declared));
  lm_diag_note(e->c, d, t->loc, "declared here");
  if (v.k == V_TENSOR && v.kind == kind && v.axes.n && !want.n)
    lm_diag_help(e->c, d, "sum it over all its axes: sum(...)");
  if (v.k == V_TENSOR && v.kind == kind && v.axes.n == want.n && el_axes_subset(&v.axes, &want))
    lm_diag_help(e->c, d, "the order differs: permute(x, %s)", el_show_axes(e, &want));
  return el_error();
}

// Axes that the callee made come out under their names; the caller's axis of that name is the same
// axis.
static el_val import_result(lm_elab *e, el_val r, const el_axes *known, lm_loc at) {
  if (r.k == V_TUPLE)
    for (uint32_t i = 0; i < r.n; i++)
      r.items[i] = import_result(e, r.items[i], known, at);
  if (r.k != V_TENSOR)
    return r;
  el_axes from = {0}, to = {0};
  for (uint32_t i = 0; i < r.axes.n; i++) {
    el_axis *a = r.axes.v[i];
    el_axis *mine = el_axis_lookup(e, a->name);
    if (el_axes_has(known, a) || mine == a)
      continue;
    if (mine && !lm_size_equal(mine->size, a->size)) {
      el_val x = el_sized(mine->size);
      el_val y = el_sized(a->size);
      return el_fail(e, at, "E075", "the result has an axis '%s' of %s, which is %s here", a->name,
                     el_show(e, &y), el_show(e, &x));
    }
    if (!mine) {
      bool clash = false;
      for (uint32_t k = 0; e->m && k < e->frame->live.n; k++)
        clash |= e->frame->live.v[k]->ir && e->frame->live.v[k]->ir == el_axis_ir(e, a);
      mine = clash ? el_axis_again(e, a) : a;
      el_axis_bind_name(e, a->name, mine);
    }
    if (mine != a) {
      el_axes_push(e, &from, a);
      el_axes_push(e, &to, mine);
    }
  }
  el_val out = el_rename(e, &r, &from, &to);
  for (uint32_t i = 0; i < out.axes.n; i++)
    if (el_axes_find(&out.axes, out.axes.v[i]) < (int)i)
      return el_fail(e, at, "E056", "axis '%s' twice in the result", out.axes.v[i]->name);
  return out;
}

void el_known_axes(lm_elab *e, const el_val *v, el_axes *out) {
  for (uint32_t i = 0; (v->k == V_TENSOR || v->k == V_AXES) && i < v->axes.n; i++)
    if (!el_axes_has(out, v->axes.v[i]))
      el_axes_push(e, out, v->axes.v[i]);
  for (uint32_t i = 0; (v->k == V_TUPLE || v->k == V_RECORD) && i < v->n; i++)
    el_known_axes(e, &v->items[i], out);
}

// Calls from the same function on down to this one, if it runs already: "g -> f -> g".
static void report_depth(lm_elab *e, const el_invocation *v) {
  const char *cycle = v->what;
  const el_frame *f = e->frame;
  for (; f && f->what && strcmp(f->what, v->what); f = f->up)
    cycle = lm_arena_printf(e->a, "%s -> %s", f->what, cycle);
  if (f && f->what)
    el_err(e, v->at, "E076", "'%s' calls itself, and there is no recursion: %s -> %s", v->what,
           v->what, cycle);
  else
    el_err(e, v->at, "E076", "calls nest more than %d deep", MOST_CALLS);
}

el_val el_run_invocation(lm_elab *e, el_invocation *v, const lm_file *file, el_ref *self,
                         const ast_body *body) {
  el_frame frame = {.up = e->frame,
                    .what = v->what,
                    .called_at = v->at,
                    .file = file,
                    .self = self,
                    .real = K_REAL};
  el_frame *caller = e->frame;
  bool is_fn = !self, ok = true;
  el_axes known = {0};
  for (uint32_t i = 0; i < v->sig->n_params; i++)
    el_known_axes(e, &v->args[i], &known);
  if (e->depth >= MOST_CALLS) {
    report_depth(e, v);
    return el_error();
  }
  e->depth++;
  e->frame = &frame;
  if (self)
    for (el_axis_bind *b = self->inst->axes; b; b = b->up)
      el_axes_push(e, &frame.live, b->axis);
  for (uint32_t i = 0; i < v->sig->n_params; i++) {
    if (!v->given[i])
      v->args[i] = el_eval(e, v->sig->params[i].init);
    if (v->args[i].k == V_NUM || v->args[i].k == V_BOOL || v->args[i].k == V_STRING)
      el_bind_name(e, v->sig->params[i].name.text, v->args[i], false);
  }
  for (uint32_t i = 0; i < v->sig->n_params;
       i++) // an axis that is an argument goes by the parameter's name
    if (v->args[i].k == V_AXES && v->args[i].axes.n == 1 && v->n_bound < LM_COUNT(v->bound)) {
      v->bound_by[v->n_bound] = v->sig->params[i].name.text;
      v->bound[v->n_bound++] = v->args[i].axes.v[0];
      el_axis_bind_name(e, v->sig->params[i].name.text, v->args[i].axes.v[0]);
    }
  bool poisoned = false; // an argument is an error already; the others may still misfit
  for (uint32_t i = 0; i < v->sig->n_params && ok; i++) { // what follows a misfit is no news
    bool error = v->args[i].k == V_ERROR;
    poisoned |= error;
    if (!error)
      ok = unify_param(e, v, i, is_fn);
  }
  el_val r = el_error();
  if (ok && !poisoned) {
    separate(e, v);
    remap_scope(e, v, NULL, NULL);
    frame.real = is_fn && v->real_set ? v->real : K_REAL;
    for (uint32_t i = 0; i < v->sig->n_params; i++) {
      el_val x = el_rename(e, &v->args[i], &v->map.from, &v->map.to);
      x.name = v->sig->params[i].name.text;
      x.loc = v->sig->params[i].name.loc;
      el_live(e, &x);
      el_bind_name(e, v->sig->params[i].name.text, x, false);
    }
    bool holds = el_where_check_all(e, &(el_where){v->sig, v->what, v->at, v->locs});
    uint8_t keep = self ? el_remat_enter(e, self) : e->b.keep;
    if (holds)
      el_run(e, body);
    v->ran = holds;
    e->b.keep = keep;
    r = frame.has_result ? el_check_result(e, v->sig->ret, frame.result, v->what) : el_error();
    if (holds && !frame.has_result && e->budget)
      el_err(e, body->close.file ? body->close : v->at, "E077", "%s returns nothing", v->what);
    r = el_rename(e, &r, &v->map.to, &v->map.from);
  }
  e->depth--;
  e->frame = caller;
  r.name = NULL;
  return import_result(e, r, &known, v->at);
}

static lm_sym name_of(const ast_arg *a) {
  bool named = a->kind == ARG_POS && (a->expr->kind == EX_NAME || a->expr->kind == EX_FIELD);
  return named && strlen(a->expr->text) > 1 ? a->expr->text : NULL;
}

// Values called `seg` and `pos` for parameters called `pos` and `seg`: their types are the same, so
// nothing else tells.
static void warn_swapped(lm_elab *e, const el_invocation *v, const ast_expr *x) {
  const ast_sig *sig = v->sig;
  for (uint32_t i = 0; i < x->n_args && i < sig->n_params; i++)
    for (uint32_t k = i + 1; k < x->n_args && k < sig->n_params; k++) {
      lm_sym a = name_of(&x->args[i]);
      lm_sym b = name_of(&x->args[k]);
      if (!a || !b || a == b || a != sig->params[k].name.text || b != sig->params[i].name.text)
        continue;
      lm_diag *d = lm_warn(e->c, x->args[i].expr->loc, "W005",
                           "'%s' and '%s' stand the other way round than the parameters of %s", a,
                           b, v->what);
      lm_diag_note(e->c, d, sig->params[i].name.loc, "declared here");
      lm_diag_help(e->c, d, "swap them; if they are meant so, write %s = %s, %s = %s", b, a, a, b);
    }
}

// Matches positional and named arguments with the parameters. `values` (methods run by us) replace
// syntax.
static bool match(lm_elab *e, el_invocation *v, const ast_expr *x) {
  uint32_t n = v->sig->n_params, k = 0;
  v->args = LM_NEW_N(e->a, el_val, n + 1);
  v->locs = LM_NEW_N(e->a, lm_loc, n + 1);
  v->given = LM_NEW_N(e->a, bool, n + 1);
  bool ok = true, misnamed = false;
  for (uint32_t i = 0; i < x->n_args; i++) {
    const ast_arg *a = &x->args[i];
    uint32_t p = k;
    if (a->kind == ARG_NAMED)
      for (p = 0; p < n && v->sig->params[p].name.text != a->name; p++) {
      }
    else
      k++;
    if (p >= n || (a->kind != ARG_POS && a->kind != ARG_NAMED)) {
      const char *names[64];
      uint32_t m = 0;
      for (; m < n && m < 64; m++)
        names[m] = v->sig->params[m].name.text;
      lm_diag *d =
          a->kind == ARG_NAMED
              ? el_err(e, a->loc, "E078", "%s has no parameter '%s'", v->what, a->name)
          : a->kind == ARG_POS
              ? el_err(e, a->loc, "E078", "%s takes %u argument%s", v->what, n, n == 1 ? "" : "s")
              : el_err(e, a->loc, "E078", "%s takes values here", v->what);
      const char *near = a->kind == ARG_NAMED ? lm_nearest(a->name, names, (int)m) : NULL;
      if (near)
        lm_diag_help(e->c, d, "did you mean '%s'?", near);
      else if (a->kind == ARG_NAMED)
        lm_diag_help(e->c, d, "it takes %s", lm_sig_names(e->c, v->sig, 0));
      ok = false;
      misnamed |= a->kind == ARG_NAMED;
      continue;
    }
    if (v->given[p]) {
      el_err(e, a->loc, "E078", "%s: '%s' is given twice", v->what, v->sig->params[p].name.text);
      ok = false;
    }
    v->given[p] = true;
    v->locs[p] = a->expr->loc;
    if (el_type_is(v->sig->params[p].type, "axis")) {
      v->args[p] = (el_val){.k = V_AXES};
      if (!el_axis_list(e, a->expr, &v->args[p].axes))
        v->args[p] = el_error();
    } else
      v->args[p] = el_eval(e, a->expr);
  }
  for (uint32_t i = 0; i < n; i++) {
    if (v->given[i])
      continue;
    v->locs[i] = x->loc;
    if (v->sig->params[i].init || misnamed)
      continue;
    lm_diag *d = el_err(e, x->loc, "E079", "%s: missing argument '%s'", v->what,
                        v->sig->params[i].name.text);
    lm_diag_note(e->c, d, v->sig->params[i].name.loc, "declared here");
    ok = false;
  }
  return ok;
}

// ---- entry points
// A declaration whose body no call could run is checked by itself, like one that nothing reaches.
static void unvisit(lm_elab *e, const ast_decl *d) {
  for (uint32_t i = 0; i < e->n_visited; i++)
    if (e->visited[i] == d)
      e->visited[i--] = e->visited[--e->n_visited];
}

static void visit(lm_elab *e, const ast_decl *d) {
  for (uint32_t i = 0; i < e->n_visited; i++)
    if (e->visited[i] == d)
      return;
  LM_PUSH(e->a, e->visited, e->n_visited, e->cap_visited) = d;
}

static el_val run_fn(lm_elab *e, el_invocation *v, lm_decl_ref ref) {
  el_val out;
  if (el_can_be_library(v, ref.file, e) && el_call_library(e, v, ref.decl, ref.file, &out))
    return out;
  out = el_run_invocation(e, v, ref.file, NULL, &ref.decl->body);
  if (v->ran)
    visit(e, ref.decl);
  return out;
}

static el_val call_fn(lm_elab *e, const ast_expr *x, lm_decl_ref ref) {
  el_invocation v = {.sig = &ref.decl->sig, .what = ref.decl->name.text, .at = x->loc};
  if (!match(e, &v, x))
    return el_error();
  for (uint32_t i = 0; i < v.sig->n_params;
       i++) // numbers reach typed parameters as tensors of that type
    if (v.sig->params[i].type && v.sig->params[i].type->n_dims && v.args[i].k == V_TENSOR &&
        v.args[i].kind == K_NUM)
      v.args[i] = el_adapt(e, &v.args[i], el_type_is(v.sig->params[i].type, "int") ? K_INT : K_F32,
                           v.locs[i]);
  el_val r = run_fn(e, &v, ref);
  if (v.ran)
    warn_swapped(e, &v, x);
  return r;
}

static void args_take(lm_elab *e, el_invocation *v, const el_val *args, uint32_t n) {
  v->args = LM_NEW_N(e->a, el_val, n + 1);
  v->locs = LM_NEW_N(e->a, lm_loc, n + 1);
  v->given = LM_NEW_N(e->a, bool, n + 1);
  for (uint32_t i = 0; i < n; i++) {
    v->args[i] = args[i];
    v->locs[i] = v->sig->params[i].name.loc;
    v->given[i] = true;
  }
}

el_val el_invoke_fn(lm_elab *e, lm_decl_ref ref, const el_val *args, uint32_t n, lm_loc at) {
  el_invocation v = {.sig = &ref.decl->sig, .what = ref.decl->name.text, .at = at};
  LM_ASSERT(n == v.sig->n_params);
  args_take(e, &v, args, n);
  return run_fn(e, &v, ref);
}

static el_val run_method(lm_elab *e, el_invocation *v, const el_ref *ref,
                         const ast_member *method) {
  el_val r;
  el_ref self = *ref;
  el_once once = el_once_begin(e, v, ref->inst, method);
  if (el_once_find(e, &once, &r))
    return r;
  r = el_run_invocation(e, v, ref->inst->file, &self, &method->body);
  if (!v->ran)
    unvisit(e, ref->inst->decl);
  el_once_end(e, &once, r);
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

// Of a call of what is an error already: the mistakes in its arguments are their own.
static el_val arguments_alone(lm_elab *e, const ast_expr *x) {
  for (uint32_t i = 0; i < x->n_args; i++)
    if (x->args[i].kind == ARG_POS || x->args[i].kind == ARG_NAMED)
      el_eval(e, x->args[i].expr);
  return el_error();
}

static el_val call_method(lm_elab *e, const ast_expr *x, const el_ref *ref, lm_sym name) {
  const ast_member *m = el_method_find(ref->inst, name);
  if (ref->inst->broken)
    return arguments_alone(e, x);
  if (!m) {
    lm_diag *d =
        el_err(e, x->loc, "E080", "%s has no method '%s'", ref->inst->decl->name.text, name);
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
  if (v.ran)
    warn_swapped(e, &v, x);
  return r;
}

el_val el_invoke_method(lm_elab *e, const el_ref *ref, lm_sym name, const el_val *args, uint32_t n,
                        lm_loc at) {
  const ast_member *m = el_method_find(ref->inst, name);
  el_invocation v = {.sig = &m->sig,
                     .what = lm_arena_printf(e->a, "%s.%s", ref->inst->decl->name.text, name),
                     .at = at};
  if (n != m->sig.n_params)
    return el_fail(e, m->loc, "E081", "%s should take %u parameters", v.what, n);
  args_take(e, &v, args, n);
  return run_method(e, &v, ref, m);
}

static el_val unknown_function(lm_elab *e, const ast_expr *x) {
  if (el_is_incomplete(e))
    return el_error();
  int np, nf;
  const char *const *prim = lm_primitive_names(&np);
  const char *const *fns = lm_program_names(e->prog, e->frame->file, DC_FN, &nf);
  const char **all = LM_NEW_N(e->a, const char *, np + nf + 1);
  memcpy(all, prim, sizeof *all * (size_t)np);
  memcpy(all + np, fns, sizeof *all * (size_t)nf);
  lm_diag *d = el_err(e, x->loc, "E082", "unknown function '%s'", x->a->text);
  const char *near = lm_nearest(x->a->text, all, np + nf);
  lm_file *nn = NULL;
  for (uint32_t i = 0; i < e->prog->n_files; i++)
    if (strcmp(e->prog->files[i]->path, "std.nn") == 0)
      nn = e->prog->files[i];
  int n_nn = 0;
  const char *const *in_nn = nn ? lm_program_names(e->prog, nn, DC_FN, &n_nn) : NULL;
  const char *far = lm_nearest(x->a->text, in_nn, n_nn);
  if (nn && lm_program_find(e->prog, nn, x->a->text).decl)
    lm_diag_help(e->c, d, "import std.nn: %s", x->a->text);
  else if (!near && far)
    lm_diag_help(e->c, d, "did you mean '%s'? import std.nn: %s", far, far);
  else if (near)
    lm_diag_help(e->c, d, "did you mean '%s'?", near);
  return el_error();
}

static el_val call_name(lm_elab *e, const ast_expr *x) {
  lm_sym name = x->a->text;
  const el_bind *b = el_names_find(&e->frame->names, name);
  if (b && b->val.k == V_INST)
    return call_method(e, x, &b->val.ref, LM_SYM(e->c, "apply"));
  if (b && b->val.k != V_ERROR)
    el_err(e, x->loc, "E083", "'%s' is %s, not a function", name, el_show(e, &b->val));
  if (b)
    return arguments_alone(e, x);
  el_ref *self = e->frame->self;
  for (uint32_t i = 0; self && i < self->inst->n_subs; i++) {
    struct el_sub *s = &self->inst->subs[i];
    if (s->name != name)
      continue;
    if (s->many)
      return el_fail(e, x->loc, "E083", "'%s' is a list of instances: `for l in %s carry x { … }`",
                     name, name);
    if (!s->one)
      return el_error();
    el_ref ref = el_ref_sub(e, self, s->one);
    return call_method(e, x, &ref, LM_SYM(e->c, "apply"));
  }
  if (self && el_method_find(self->inst, name))
    return call_method(e, x, self, name);
  lm_decl_ref ref = lm_program_find(e->prog, e->frame->file, name);
  if (ref.decl && ref.decl->kind == DC_FN)
    return call_fn(e, x, ref);
  bool found;
  el_val v = el_primitive(e, x, &found);
  if (found)
    return v;
  if (!ref.decl)
    return unknown_function(e, x);
  lm_diag *d = el_err(e, x->loc, "E083", "'%s' is not a function", name);
  if (ref.decl->kind == DC_BLOCK || ref.decl->kind == DC_MODEL)
    lm_diag_help(e->c, d, "instantiate it as a member: sub NAME = %s(…)", name);
  return el_error();
}

el_val el_call(lm_elab *e, const ast_expr *x) {
  if (x->a->kind == EX_NAME)
    return call_name(e, x);
  if (x->a->kind == EX_FIELD) {
    el_val a = el_eval(e, x->a->a);
    if (a.k == V_INST) {
      bool sub = false;
      for (uint32_t i = 0; i < a.ref.inst->n_subs; i++)
        sub |= a.ref.inst->subs[i].name == x->a->text;
      if (!sub)
        return call_method(e, x, &a.ref, x->a->text);
    }
    if (a.k == V_ERROR)
      return arguments_alone(e, x);
  }
  el_val f = el_eval(e, x->a);
  if (f.k == V_INST)
    return call_method(e, x, &f.ref, LM_SYM(e->c, "apply"));
  if (f.k != V_ERROR)
    el_err(e, x->loc, "E083", "%s is not a function", el_show(e, &f));
  return el_error();
}
