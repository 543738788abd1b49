// grad_ticks.c - the derivative of a pipeline whose loop over ticks contains the whole model
// (shard_ticks.c): the backward pass of each micro-batch in the tick that completes its loss (1F1B,
// Narayanan et al. 2021).
//
// before: %_, %ss = loop 5 over(tick) %k carry(%in = 0) {              4 micro-batches, 2 stages
//           %x = first(%k)   %c0 = select takes(%k), %x, %in
//           %y = stage(%k, %c0)   %next = ring_shift %y over(pp) [1]
//           %s = last(%k, %y)   yield %next, %s }
// after:  %c, %slots = loop 1 %k carry(%in = 0, %slots = 0) {          stages - 1 ticks
//           … %c0 … %next   yield %next, %slots with slot %k mod 3 = %c0 }
//         %g, %slots, %ss = loop 4 over(micro) %i carry(%in = %c, %g = 0, %slots) {
//           %k = %i + 1   … %c0 … %next                                (tick %k)
//           %s = last(%k, %y)   %gy = ∂%s/∂%y, accum
//           %b = %k - 2 + 2 * %r   %c1 = %slots at %b mod 3            (of 2 * stages - 1 slots)
//           %gc = ∂stage(%b, %c1)/∂%c0 · (%g + %gy), accum
//           %gx = select %r == 0, %gc, 0   ∂first(%k - 2) · %gx, accum
//           %g1 = ring_shift (select takes(%b), 0, %gc) over(pp) [-1]
//           yield %next, %g1, %slots1, %s }
//         loop 1 … { the backward half }                               stages - 1 ticks
//
// In tick k stage r computes the forward pass of micro-batch k - r and the backward pass of
// k - 2 * (stages - 1) + r: the last stage that of the same one. What a rank keeps of a micro-batch
// is the operand of its stage, in a slot until its backward pass, 2 * (stages - 1 - r) ticks later.
// The backward pass computes the stage again from it, which takes the memory of one micro-batch. A
// stage without a micro-batch has cotangents of zero.
//
// Declines: a loss without such a loop. Cost: the stage is computed twice, and each tick copies the
// slots.
#include "compiler/analysis/activity.h"
#include "compiler/passes/epilogue.h"
#include "compiler/passes/grad.h"
#include "compiler/passes/params_only.h"
#include <string.h>

typedef struct ticks {
  lm_module *m;
  lm_func *f;
  const lm_grad_methods *methods;
  bool sums;   // see lm_epilogue_sums
  lm_op *loop; // over ticks
  int stages, mesh;
  uint32_t n;             // carries
  lm_value **sent;        // by carry: the value for the next stage
  lm_value **taken;       // the operand of the stage
  uint8_t *active, *late; // by id of forward values: has a gradient, depends on a carry
  uint8_t *of_stage;      // by id: a value for the next stage depends on it
  lm_value **results;     // of the stage, which operations behind it read
  uint32_t n_results, cap_results;
  uint32_t n_values; // of forward values
  uint32_t loss;     // which stacked result
  lm_value *seed;    // its cotangent
  lm_axis slot;
} ticks;

static lm_type scalar_int(void) {
  return lm_type_make(LM_INT, NULL, 0);
}

static lm_value *number(lm_builder *b, int64_t n) {
  return lm_emit_const(b, scalar_int(), (double)n);
}

static const lm_op *yield_of(const ticks *t) {
  return t->loop->body->last;
}

// ---- the parts of the loop's body

static bool reads_late(const ticks *t, const lm_region *r) {
  for (const lm_op *op = r->first; op; op = op->next) {
    for (uint32_t i = 0; i < op->n_in; i++)
      if (t->late[op->in[i]->id])
        return true;
    if (op->body && reads_late(t, op->body))
      return true;
  }
  return false;
}

