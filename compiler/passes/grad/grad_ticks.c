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
#include "compiler/passes/grad/grad_ticks.h"
#include <string.h>

static lm_type scalar_int(void) {
  return lm_type_make(LM_INT, NULL, 0);
}

static lm_value *number(lm_builder *b, int64_t n) {
  return lm_emit_const(b, scalar_int(), (double)n);
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
  lm_attr over = {
      .axes = {t->slot},
      .n_axes = 1,
  };
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
  // With several stages on a rank: the first stage's operand in this tick, and its cotangent in the
  // tick before.
  lm_value **early, **late;
} state;

// A tick: number `at`, which is iteration i of a loop that begins at tick `base`, or a multiple of
// the period later.
typedef struct tick {
  lm_value *at, *i;
  int64_t base;
} tick;

static int64_t modulo(int64_t x, int64_t n) {
  return (x % n + n) % n;
}

// Which of its stages the rank computes in the tick. Of backward computation w, from 0, that is
// chunks - 1 - (w mod period) / stages.
static lm_value *chunk_of(const lm_ticks *t, lm_builder *b, const tick *k, bool backward) {
  int64_t n = lm_ticks_period(t), first = backward ? t->stages - 3 - k->base : k->base;
  lm_attr a = {
      .mesh = (uint8_t)t->mesh,
      .n_imm = 5,
  };
  a.imm[0] = modulo(first, n);
  a.imm[1] = backward ? n - 1 : 1;
  a.imm[2] = n - 1;
  a.imm[3] = n;
  a.imm[4] = t->stages;
  return lm_emit(b, LM_OP_CYCLE, (lm_value **)&k->i, 1, &a, NULL);
}

// The forward pass of the stages.
static void forward(lm_ticks *t, lm_builder *b, const tick *k, state *s) {
  lm_copier c = lm_copier_make(t, b, k->at);
  for (uint32_t i = 0; i < t->n; i++)
    c.map[t->loop->body->args[i + 1]->id] = s->in[i];
  for (uint32_t i = 0; i < t->n && t->cycle; i++)
    c.map[t->taken[i]->def->in[1]->id] = s->early[i];
  if (t->cycle)
    c.map[t->cycle->id] = chunk_of(t, b, k, false);
  for (uint32_t i = 0; i < t->n; i++) {
    lm_value *x = lm_copier_copy(&c, t->taken[i]);
    s->slots[i] = s->slots[i] ? slot_set(t, b, s->slots[i], k->at, x) : NULL;
  }
  for (uint32_t i = 0; i < t->n; i++)
    s->in[i] = lm_copier_copy(&c, lm_ticks_yield(t)->in[i]);
  for (uint32_t i = 0; i < t->n_results; i++)
    s->results[i] = lm_copier_copy(&c, t->results[i]);
  if (!t->cycle)
    lm_copier_effects(&c, false);
  lm_free(c.map);
}

// Computes the operands that the first stage reads in tick k.
static void operands(lm_ticks *t, lm_builder *b, lm_value *k, state *s) {
  lm_copier c = lm_copier_make(t, b, k);
  for (uint32_t i = 0; i < t->n; i++)
    s->early[i] = lm_copier_copy(&c, t->taken[i]->def->in[1]);
  lm_copier_effects(&c, false);
  lm_free(c.map);
}

// The operations behind the stages.
static void last_forward(lm_ticks *t, lm_builder *b, lm_value *k, state *s) {
  lm_copier c = lm_copier_make(t, b, k);
  for (uint32_t i = 0; i < t->n_results; i++)
    c.map[t->results[i]->id] = s->results[i];
  for (uint32_t i = 0; i < t->loop->n_out - t->n; i++)
    s->stacked[i] = lm_copier_copy(&c, lm_ticks_yield(t)->in[t->n + i]);
  lm_copier_effects(&c, true);
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
    s->stacked[i] = lm_copier_copy(&x.c, lm_ticks_yield(t)->in[t->n + i]);
  lm_copier_effects(&x.c, true);
  lm_value *loss = lm_ticks_yield(t)->in[t->n + t->loss];
  lm_segment_reverse(&x, &loss, &t->seed, 1, wrt, t->n_results, s->results_back);
  lm_segment_close(&x, b, s->results_back, t->n_results);
}

