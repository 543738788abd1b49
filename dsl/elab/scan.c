// scan.c - `for at in t carry h { …; emit y = e }`: loops over the positions of a sequence.
//
//   for at in t carry h { h = a * h + x; emit y = h }
//   ->
//   %h1, %y = scan over(t) [1, 2, 0] (%h = %h0, %a1 = %a, %x1 = %x) { … yield %n, %n }
//
// In the body a tensor of the scope that has axis t is its slice at the position: the first use of
// its name makes it an operand of the scan. After the loop, y is the values of all positions. While
// decoding, the carries are caches: the loop begins with the carries after the last position that
// was computed, and keeps the new ones.
#include <string.h>
#include "compiler/ir/scan.h"
#include "dsl/elab/elab.h"

// The loop whose body is being evaluated.
struct el_scan {
  el_axis *axis;
  const ast_stmt *st;
  const el_frame *frame; // names of other frames are arguments, which are slices already
  lm_op *op;             // NULL while only checking
  struct slice {
    const lm_value *of;
    lm_value *v;
    struct slice *next;
  } * slices;
  struct emitted {
    const ast_name *name;
    el_val val; // in the body
  } * emitted;
  uint32_t n_emitted, cap_emitted;
};

bool el_scan_hides(const lm_elab *e, const el_axis *x) {
  return e->scan && e->frame == e->scan->frame && x == e->scan->axis;
}

bool el_scan_names(const lm_elab *e, lm_sym name) {
  return e->scan && e->frame == e->scan->frame && name == e->scan->axis->name;
}

el_val el_not_in_scan(lm_elab *e, lm_loc at, const char *what) {
  lm_diag *d = EL_ERR(e, at, E02C, what);
  if (!strcmp(what, "a loop"))
    lm_diag_help(e->c, d,
                 "write its iterations one after the other, for example as calls of a function, "
                 "or move it before or after this loop");
  else
    lm_diag_help(e->c, d,
                 "compute it for all positions before the loop, or from the emitted values after "
                 "it%s",
                 !strcmp(what, "dropout") ? "; a dropout with rate 0 may stay" : "");
  return el_error();
}

// ---- slices

// The argument of the region for the slice of v, which is permuted before the scan to have t in
// front.
static lm_value *slice_of(lm_elab *e, lm_value *v) {
  struct el_scan *s = e->scan;
  for (struct slice *x = s->slices; x; x = x->next)
    if (x->of == v)
      return x->v;
  lm_builder outside = {e->m, s->op->parent, s->op, e->b.loc, e->b.remat};
  lm_axis t = el_axis_ir(e, s->axis), order[LM_RANK] = {t};
  int n = 1;
  for (int i = 0; i < v->type.rank; i++)
    if (v->type.axis[i] != t)
      order[n++] = v->type.axis[i];
  struct slice *x = LM_NEW(e->a, struct slice);
  *x = (struct slice){v, lm_scan_slice(e->m, s->op, lm_emit_permute(&outside, v, order, n)),
                      s->slices};
  s->slices = x;
  return x->v;
}

el_val el_scan_slice(lm_elab *e, el_val v, lm_loc at) {
  if (!e->scan || e->frame != e->scan->frame)
    return v;
  for (uint32_t i = 0; v.k == V_TENSOR && i < v.axes.n; i++)
    if (v.axes.v[i]->history)
      return el_not_in_scan(e, at, "a tensor over the positions of a history");
  if (v.k == V_TUPLE || v.k == V_RECORD) {
    el_val *items = LM_NEW_N(e->a, el_val, v.n + 1);
    for (uint32_t i = 0; i < v.n; i++)
      items[i] = el_scan_slice(e, v.items[i], at);
    v.items = items;
    return v;
  }
  if (v.k != V_TENSOR || !el_axes_has(&v.axes, e->scan->axis))
    return v;
  el_axes only = {0};
  el_axes_push(e, &only, e->scan->axis);
  v.axes = el_axes_minus(e, &v.axes, &only);
  if (v.v)
    v.v = slice_of(e, v.v);
  return v;
}

// ---- emitted values

bool el_scan_emit(lm_elab *e, const ast_stmt *st) {
  struct el_scan *s = e->scan;
  const ast_name *name = &st->names.v[0];
  if (!s || e->frame != s->frame)
    return false;
  el_val v = el_eval(e, st->expr);
  if (v.k == V_NUM || (v.k == V_TENSOR && v.kind == K_NUM))
    v = el_adapt(e, &v, K_F32, st->expr->loc);
  if (v.k != V_TENSOR && v.k != V_ERROR)
    v = EL_FAIL(e, st->expr->loc, E029, name->text, el_show(e, &v));
  for (uint32_t i = 0; i < s->n_emitted; i++)
    if (s->emitted[i].name->text == name->text) {
      EL_ERR(e, name->loc, E02F, name->text);
      return true;
    }
  for (uint32_t i = 0; i < s->st->carry.n; i++)
    if (s->st->carry.v[i].text == name->text) {
      lm_diag *d = EL_ERR(e, name->loc, E02A, name->text, "a carry of the loop");
      lm_diag_help(e->c, d, "emit it by another name");
      return true;
    }
  if (v.k == V_TENSOR && v.axes.n + 1 > LM_RANK)
    v = EL_FAIL(e, st->expr->loc, E06D, LM_RANK);
  LM_PUSH(e->a, s->emitted, s->n_emitted, s->cap_emitted) = (struct emitted){name, v};
  return true;
}