static void late_find(ticks *t) {
  const lm_region *r = t->loop->body;
  for (uint32_t i = 1; i < r->n_args; i++)
    t->late[r->args[i]->id] = 1;
  for (const lm_op *op = r->first; op; op = op->next) {
    bool late = op->body && reads_late(t, op->body);
    for (uint32_t i = 0; i < op->n_in; i++)
      late |= t->late[op->in[i]->id];
    for (uint32_t i = 0; i < op->n_out; i++)
      t->late[op->out[i]->id] = late;
  }
}

static void stage_mark(ticks *t, const lm_value *v);

static void captured_mark(ticks *t, const lm_region *r) {
  for (const lm_op *op = r->first; op; op = op->next) {
    for (uint32_t i = 0; i < op->n_in; i++)
      stage_mark(t, op->in[i]);
    if (op->body)
      captured_mark(t, op->body);
  }
}

static void stage_mark(ticks *t, const lm_value *v) {
  if (v->region != t->loop->body || t->of_stage[v->id])
    return;
  t->of_stage[v->id] = 1;
  for (uint32_t i = 0; v->def && i < v->def->n_in; i++)
    stage_mark(t, v->def->in[i]);
  if (v->def && v->def->body)
    captured_mark(t, v->def->body);
}

static void result_note(ticks *t, lm_value *v) {
  if (v->region != t->loop->body || !t->late[v->id] || !t->of_stage[v->id])
    return;
  for (uint32_t i = 0; i < t->n_results; i++)
    if (t->results[i] == v)
      return;
  LM_PUSH(t->m->arena, t->results, t->n_results, t->cap_results) = v;
}

static void results_note(ticks *t, const lm_op *op) {
  for (uint32_t i = 0; i < op->n_in; i++)
    result_note(t, op->in[i]);
  for (const lm_op *in = op->body ? op->body->first : NULL; in; in = in->next)
    results_note(t, in);
}

// What operations behind the stage read of it, and the results of a tick.
static void results_find(ticks *t) {
  const lm_op *yield = yield_of(t);
  for (uint32_t i = 0; i < t->n; i++)
    stage_mark(t, t->sent[i]);
  for (const lm_op *op = t->loop->body->first; op != yield; op = op->next) {
    bool behind = op->n_out && t->late[op->out[0]->id] && !t->of_stage[op->out[0]->id];
    bool sends = op->code == LM_OP_RING_SHIFT && op->attr.mesh == t->mesh;
    if (behind && !sends)
      results_note(t, op);
  }
  for (uint32_t i = t->n; i < yield->n_in; i++)
    result_note(t, yield->in[i]);
}

static lm_value *taken_find(const ticks *t, const lm_value *carry) {
  for (lm_op *op = t->loop->body->first; op; op = op->next)
    if (op->code == LM_OP_SELECT && op->in[2] == carry)
      return op->out[0];
  LM_BUG("a carry of a pipeline is not selected");
}

// ---- copies of forward operations

typedef struct copier {
  const ticks *t;
  lm_builder *b;
  lm_value **map; // by id of forward values
} copier;

static copier copier_make(const ticks *t, lm_builder *b, lm_value *tick) {
  copier c = {t, b, lm_calloc((size_t)t->n_values + 1, sizeof(lm_value *))};
  c.map[t->loop->body->args[0]->id] = tick;
  return c;
}

static lm_value *copy(copier *c, lm_value *v);

static void captured_copy(copier *c, const lm_region *r) {
  for (const lm_op *op = r->first; op; op = op->next) {
    for (uint32_t i = 0; i < op->n_in; i++)
      if (op->in[i]->region == c->t->loop->body || op->in[i]->region == c->t->f->body)
        copy(c, op->in[i]);
    if (op->body)
      captured_copy(c, op->body);
  }
}

