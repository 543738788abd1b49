// window.c - window(x, t -> (u, k), before = …, after = …, stride = …, dilate = …): the neighbours
// of each position along an axis.
//
//   %y = window %x (t) -> (u, k) [before, stride, dilate]
//
// While decoding, a window over the positions looks back only, and the positions before the call
// are a cache of `before` positions:
//   %past = recall @cache                        the axis h instead of t
//   %y    = select j >= 0, (window %x), (gather %past, j + before over(h))   with j = t + k *
//   dilate retain @cache, the last `before` positions of %past and %x                        -
//   before
#include "dsl/elab/prim.h"

typedef struct window {
  el_axis *from, *to, *taps;
  int64_t n; // taps
  int64_t before, after, stride, dilate;
  lm_loc at;
} window;

// ---- arguments

// A whole number of at least `least`; *out is unchanged if the argument is missing.
static bool number_read(el_call_site c, const char *name, int64_t least, int64_t *out) {
  const ast_arg *a = el_named(c, name);
  if (!a)
    return true;
  el_val v = el_as_size(c.e, el_eval(c.e, a->expr));
  if (v.k == V_ERROR || (v.k == V_NUM && !v.known) || el_request_unroll(c.e, &v))
    return false;
  if (v.k == V_NUM && v.has_size && lm_size_whole(v.size, out) && *out >= least &&
      *out <= INT32_MAX)
    return true;
  if (v.k == V_NUM && v.has_size && !lm_size_is_const(v.size))
    return false; // not decided while only checking
  return EL_REJECT(c.e, a->loc, E0F8, name, (int)least, el_show(c.e, &v));
}

static bool numbers_read(el_call_site c, window *w) {
  w->before = w->after = 0;
  w->stride = w->dilate = 1;
  return number_read(c, "before", 0, &w->before) && number_read(c, "after", 0, &w->after) &&
         number_read(c, "stride", 1, &w->stride) && number_read(c, "dilate", 1, &w->dilate);
}

// An axis of the right side of the arrow, a name or `name = size`. NULL if it is a name that is not
// known, or after an error, which *out_failed says.
static el_axis *side_axis(el_call_site c, const ast_arg *a, lm_sym *out_name, bool *out_failed) {
  el_axis *x = NULL;
  *out_failed = false;
  if (a->kind == ARG_NAMED) {
    *out_name = a->name;
    x = el_sized_axis(c, a->name, a->expr, a->loc);
    *out_failed = !x;
  } else if (a->kind == ARG_POS && a->expr->kind == EX_NAME) {
    *out_name = a->expr->text;
    x = el_axis_lookup(c.e, a->expr->text);
  } else {
    *out_failed = !EL_REJECT(c.e, a->loc, E040);
  }
  return x;
}

static const char *size_text(el_call_site c, lm_size size) {
  el_val v = el_sized(size);
  return el_show(c.e, &v);
}

static bool report_size(el_call_site c, const window *w, const ast_arg *to, lm_size size) {
  lm_diag *d = EL_ERR(c.e, to->loc, E0F9, (long long)w->n, w->from->name,
                      size_text(c, w->from->size), size_text(c, size));
  if (w->to)
    lm_diag_note(c.e->c, d, (lm_loc){0}, "axis '%s' has %s", w->to->name,
                 size_text(c, w->to->size));
  if (w->to == w->from && w->stride == 1)
    lm_diag_help(c.e->c, d, "before + after must be %lld to keep the size",
                 (long long)(w->dilate * (w->n - 1)));
  return false;
}

// The positions of u at which all taps are within the zeros before and after. False: reported, or
// not decided while only checking.
static bool size_find(el_call_site c, const window *w, const ast_arg *to, lm_size *out) {
  int64_t n;
  int64_t rest = w->before + w->after - w->dilate * (w->n - 1);
  if (w->stride == 1 && !lm_size_is_const(w->from->size))
    return lm_size_add(c.e->a, w->from->size, lm_size_number(c.e->a, rest), 1, out);
  if (!lm_size_whole(w->from->size, &n))
    return false;
  if (n + rest < 1)
    return report_size(c, w, to, lm_size_number(c.e->a, 0));
  *out = lm_size_number(c.e->a, (n + rest - 1) / w->stride + 1);
  return true;
}

