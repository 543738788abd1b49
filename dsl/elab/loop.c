// loop.c - `for x in xs carry a, b { … }`: loops of the IR over repeated subs and over numbers.
//
//   for l in layers carry x { x = l(x) }
//   ->
//   %y = loop 12 over(loop0.layers) %i carry(%c = %x) { … yield %c1 }
//
// A loop over subs becomes one loop of the IR per segment of equal structure (el_insts_segment). A
// loop that must be unrolled (unroll.c) becomes one iteration at a time without a loop of the IR.
//
// In a loop over subs the sizes of a carry may change from element to element, as images become
// smaller and channels more. Elements that change them are unrolled: the first attempt finds them.
#include "dsl/elab/elab.h"

static const char *prefix_index(lm_elab *e, int64_t index, const char *suffix) {
  return lm_arena_printf(e->a, ".%lld%s", (long long)index, suffix);
}

// Replaces the metrics from `first` on, which were emitted inside of the loop, by one metric per
// iteration. Results of the loop from `stacked` on hold their values, stacked over the iterations.
static void emits_unstack(lm_elab *e, uint32_t first, const lm_op *loop, uint32_t stacked,
                          int64_t count, int period) {
  uint32_t n = e->n_emits - first;
  struct el_emit *inside = LM_NEW_N(e->a, struct el_emit, n + 1);
  for (uint32_t i = 0; i < n; i++)
    inside[i] = e->emits[first + i];
  e->n_emits = first;
  if (!n || !el_emits_check(e, loop->loc, (uint64_t)count * n))
    return;
  for (int64_t k = 0; k < count; k++)
    for (uint32_t i = 0; i < n; i++) {
      lm_attr attr = {.imm = {k, 1}, .n_imm = 2, .axes = {loop->attr.axes[0]}, .n_axes = 1};
      struct el_emit x = inside[i];
      x.suffix = prefix_index(e, x.index + k * period, x.suffix);
      x.val.v = lm_emit(&e->b, LM_OP_SLICE, &loop->out[stacked + i], 1, &attr, NULL);
      LM_PUSH(e->a, e->emits, e->n_emits, e->cap_emits) = x;
    }
}

static bool same_carry(const el_val *x, const el_val *y) {
  return x->k == V_TENSOR && y->k == V_TENSOR && x->kind == y->kind &&
         el_axes_same(&x->axes, &y->axes);
}

// True if the axes of a carry may become those of y in a loop over subs: as many, and none moves.
static bool may_become(const el_val *x, const el_val *y) {
  if (x->k != V_TENSOR || y->k != V_TENSOR || x->kind != y->kind || x->axes.n != y->axes.n)
    return false;
  for (uint32_t k = 0; k < x->axes.n; k++)
    if (y->axes.v[k] != x->axes.v[k] && el_axes_has(&x->axes, y->axes.v[k]))
      return false;
  return true;
}

// True if the axes have the same names and sizes, in order, though not each is the same axis.
static bool axes_equal(const lm_elab *e, const el_val *x, const el_val *y) {
  int64_t m, n;
  for (uint32_t k = 0; k < x->axes.n; k++) {
    const el_axis *a = x->axes.v[k];
    const el_axis *b = y->axes.v[k];
    bool whole = e->m && lm_size_whole(a->size, &m) && lm_size_whole(b->size, &n);
    if (a->name != b->name || !whole || m != n || a->dyn != b->dyn)
      return false;
  }
  return true;
}

static el_val *carried_value(lm_elab *e, lm_sym name) {
  el_bind *b = el_names_find(&e->frame->names, name);
  return b ? &b->val : NULL;
}

// True if a statement of the body could not be parsed. That is reported, and the statements after
// it are not evaluated.
static bool has_parse_error(const ast_body *body) {
  for (uint32_t i = 0; i < body->n; i++)
    if (body->v[i]->kind == ST_ERROR)
      return true;
  return false;
}

static bool has_axis(const el_axis_bind *b, lm_sym name) {
  while (b && b->name != name)
    b = b->up;
  return b;
}