// The value for the copier's tick. Outside of the loop only values with a gradient are copied, so
// that it is added up here.
static lm_value *copy(copier *c, lm_value *v) {
  const ticks *t = c->t;
  bool outer = v->region == t->f->body;
  if (c->map[v->id])
    return c->map[v->id];
  if (!v->def || (outer && !t->active[v->id]))
    return v;
  for (uint32_t i = 0; i < v->def->n_in; i++)
    copy(c, v->def->in[i]);
  if (v->def->body)
    captured_copy(c, v->def->body);
  lm_op_clone(c->b, v->def, c->map);
  return c->map[v->id];
}

// ---- the derivative of a part

// A function of a part alone: its arguments stand for the values that it is given.
typedef struct segment {
  ticks *t;
  lm_func *f;
  lm_builder b;
  copier c;
  lm_value **given; // by argument
} segment;

static lm_value *argument(segment *s, lm_value *given) {
  lm_value *arg = lm_arg_add(s->t->m, s->f->body, given->type, given->name);
  lm_value **all = LM_NEW_N(s->t->m->arena, lm_value *, s->f->body->n_args);
  for (uint32_t i = 0; i + 1 < s->f->body->n_args; i++)
    all[i] = s->given[i];
  all[s->f->body->n_args - 1] = given;
  s->given = all;
  return arg;
}

static void segment_open(segment *s, ticks *t, lm_value *tick) {
  *s = (segment){.t = t, .f = lm_func_add(t->m, LM_SYM(t->m->ctx, "part"))};
  s->b = (lm_builder){
      .m = t->m,
      .at = s->f->body,
      .loc = t->loop->loc,
  };
  s->c = copier_make(t, &s->b, argument(s, tick));
}

// Adds the derivative of the copies of n values, with the cotangents of the arguments `by`, with
// respect to the arguments `wrt`; out: zeros where there is none.
static void segment_reverse(segment *s, lm_value *const *of, lm_value *const *by, uint32_t n,
                            lm_value *const *wrt, uint32_t n_wrt, lm_value **out) {
  lm_module *m = s->t->m;
  gradient g = {.base.methods = s->t->methods,
                .m = m,
                .active = lm_activity_of_region(m, s->f->body, wrt, n_wrt),
                .n_active = m->n_values,
                .sums = s->t->sums ? lm_epilogue_sums(s->f) : NULL,
                .of_params = lm_params_only(s->f)};
  frame outer =
            {
                .forward = s->t->f->body,
                .b = s->b,
            },
        own = {.forward = s->f->body, .b = s->b};
  lm_gradient_enter(&g, &outer);
  lm_gradient_enter(&g, &own);
  for (uint32_t i = 0; i < n; i++)
    lm_gradient_add(&g.base, s->c.map[of[i]->id], by[i]);
  lm_gradient_reverse(&g);
  for (uint32_t i = 0; i < n_wrt; i++) {
    out[i] = lm_gradient_cotangent(&g.base, wrt[i]);
    if (!out[i])
      out[i] = lm_emit_const(&own.b, wrt[i]->type, 0);
  }
  lm_gradient_leave(&g);
  lm_gradient_leave(&g);
  lm_free(g.active);
  lm_free(g.sums);
  lm_free(g.of_params);
}

static void given_replace(const segment *s, lm_region *r, lm_op *from, const lm_op *to) {
  for (lm_op *op = from; op != to; op = op->next) {
    for (uint32_t i = 0; i < op->n_in; i++)
      for (uint32_t k = 0; k < s->f->body->n_args; k++)
        if (op->in[i] == s->f->body->args[k])
          op->in[i] = s->given[k];
    if (op->body)
      given_replace(s, op->body, op->body->first, NULL);
  }
}

