// invoke.c - one call: a frame for the callee, unification of its arguments, its body, and its
// result in terms of the caller's axes.
#include "dsl/elab/call.h"
#include "dsl/elab/edit.h"

enum {
  MAX_CALL_DEPTH = 100
};

// Axes of the arguments and of the instance that are different in the language must be different
// axes of the IR. One that is not is renamed to a new axis for the duration of the call.
static void separate_axes(lm_elab *e, el_invocation *v) {
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
        el_axis *fresh = el_axis_copy(e, a);
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

// Applies the mapping to the axes and rows that the call has bound.
static void remap_scope(lm_elab *e, el_invocation *v) {
  for (el_axis_bind *b = e->frame->axes; b; b = b->up)
    b->axis = el_mapped(&v->map, b->axis);
  for (el_row *r = e->frame->rows; r; r = r->up) {
    el_axes now = {0};
    for (uint32_t i = 0; i < r->axes.n; i++)
      el_axes_push(e, &now, el_mapped(&v->map, r->axes.v[i]));
    r->axes = now;
  }
}

static bool result_axes(lm_elab *e, const ast_type *t, el_axes *out) {
  const el_axes *batch = el_type_batch(e, t);
  for (uint32_t k = 0; k < batch->n; k++)
    el_axes_push(e, out, batch->v[k]);
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
      return EL_REJECT(e, t->dims[i].loc, E041, name);
    el_axes_push(e, out, a);
  }
  return true;
}

static void report_no_tuple(lm_elab *e, const ast_type *t, const el_val *v, const char *what) {
  lm_diag *d = EL_ERR(e, v->loc.file ? v->loc : t->loc, E0A7, what, el_show(e, v), t->n_tuple);
  lm_diag_note(e->c, d, t->loc, "declared here");
  if (v->k == V_TENSOR)
    lm_diag_help(e->c, d, "return a tuple: return (a, b)");
}

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
  lm_diag *d = EL_ERR(e, at, E074, what, el_show(e, &v), el_show(e, &declared));
  lm_diag_note(e->c, d, t->loc, "declared here");
  if (v.k == V_TENSOR && v.kind == kind && v.axes.n && !want.n)
    lm_diag_help(e->c, d, "sum it over all its axes: sum(...)");
  if (v.k == V_TENSOR && v.kind == kind && v.axes.n == want.n && el_axes_subset(&v.axes, &want))
    lm_diag_help(e->c, d, "the order differs: permute(x, %s)", el_show_axes(e, &want));
  return el_error();
}

// True if another axis may take the name of x: in a loop over subs, if a carry has x, or if x is a
// parameter of the instance, which is then only a number under that name.
static bool may_hide(const lm_elab *e, const el_axis *x) {
  const el_frame *f = e->frame;
  bool of_self = false;
  for (const el_axis_bind *b = f->self ? f->self->inst->axes : NULL; b; b = b->up)
    of_self |= b->axis == x;
  return el_axes_has(&f->carried, x) || (f->carried.n && of_self);
}

// Maps the axes that the callee created to the caller's axes of the same names, or binds the names
// if the caller has none.
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
    bool fits = mine && lm_size_equal(mine->size, a->size);
    if (mine && !fits && may_hide(e, mine))
      mine = NULL; // the carry will have the new axis
    if (mine && !fits) {
      el_val x = el_sized(mine->size);
      el_val y = el_sized(a->size);
      return EL_FAIL(e, at, E075, a->name, el_show(e, &y), a->name, el_show(e, &x));
    }
    if (!mine) {
      bool clash = false;
      for (uint32_t k = 0; e->m && k < e->frame->live.n; k++)
        clash |= e->frame->live.v[k]->ir && e->frame->live.v[k]->ir == el_axis_ir(e, a);
      mine = clash ? el_axis_copy(e, a) : a;
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
      return EL_FAIL(e, at, E068, out.axes.v[i]->name);
  return out;
}

void el_known_axes(lm_elab *e, const el_val *v, el_axes *out) {
  for (uint32_t i = 0; (v->k == V_TENSOR || v->k == V_AXES) && i < v->axes.n; i++)
    if (!el_axes_has(out, v->axes.v[i]))
      el_axes_push(e, out, v->axes.v[i]);
  for (uint32_t i = 0; (v->k == V_TUPLE || v->k == V_RECORD) && i < v->n; i++)
    el_known_axes(e, &v->items[i], out);
}

// Reports the chain of calls from an earlier call of the same function: "g -> f -> g".
static void report_depth(lm_elab *e, const el_invocation *v) {
  const char *cycle = v->what;
  const el_frame *f = e->frame;
  for (; f && f->what && strcmp(f->what, v->what); f = f->up)
    cycle = lm_arena_printf(e->a, "%s -> %s", f->what, cycle);
  if (f && f->what)
    EL_ERR(e, v->at, E0A5, v->what, v->what, cycle);
  else
    EL_ERR(e, v->at, E027, "calls", MAX_CALL_DEPTH);
}

