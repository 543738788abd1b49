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
#include "compiler/passes/grad_ticks.h"
#include <string.h>

static lm_type scalar_int(void) {
  return lm_type_make(LM_INT, NULL, 0);
}

static lm_value *number(lm_builder *b, int64_t n) {
  return lm_emit_const(b, scalar_int(), (double)n);
}

static const lm_op *yield_of(const lm_ticks *t) {
  return t->loop->body->last;
}

// ---- the parts of the loop's body

static bool reads_late(const lm_ticks *t, const lm_region *r) {
  for (const lm_op *op = r->first; op; op = op->next) {
    for (uint32_t i = 0; i < op->n_in; i++)
      if (t->late[op->in[i]->id])
        return true;
    if (op->body && reads_late(t, op->body))
      return true;
  }
  return false;
}

static void late_find(lm_ticks *t) {
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

static void stage_mark(lm_ticks *t, const lm_value *v);

static void captured_mark(lm_ticks *t, const lm_region *r) {
  for (const lm_op *op = r->first; op; op = op->next) {
    for (uint32_t i = 0; i < op->n_in; i++)
      stage_mark(t, op->in[i]);
    if (op->body)
      captured_mark(t, op->body);
  }
}

static void stage_mark(lm_ticks *t, const lm_value *v) {
  if (v->region != t->loop->body || t->of_stage[v->id])
    return;
  t->of_stage[v->id] = 1;
  for (uint32_t i = 0; v->def && i < v->def->n_in; i++)
    stage_mark(t, v->def->in[i]);
  if (v->def && v->def->body)
    captured_mark(t, v->def->body);
}

static void result_note(lm_ticks *t, lm_value *v) {
  if (v->region != t->loop->body || !t->late[v->id] || !t->of_stage[v->id])
    return;
  for (uint32_t i = 0; i < t->n_results; i++)
    if (t->results[i] == v)
      return;
  LM_PUSH(t->m->arena, t->results, t->n_results, t->cap_results) = v;
}

static void results_note(lm_ticks *t, const lm_op *op) {
  for (uint32_t i = 0; i < op->n_in; i++)
    result_note(t, op->in[i]);
  for (const lm_op *in = op->body ? op->body->first : NULL; in; in = in->next)
    results_note(t, in);
}

// What operations behind the stage read of it, and the results of a tick.
static void results_find(lm_ticks *t) {
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

static lm_value *taken_find(const lm_ticks *t, const lm_value *carry) {
  for (lm_op *op = t->loop->body->first; op; op = op->next)
    if (op->code == LM_OP_SELECT && op->in[2] == carry)
      return op->out[0];
  LM_BUG("a carry of a pipeline is not selected");
}

// ---- slots

static lm_type slots_type(const lm_ticks *t, lm_type x) {
  lm_axis axes[LM_RANK] = {t->slot};
  memcpy(axes + 1, x.axis, x.rank * sizeof *axes);
  return lm_type_make((lm_dtype)x.dtype, axes, x.rank + 1);
}

static lm_value *slot_of(const lm_ticks *t, lm_builder *b, lm_value *tick) {
  return lm_emit2(b, LM_OP_MOD, tick, number(b, lm_axis_size(t->m, t->slot)));
}

static lm_value *slot_set(const lm_ticks *t, lm_builder *b, lm_value *slots, lm_value *tick,
                          lm_value *x) {
  lm_type numbers = lm_type_make(LM_INT, &t->slot, 1);
  lm_value *number = lm_emit(b, LM_OP_IOTA, NULL, 0, NULL, &numbers);
  lm_value *at = lm_emit_expand(b, slot_of(t, b, tick), numbers);
  lm_type mask = slots->type;
  mask.dtype = LM_BOOL;
  lm_value *own = lm_emit_expand(b, lm_emit2(b, LM_OP_EQ, number, at), mask);
  return lm_emit_select(b, own, lm_emit_expand(b, x, slots->type), slots);
}

static lm_value *slot_get(const lm_ticks *t, lm_builder *b, lm_value *slots, lm_value *tick) {
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
static void forward(lm_ticks *t, lm_builder *b, lm_value *tick, state *s) {
  lm_copier c = lm_copier_make(t, b, tick);
  for (uint32_t i = 0; i < t->n; i++)
    c.map[t->loop->body->args[i + 1]->id] = s->in[i];
  for (uint32_t i = 0; i < t->n; i++)
    s->slots[i] = slot_set(t, b, s->slots[i], tick, lm_copier_copy(&c, t->taken[i]));
  for (uint32_t i = 0; i < t->n; i++)
    s->in[i] = lm_copier_copy(&c, yield_of(t)->in[i]);
  for (uint32_t i = 0; i < t->n_results; i++)
    s->results[i] = lm_copier_copy(&c, t->results[i]);
  lm_free(c.map);
}

// The operations behind the stages, both passes.
static void last(lm_ticks *t, lm_builder *b, lm_value *tick, state *s) {
  lm_segment x;
  uint32_t n = t->loop->n_out - t->n;
  lm_value **wrt = LM_NEW_N(t->m->arena, lm_value *, t->n_results + 1);
  lm_segment_open(&x, t, tick);
  for (uint32_t i = 0; i < t->n_results; i++)
    x.c.map[t->results[i]->id] = wrt[i] = lm_segment_argument(&x, s->results[i]);
  for (uint32_t i = 0; i < n; i++)
    s->stacked[i] = lm_copier_copy(&x.c, yield_of(t)->in[t->n + i]);
  lm_value *loss = yield_of(t)->in[t->n + t->loss];
  lm_segment_reverse(&x, &loss, &t->seed, 1, wrt, t->n_results, s->results_back);
  lm_segment_close(&x, b, s->results_back, t->n_results);
}

// The backward pass of the stages; gives the cotangents of their operands.
static void backward(lm_ticks *t, lm_builder *b, lm_value *tick, state *s, lm_value **out) {
  lm_segment x;
  uint32_t n = 0, most = t->n + t->n_results;
  lm_value **of = LM_NEW_N(t->m->arena, lm_value *, most);
  lm_value **by = LM_NEW_N(t->m->arena, lm_value *, most);
  lm_value **wrt = LM_NEW_N(t->m->arena, lm_value *, t->n);
  lm_segment_open(&x, t, tick);
  x.c.again = true;
  for (uint32_t i = 0; i < t->n; i++)
    x.c.map[t->taken[i]->id] = wrt[i] = lm_segment_argument(&x, slot_get(t, b, s->slots[i], tick));
  for (uint32_t i = 0; i < t->n + t->n_results; i++) {
    lm_value *v = i < t->n ? t->sent[i] : t->results[i - t->n];
    lm_value *cotangent = i < t->n ? s->back[i] : s->results_back[i - t->n];
    lm_copier_copy(&x.c, v);
    if (!cotangent)
      continue;
    of[n] = v;
    by[n++] = lm_segment_argument(&x, cotangent);
  }
  lm_segment_reverse(&x, of, by, n, wrt, t->n, out);
  lm_segment_close(&x, b, out, t->n);
}

// The backward pass of the operations in front of the stages.
static void first(lm_ticks *t, lm_builder *b, lm_value *tick, lm_value *const *cotangent) {
  lm_segment x;
  lm_value **of = LM_NEW_N(t->m->arena, lm_value *, t->n);
  lm_value **by = LM_NEW_N(t->m->arena, lm_value *, t->n);
  lm_segment_open(&x, t, tick);
  for (uint32_t i = 0; i < t->n; i++) {
    of[i] = t->taken[i]->def->in[1];
    by[i] = lm_segment_argument(&x, cotangent[i]);
    lm_copier_copy(&x.c, of[i]);
  }
  lm_segment_reverse(&x, of, by, t->n, NULL, 0, NULL);
  lm_segment_close(&x, b, NULL, 0);
}

// Both halves of the backward pass in tick k.
static void back(lm_ticks *t, lm_builder *b, lm_value *k, state *s) {
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
  lm_copier c = lm_copier_make(t, b, own);
  lm_value *is_first = lm_emit2(b, LM_OP_EQ, rank, number(b, 0));
  on.n_imm = 1;
  on.imm[0] = -1;
  for (uint32_t i = 0; i < t->n; i++) {
    lm_value *none = lm_emit_const(b, of_operand[i]->type, 0);
    lm_value *takes = lm_copier_copy(&c, t->taken[i]->def->in[0]);
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

static uint32_t state_put(const lm_ticks *t, const state *s, int halves, lm_value **carry) {
  uint32_t n = 0;
  if (halves & FORWARD) {
    carries_set(carry, &n, s->in, t->n);
    carries_set(carry, &n, s->slots, t->n);
  }
  if (halves & BACKWARD)
    carries_set(carry, &n, s->back, t->n);
  return n;
}

static void state_take(const lm_ticks *t, state *s, int halves, lm_value *const *carry) {
  uint32_t n = 0;
  if (halves & FORWARD) {
    carries_get(s->in, carry, &n, t->n);
    carries_get(s->slots, carry, &n, t->n);
  }
  if (halves & BACKWARD)
    carries_get(s->back, carry, &n, t->n);
}

// `count` ticks from `from` on.
static lm_op *ticks_run(lm_ticks *t, lm_builder *b, state *s, int halves, int64_t from,
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

static state state_make(const lm_ticks *t, lm_builder *b) {
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
static void sums_replace(lm_ticks *t, const lm_op *steady, lm_builder *b) {
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

lm_op *lm_gradient_ticks_loop(const lm_func *f, int mesh) {
  for (lm_op *op = f->body->first; op; op = op->next) {
    const lm_op *yield = op->code == LM_OP_LOOP ? op->body->last : NULL;
    const lm_op *sends = yield && op->n_in ? yield->in[0]->def : NULL;
    if (sends && sends->code == LM_OP_RING_SHIFT && sends->attr.mesh == mesh)
      return op;
  }
  return NULL;
}

static bool ticks_find(lm_ticks *t, lm_func *f) {
  const lm_mesh *mesh = &f->module->mesh;
  *t = (lm_ticks){
      .m = f->module,
      .f = f,
  };
  for (int k = 1; k <= mesh->n && !t->mesh; k++)
    t->mesh = mesh->axis[k - 1].schedule == LM_SCHEDULE_ONE_F_ONE_B ? k : 0;
  t->loop = t->mesh ? lm_gradient_ticks_loop(f, t->mesh) : NULL;
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

static void parts_find(lm_ticks *t) {
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
  lm_ticks t;
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