// Moves the part to the builder's position. n of its values, which may be arguments, are replaced.
static void segment_close(segment *s, lm_builder *b, lm_value **of, uint32_t n) {
  lm_op *end = lm_emit_const(b, scalar_int(), 0)->def, *first = NULL;
  for (lm_op *op = s->f->body->first, *next; op; op = next) {
    next = op->next;
    lm_op_remove(op);
    lm_op_insert_before(end, op);
    first = first ? first : op;
  }
  if (first)
    given_replace(s, b->at, first, end);
  for (uint32_t i = 0; i < n; i++)
    for (uint32_t k = 0; k < s->f->body->n_args; k++)
      if (of[i] == s->f->body->args[k])
        of[i] = s->given[k];
  lm_op_remove(end);
  lm_func_remove(s->t->m, s->f);
  lm_free(s->c.map);
}

// ---- slots

static lm_type slots_type(const ticks *t, lm_type x) {
  lm_axis axes[LM_RANK] = {t->slot};
  memcpy(axes + 1, x.axis, x.rank * sizeof *axes);
  return lm_type_make((lm_dtype)x.dtype, axes, x.rank + 1);
}

static lm_value *slot_of(const ticks *t, lm_builder *b, lm_value *tick) {
  return lm_emit2(b, LM_OP_MOD, tick, number(b, lm_axis_size(t->m, t->slot)));
}

static lm_value *slot_set(const ticks *t, lm_builder *b, lm_value *slots, lm_value *tick,
                          lm_value *x) {
  lm_type numbers = lm_type_make(LM_INT, &t->slot, 1);
  lm_value *number = lm_emit(b, LM_OP_IOTA, NULL, 0, NULL, &numbers);
  lm_value *at = lm_emit_expand(b, slot_of(t, b, tick), numbers);
  lm_type mask = slots->type;
  mask.dtype = LM_BOOL;
  lm_value *own = lm_emit_expand(b, lm_emit2(b, LM_OP_EQ, number, at), mask);
  return lm_emit_select(b, own, lm_emit_expand(b, x, slots->type), slots);
}

static lm_value *slot_get(const ticks *t, lm_builder *b, lm_value *slots, lm_value *tick) {
  lm_attr over = {.axes = {t->slot}, .n_axes = 1};
  lm_value *in[] = {slots, slot_of(t, b, tick)};
  return lm_emit(b, LM_OP_GATHER, in, 2, &over, NULL);
}

// ---- a tick

// The values that a tick has and the next one gets.
typedef struct state {
  lm_value **in;                      // by carry: received from the previous stage
  lm_value **back;                    // by carry: the cotangent received from the next stage
  lm_value **slots;                   // by carry: operands of this stage
  lm_value **results, **results_back; // of the stage, and their cotangents
  lm_value **stacked;
} state;

// The forward pass of the stages.
static void forward(ticks *t, lm_builder *b, lm_value *tick, state *s) {
  copier c = copier_make(t, b, tick);
  for (uint32_t i = 0; i < t->n; i++)
    c.map[t->loop->body->args[i + 1]->id] = s->in[i];
  for (uint32_t i = 0; i < t->n; i++)
    s->slots[i] = slot_set(t, b, s->slots[i], tick, copy(&c, t->taken[i]));
  for (uint32_t i = 0; i < t->n; i++)
    s->in[i] = copy(&c, yield_of(t)->in[i]);
  for (uint32_t i = 0; i < t->n_results; i++)
    s->results[i] = copy(&c, t->results[i]);
  lm_free(c.map);
}

// The operations behind the stages, both passes.
static void last(ticks *t, lm_builder *b, lm_value *tick, state *s) {
  segment x;
  uint32_t n = t->loop->n_out - t->n;
  lm_value **wrt = LM_NEW_N(t->m->arena, lm_value *, t->n_results + 1);
  segment_open(&x, t, tick);
  for (uint32_t i = 0; i < t->n_results; i++)
    x.c.map[t->results[i]->id] = wrt[i] = argument(&x, s->results[i]);
  for (uint32_t i = 0; i < n; i++)
    s->stacked[i] = copy(&x.c, yield_of(t)->in[t->n + i]);
  lm_value *loss = yield_of(t)->in[t->n + t->loss];
  segment_reverse(&x, &loss, &t->seed, 1, wrt, t->n_results, s->results_back);
  segment_close(&x, b, s->results_back, t->n_results);
}