// ---- the steps of an invocation
static void bind_parameter(lm_elab *e, const el_invocation *v, uint32_t i, el_val x) {
  el_bind_name(e, v->sig->params[i].name.text, x, false);
}

// Evaluates defaults, and binds numbers so that later defaults and types can use them.
static void bind_numbers(lm_elab *e, el_invocation *v) {
  for (uint32_t i = 0; i < v->sig->n_params; i++) {
    if (!v->given[i])
      v->args[i] = el_eval(e, v->sig->params[i].init);
    el_vkind k = v->args[i].k;
    if (k == V_NUM || k == V_BOOL || k == V_STRING)
      bind_parameter(e, v, i, v->args[i]);
  }
}

// An argument that is an axis is bound to the name of its parameter.
static void bind_axes(lm_elab *e, el_invocation *v) {
  for (uint32_t i = 0; i < v->sig->n_params; i++) {
    lm_sym name = v->sig->params[i].name.text;
    if (v->args[i].k != V_AXES || v->args[i].axes.n != 1 || v->n_bound == LM_COUNT(v->bound))
      continue;
    el_axis *axis = v->args[i].axes.v[0];
    v->bound_by[v->n_bound] = name;
    v->bound[v->n_bound++] = axis;
    el_axis_bind_name(e, name, axis);
  }
}

// Stops at the first argument that does not fit, as it may be the cause of later misfits. An
// argument that is an error already does not stop it.
static bool unify_all(lm_elab *e, el_invocation *v, bool is_fn) {
  bool errors = false;
  for (uint32_t i = 0; i < v->sig->n_params; i++) {
    if (v->args[i].k == V_ERROR)
      errors = true;
    else if (!el_unify_param(e, v, i, is_fn))
      return false;
  }
  return !errors;
}

static void bind_arguments(lm_elab *e, const el_invocation *v) {
  for (uint32_t i = 0; i < v->sig->n_params; i++) {
    el_val x = el_rename(e, &v->args[i], &v->map.from, &v->map.to);
    x.name = v->sig->params[i].name.text;
    x.loc = v->sig->params[i].name.loc;
    el_mark_live(e, &x);
    bind_parameter(e, v, i, x);
  }
}

static el_val run_body(lm_elab *e, el_invocation *v, const ast_body *body) {
  const el_frame *frame = e->frame;
  const el_ref *self = frame->self;
  v->ran = el_where_check_all(e, &(el_where){v->sig, v->what, v->at, v->locs});
  if (!v->ran)
    return el_error();
  uint8_t remat = self ? el_remat_enter(e, self) : e->b.remat;
  el_run(e, body);
  e->b.remat = remat;
  if (frame->has_result)
    return el_check_result(e, v->sig->ret, frame->result, v->what);
  if (e->budget)
    EL_ERR(e, body->close.file ? body->close : v->at, E077, v->what);
  return el_error();
}

static el_val run_in_frame(lm_elab *e, el_invocation *v, const ast_body *body) {
  el_frame *frame = e->frame;
  bool is_fn = !frame->self;
  for (el_axis_bind *b = is_fn ? NULL : frame->self->inst->axes; b; b = b->up)
    el_axes_push(e, &frame->live, b->axis);
  bind_numbers(e, v);
  bind_axes(e, v);
  if (!unify_all(e, v, is_fn))
    return el_error();
  separate_axes(e, v);
  remap_scope(e, v);
  frame->real = is_fn && v->real_set ? v->real : K_REAL;
  bind_arguments(e, v);
  el_site_params(e, v->sig);
  el_val r = run_body(e, v, body);
  return el_rename(e, &r, &v->map.to, &v->map.from);
}

el_val el_run_invocation(lm_elab *e, el_invocation *v, const lm_file *file, el_ref *self,
                         const ast_body *body) {
  el_frame *caller = e->frame;
  el_frame frame = {.up = caller,
                    .what = v->what,
                    .called_at = v->at,
                    .file = file,
                    .self = self,
                    .runs = self != NULL,
                    .rows = self ? el_rows_copy(e, self->inst->rows) : NULL,
                    .real = K_REAL};
  el_axes known = {0};
  for (uint32_t i = 0; i < v->sig->n_params; i++)
    el_known_axes(e, &v->args[i], &known);
  if (e->depth >= MAX_CALL_DEPTH) {
    report_depth(e, v);
    return el_error();
  }
  e->depth++;
  e->frame = &frame;
  el_val r = run_in_frame(e, v, body);
  e->depth--;
  e->frame = caller;
  r.name = NULL;
  return import_result(e, r, &known, v->at);
}