// Binds the values of all positions: t, then the axes of the value.
static void bind_emitted(lm_elab *e, const struct el_scan *s, lm_value *const *stacked) {
  for (uint32_t i = 0, k = 0; i < s->n_emitted; i++) {
    const struct emitted *x = &s->emitted[i];
    el_val v = el_error();
    if (x->val.k == V_TENSOR) {
      el_axes axes = {0};
      el_axes_push(e, &axes, s->axis);
      for (uint32_t j = 0; j < x->val.axes.n; j++)
        el_axes_push(e, &axes, x->val.axes.v[j]);
      v = el_tensor(x->val.kind, &axes, x->val.v && stacked ? stacked[k++] : NULL);
      v.name = x->name->text;
      v.loc = x->name->loc;
      if (v.v && !el_size_check(e, v.v->type, x->name->loc))
        v = el_error();
    }
    el_bind_let(e, x->name, v);
  }
}

// ---- the loop

static void evaluate_body(lm_elab *e, struct el_scan *s, const el_val *in, el_val *out) {
  e->scan = s;
  el_run_body(e, s->st, NULL, in, out);
  e->scan = NULL;
}

// After an error before the loop: every name that the loop gives a value has an error.
static void run_failed(lm_elab *e, const ast_stmt *st, el_val *carry) {
  for (uint32_t i = 0; i < st->carry.n; i++)
    carry[i] = el_error();
  el_emits_failed(e, &st->body);
}

// While only checking: evaluates the body without a scan of the IR.
static void run_checked(lm_elab *e, struct el_scan *s, el_val *carry) {
  uint32_t n = s->st->carry.n;
  el_val *out = LM_NEW_N(e->a, el_val, n + 1);
  evaluate_body(e, s, carry, out);
  for (uint32_t i = 0; i < n; i++)
    carry[i] = out[i];
  bind_emitted(e, s, NULL);
}

static void run_emitted(lm_elab *e, struct el_scan *s, el_val *carry) {
  const ast_stmt *st = s->st;
  uint32_t n = st->carry.n, n_stacked = 0;
  el_val *in = LM_NEW_N(e->a, el_val, n + 1), *out = LM_NEW_N(e->a, el_val, n + 1);
  lm_value **v = LM_NEW_N(e->a, lm_value *, n + 1);
  el_cache *caches = e->mode == EL_DECODE ? LM_NEW_N(e->a, el_cache, n) : NULL;
  lm_axis t = el_axis_ir(e, s->axis);
  for (uint32_t i = 0; i < n; i++) {
    v[i] = carry[i].v;
    if (caches && !el_cache_make(e, v[i]->type, &caches[i])) {
      EL_ERR(e, st->loc, E06D, LM_RANK);
      caches = NULL;
    }
    if (caches)
      v[i] = el_cache_recall(e, &caches[i], v[i]);
  }
  e->b.loc = st->loc;
  s->op = lm_scan_begin(&e->b, t, false, v, n);
  for (uint32_t i = 0; i < n; i++) {
    in[i] = carry[i];
    in[i].v = s->op->body->args[i];
  }
  evaluate_body(e, s, in, out);
  for (uint32_t i = 0; i < n; i++)
    v[i] = out[i].k == V_ERROR ? in[i].v : out[i].v;
  lm_value **stacked = LM_NEW_N(e->a, lm_value *, s->n_emitted + 1);
  for (uint32_t i = 0; i < s->n_emitted; i++)
    if (s->emitted[i].val.v)
      stacked[n_stacked++] = s->emitted[i].val.v;
  e->b.loc = st->loc;
  lm_scan_end(&e->b, s->op, v, stacked, n_stacked);
  for (uint32_t i = 0; i < n; i++) {
    carry[i] = out[i];
    if (carry[i].k != V_ERROR)
      carry[i].v = s->op->out[i];
    if (caches)
      el_cache_retain(e, &caches[i], s->op->out[i]);
  }
  bind_emitted(e, s, s->op->out + n);
}

// True if the loop may run over x here; reports an error if not.
static bool may_run(lm_elab *e, const ast_stmt *st, el_axis *x, const el_val *carry) {
  if (!el_is_positions(e, x))
    return EL_REJECT(e, st->expr->loc, E02D, x->name);
  for (uint32_t i = 0; i < st->carry.n; i++)
    if (carry[i].k == V_TENSOR && el_axes_has(&carry[i].axes, x)) {
      lm_diag *d = EL_ERR(e, st->carry.v[i].loc, E02E, st->carry.v[i].text, x->name);
      el_note_value(e, d, &carry[i]);
      return false;
    }
  return true;
}

void el_run_scan(lm_elab *e, const ast_stmt *st, el_axis *x, el_val *carry) {
  struct el_scan s = {
      .axis = x,
      .st = st,
      .frame = e->frame,
  };
  uint32_t n = st->carry.n;
  if (e->in_library)
    e->library_failed = true;
  for (uint32_t i = 0; i < n; i++)
    if (carry[i].k == V_TENSOR && carry[i].kind == K_NUM)
      carry[i] = el_adapt(e, &carry[i], K_F32, st->carry.v[i].loc);
  if (!may_run(e, st, x, carry))
    for (uint32_t i = 0; i < n; i++)
      carry[i] = el_error();
  if (!e->m)
    run_checked(e, &s, carry);
  else if (el_any_error(carry, n))
    run_failed(e, st, carry);
  else
    run_emitted(e, &s, carry);
}