// The backward pass of the stages; gives the cotangents of their operands.
static void backward(ticks *t, lm_builder *b, lm_value *tick, state *s, lm_value **out) {
  segment x;
  uint32_t n = 0, most = t->n + t->n_results;
  lm_value **of = LM_NEW_N(t->m->arena, lm_value *, most);
  lm_value **by = LM_NEW_N(t->m->arena, lm_value *, most);
  lm_value **wrt = LM_NEW_N(t->m->arena, lm_value *, t->n);
  segment_open(&x, t, tick);
  for (uint32_t i = 0; i < t->n; i++)
    x.c.map[t->taken[i]->id] = wrt[i] = argument(&x, slot_get(t, b, s->slots[i], tick));
  for (uint32_t i = 0; i < t->n + t->n_results; i++) {
    lm_value *v = i < t->n ? t->sent[i] : t->results[i - t->n];
    lm_value *cotangent = i < t->n ? s->back[i] : s->results_back[i - t->n];
    copy(&x.c, v);
    if (!cotangent)
      continue;
    of[n] = v;
    by[n++] = argument(&x, cotangent);
  }
  segment_reverse(&x, of, by, n, wrt, t->n, out);
  segment_close(&x, b, out, t->n);
}

// The backward pass of the operations in front of the stages.
static void first(ticks *t, lm_builder *b, lm_value *tick, lm_value *const *cotangent) {
  segment x;
  lm_value **of = LM_NEW_N(t->m->arena, lm_value *, t->n);
  lm_value **by = LM_NEW_N(t->m->arena, lm_value *, t->n);
  segment_open(&x, t, tick);
  for (uint32_t i = 0; i < t->n; i++) {
    of[i] = t->taken[i]->def->in[1];
    by[i] = argument(&x, cotangent[i]);
    copy(&x.c, of[i]);
  }
  segment_reverse(&x, of, by, t->n, NULL, 0, NULL);
  segment_close(&x, b, NULL, 0);
}

// Both halves of the backward pass in tick k.
static void back(ticks *t, lm_builder *b, lm_value *k, state *s) {
  lm_module *m = t->m;
  int64_t n_ticks = t->loop->attr.imm[0];
  lm_attr along = {.mesh = (uint8_t)t->mesh}, on = along;
  lm_value **of_operand = LM_NEW_N(m->arena, lm_value *, t->n);
  lm_value **of_first = LM_NEW_N(m->arena, lm_value *, t->n);
  lm_value *rank = lm_emit(b, LM_OP_RANK, NULL, 0, &along, NULL);
  lm_value *early = lm_emit2(b, LM_OP_SUB, k, number(b, 2 * (t->stages - 1)));
  lm_value *own = lm_emit2(b, LM_OP_ADD, early, lm_emit2(b, LM_OP_MUL, rank, number(b, 2)));
  own = lm_emit_clamp(b, own, n_ticks);
  early = lm_emit_clamp(b, early, n_ticks);
  backward(t, b, own, s, of_operand);
  copier c = copier_make(t, b, own);
  lm_value *is_first = lm_emit2(b, LM_OP_EQ, rank, number(b, 0));
  on.n_imm = 1;
  on.imm[0] = -1;
  for (uint32_t i = 0; i < t->n; i++) {
    lm_value *none = lm_emit_const(b, of_operand[i]->type, 0);
    lm_value *takes = copy(&c, t->taken[i]->def->in[0]);
    lm_value *sent = lm_emit_select(b, takes, none, of_operand[i]);
    of_first[i] = lm_emit_select(b, is_first, of_operand[i], none);
    s->back[i] = lm_emit(b, LM_OP_RING_SHIFT, &sent, 1, &on, NULL);
  }
  lm_free(c.map);
  first(t, b, early, of_first);
}