// Reads (u, k): k has a size, that of u follows.
static bool axes_read(el_call_site c, window *w, const ast_arg *arrow) {
  const ast_expr *to = arrow->to;
  lm_sym name = NULL;
  bool failed;
  lm_size size;
  if (to->kind != EX_TUPLE || to->n_args != 2) {
    lm_diag *d = EL_ERR(c.e, to->loc, E040);
    lm_diag_help(c.e->c, d, "window(x, t -> (t, k), before = 3): the positions, then the taps");
    return false;
  }
  w->at = to->loc;
  w->taps = side_axis(c, &to->args[1], &name, &failed);
  if (!w->taps)
    return failed ? false : EL_REJECT(c.e, to->args[1].loc, E058, name);
  if (!lm_size_whole(w->taps->size, &w->n))
    return false; // not decided while only checking
  w->to = side_axis(c, &to->args[0], &name, &failed);
  if (failed || !size_find(c, w, &to->args[0], &size))
    return false;
  bool fits = !w->to || lm_size_equal(w->to->size, size);
  if (!fits && lm_size_is_const(size) == lm_size_is_const(w->to->size))
    return report_size(c, w, &to->args[0], size);
  if (!w->to) {
    w->to = el_axis_new(c.e, name, size, 0);
    el_axis_bind_name(c.e, name, w->to);
  }
  return true;
}

// ---- decoding

static lm_value *int_const(lm_elab *e, int64_t v) {
  return lm_emit_const(&e->b, lm_type_make(LM_INT, NULL, 0), (double)v);
}

static lm_value *iota(lm_elab *e, lm_axis a) {
  lm_type t = lm_type_make(LM_INT, &a, 1);
  return lm_emit(&e->b, LM_OP_IOTA, NULL, 0, NULL, &t);
}

static lm_axis new_axis(lm_elab *e, const char *name, int64_t size) {
  return el_axis_ir(e, el_axis_new(e, LM_SYM(e->c, name), lm_size_number(e->a, size), 0));
}

// Elements of x by the index, which may be out of range, in the order of type t.
static lm_value *gathered(lm_elab *e, lm_value *x, lm_value *index, lm_axis over, lm_type t) {
  lm_attr attr = {.axes = {over}, .n_axes = 1};
  lm_value *v = lm_emit(&e->b, LM_OP_GATHER, (lm_value *[]){x, index}, 2, &attr, NULL);
  return lm_emit_permute(&e->b, v, t.axis, t.rank);
}

// The last positions of the past and of x, for the next call.
static lm_value *last_positions(lm_elab *e, lm_value *past, lm_value *x, lm_axis h) {
  lm_builder *b = &e->b;
  lm_axis t = e->position;
  int64_t n = lm_axis_size(e->m, h);
  lm_axis last = new_axis(e, "last", n);
  lm_value *one = int_const(e, 1);
  lm_value *count = lm_emit2(b, LM_OP_ADD, lm_emit_reduce(b, LM_OP_MAX, iota(e, t), &t, 1), one);
  lm_value *at = lm_emit2(b, LM_OP_ADD, iota(e, last), count); // in the past, then x
  lm_value *in_x = lm_emit2(b, LM_OP_SUB, at, int_const(e, n));
  lm_type type = past->type;
  type.axis[lm_type_find(type, h)] = last;
  lm_value *of_past = gathered(e, past, at, h, type);
  lm_value *of_x = gathered(e, x, in_x, t, type);
  lm_value *is_in_x = lm_emit2(b, LM_OP_GE, in_x, int_const(e, 0));
  lm_value *kept = lm_emit_select(b, is_in_x, of_x, of_past);
  lm_attr back = {.axes = {last}, .n_axes = 1, .to = {h}, .n_to = 1};
  return lm_emit(b, LM_OP_RENAME, &kept, 1, &back, NULL);
}

