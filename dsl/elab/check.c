// check.c - checks of definitions that the recipe does not use: each body is evaluated once, on
// arguments of the declared types with symbolic sizes.
#include "dsl/elab/call.h"

static el_axis *symbolic_axis(lm_elab *e, lm_sym name, bool opaque) {
  el_axis *a = el_axis_new(e, name, lm_size_dim(e->a, name), 0);
  a->opaque = opaque;
  return a;
}

static void bind_rows(lm_elab *e, const ast_sig *sig) {
  for (uint32_t i = 0; i < sig->n_params; i++)
    for (uint32_t k = 0; sig->params[i].type && k < sig->params[i].type->n_dims; k++) {
      lm_sym row = sig->params[i].type->dims[k].row;
      if (!row || el_row_find(e, row))
        continue;
      el_axes one = {0};
      el_axes_push(e, &one, symbolic_axis(e, row, true));
      el_row_bind(e, row, one);
    }
}

// `A in R`: the row R contains the axes of A. Their position is unknown; they are put first.
static void widen_rows(lm_elab *e, const ast_sig *sig) {
  for (uint32_t i = 0; i < sig->where.n; i++) {
    const ast_expr *w = sig->where.v[i];
    if (w->kind != EX_BINARY || w->op != OP_IN || w->b->kind != EX_NAME)
      continue;
    el_row *r = el_row_find(e, w->b->text);
    el_axes inner = {0}, now = {0};
    if (!r || !el_axis_list(e, w->a, &inner) || el_axes_subset(&inner, &r->axes))
      continue;
    for (uint32_t k = 0; k < inner.n; k++)
      el_axes_push(e, &now, inner.v[k]);
    for (uint32_t k = 0; k < r->axes.n; k++)
      el_axes_push(e, &now, r->axes.v[k]);
    r->axes = now;
  }
}

static el_val symbolic_argument(lm_elab *e, const ast_param *p) {
  bool ok;
  el_axes axes = {0};
  if (!p->type)
    return p->init ? el_eval(e, p->init) : el_sized(lm_size_dim(e->a, p->name.text));
  if (el_type_is(p->type, "axis")) {
    el_axes_push(e, &axes, el_axis_lookup(e, p->name.text));
    return (el_val){
        .k = V_AXES,
        .axes = axes,
    };
  }
  for (uint32_t i = 0; i < p->type->n_dims; i++) {
    lm_sym name = el_dim_name(e, &p->type->dims[i]);
    if (!name)
      return el_error();
    el_row *r = p->type->dims[i].row ? el_row_find(e, name) : NULL;
    for (uint32_t k = 0; r && k < r->axes.n; k++)
      el_axes_push(e, &axes, r->axes.v[k]);
    if (r)
      continue;
    if (!el_axis_lookup(e, name))
      el_axis_bind_name(e, name, symbolic_axis(e, name, false));
    el_axes_push(e, &axes, el_axis_lookup(e, name));
  }
  if (el_type_is(p->type, "Batch")) {
    el_val r = {
        .k = V_RECORD,
        .n = LM_COLUMNS,
        .items = LM_NEW_N(e->a, el_val, LM_COLUMNS),
    };
    lm_sym *names = LM_NEW_N(e->a, lm_sym, LM_COLUMNS);
    for (int c = 0; c < LM_COLUMNS; c++) {
      names[c] = LM_SYM(e->c, lm_column_table[c].name);
      r.items[c] = el_tensor(el_kind_of_column((lm_column_id)c), &axes, NULL);
    }
    r.names = names;
    return r;
  }
  if (el_is_duration(p->type))
    return el_unknown_number();
  el_kind kind = el_kind_of_type(e, p->type, &ok);
  if (!ok)
    return el_error();
  if (!p->type->n_dims && kind != K_BOOL)
    return el_unknown_number();
  return el_tensor(kind, &axes, NULL);
}

static void run_symbolic(lm_elab *e, const char *what, const ast_sig *sig, const ast_body *body,
                         const lm_file *file, el_ref *self) {
  el_frame frame = {.up = e->frame,
                    .what = what,
                    .file = file,
                    .self = self,
                    .runs = true,
                    .rows = self ? el_rows_copy(e, self->inst->rows) : NULL,
                    .real = K_REAL};
  el_frame *caller = e->frame;
  e->frame = &frame;
  bool sound = el_type_check(e, sig->ret);
  for (uint32_t i = 0; i < sig->n_params; i++)
    sound &= el_type_check(e, sig->params[i].type);
  if (!sound) {
    e->frame = caller;
    return;
  }
  for (uint32_t i = 0; i < sig->n_params; i++)
    if (el_type_is(sig->params[i].type, "axis"))
      el_axis_bind_name(e, sig->params[i].name.text,
                        symbolic_axis(e, sig->params[i].name.text, false));
  bind_rows(e, sig);
  for (uint32_t i = 0; i < sig->n_params; i++)
    for (uint32_t k = 0; sig->params[i].type && k < sig->params[i].type->n_dims; k++) {
      const ast_dim *d = &sig->params[i].type->dims[k];
      if (!d->row && d->expr->kind == EX_NAME && !el_axis_lookup(e, d->expr->text))
        el_axis_bind_name(e, d->expr->text, symbolic_axis(e, d->expr->text, false));
    }
  widen_rows(e, sig);
  for (uint32_t i = 0; i < sig->n_params; i++) {
    el_val v = symbolic_argument(e, &sig->params[i]);
    v.name = sig->params[i].name.text;
    v.loc = sig->params[i].name.loc;
    el_bind_name(e, v.name, v, false);
  }
  el_run(e, body);
  if (frame.has_result)
    el_check_result(e, sig->ret, frame.result, what);
  else if (e->budget)
    EL_ERR(e, body->close, E077, what);
  e->frame = caller;
}

void el_check_fn(lm_elab *e, const lm_file *file, ast_decl *d) {
  run_symbolic(e, d->name.text, &d->sig, &d->body, file, NULL);
}

void el_check_members(lm_elab *e, el_inst *inst) {
  el_ref ref = {.inst = inst};
  for (uint32_t i = 0; i < inst->decl->members.n; i++) {
    const ast_member *m = inst->decl->members.v[i];
    if (m->kind == MB_METHOD)
      run_symbolic(e, lm_arena_printf(e->a, "%s.%s", inst->decl->name.text, m->names.v[0].text),
                   &m->sig, &m->body, inst->file, &ref);
  }
  el_val *state = LM_NEW_N(e->a, el_val, inst->n_params + 1);
  el_mode mode = e->mode;
  for (uint32_t i = 0; i < inst->n_params; i++)
    state[i] = el_tensor(K_F32, &inst->params[i].axes, NULL);
  e->mode = EL_UPDATE;
  el_run_after(e, &ref, state);
  e->mode = mode;
}
