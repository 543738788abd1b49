// stmt.c - statements: let, assignment to carries and states, emit, return.
#include "dsl/elab/edit.h"

void el_bind_name(lm_elab *e, lm_sym name, el_val v, bool settable) {
  el_names_add(e, &e->frame->names, name, v, settable);
}

bool el_is_state(const lm_elab *e, lm_sym name) {
  const ast_decl *d = e->frame->self ? e->frame->self->inst->decl : NULL;
  for (uint32_t i = 0; d && i < d->members.n; i++) {
    const ast_member *m = d->members.v[i];
    for (uint32_t k = 0; m->kind == MB_STATE && k < m->names.n; k++)
      if (m->names.v[k].text == name)
        return true;
  }
  return false;
}

// A state of an optimizer or a carry of the innermost loop cannot be shadowed: the loop and the
// optimizer read the new value by its name.
static bool check_shadow(lm_elab *e, const ast_name *n) {
  const el_bind *b = el_names_find(&e->frame->names, n->text);
  if (!b || !b->settable)
    return true;
  bool state = e->mode == EL_UPDATE && el_is_state(e, n->text);
  lm_diag *d = EL_ERR(e, n->loc, E02A, n->text, state ? "a state" : "a carry of the loop");
  lm_diag_help(e->c, d, "write `%s = …` to assign it, or choose another name", n->text);
  return false;
}

void el_bind_let(lm_elab *e, const ast_name *n, el_val v) {
  if (!check_shadow(e, n))
    return;
  if (v.k == V_TENSOR || v.k == V_TUPLE) {
    v.name = n->text;
    v.loc = n->loc;
  }
  if (v.k == V_NUM && v.has_size && v.known && v.size.n == 0)
    v.name = n->text;
  el_remat_let(e, &v, n->text, false);
  el_bind_name(e, n->text, v, false);
}

static void run_let(lm_elab *e, const ast_stmt *st) {
  el_val v = el_eval(e, st->expr);
  if (!st->is_tuple) {
    el_bind_let(e, &st->names.v[0], el_site_let(e, &st->names.v[0], v));
    return;
  }
  bool fits = (v.k == V_TUPLE) && v.n == st->names.n;
  e->frame->incomplete |= v.k == V_TUPLE && v.n > st->names.n;
  if (!fits && v.k != V_ERROR)
    EL_ERR(e, st->loc, E021, st->names.n,
           v.k == V_TUPLE ? lm_arena_printf(e->a, "%u values", v.n) : el_show(e, &v));
  for (uint32_t i = 0; i < st->names.n; i++) {
    el_val item = fits ? el_site_let(e, &st->names.v[i], v.items[i]) : el_error();
    el_bind_let(e, &st->names.v[i], item);
  }
}

static void run_set(lm_elab *e, const ast_stmt *st) {
  const ast_name *n = &st->names.v[0];
  const el_bind *b = el_names_find(&e->frame->names, n->text);
  el_val v = el_eval(e, st->expr);
  if (!b || !b->settable) {
    lm_diag *d = EL_ERR(e, n->loc, E022, n->text);
    lm_diag_help(e->c, d,
                 b ? "write `let %s = …` for a new value, or name it in `carry`"
                 : el_is_state(e, n->text)
                     ? "`add %s = …` adds to the state, and `after_step { … }` assigns it"
                     : "write `let %s = …`",
                 n->text);
    if (!b)
      el_bind_name(e, n->text, el_error(), false);
    return;
  }
  v.name = n->text;
  v.loc = n->loc;
  el_remat_let(e, &v, n->text, true);
  el_bind_name(e, n->text, v, true);
}

static void run_emit(lm_elab *e, const ast_stmt *st) {
  if (e->mode == EL_UPDATE) {
    EL_ERR(e, st->loc, E0B9);
    return;
  }
  if (e->scan) {
    if (!el_scan_emit(e, st))
      el_not_in_scan(e, st->loc, "a metric");
    return;
  }
  el_val v = el_eval(e, st->expr);
  if (v.k == V_ERROR)
    return;
  v = el_adapt(e, &v, v.k == V_TENSOR && v.kind != K_NUM ? v.kind : K_F32, st->expr->loc);
  if (v.k != V_TENSOR || v.axes.n) {
    if (v.k != V_ERROR)
      EL_ERR(e, st->expr->loc, E023, el_show(e, &v));
    return;
  }
  if (e->in_library) { // the call must be inlined
    e->library_failed = true;
    return;
  }
  if (v.v)
    v.v = lm_emit_cast(&e->b, v.v, LM_F32);
  LM_PUSH(e->a, e->emits, e->n_emits, e->cap_emits) = (struct el_emit){
      .name = st->names.v[0].text,
      .suffix = "",
      .val = v,
  };
}

bool el_emits_check(lm_elab *e, lm_loc at, uint64_t n) {
  if (n > LM_EMITS_MAX)
    EL_ERR(e, at, E024, (unsigned long long)n, LM_EMITS_MAX);
  return n <= LM_EMITS_MAX;
}

// Gives the values of a returned tuple the locations of their expressions, for messages.
static void locate_items(const ast_expr *x, el_val *v) {
  if (x->kind != EX_TUPLE || v->k != V_TUPLE)
    return;
  for (uint32_t i = 0; i < v->n && i < x->n_args; i++)
    v->items[i].loc = x->args[i].expr->loc;
}

void el_run(lm_elab *e, const ast_body *body) {
  for (uint32_t i = 0; i < body->n && !e->frame->has_result; i++) {
    const ast_stmt *st = body->v[i];
    if (!el_budget(e, st->loc))
      return;
    if (e->m)
      e->b.loc = st->loc;
    switch (st->kind) {
    case ST_LET: run_let(e, st); break;
    case ST_SET: run_set(e, st); break;
    case ST_EMIT: run_emit(e, st); break;
    case ST_ADD: el_run_add(e, st); break;
    case ST_FOR: el_run_for(e, st); break;
    case ST_RETURN: {
      el_val v = el_eval(e, st->expr);
      e->frame->result = v;
      e->frame->has_result = true;
      e->frame->result.loc = st->expr->loc;
      locate_items(st->expr, &e->frame->result);
      break;
    }
    case ST_ERROR:
      e->frame->result = el_error();
      e->frame->has_result = true;
      break;
    }
  }
}