// ---- the loops

static lm_value *tick_of(lm_builder *b, lm_value *i, int64_t from) {
  return from ? lm_emit2(b, LM_OP_ADD, i, number(b, from)) : i;
}

// n values as carries of a loop: `at` continues behind them.
static void carries_set(lm_value **carry, uint32_t *at, lm_value *const *of, uint32_t n) {
  for (uint32_t i = 0; i < n; i++)
    carry[(*at)++] = of[i];
}

static void carries_get(lm_value **of, lm_value *const *carry, uint32_t *at, uint32_t n) {
  for (uint32_t i = 0; i < n; i++)
    of[i] = carry[(*at)++];
}

enum {
  FORWARD = 1, // carries of a loop: those of the forward pass and its slots
  BACKWARD = 2,
};

static uint32_t state_put(const ticks *t, const state *s, int halves, lm_value **carry) {
  uint32_t n = 0;
  if (halves & FORWARD) {
    carries_set(carry, &n, s->in, t->n);
    carries_set(carry, &n, s->slots, t->n);
  }
  if (halves & BACKWARD)
    carries_set(carry, &n, s->back, t->n);
  return n;
}

static void state_take(const ticks *t, state *s, int halves, lm_value *const *carry) {
  uint32_t n = 0;
  if (halves & FORWARD) {
    carries_get(s->in, carry, &n, t->n);
    carries_get(s->slots, carry, &n, t->n);
  }
  if (halves & BACKWARD)
    carries_get(s->back, carry, &n, t->n);
}

// `count` ticks from `from` on.
static lm_op *ticks_run(ticks *t, lm_builder *b, state *s, int halves, int64_t from,
                        int64_t count) {
  lm_value **carry = LM_NEW_N(t->m->arena, lm_value *, 3 * t->n);
  uint32_t n = state_put(t, s, halves, carry);
  bool both = halves == (FORWARD | BACKWARD);
  lm_axis axis = both ? lm_axis_add(t->m, LM_SYM(t->m->ctx, "micro"), count, 0) : 0;
  lm_op *loop = lm_loop_begin(b, count, axis, carry, n);
  state_take(t, s, halves, loop->body->args + 1);
  lm_value *tick = tick_of(b, loop->body->args[0], from);
  for (uint32_t i = 0; i < t->n_results; i++)
    s->results_back[i] = NULL;
  if (halves & FORWARD)
    forward(t, b, tick, s);
  if (both)
    last(t, b, tick, s);
  if (halves & BACKWARD)
    back(t, b, tick, s);
  state_put(t, s, halves, carry);
  lm_loop_end(b, loop, carry, n, s->stacked, both ? t->loop->n_out - t->n : 0);
  state_take(t, s, halves, loop->out);
  return loop;
}

static state state_make(const ticks *t, lm_builder *b) {
  lm_arena *a = t->m->arena;
  state s = {.in = LM_NEW_N(a, lm_value *, t->n),
             .back = LM_NEW_N(a, lm_value *, t->n),
             .slots = LM_NEW_N(a, lm_value *, t->n),
             .results = LM_NEW_N(a, lm_value *, t->n_results + 1),
             .results_back = LM_NEW_N(a, lm_value *, t->n_results + 1),
             .stacked = LM_NEW_N(a, lm_value *, t->loop->n_out + 1)};
  for (uint32_t i = 0; i < t->n; i++) {
    lm_type x = t->loop->in[i]->type;
    s.in[i] = t->loop->in[i];
    s.back[i] = lm_emit_const(b, x, 0);
    s.slots[i] = lm_emit_const(b, slots_type(t, x), 0);
  }
  return s;
}