bool el_counts_axis(const lm_elab *e) {
  const el_frame *f = e->frame;
  const ast_expr *x = f->counts ? f->counts->expr : NULL;
  if (!x || x->kind != EX_NAME)
    return false;
  return has_axis(f->axes, x->text) || (f->self && has_axis(f->self->inst->axes, x->text));
}

void el_help_counts(lm_elab *e, lm_diag *d) {
  if (e->frame && el_counts_axis(e))
    lm_diag_help(e->c, d,
                 "%s is a number here, so the loop repeats its body; only the axis of positions, "
                 "such as t, is passed one position after the other",
                 e->frame->counts->expr->text);
}

void el_emits_failed(lm_elab *e, const ast_body *body) {
  for (uint32_t i = 0; i < body->n; i++)
    if (body->v[i]->kind == ST_EMIT)
      el_bind_name(e, body->v[i]->names.v[0].text, el_error(), false);
}

// Within and after a loop over subs, the names of the axes of a carry are those of its value.
static void bind_axes(lm_elab *e, const el_val *v) {
  for (uint32_t k = 0; v->k == V_TENSOR && k < v->axes.n; k++)
    if (el_axis_lookup(e, v->axes.v[k]->name) != v->axes.v[k])
      el_axis_bind_name(e, v->axes.v[k]->name, v->axes.v[k]);
}

static void carry_axes(lm_elab *e, const el_val *v) {
  el_axes all = {0};
  for (uint32_t k = 0; k < e->frame->carried.n; k++)
    el_axes_push(e, &all, e->frame->carried.v[k]);
  for (uint32_t k = 0; v->k == V_TENSOR && k < v->axes.n; k++)
    el_axes_push(e, &all, v->axes.v[k]);
  e->frame->carried = all;
  bind_axes(e, v);
}

static void report_changed(lm_elab *e, const ast_name *carry, const el_val *in, const el_val *out) {
  lm_diag *d = EL_ERR(e, carry->loc, E026, carry->text);
  lm_diag_note(e->c, d, in->loc, "the carry has the type %s before the loop", el_show(e, in));
  lm_diag_note(e->c, d, out->loc, "the carry has the type %s at the end of an iteration",
               el_show(e, out));
}

void el_run_body(lm_elab *e, const ast_stmt *st, const el_val *var, const el_val *in, el_val *out) {
  const el_bind *names = e->frame->names.last;
  el_axis_bind *axes = e->frame->axes;
  el_axes carried = e->frame->carried;
  uint32_t errors = e->c->n_rejects;
  bool over_subs = var && var->k == V_INST;
  if (var)
    el_bind_name(e, st->names.v[0].text, *var, false);
  for (uint32_t i = 0; i < st->carry.n; i++) {
    el_bind_name(e, st->carry.v[i].text, in[i], true);
    if (over_subs)
      carry_axes(e, &in[i]);
  }
  e->nested++;
  el_run(e, &st->body);
  e->nested--;
  bool incomplete = has_parse_error(&st->body);
  if (e->frame->has_result && !incomplete)
    EL_ERR(e, e->frame->result.loc.file ? e->frame->result.loc : st->loc, E025);
  e->frame->has_result = false;
  for (uint32_t i = 0; i < st->carry.n; i++) {
    out[i] = *carried_value(e, st->carry.v[i].text);
    out[i].of = NULL;
    if (incomplete || out[i].k == V_ERROR || in[i].k == V_ERROR) {
      out[i] = el_error();
      continue;
    }
    if (out[i].k == V_NUM || (out[i].k == V_TENSOR && out[i].kind == K_NUM))
      out[i] = el_adapt(e, &out[i], in[i].kind, st->loc);
    if (same_carry(&in[i], &out[i]) || (over_subs && may_become(&in[i], &out[i])))
      continue;
    if (!el_counts_axis(e) || e->c->n_rejects == errors)
      report_changed(e, &st->carry.v[i], &in[i], &out[i]);
    out[i] = el_error();
  }
  el_names_truncate(&e->frame->names, names);
  e->frame->axes = axes;
  e->frame->carried = carried;
}