// y: the window of the positions of this call. NULL: reported.
static lm_value *with_past(el_call_site c, const window *w, const el_val *x, lm_value *y) {
  lm_elab *e = c.e;
  lm_builder *b = &e->b;
  if (!w->before)
    return y;
  lm_axis h = new_axis(e, "past", w->before);
  lm_type kept = x->v->type;
  el_cache cache;
  kept.axis[lm_type_find(kept, e->position)] = h;
  if (!el_cache_make(e, kept, &cache)) {
    EL_ERR(e, w->at, E06D, LM_RANK);
    return NULL;
  }
  lm_value *zero = lm_emit_const(b, kept, 0);
  lm_value *past = el_cache_recall(e, &cache, zero);
  lm_axis grid[2];
  grid[0] = el_axis_ir(e, w->to);
  grid[1] = el_axis_ir(e, w->taps);
  lm_type pairs = lm_type_make(LM_INT, grid, 2);
  lm_value *dilate = int_const(e, w->dilate);
  lm_value *tap = lm_emit2(b, LM_OP_MUL, iota(e, grid[1]), dilate);
  lm_value *at = lm_emit2(b, LM_OP_ADD, lm_emit_expand(b, iota(e, grid[0]), pairs), tap);
  lm_value *now = lm_emit2(b, LM_OP_GE, at, int_const(e, w->before));
  lm_value *all = lm_emit_select(b, now, y, gathered(e, past, at, h, y->type));
  el_cache_retain(e, &cache, last_positions(e, past, x->v, h));
  return all;
}

// True if a window over the positions can be decoded; reports an error if not.
static bool decodes(el_call_site c, const window *w) {
  bool back = w->stride == 1 && w->after == 0 && w->before == w->dilate * (w->n - 1);
  if (back && el_axis_ir(c.e, w->from) == c.e->position)
    return true;
  lm_diag *d = EL_ERR(c.e, w->at, E0D1);
  lm_diag_help(c.e->c, d,
               "a window over the positions decodes with stride 1, after 0 and before "
               "dilate * (taps - 1)");
  return false;
}

// ---- the window

static el_val window_of(el_call_site c, const window *w, const el_val *v) {
  lm_elab *e = c.e;
  el_val x = v->k == V_TENSOR ? el_adapt(e, v, K_F32, el_arg_loc(c, 0)) : *v;
  if (x.k == V_ERROR)
    return x;
  if (x.k != V_TENSOR)
    return EL_FAIL(e, el_arg_loc(c, 0), E066, el_show(e, &x));
  if (el_lacks(c, &x, w->from, w->at))
    return el_error();
  el_axes now = {0};
  el_axes_push(e, &now, w->to);
  el_axes_push(e, &now, w->taps);
  el_axes axes = el_spliced(c, &x.axes, (uint32_t)el_axes_find(&x.axes, w->from), 1, &now);
  if (!el_distinct(c, &axes) || !x.v)
    return el_distinct(c, &axes) ? el_tensor(x.kind, &axes, NULL) : el_error();
  lm_axis from = el_axis_ir(e, w->from);
  lm_axis to = el_axis_ir(e, w->to);
  lm_axis taps = el_axis_ir(e, w->taps);
  lm_attr attr = {.axes = {from},
                  .n_axes = 1,
                  .to = {to, taps},
                  .n_to = 2,
                  .imm = {w->before, w->stride, w->dilate},
                  .n_imm = 3};
  lm_value *y = lm_emit(&e->b, LM_OP_WINDOW, &x.v, 1, &attr, NULL);
  if (el_axis_is_sequence(e, w->from))
    y = with_past(c, w, &x, y);
  return y ? el_tensor(x.kind, &axes, y) : el_error();
}

el_val p_window(el_call_site c) {
  el_val x = el_arg(c, 0);
  const ast_arg *a = el_arg_arrow(c, 1, "t -> (t, k)");
  window w = {0};
  if (x.k == V_ERROR || !a || !el_one_axis(c, a->expr, &w.from) || !numbers_read(c, &w) ||
      !axes_read(c, &w, a))
    return el_error();
  if (el_axis_is_sequence(c.e, w.from)) {
    if (!decodes(c, &w))
      return el_error();
    w.to->dyn = w.from->dyn;
    c.e->library_failed |= c.e->in_library;
  }
  if (x.k != V_TUPLE)
    return window_of(c, &w, &x);
  el_val *items = LM_NEW_N(c.e->a, el_val, x.n + 1);
  for (uint32_t i = 0; i < x.n; i++)
    items[i] = window_of(c, &w, &x.items[i]);
  return el_tuple(c.e, items, x.n);
}