// The results of the function are sums over ticks: now over those that complete a micro-batch.
static void sums_replace(ticks *t, const lm_op *steady, lm_builder *b) {
  lm_value **map = lm_calloc((size_t)t->n_values + 1, sizeof *map);
  for (lm_op *op = t->loop->next, *next; op; op = next) {
    next = op->next;
    if (op->code != LM_OP_SUM || op->in[0]->def != t->loop)
      continue;
    lm_value *all = steady->out[2 * t->n + op->in[0]->index];
    map[op->out[0]->id] = lm_emit_reduce(b, LM_OP_SUM, all, &steady->attr.axes[0], 1);
    lm_op_remove(op);
  }
  lm_op_remove(t->loop);
  lm_func_substitute(t->f, map, t->n_values);
  lm_free(map);
}

// ---- the function

static lm_op *loop_find(const lm_func *f, int mesh) {
  for (lm_op *op = f->body->first; op; op = op->next) {
    const lm_op *yield = op->code == LM_OP_LOOP ? op->body->last : NULL;
    const lm_op *sends = yield && op->n_in ? yield->in[0]->def : NULL;
    if (sends && sends->code == LM_OP_RING_SHIFT && sends->attr.mesh == mesh)
      return op;
  }
  return NULL;
}

static bool ticks_find(ticks *t, lm_func *f) {
  const lm_mesh *mesh = &f->module->mesh;
  *t = (ticks){
      .m = f->module,
      .f = f,
  };
  for (int k = 1; k <= mesh->n && !t->mesh; k++)
    t->mesh = mesh->axis[k - 1].schedule == LM_SCHEDULE_ONE_F_ONE_B ? k : 0;
  t->loop = t->mesh ? loop_find(f, t->mesh) : NULL;
  if (!t->loop)
    return false;
  t->stages = mesh->axis[t->mesh - 1].size;
  t->n = t->loop->n_in;
  t->n_values = t->m->n_values;
  const lm_op *sum = f->body->last->in[0]->def;
  if (!sum || sum->code != LM_OP_SUM || sum->in[0]->def != t->loop)
    return false;
  t->loss = sum->in[0]->index - t->n;
  return true;
}

static void parts_find(ticks *t) {
  lm_arena *a = t->m->arena;
  int64_t slots = 2 * t->stages - 1, n_ticks = t->loop->attr.imm[0];
  t->sent = LM_NEW_N(a, lm_value *, t->n);
  t->taken = LM_NEW_N(a, lm_value *, t->n);
  t->late = LM_NEW_N(a, uint8_t, t->n_values + 1);
  t->of_stage = LM_NEW_N(a, uint8_t, t->n_values + 1);
  for (uint32_t i = 0; i < t->n; i++) {
    t->sent[i] = yield_of(t)->in[i]->def->in[0];
    t->taken[i] = taken_find(t, t->loop->body->args[i + 1]);
  }
  t->slot = lm_axis_add(t->m, LM_SYM(t->m->ctx, "slot"), slots < n_ticks ? slots : n_ticks, 0);
  late_find(t);
  results_find(t);
}

bool lm_gradient_ticks(lm_func *f, const lm_grad_methods *methods, lm_gradient_seed *seed,
                       bool sums) {
  ticks t;
  if (!ticks_find(&t, f))
    return false;
  t.methods = methods;
  t.sums = sums;
  t.active = lm_activity_of_func(f);
  parts_find(&t);
  lm_builder b = {
      .m = t.m,
      .at = f->body,
      .before = t.loop,
      .loc = t.loop->loc,
  };
  int64_t more = t.stages - 1, n = t.loop->attr.imm[0] - more;
  t.seed = seed(&b, f->body->last->in[0]);
  state s = state_make(&t, &b);
  ticks_run(&t, &b, &s, FORWARD, 0, more);
  const lm_op *steady = ticks_run(&t, &b, &s, FORWARD | BACKWARD, more, n);
  ticks_run(&t, &b, &s, BACKWARD, more + n, more);
  sums_replace(&t, steady, &b);
  lm_free(t.active);
  return true;
}