// An iteration of a loop in the IR evaluates the body for `period` consecutive indices.
typedef struct {
  const ast_stmt *st;
  const el_val *over; // of the statement: instances or a number
  int64_t first;      // the index of the loop's first iteration
  int period;
  bool repeat; // `over` is a number
  bool unrolled;
  const el_draws *draws_before; // of the statement
  const el_draws **draws_after; // of the iterations so far, joined
} iteration;

// The number of an iteration, including the loops around it. It is part of the key of random
// numbers.
static lm_value *layer_number(lm_elab *e, lm_value *outer, const el_index *at) {
  if (!e->m)
    return outer;
  lm_type t = lm_type_make(LM_INT, NULL, 0);
  lm_value *v = at->loop ? at->loop : lm_emit_const(&e->b, t, 0);
  if (at->step != 1)
    v = lm_emit2(&e->b, LM_OP_MUL, v, lm_emit_const(&e->b, t, (double)at->step));
  if (at->first)
    v = lm_emit2(&e->b, LM_OP_ADD, v, lm_emit_const(&e->b, t, (double)at->first));
  if (!outer)
    return v;
  return lm_emit2(&e->b, LM_OP_ADD, v,
                  lm_emit2(&e->b, LM_OP_MUL, outer, lm_emit_const(&e->b, t, 65536)));
}

static void run_iteration(lm_elab *e, const iteration *it, lm_value *index, const el_val *in,
                          el_val *out) {
  uint32_t n = it->st->carry.n;
  el_val *now = LM_NEW_N(e->a, el_val, n + 1);
  for (uint32_t i = 0; i < n; i++)
    now[i] = in[i];
  lm_value *outer = e->layer;
  for (int j = 0; j < it->period; j++) {
    el_index at = {index, it->first + j, it->period};
    e->layer = layer_number(e, outer, &at);
    el_val var = it->repeat ? el_index_value(e, &at) : el_insts_at(e, it->over, &at);
    if (!it->repeat)
      var.ref.each = it->over->insts;
    uint32_t emitted = e->n_emits;
    e->draws = it->draws_before;
    el_run_body(e, it->st, &var, now, out);
    e->draws = *it->draws_after = el_draws_join(e, *it->draws_after, e->draws);
    for (uint32_t i = emitted; i < e->n_emits; i++)
      e->emits[i].index = it->first + j;
    for (uint32_t i = 0; i < n; i++)
      now[i] = out[i];
  }
  e->layer = outer;
}

// Evaluates the body without a loop of the IR.
static void run_inline(lm_elab *e, const iteration *it, el_val *carry) {
  uint32_t n = it->st->carry.n, emitted = e->n_emits;
  el_val *out = LM_NEW_N(e->a, el_val, n + 1);
  run_iteration(e, it, NULL, carry, out);
  for (uint32_t i = 0; i < n; i++)
    carry[i] = out[i];
  for (uint32_t i = emitted; i < e->n_emits; i++)
    e->emits[i].suffix = prefix_index(e, e->emits[i].index, e->emits[i].suffix);
}

static lm_op *loop_enter(lm_elab *e, const iteration *it, int64_t count, lm_sym name,
                         const el_val *carry) {
  uint32_t n = it->st->carry.n;
  lm_value **v = LM_NEW_N(e->a, lm_value *, n + 1);
  for (uint32_t i = 0; i < n; i++)
    v[i] = carry[i].v;
  // "loop0.layers": an axis of a program has no dot in its name, and nested loops differ in number
  lm_sym axis_name = LM_SYM(e->c, lm_arena_printf(e->a, "loop%d.%s", e->n_loops, name));
  el_axis axis = {
      .name = axis_name,
      .size = lm_size_number(e->a, count),
  };
  lm_op *loop = lm_loop_begin(&e->b, count, el_axis_ir(e, &axis), v, n);
  loop->loc = it->st->loc;
  e->loops[e->n_loops].index = loop->body->args[0];
  e->loops[e->n_loops].count = count;
  e->loops[e->n_loops].name = name;
  e->loops[e->n_loops++].over = it->repeat ? (const void *)it->st : it->over->insts;
  return loop;
}