// The backward pass of the stages; gives the cotangents of their operands.
static void backward(lm_ticks *t, lm_builder *b, lm_value *tick, lm_value *chunk, state *s,
                     lm_value **out) {
  lm_segment x;
  uint32_t n = 0, most = t->n + t->n_results;
  lm_value **of = LM_NEW_N(t->m->arena, lm_value *, most);
  lm_value **by = LM_NEW_N(t->m->arena, lm_value *, most);
  lm_value **wrt = LM_NEW_N(t->m->arena, lm_value *, t->n);
  lm_segment_open(&x, t, tick);
  x.c.again = true;
  if (t->cycle)
    x.c.map[t->cycle->id] = lm_segment_argument(&x, chunk);
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

static lm_value *arith(lm_builder *b, lm_opcode code, lm_value *x, int64_t n) {
  return lm_emit2(b, code, x, number(b, n));
}

// The tick in which this rank has computed the stage whose backward pass it computes in tick k.
static lm_value *tick_of_forward(const lm_ticks *t, lm_builder *b, lm_value *k, lm_value *rank) {
  int64_t stages = t->stages, n = lm_ticks_period(t);
  if (!t->cycle) {
    lm_value *early = arith(b, LM_OP_SUB, k, 2 * (stages - 1));
    return lm_emit2(b, LM_OP_ADD, early, arith(b, LM_OP_MUL, rank, 2));
  }
  lm_value *w = lm_emit2(b, LM_OP_ADD, arith(b, LM_OP_SUB, k, n + stages - 2), rank);
  lm_value *chunk = arith(b, LM_OP_IDIV, arith(b, LM_OP_MOD, w, n), stages);
  lm_value *less = arith(b, LM_OP_MUL, chunk, 2 * stages);
  lm_value *at = lm_emit2(b, LM_OP_SUB, arith(b, LM_OP_ADD, w, n - stages), less);
  return lm_emit2(b, LM_OP_ADD, at, rank);
}

// The backward pass of the operations in front of the stages, of the tick `before` ticks ago.
static void first_before(lm_ticks *t, lm_builder *b, lm_value *k, int64_t before,
                         lm_value *const *cotangent) {
  lm_value *at = arith(b, LM_OP_SUB, k, before);
  first(t, b, lm_emit_clamp(b, at, t->loop->attr.imm[0]), cotangent);
}

// Both halves of the backward pass in tick k. With several stages on a rank, that of the operations
// in front of the stages is one tick late.
static void back(lm_ticks *t, lm_builder *b, const tick *k, state *s) {
  lm_module *m = t->m;
  lm_attr along = {.mesh = (uint8_t)t->mesh}, on = along;
  lm_value **of_operand = LM_NEW_N(m->arena, lm_value *, t->n);
  lm_value **of_first = LM_NEW_N(m->arena, lm_value *, t->n);
  lm_value *rank = lm_emit(b, LM_OP_RANK, NULL, 0, &along, NULL);
  lm_value *own = tick_of_forward(t, b, k->at, rank);
  own = lm_emit_clamp(b, own, t->loop->attr.imm[0]);
  backward(t, b, own, t->cycle ? chunk_of(t, b, k, true) : NULL, s, of_operand);
  lm_copier c = lm_copier_make(t, b, own);
  lm_value *is_first = lm_emit2(b, LM_OP_EQ, rank, number(b, 0));
  on.n_imm = 1;
  on.imm[0] = -1;
  for (uint32_t i = 0; i < t->n; i++) {
    lm_value *none = lm_emit_const(b, of_operand[i]->type, 0);
    lm_value *takes = lm_copier_copy(&c, t->taken[i]->def->in[0]);
    lm_value *sent = lm_emit_select(b, takes, none, of_operand[i]);
    lm_value *starts = t->cycle ? lm_emit2(b, LM_OP_AND, is_first, takes) : is_first;
    of_first[i] = lm_emit_select(b, starts, of_operand[i], none);
    s->back[i] = lm_emit(b, LM_OP_RING_SHIFT, &sent, 1, &on, NULL);
  }
  lm_free(c.map);
  if (!t->cycle)
    first_before(t, b, k->at, 2 * (t->stages - 1), of_first);
  for (uint32_t i = 0; i < t->n && t->cycle; i++)
    s->late[i] = of_first[i];
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
  LAST = 4,  // the operations behind the stages
  EARLY = 8, // with several stages on a rank, those in front of them, for the next tick
  LATE = 16, // and their backward pass
};

static uint32_t state_put(const lm_ticks *t, const state *s, int parts, lm_value **carry) {
  uint32_t n = 0;
  if (parts & FORWARD) {
    carries_set(carry, &n, s->in, t->n);
    carries_set(carry, &n, s->slots, s->slots[0] ? t->n : 0);
    carries_set(carry, &n, s->early, t->cycle ? t->n : 0);
  }
  if (parts & BACKWARD) {
    carries_set(carry, &n, s->back, t->n);
    carries_set(carry, &n, s->late, t->cycle ? t->n : 0);
  }
  return n;
}

static void state_take(const lm_ticks *t, state *s, int parts, lm_value *const *carry) {
  uint32_t n = 0;
  if (parts & FORWARD) {
    carries_get(s->in, carry, &n, t->n);
    carries_get(s->slots, carry, &n, s->slots[0] ? t->n : 0);
    carries_get(s->early, carry, &n, t->cycle ? t->n : 0);
  }
  if (parts & BACKWARD) {
    carries_get(s->back, carry, &n, t->n);
    carries_get(s->late, carry, &n, t->cycle ? t->n : 0);
  }
}

static void tick_run(lm_ticks *t, lm_builder *b, const tick *k, int parts, state *s) {
  for (uint32_t i = 0; i < t->n_results; i++)
    s->results_back[i] = NULL;
  if (parts & FORWARD)
    forward(t, b, k, s);
  if (parts & EARLY && t->cycle)
    operands(t, b, arith(b, LM_OP_ADD, k->at, 1), s);
  if (parts & LAST)
    (parts & BACKWARD ? last : last_forward)(t, b, k->at, s);
  if (parts & LATE && t->cycle)
    first_before(t, b, k->at, 2 * lm_ticks_period(t) - 1, s->late);
  if (parts & BACKWARD)
    back(t, b, k, s);
}

// `count` ticks from `base` on, and `later` ticks later if that is not NULL.
static lm_op *ticks_run(lm_ticks *t, lm_builder *b, state *s, int parts, int64_t base,
                        lm_value *later, int64_t count) {
  lm_value **carry = LM_NEW_N(t->m->arena, lm_value *, 5 * t->n);
  uint32_t n = state_put(t, s, parts, carry);
  lm_axis axis = parts & LAST ? lm_axis_add(t->m, LM_SYM(t->m->ctx, "micro"), count, 0) : 0;
  lm_op *loop = lm_loop_begin(b, count, axis, carry, n);
  state_take(t, s, parts, loop->body->args + 1);
  tick k = {
      .at = tick_of(b, loop->body->args[0], base),
      .i = loop->body->args[0],
      .base = base,
  };
  k.at = later ? lm_emit2(b, LM_OP_ADD, k.at, later) : k.at;
  tick_run(t, b, &k, parts, s);
  state_put(t, s, parts, carry);
  lm_loop_end(b, loop, carry, n, s->stacked, parts & LAST ? t->loop->n_out - t->n : 0);
  state_take(t, s, parts, loop->out);
  for (uint32_t i = 0; parts & LAST && i < t->loop->n_out - t->n; i++)
    s->stacked[i] = loop->out[n + i];
  return loop;
}

// The sums over the leading axis of what a loop has stacked.
static void sums_add(const lm_ticks *t, lm_builder *b, lm_value *const *stacked, lm_value **sums) {
  for (uint32_t i = 0; i < t->loop->n_out - t->n; i++) {
    lm_value *sum = lm_emit_reduce(b, LM_OP_SUM, stacked[i], &stacked[i]->type.axis[0], 1);
    sums[i] = sums[i] ? lm_emit2(b, LM_OP_ADD, sums[i], sum) : sum;
  }
}

// With several stages on a rank: the last one of all is computed in the first ticks of each period,
// for as many micro-batches as there are ranks.
static void periods_run(lm_ticks *t, lm_builder *b, state *s, int parts, lm_value **sums) {
  int64_t period = lm_ticks_period(t), ticks = t->loop->attr.imm[0], base = period - 1;
  int64_t more = (ticks - t->stages + 1) / period - 1;
  uint32_t n_sums = t->loop->n_out - t->n;
  lm_value **own = LM_NEW_N(t->m->arena, lm_value *, n_sums + 1);
  lm_value **carry = LM_NEW_N(t->m->arena, lm_value *, 5 * t->n);
  int all = parts | LAST | EARLY | (parts & BACKWARD ? LATE : 0);
  ticks_run(t, b, s, all, base, NULL, t->stages);
  sums_add(t, b, s->stacked, sums);
  if (!more)
    return;
  uint32_t n = state_put(t, s, parts, carry);
  lm_axis axis = lm_axis_add(t->m, LM_SYM(t->m->ctx, "micro"), more, 0);
  lm_op *loop = lm_loop_begin(b, more, axis, carry, n);
  state_take(t, s, parts, loop->body->args + 1);
  lm_value *later = arith(b, LM_OP_MUL, loop->body->args[0], period);
  ticks_run(t, b, s, parts, base + t->stages, later, period - t->stages);
  ticks_run(t, b, s, all, base + period, later, t->stages);
  sums_add(t, b, s->stacked, own);
  state_put(t, s, parts, carry);
  lm_loop_end(b, loop, carry, n, own, n_sums);
  state_take(t, s, parts, loop->out);
  sums_add(t, b, loop->out + n, sums);
}

// gradient: with the cotangents, and the operands that they need.
static state state_make(lm_ticks *t, lm_builder *b, bool gradient) {
  lm_arena *a = t->m->arena;
  state s = {
      .in = LM_NEW_N(a, lm_value *, t->n),
      .back = LM_NEW_N(a, lm_value *, t->n),
      .slots = LM_NEW_N(a, lm_value *, t->n),
      .results = LM_NEW_N(a, lm_value *, t->n_results + 1),
      .results_back = LM_NEW_N(a, lm_value *, t->n_results + 1),
      .stacked = LM_NEW_N(a, lm_value *, t->loop->n_out + 1),
      .early = LM_NEW_N(a, lm_value *, t->n),
      .late = LM_NEW_N(a, lm_value *, t->n),
  };
  for (uint32_t i = 0; i < t->n; i++) {
    lm_type x = t->loop->in[i]->type;
    s.in[i] = t->loop->in[i];
    if (gradient) {
      s.back[i] = s.late[i] = lm_emit_const(b, x, 0);
      s.slots[i] = lm_emit_const(b, slots_type(t, x), 0);
    }
  }
  if (t->cycle)
    operands(t, b, number(b, 0), &s);
  return s;
}

// The results of the function are sums over ticks: now over those that complete a micro-batch.
static void sums_replace(lm_ticks *t, lm_value *const *sums) {
  lm_value **map = lm_calloc((size_t)t->n_values + 1, sizeof *map);
  for (lm_op *op = t->loop->next, *next; op; op = next) {
    next = op->next;
    if (op->code != LM_OP_SUM || op->in[0]->def != t->loop)
      continue;
    map[op->out[0]->id] = sums[op->in[0]->index - t->n];
    lm_op_remove(op);
  }
  lm_op_remove(t->loop);
  lm_func_substitute(t->f, map, t->n_values);
  lm_free(map);
}

// ---- the function

static lm_builder builder_of(const lm_ticks *t) {
  return (lm_builder){
      .m = t->m,
      .at = t->f->body,
      .before = t->loop,
      .loc = t->loop->loc,
  };
}

static void stages_run(lm_ticks *t, lm_builder *b, state *s, lm_value **sums) {
  int64_t more = t->stages - 1, n = t->loop->attr.imm[0] - more;
  ticks_run(t, b, s, FORWARD, 0, NULL, more);
  ticks_run(t, b, s, FORWARD | LAST | BACKWARD, more, NULL, n);
  ticks_run(t, b, s, BACKWARD, more + n, NULL, more);
  sums_add(t, b, s->stacked, sums);
}

// The last backward pass of the operations in front of the stages follows that of the stages.
static void chunks_run(lm_ticks *t, lm_builder *b, state *s, lm_value **sums) {
  int64_t period = lm_ticks_period(t), ticks = t->loop->attr.imm[0], end = ticks + period - 1;
  ticks_run(t, b, s, FORWARD | EARLY, 0, NULL, period - 1);
  periods_run(t, b, s, FORWARD | BACKWARD, sums);
  ticks_run(t, b, s, BACKWARD, ticks, NULL, period - t->stages);
  if (t->stages > 1)
    ticks_run(t, b, s, BACKWARD | LATE, ticks + period - t->stages, NULL, t->stages - 1);
  first_before(t, b, number(b, end), 2 * period - 1, s->late);
}

bool lm_gradient_ticks(lm_func *f, const lm_grad_methods *methods, lm_gradient_seed *seed,
                       bool sums) {
  lm_ticks t;
  if (!lm_ticks_find(&t, f))
    return false;
  t.methods = methods;
  t.sums = sums;
  t.active = lm_activity_of_func(f);
  lm_ticks_parts_find(&t);
  lm_builder b = builder_of(&t);
  t.seed = seed(&b, f->body->last->in[0]);
  state s = state_make(&t, &b, true);
  lm_value **out = LM_NEW_N(t.m->arena, lm_value *, t.loop->n_out + 1);
  (t.cycle ? chunks_run : stages_run)(&t, &b, &s, out);
  sums_replace(&t, out);
  lm_free(t.active);
  return true;
}

void lm_forward_ticks(lm_func *f) {
  lm_ticks t;
  if (!lm_ticks_find(&t, f) || t.chunks == 1)
    return;
  t.active = lm_activity_of_func(f);
  lm_ticks_parts_find(&t);
  lm_builder b = builder_of(&t);
  state s = state_make(&t, &b, false);
  lm_value **sums = LM_NEW_N(t.m->arena, lm_value *, t.loop->n_out + 1);
  ticks_run(&t, &b, &s, FORWARD | EARLY, 0, NULL, lm_ticks_period(&t) - 1);
  periods_run(&t, &b, &s, FORWARD, sums);
  sums_replace(&t, sums);
  lm_free(t.active);
}
