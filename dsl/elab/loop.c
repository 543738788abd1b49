// loop.c - `for x in xs carry a, b { … }`: loops of the IR over repeated subs and over numbers.
//
//   for l in layers carry x { x = l(x) }
//   ->
//   %y = loop 12 (%x) over loop0.layers { %0, %1 -> … return %2 }
//
// A loop over subs becomes one loop of the IR per segment of equal structure (el_insts_segment). A
// loop that must be unrolled (unroll.c) becomes one iteration at a time without a loop of the IR.
#include "dsl/elab/elab.h"

static const char *prefix_index(lm_elab *e, int64_t index, const char *suffix) {
  return lm_arena_printf(e->a, ".%lld%s", (long long)index, suffix);
}

// Emits from `first` on were given in a loop that has ended; its results from `stacked` on are
// their values, a place each.
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

static el_val *carried_value(lm_elab *e, lm_sym name) {
  el_bind *b = el_names_find(&e->frame->names, name);
  return b ? &b->val : NULL;
}

// Whether a statement of the body could not be parsed, which is reported: nothing behind it is run.
static bool has_unread(const ast_body *body) {
  for (uint32_t i = 0; i < body->n; i++)
    if (body->v[i]->kind == ST_ERROR)
      return true;
  return false;
}

// Runs a loop's body once with the carried names bound to `in`; their new values go to `out`.
static void run_body_once(lm_elab *e, const ast_stmt *st, const el_val *var, const el_val *in,
                          el_val *out) {
  const el_bind *names = e->frame->names.last;
  el_axis_bind *axes = e->frame->axes;
  el_bind_name(e, st->names.v[0].text, *var, false);
  for (uint32_t i = 0; i < st->carry.n; i++)
    el_bind_name(e, st->carry.v[i].text, in[i], true);
  el_run(e, &st->body);
  bool unread = has_unread(&st->body);
  if (e->frame->has_result && !unread)
    el_err(e, st->loc, "E025", "return inside a loop");
  e->frame->has_result = false;
  for (uint32_t i = 0; i < st->carry.n; i++) {
    out[i] = *carried_value(e, st->carry.v[i].text);
    if (unread || out[i].k == V_ERROR || in[i].k == V_ERROR) {
      out[i] = el_error();
      continue;
    }
    if (out[i].k == V_NUM || (out[i].k == V_TENSOR && out[i].kind == K_NUM))
      out[i] = el_adapt(e, &out[i], in[i].kind, st->loc);
    if (same_carry(&in[i], &out[i]))
      continue;
    lm_diag *d = el_err(e, st->carry.v[i].loc, "E026",
                        "the carried '%s' changes its type in the loop", st->carry.v[i].text);
    lm_diag_note(e->c, d, in[i].loc, "enters as %s", el_show(e, &in[i]));
    lm_diag_note(e->c, d, out[i].loc, "leaves as %s", el_show(e, &out[i]));
    out[i] = el_error();
  }
  el_names_truncate(&e->frame->names, names);
  e->frame->axes = axes;
}

// What one iteration does, given the loop's index (NULL while only checking): runs the body for
// each of its places.
typedef struct {
  const ast_stmt *st;
  const el_val *over;
  int64_t first;
  int period;
  bool repeat, unrolled;
} iteration;

// The number of an iteration among all of the loops around it: with the site, what random numbers
// are keyed by.
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
    uint32_t emitted = e->n_emits;
    run_body_once(e, it->st, &var, now, out);
    for (uint32_t i = emitted; i < e->n_emits; i++)
      e->emits[i].index = it->first + j;
    for (uint32_t i = 0; i < n; i++)
      now[i] = out[i];
  }
  e->layer = outer;
}

static bool any_error(const el_val *v, uint32_t n) {
  for (uint32_t i = 0; i < n; i++)
    if (v[i].k == V_ERROR)
      return true;
  return false;
}