// Ends the loop with `next` as the new carries; metrics from `emitted` on leave it stacked.
static void loop_leave(lm_elab *e, const iteration *it, lm_op *loop, lm_value **next,
                       uint32_t emitted) {
  uint32_t n = it->st->carry.n, n_stacked = e->n_emits - emitted;
  lm_value **stacked = LM_NEW_N(e->a, lm_value *, n_stacked + 1);
  for (uint32_t i = 0; i < n_stacked; i++)
    stacked[i] = e->emits[emitted + i].val.v;
  e->n_loops--;
  lm_loop_end(&e->b, loop, next, n, stacked, n_stacked);
}

// The value of a carry after a loop, of which v is the result. If the type changes, the function is
// emitted again, and a constant of the new type is its value until then.
static el_val carried_out(lm_elab *e, const el_val *in, const el_val *out, lm_value *v) {
  el_val after = out->k == V_ERROR ? el_error() : *out;
  if (out->k == V_TENSOR)
    after.v = same_carry(in, out) ? v : lm_emit_const(&e->b, out->v->type, 0);
  return after;
}

static void run_emitted(lm_elab *e, const iteration *it, int64_t count, lm_sym name,
                        el_val *carry) {
  uint32_t n = it->st->carry.n, emitted = e->n_emits;
  el_val *in = LM_NEW_N(e->a, el_val, n + 1);
  el_val *out = LM_NEW_N(e->a, el_val, n + 1);
  lm_value **next = LM_NEW_N(e->a, lm_value *, n + 1);
  lm_op *loop = loop_enter(e, it, count, name, carry);
  for (uint32_t i = 0; i < n; i++) {
    in[i] = carry[i];
    in[i].v = loop->body->args[1 + i];
  }
  run_iteration(e, it, loop->body->args[0], in, out);
  for (uint32_t i = 0; i < n; i++) {
    if (out[i].k == V_TENSOR && axes_equal(e, &in[i], &out[i]))
      out[i] = el_rename(e, &out[i], &out[i].axes, &in[i].axes);
    bool changes = out[i].k == V_TENSOR && !same_carry(&in[i], &out[i]);
    if (changes)
      el_unroll_element(e, it->over->insts, it->first);
    next[i] = changes || out[i].k == V_ERROR ? in[i].v : out[i].v;
  }
  loop_leave(e, it, loop, next, emitted);
  emits_unstack(e, emitted, loop, n, count, it->period);
  for (uint32_t i = 0; i < n; i++)
    carry[i] = carried_out(e, &in[i], &out[i], loop->out[i]);
}

// One loop of `count` iterations. carry: the values before the loop, then the values after it.
static void run_loop(lm_elab *e, const iteration *it, int64_t count, lm_sym name, el_val *carry) {
  uint32_t n = it->st->carry.n;
  if (e->n_loops == (int)LM_COUNT(e->loops)) {
    EL_ERR(e, it->st->loc, E027, "loops", (int)LM_COUNT(e->loops));
    for (uint32_t i = 0; i < n; i++)
      carry[i] = el_error();
    return;
  }
  if (!e->m || it->unrolled || el_any_error(carry, n))
    run_inline(e, it, carry);
  else
    run_emitted(e, it, count, name, carry);
}

// The axis of a tensor that x names, as in `for at in t`; NULL if x is a number of the instance or
// no axis.
static el_axis *axis_named(lm_elab *e, const ast_expr *x) {
  if (x->kind != EX_NAME || e->mode == EL_UPDATE)
    return NULL;
  const el_bind *bound = el_names_find(&e->frame->names, x->text);
  if (bound)
    return bound->val.k == V_AXES && bound->val.axes.n == 1 ? bound->val.axes.v[0] : NULL;
  for (el_axis_bind *b = e->frame->axes; b; b = b->up)
    if (b->name == x->text)
      return b->axis;
  return NULL;
}

// While only checking, an unknown number may be whole.
static bool is_count(const lm_elab *e, const el_val *over, int64_t *out) {
  if (over->k != V_NUM)
    return false;
  if (!over->known)
    return over->has_size || !e->m;
  return over->has_size && lm_size_whole(over->size, out);
}

