// where.c - constraints: `where heads divides d, lr >= 0, betas < 1`.
//
// A comparison with a tuple holds if it holds for each element. A comparison with a number of the
// run (a schedule's step) is taken to hold.
#include "dsl/elab/elab.h"

static bool compares(ast_op op) {
  return op >= OP_EQ && op <= OP_GE;
}
static bool is_run_number(const el_val *v) {
  return v->k == V_TENSOR && v->kind == K_NUM && !v->axes.n;
}

static bool truth(const el_val *v) {
  return v->k == V_ERROR || (v->k == V_BOOL && (!v->known || v->num != 0));
}

static bool relation(lm_elab *e, const ast_expr *w, const el_val *a, const el_val *b) {
  const el_val *list = a->k == V_TUPLE ? a : b->k == V_TUPLE ? b : NULL;
  bool all = true;
  if (is_run_number(a) || is_run_number(b))
    return true;
  if (!list) {
    el_val v = el_binary(e, w->op, a, b, w->loc);
    return truth(&v);
  }
  for (uint32_t i = 0; i < list->n && all; i++)
    all = relation(e, w, list == a ? &a->items[i] : a, list == a ? b : &b->items[i]);
  return all;
}

static bool holds(lm_elab *e, const ast_expr *w) {
  if (w->kind != EX_BINARY || !compares(w->op)) {
    el_val v = el_eval(e, w);
    return truth(&v);
  }
  el_val a = el_eval(e, w->a);
  el_val b = el_eval(e, w->b);
  return a.k == V_ERROR || b.k == V_ERROR || relation(e, w, &a, &b);
}

// ---- messages

static bool mentions(const ast_expr *w, const ast_sig *sig, uint32_t k) {
  return el_mentions(w, &(el_bind){.name = sig->params[k].name.text});
}

// The only parameter that a constraint mentions; -1: it mentions none or several.
static int only_param(const ast_expr *w, const ast_sig *sig) {
  int only = -1;
  for (uint32_t k = 0; k < sig->n_params; k++) {
    if (!mentions(w, sig, k))
      continue;
    if (only >= 0)
      return -1;
    only = (int)k;
  }
  return only;
}

// All constraints on one parameter: "betas >= 0, betas < 1".
static const char *range_of(lm_elab *e, const ast_sig *sig, int param) {
  lm_buf b = {0};
  for (uint32_t i = 0; i < sig->where.n; i++) {
    if (only_param(sig->where.v[i], sig) != param)
      continue;
    lm_buf_puts(&b, b.n ? ", " : "");
    lm_expr_write(sig->where.v[i], &b);
  }
  const char *text = lm_arena_strndup(e->a, b.p, b.n);
  lm_buf_free(&b);
  return text;
}

static const char *written(lm_elab *e, const ast_expr *x) {
  lm_buf b = {0};
  lm_expr_write(x, &b);
  const char *text = lm_arena_strndup(e->a, b.p, b.n);
  lm_buf_free(&b);
  return text;
}

static lm_diag *report_param(lm_elab *e, const el_where *s, const ast_expr *w, int k) {
  el_val v = el_lookup(e, s->sig->params[k].name.text, w->loc, false);
  lm_loc at = s->locs && s->locs[k].file ? s->locs[k] : s->at;
  return EL_ERR(e, at, E073, s->what, range_of(e, s->sig, k), el_show(e, &v));
}

static lm_diag *report_several(lm_elab *e, const el_where *s, const ast_expr *w) {
  return EL_ERR(e, s->at.file ? s->at : w->loc, E0C7, s->what, written(e, w));
}

// Adds a note for each parameter that the constraint mentions, at the expression that gives it its
// value.
static void note_origins(lm_elab *e, lm_diag *d, const el_where *s, const ast_expr *w) {
  for (uint32_t k = 0; k < s->sig->n_params; k++) {
    if (!mentions(w, s->sig, k))
      continue;
    el_val v = el_lookup(e, s->sig->params[k].name.text, w->loc, false);
    lm_diag_note(e->c, d, el_inst_origin(s->inst, k), "%s is %s", s->sig->params[k].name.text,
                 el_show(e, &v));
  }
}

// Adds the values of both sides, unless they are literals: "kv is 2, heads is 3".
static void note_sides(lm_elab *e, lm_diag *d, const ast_expr *w) {
  lm_buf b = {0};
  for (int i = 0; i < 2; i++) {
    const ast_expr *side = i ? w->b : w->a;
    if (side->kind == EX_NUMBER)
      continue;
    el_val v = el_eval(e, side);
    if (v.k == V_NUM)
      lm_buf_printf(&b, "%s%s is %s", b.n ? ", " : "", written(e, side), el_show(e, &v));
  }
  if (b.n)
    lm_diag_note(e->c, d, (lm_loc){0}, "%s", b.p);
  lm_buf_free(&b);
}

// Adds the axes of both sides of `s in r`: "s is [f], r is [b, t, d]".
static void note_axes(lm_elab *e, lm_diag *d, const ast_expr *w) {
  el_axes inner = {0}, outer = {0};
  if (el_axis_list(e, w->a, &inner) && el_axis_list(e, w->b, &outer))
    lm_diag_note(e->c, d, (lm_loc){0}, "%s is %s, %s is %s", written(e, w->a),
                 el_show_axes(e, &inner), written(e, w->b), el_show_axes(e, &outer));
}

lm_diag *el_where_check(lm_elab *e, const el_where *s, const ast_expr *w) {
  if (holds(e, w))
    return NULL;
  int k = only_param(w, s->sig);
  lm_diag *d = k >= 0 ? report_param(e, s, w, k) : report_several(e, s, w);
  lm_diag_note(e->c, d, w->loc, "declared here");
  if (k < 0 && s->inst)
    note_origins(e, d, s, w);
  else if (k < 0 && w->kind == EX_BINARY)
    (w->op == OP_IN ? note_axes : note_sides)(e, d, w);
  return d;
}

bool el_where_check_all(lm_elab *e, const el_where *s) {
  bool all = true;
  if (e->dead)
    return true;
  for (uint32_t i = 0; i < s->sig->where.n; i++)
    all &= !el_where_check(e, s, s->sig->where.v[i]);
  return all;
}