// One loop of `count` iterations over `carry`, which is updated.
static void run_loop(lm_elab *e, const iteration *it, int64_t count, lm_sym name, el_val *carry) {
  uint32_t n = it->st->carry.n;
  uint32_t emitted = e->n_emits;
  el_val *out = LM_NEW_N(e->a, el_val, n + 1);
  lm_value **v = LM_NEW_N(e->a, lm_value *, n + 1);
  if (e->n_loops == (int)LM_COUNT(e->loops)) {
    el_err(e, it->st->loc, "E027", "loops nest more than %d deep", (int)LM_COUNT(e->loops));
    for (uint32_t i = 0; i < n; i++)
      carry[i] = el_error();
    return;
  }
  if (!e->m || it->unrolled || any_error(carry, n)) {
    run_iteration(e, it, NULL, carry, out);
    for (uint32_t i = 0; i < n; i++)
      carry[i] = out[i];
    for (uint32_t i = emitted; i < e->n_emits; i++)
      e->emits[i].suffix = prefix_index(e, e->emits[i].index, e->emits[i].suffix);
    return;
  }
  for (uint32_t i = 0; i < n; i++)
    v[i] = carry[i].v;
  // "loop0.layers": no axis of a program can have that name, nor can two loops around one another
  lm_sym axis_name = LM_SYM(e->c, lm_arena_printf(e->a, "loop%d.%s", e->n_loops, name));
  el_axis axis = {.name = axis_name, .size = lm_size_number(e->a, count)};
  lm_op *loop = lm_loop_begin(&e->b, count, el_axis_ir(e, &axis), v, n);
  loop->loc = it->st->loc;
  el_val *in = LM_NEW_N(e->a, el_val, n + 1);
  for (uint32_t i = 0; i < n; i++) {
    in[i] = carry[i];
    in[i].v = loop->body->args[1 + i];
  }
  e->loops[e->n_loops].index = loop->body->args[0];
  e->loops[e->n_loops].count = count;
  e->loops[e->n_loops].name = name;
  e->loops[e->n_loops++].over = it->repeat ? (const void *)it->st : it->over->insts;
  run_iteration(e, it, loop->body->args[0], in, out);
  e->n_loops--;
  for (uint32_t i = 0; i < n; i++)
    v[i] = out[i].k == V_ERROR ? in[i].v : out[i].v;
  uint32_t n_stacked = e->n_emits - emitted;
  lm_value **stacked = LM_NEW_N(e->a, lm_value *, n_stacked + 1);
  for (uint32_t i = 0; i < n_stacked; i++)
    stacked[i] = e->emits[emitted + i].val.v;
  lm_loop_end(&e->b, loop, v, n, stacked, n_stacked);
  emits_unstack(e, emitted, loop, n, count, it->period);
  for (uint32_t i = 0; i < n; i++) {
    bool bad = out[i].k == V_ERROR;
    carry[i] = bad ? el_error() : out[i];
    carry[i].v = bad ? NULL : loop->out[i];
  }
}

// `for at in t`: an axis of a tensor, rather than a number of the instance.
static bool names_axis(lm_elab *e, const ast_expr *x) {
  if (x->kind != EX_NAME)
    return false;
  const el_bind *bound = el_names_find(&e->frame->names, x->text);
  if (bound)
    return bound->val.k == V_AXES;
  for (el_axis_bind *b = e->frame->axes; b; b = b->up)
    if (b->name == x->text)
      return true;
  return false;
}

// A number that is not known yet may be a whole one, in a definition that nothing reaches.
static bool is_count(const lm_elab *e, const el_val *over, int64_t *out) {
  if (over->k != V_NUM)
    return false;
  if (!over->known)
    return over->has_size || !e->m;
  return over->has_size && lm_size_whole(over->size, out);
}

void el_run_for(lm_elab *e, const ast_stmt *st) {
  el_val over = el_eval(e, st->expr);
  uint32_t n = st->carry.n;
  el_val *carry = LM_NEW_N(e->a, el_val, n + 1);
  for (uint32_t i = 0; i < n; i++) {
    el_val *v = carried_value(e, st->carry.v[i].text);
    carry[i] = v ? *v : el_error();
    if (!v)
      el_err(e, st->carry.v[i].loc, "E020", "unknown name '%s'", st->carry.v[i].text);
    else if (v->k == V_NUM)
      carry[i] = el_adapt(e, v, K_F32, st->carry.v[i].loc);
    else if (v->k != V_TENSOR && v->k != V_ERROR) {
      el_err(e, st->carry.v[i].loc, "E026", "carry takes tensors, '%s' is %s", st->carry.v[i].text,
             el_show(e, v));
      carry[i] = el_error();
    }
  }
  int64_t count = 0;
  if (over.k != V_ERROR && names_axis(e, st->expr)) {
    el_err(e, st->expr->loc, "E900",
           "`for … in AXIS` (the places of an axis in order) is not available yet");
    over = el_error();
  }
  bool unrolled = el_is_unrolled(e, over.k == V_INSTS ? (const void *)over.insts : st);
  if (over.k == V_INSTS) {
    for (int64_t at = 0; at < over.insts->n;) {
      int period = 1;
      count = unrolled ? 1 : el_insts_segment(e, over.insts, at, &period);
      iteration it = {st, &over, at, period, false, unrolled};
      run_loop(e, &it, count, over.insts->member->names.v[0].text, carry);
      at += count * period;
    }
  } else if (is_count(e, &over, &count)) {
    iteration it = {st, &over, 0, 1, true, unrolled};
    if (!over.known)
      count = 1;
    if (count < 0 || count > INT32_MAX) {
      el_err(e, st->expr->loc, "E028", "a loop of %lld iterations", (long long)count);
      count = 0;
    }
    for (; unrolled && it.first < count && el_budget(e, st->loc); it.first++)
      run_loop(e, &it, 1, st->names.v[0].text, carry);
    if (count > 0 && !unrolled)
      run_loop(e, &it, count, st->names.v[0].text, carry);
  } else if (over.k != V_ERROR && !el_request_unroll(e, &over)) {
    lm_diag *d = el_err(e, st->expr->loc, "E028", "cannot loop over %s", el_show(e, &over));
    lm_diag_help(e->c, d, "loop over `sub xs[i < n]` or a whole number");
  }
  for (uint32_t i = 0; i < n; i++) {
    carry[i].name = st->carry.v[i].text;
    const el_bind *b = el_names_find(&e->frame->names, st->carry.v[i].text);
    el_bind_name(e, st->carry.v[i].text, carry[i], b && b->settable);
  }
}