static el_val carry_in(lm_elab *e, const ast_name *name) {
  const el_val *v = carried_value(e, name->text);
  if (!v)
    return EL_FAIL(e, name->loc, E020, name->text);
  if (v->k == V_NUM)
    return el_adapt(e, v, K_F32, name->loc);
  if (v->k != V_TENSOR && v->k != V_ERROR)
    return EL_FAIL(e, name->loc, E029, name->text, el_show(e, v));
  el_val carried = *v;
  carried.of = NULL; // it changes
  return carried;
}

static void carry_out(lm_elab *e, const ast_name *name, el_val v) {
  const el_bind *b = el_names_find(&e->frame->names, name->text);
  bind_axes(e, &v);
  v.name = name->text;
  el_bind_name(e, name->text, v, b && b->settable);
}

static void run_over_insts(lm_elab *e, const ast_stmt *st, const el_val *over, el_val *carry) {
  const el_insts *xs = over->insts;
  bool unrolled = el_is_unrolled(e, xs);
  const el_draws *before = e->draws, *after = before;
  for (int64_t at = 0; at < xs->n;) {
    int period = 1;
    bool alone = unrolled || el_is_unrolled(e, xs->of[at]);
    int64_t count = alone ? 1 : el_insts_segment(e, xs, at, &period);
    iteration it = {st, over, at, period, false, alone, before, &after};
    run_loop(e, &it, count, xs->member->names.v[0].text, carry);
    at += count * period;
  }
}

static void run_over_count(lm_elab *e, const ast_stmt *st, const el_val *over, int64_t count,
                           el_val *carry) {
  bool unrolled = el_is_unrolled(e, st);
  const el_draws *before = e->draws, *after = before;
  iteration it = {st, over, 0, 1, true, unrolled, before, &after};
  lm_sym name = st->names.v[0].text;
  if (count < 0 || count > INT32_MAX) {
    EL_ERR(e, st->expr->loc, E028, INT32_MAX, (long long)count);
    return;
  }
  const ast_stmt *around = e->frame->counts;
  uint32_t errors = e->c->n_rejects;
  e->frame->counts = st;
  for (; unrolled && it.first < count && el_budget(e, st->loc); it.first++)
    run_loop(e, &it, 1, name, carry);
  if (count > 0 && !unrolled)
    run_loop(e, &it, count, name, carry);
  if (el_counts_axis(e) && e->c->n_rejects > errors)
    el_emits_failed(e, &st->body);
  e->frame->counts = around;
}

static void report_not_loopable(lm_elab *e, const ast_stmt *st, const el_val *over) {
  lm_diag *d = EL_ERR(e, st->expr->loc, E02B, el_show(e, over));
  lm_diag_help(e->c, d, "loop over `sub xs[i < n]`, a whole number or the axis of positions");
}

void el_run_for(lm_elab *e, const ast_stmt *st) {
  el_axis *axis = axis_named(e, st->expr);
  el_val over = axis ? (el_val){.k = V_AXES} : el_as_size(e, el_eval(e, st->expr));
  uint32_t n = st->carry.n;
  int64_t count = 1;
  el_val *carry = LM_NEW_N(e->a, el_val, n + 1);
  for (uint32_t i = 0; i < n; i++)
    carry[i] = carry_in(e, &st->carry.v[i]);
  if (e->scan)
    over = el_not_in_scan(e, st->loc, "a loop");
  if (over.k == V_ERROR)
    for (uint32_t i = 0; i < n; i++)
      carry[i] = el_error();
  else if (axis)
    el_run_scan(e, st, axis, carry);
  else if (over.k == V_INSTS)
    run_over_insts(e, st, &over, carry);
  else if (is_count(e, &over, &count))
    run_over_count(e, st, &over, over.known ? count : 1, carry);
  else if (!el_request_unroll(e, &over))
    report_not_loopable(e, st, &over);
  for (uint32_t i = 0; i < n; i++)
    carry_out(e, &st->carry.v[i], carry[i]);
}
