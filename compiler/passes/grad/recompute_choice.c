// recompute_choice.c - which stashes pass recompute recomputes, and which the plan has in the
// host's memory.
//
// The recipe's marks come first. Then stashes are chosen until `bytes` are freed: of up to 12
// candidates those of which the step takes the least additional time, of more the one with the
// least additional time per byte after the other. A candidate is recomputed or, where the recipe
// permits it, offloaded to the host's memory.
//
// In the schedules of a pipeline that have several loops over ticks, each of these loops has a
// stash of the same value, and one of them is alive at a time. They are one candidate: all are
// recomputed or offloaded, which takes the time of all of them and frees the bytes of one.
//
//   recomputed   the time of the operations that the backward loop repeats. It depends on the other
//                stashes, because they may share operations. On a GPU the cost model predicts it
//                (compiler/plan/cost.h); elsewhere it is the larger of the bytes that an operation
//                moves and its FLOPs / 16. Values marked `save` stay.
//   offloaded    what the copies take beyond the computation of the loops: in each iteration of
//                the forward loop its offloaded stashes are copied to the host, in each of the
//                backward loop from the host. Two elements of a stash stay in the device's memory,
//                so that the copies of count - 2 iterations count, and free as many elements.
#include <string.h>

#include "compiler/ir/dot.h"
#include "compiler/passes/grad/recompute.h"
#include "compiler/passes/rewrite.h"
#include "compiler/plan/cost.h"
#include "compiler/plan/planner.h"

enum {
  CANDIDATES = 12 // of which every subset is considered
};
static const double FLOPS_PER_BYTE = 16; // flops in the time that one byte is moved
static const double MOVES_PER_COPY = 60; // bytes moved in the time that one is copied to the host

// ---- the time of operations

// The time without a cost model, as the bytes that could be moved in it.
static double bytes_of(const lm_module *m, const lm_op *op) {
  double flops = 0;
  const lm_op_info *info = lm_op_info_of(op);
  bool memory = lm_op_multiplies(op) || op->code == LM_OP_GATHER ||
                op->body; // others run in the kernels of these
  double bytes = memory ? lm_op_traffic(m, op) : 0;
  for (uint32_t i = 0; i < op->n_out; i++) {
    lm_type t = info->traits & LM_T_REDUCE ? op->in[0]->type : op->out[i]->type;
    flops += info->flops * (double)lm_type_elements(m, t);
  }
  for (int i = 0; lm_op_multiplies(op) && i < op->attr.n_axes; i++)
    flops *= (double)lm_axis_size(m, op->attr.axes[i]);
  for (const lm_op *o = op->body ? op->body->first : NULL; o; o = o->next)
    flops += bytes_of(m, o) * FLOPS_PER_BYTE;
  return flops / FLOPS_PER_BYTE > bytes ? flops / FLOPS_PER_BYTE : bytes;
}

static double gemm_seconds(const lm_target *t, const lm_module *m, const lm_op *dot) {
  lm_type x = dot->in[LM_DOT_X]->type;
  lm_type w = dot->in[LM_DOT_W]->type;
  lm_cost_gemm g = {.m = 1,
                    .n = 1,
                    .k = 1,
                    .batch = 1,
                    .ab = (lm_dtype)x.dtype,
                    .bytes = lm_op_traffic(m, dot),
                    .alignment = 16};
  for (int i = 0; i < x.rank; i++) {
    double size = (double)lm_axis_size(m, x.axis[i]);
    bool summed = lm_attr_has_axis(&dot->attr, x.axis[i]);
    *(summed ? &g.k : lm_type_find(w, x.axis[i]) < 0 ? &g.m : &g.batch) *= size;
  }
  for (int i = 0; i < w.rank; i++)
    if (lm_type_find(x, w.axis[i]) < 0)
      g.n *= (double)lm_axis_size(m, w.axis[i]);
  return lm_cost_of_gemm(t, &g).seconds;
}

static double seconds_of(const lm_stashes *p, const lm_op *op) {
  const lm_target *t = p->machine;
  if (!t)
    return bytes_of(p->m, op);
  if (lm_op_multiplies(op))
    return gemm_seconds(t, p->m, op);
  if (lm_op_attends(op)) {
    lm_plan_attend a = lm_plan_attend_sizes(p->m, op);
    return lm_cost_of_attend(t, &a, lm_op_traffic(p->m, op), true).seconds;
  }
  if (op->code == LM_OP_KERNEL)
    return lm_cost_of_kernel(t, &(lm_cost_kernel){.bytes = lm_op_traffic(p->m, op)}).seconds;
  return 0;
}

typedef struct cone {
  lm_stashes *p;
  const lm_stash *s;
  bool possible;
  double seconds;
} cone;

static void cone_add(cone *c, lm_value *v);

static void cone_captured(lm_op *op, void *user) {
  cone *c = user;
  for (uint32_t i = 0; i < op->n_in; i++) {
    if (lm_recompute_is_index(op, i) && op->in[i] == c->s->loop->body->args[0])
      c->possible = false;
    else if (op->in[i]->region == c->s->loop->body)
      cone_add(c, op->in[i]);
  }
  c->possible &= !(lm_op_info_of(op)->traits & LM_T_EFFECT);
}

static void cone_add(cone *c, lm_value *v) {
  lm_stashes *p = c->p;
  if (v->region != c->s->loop->body || !v->def || p->in_cone[v->id] || lm_stash_kept(p, c->s, v))
    return;
  lm_op *op = v->def;
  for (uint32_t i = 0; i < op->n_out; i++)
    p->in_cone[op->out[i]->id] = 1;
  c->seconds += seconds_of(p, op);
  c->possible &= !(lm_op_info_of(op)->traits & LM_T_EFFECT);
  for (uint32_t i = 0; i < op->n_in; i++)
    cone_add(c, op->in[i]);
  if (op->body && !lm_op_isolated(op))
    lm_region_walk(op->body, cone_captured, c);
}

// ---- loops

// A forward loop with offloaded stashes, and the backward loop that reads them. Seconds of one
// iteration.
typedef struct pair {
  const lm_op *loop, *reader;
  double times;             // that both run in a step: iterations of the loops around them
  double forward, backward; // of what the loops compute without recomputation
  double recomputed;        // added to the backward loop
  double bytes;             // of the elements that are copied, in each direction
} pair;

typedef struct chooser {
  lm_stashes *p;
  const lm_recompute *ask;
  pair *pairs;
  uint32_t n_pairs, cap_pairs;
  uint32_t *pair_of;  // by stash
  uint32_t *next;     // by stash: that of the same value in another loop over ticks, or itself
  bool *follows;      // by stash: it is the `next` of an earlier one
  double recomputing; // seconds of a step, of the present choice
  double offloaded;   // bytes, of the present choice
} chooser;

static double trips(const lm_op *loop) {
  return (double)loop->attr.imm[0];
}

// How often an operation runs: the iterations of all loops around it.
static double times_of(const lm_op *op) {
  double times = 1;
  for (const lm_op *at = op->parent->owner; at && at->code == LM_OP_LOOP; at = at->parent->owner)
    times *= trips(at);
  return times;
}

static double region_seconds(const lm_stashes *p, const lm_region *r) {
  double seconds = 0;
  for (const lm_op *op = r->first; op; op = op->next)
    seconds += op->code == LM_OP_LOOP ? trips(op) * region_seconds(p, op->body) : seconds_of(p, op);
  return seconds;
}

static uint32_t pair_find(chooser *c, const lm_stash *s) {
  for (uint32_t i = 0; i < c->n_pairs; i++)
    if (c->pairs[i].loop == s->loop && c->pairs[i].reader == s->reader)
      return i;
  LM_PUSH(c->p->m->arena, c->pairs, c->n_pairs, c->cap_pairs) = (pair){
      .loop = s->loop,
      .reader = s->reader,
      .times = times_of(s->loop),
      .forward = region_seconds(c->p, s->loop->body),
      .backward = region_seconds(c->p, s->reader->body),
  };
  return c->n_pairs - 1;
}

static double copy_seconds(const lm_target *t, double bytes) {
  bool known = t && t->host > 0;
  return known ? lm_cost_copy(t, bytes) : bytes * MOVES_PER_COPY / (t ? lm_target_bandwidth(t) : 1);
}

// The time of a step in which the loops wait for copies.
static double waiting(const chooser *c) {
  double seconds = 0;
  for (uint32_t i = 0; i < c->n_pairs; i++) {
    const pair *x = &c->pairs[i];
    double copy = copy_seconds(c->p->machine, x->bytes), backward = x->backward + x->recomputed;
    double out = copy > x->forward ? copy - x->forward : 0;
    double in = copy > backward ? copy - backward : 0;
    seconds += x->times * (trips(x->loop) - LM_STASH_RESIDENT) * (out + in);
  }
  return seconds;
}

// ---- the present choice

static double bytes_of_stash(const chooser *c, const lm_stash *s) {
  return lm_type_traffic(c->p->m, s->stacked->type);
}

static double bytes_of_offloaded(const chooser *c, const lm_stash *s) {
  return bytes_of_stash(c, s) * (1 - LM_STASH_RESIDENT / trips(s->loop));
}

// The stash of the same value in the next loop over ticks; NULL: there is none.
static lm_stash *next_of(const chooser *c, const lm_stash *s) {
  uint32_t i = (uint32_t)(s - c->p->all);
  return c->next[i] == i ? NULL : &c->p->all[c->next[i]];
}

static void recompute_set(const chooser *c, lm_stash *s, bool on) {
  for (; s; s = next_of(c, s))
    s->recomputed = on;
}

// Adds the candidate, or removes it with times = -1.
static void offload(chooser *c, lm_stash *s, int times) {
  c->offloaded += times * bytes_of_offloaded(c, s);
  for (; s; s = next_of(c, s)) {
    s->on_host = times > 0;
    c->pairs[c->pair_of[s - c->p->all]].bytes += times * bytes_of_stash(c, s) / trips(s->loop);
  }
}

// Computes the time of all stashes that are recomputed; false if one of them cannot be.
static bool recomputing_find(chooser *c) {
  lm_stashes *p = c->p;
  bool possible = true;
  memset(p->in_cone, 0, p->m->n_values + 1);
  c->recomputing = 0;
  for (uint32_t i = 0; i < c->n_pairs; i++)
    c->pairs[i].recomputed = 0;
  for (uint32_t i = 0; i < p->n; i++) {
    lm_stash *s = &p->all[i];
    if (!s->recomputed)
      continue;
    cone x = {p, s, true, 0};
    cone_add(&x, s->v);
    pair *of = &c->pairs[c->pair_of[i]];
    c->recomputing += x.seconds * of->times * trips(s->loop);
    of->recomputed += x.seconds;
    possible &= x.possible;
  }
  return possible;
}

// s: not recomputed.
static bool recomputes_with(chooser *c, lm_stash *s) {
  recompute_set(c, s, true);
  bool possible = recomputing_find(c);
  recompute_set(c, s, false);
  return possible;
}

// ---- marks

// The marks of the operation that computes v.
static int marks_of(const lm_value *v) {
  if (lm_op_is(v, LM_OP_KERNEL))
    v = v->def->body->last->in[v->index];
  if (!v->def)
    return LM_REMAT_AUTO;
  if (lm_op_is(v, LM_OP_RENAME) && !v->def->remat && v->def->in[0]->def)
    v = v->def->in[0]; // stacked under another axis name
  return v->def->remat;
}

static lm_remat keep_of(const lm_stash *s) {
  return lm_remat_choice(marks_of(s->v));
}

// The mark of a carry is that of its next value, the mark of a stack that of its elements.
static bool is_marked_offload(const lm_stash *s) {
  const lm_value *v = s->v;
  if (!v->def && v->region == s->loop->body && v->index)
    v = s->loop->body->last->in[v->index - 1];
  while (lm_op_is(v, LM_OP_LOOP))
    v = v->def->body->last->in[v->index];
  return marks_of(v) & LM_REMAT_OFFLOAD;
}

// ---- loops over ticks

// The operation of the function's body that contains op.
static const lm_op *outermost(const lm_op *op) {
  while (op->parent->owner)
    op = op->parent->owner;
  return op;
}

static bool in_ticks(const lm_stash *s) {
  return s->reader && outermost(s->loop) != s->loop;
}

static bool is_same_value(const lm_stash *a, const lm_stash *b) {
  const lm_op *x = a->v->def, *y = b->v->def;
  bool same = x && y ? x->code == y->code && x->loc.line == y->loc.line : !x && !y;
  return same && lm_type_equal(a->stacked->type, b->stacked->type);
}

// The next stash in the same operation of the function's body, from number i on; p->n: none.
static uint32_t within(const lm_stashes *p, uint32_t i, const lm_op *around) {
  while (i < p->n && (!in_ticks(&p->all[i]) || outermost(p->all[i].loop) != around))
    i++;
  return i;
}

// Pairs the stashes of two loops over ticks, in order; does nothing if they have others.
static void ticks_pair(chooser *c, const lm_op *before, const lm_op *after, bool write) {
  const lm_stashes *p = c->p;
  uint32_t i = within(p, 0, before), k = within(p, 0, after);
  while (i < p->n && k < p->n && is_same_value(&p->all[i], &p->all[k])) {
    if (write) {
      c->next[i] = k;
      c->follows[k] = true;
    }
    i = within(p, i + 1, before);
    k = within(p, k + 1, after);
  }
  if (!write && i == p->n && k == p->n)
    ticks_pair(c, before, after, true);
}

static void next_find(chooser *c) {
  const lm_stashes *p = c->p;
  const lm_op *before = NULL;
  for (uint32_t i = 0; i < p->n; i++)
    c->next[i] = i;
  for (uint32_t i = 0; i < p->n; i++) {
    const lm_op *around = in_ticks(&p->all[i]) ? outermost(p->all[i].loop) : before;
    if (before && around != before)
      ticks_pair(c, before, around, false);
    before = around;
  }
}

static bool chooser_make(lm_stashes *p, const lm_recompute *ask, chooser *out) {
  *out = (chooser){
      .p = p,
      .ask = ask,
      .pair_of = LM_NEW_N(p->m->arena, uint32_t, p->n + 1),
      .next = LM_NEW_N(p->m->arena, uint32_t, p->n + 1),
      .follows = LM_NEW_N(p->m->arena, bool, p->n + 1),
  };
  next_find(out);
  for (uint32_t i = 0; i < p->n; i++)
    if (p->all[i].reader)
      out->pair_of[i] = pair_find(out, &p->all[i]);
  return p->n > 0;
}

void lm_stashes_choose_marked(lm_stashes *p) {
  chooser c;
  if (!chooser_make(p, NULL, &c))
    return;
  for (uint32_t i = 0; i < p->n; i++) {
    lm_stash *s = &p->all[i];
    s->recomputed = s->fits && keep_of(s) == LM_REMAT_RECOMPUTE && recomputes_with(&c, s);
    s->on_host = s->offloads && !s->recomputed && is_marked_offload(s);
  }
}

// ---- the choice

static bool is_candidate(const chooser *c, const lm_stash *s) {
  return !c->follows[s - c->p->all];
}

static bool may_recompute(chooser *c, lm_stash *s) {
  bool may_be = true;
  for (const lm_stash *x = s; x; x = next_of(c, x))
    may_be &= !x->recomputed && !x->on_host && x->fits && keep_of(x) != LM_REMAT_SAVE;
  return may_be && recomputes_with(c, s);
}

static bool may_offload(const chooser *c, const lm_stash *s) {
  bool may_be = c->ask->offloads;
  for (const lm_stash *x = s; x; x = next_of(c, x))
    may_be &= x->offloads && !x->recomputed && !x->on_host;
  return may_be && c->offloaded + bytes_of_offloaded(c, s) <= (double)c->ask->host_bytes;
}

static double seconds_now(chooser *c) {
  recomputing_find(c);
  return c->recomputing + waiting(c);
}

// The candidate, and the way to free its memory, that adds the least time per byte to the present
// choice; NULL if there is none.
static lm_stash *cheapest(chooser *c, bool *out_offloads) {
  double now = seconds_now(c), best_rate = 0;
  lm_stash *best = NULL;
  for (uint32_t i = 0; i < c->p->n; i++) {
    lm_stash *s = &c->p->all[i];
    for (int offloads = 0; offloads < 2; offloads++) {
      if (!is_candidate(c, s) || (offloads ? !may_offload(c, s) : !may_recompute(c, s)))
        continue;
      recompute_set(c, s, !offloads);
      if (offloads)
        offload(c, s, 1);
      double bytes = offloads ? bytes_of_offloaded(c, s) : bytes_of_stash(c, s);
      double rate = (seconds_now(c) - now) / bytes;
      recompute_set(c, s, false);
      if (offloads)
        offload(c, s, -1);
      if (best && rate >= best_rate)
        continue;
      best = s;
      best_rate = rate;
      *out_offloads = offloads;
    }
  }
  return best;
}

// Chooses stashes of at least `bytes`, the cheapest per byte first.
static void choose_cheapest(chooser *c, double bytes) {
  bool offloads = false;
  for (double freed = 0; freed < bytes;) {
    lm_stash *s = cheapest(c, &offloads);
    if (!s)
      break;
    freed += offloads ? bytes_of_offloaded(c, s) : bytes_of_stash(c, s);
    recompute_set(c, s, !offloads);
    if (offloads)
      offload(c, s, 1);
  }
}

// Every subset of the candidates that is recomputed, with every subset of the others that is
// offloaded.
typedef struct subsets {
  chooser *c;
  lm_stash *of[CANDIDATES];
  bool recomputes[CANDIDATES]; // the candidate can be recomputed
  int n;
  double needed; // bytes
  uint32_t recomputed, offloaded;
  bool found;
  uint32_t best_recomputed, best_offloaded;
  double least, least_copied; // of the best: seconds, bytes
} subsets;

static void subset_judge(subsets *x) {
  double seconds = x->c->recomputing + waiting(x->c), copied = x->c->offloaded;
  bool equal = x->found && seconds == x->least;
  if (x->found && (seconds > x->least || (equal && copied >= x->least_copied)))
    return;
  x->found = true;
  x->best_recomputed = x->recomputed;
  x->best_offloaded = x->offloaded;
  x->least = seconds;
  x->least_copied = copied;
}

// Moves candidates from number i on until `freed` reaches the bytes that are needed.
static void subsets_offload(subsets *x, int i, double freed) {
  if (freed >= x->needed) {
    subset_judge(x);
    return;
  }
  for (; i < x->n; i++) {
    if (!may_offload(x->c, x->of[i]))
      continue;
    offload(x->c, x->of[i], 1);
    x->offloaded |= 1u << i;
    subsets_offload(x, i + 1, freed + bytes_of_offloaded(x->c, x->of[i]));
    x->offloaded &= ~(1u << i);
    offload(x->c, x->of[i], -1);
  }
}

// Sets the candidates that are recomputed; *out: the bytes that this frees. False if one cannot be.
static bool subset_recompute(subsets *x, uint32_t subset, double *out) {
  x->recomputed = subset;
  *out = 0;
  bool possible = true;
  for (int i = 0; i < x->n; i++) {
    recompute_set(x->c, x->of[i], subset >> i & 1);
    possible &= !x->of[i]->recomputed || x->recomputes[i];
    *out += x->of[i]->recomputed ? bytes_of_stash(x->c, x->of[i]) : 0;
  }
  return possible;
}

// Chooses the subsets that free the bytes in the least time; chooses none if no subset does.
static void choose_subset(subsets *x) {
  double freed;
  for (uint32_t subset = 0; subset < 1u << x->n; subset++) {
    bool alone = !x->c->ask->offloads; // recomputation alone must free the bytes
    if (subset_recompute(x, subset, &freed) && (!alone || freed >= x->needed) &&
        recomputing_find(x->c))
      subsets_offload(x, 0, freed);
  }
  subset_recompute(x, x->found ? x->best_recomputed : 0, &freed);
  for (int i = 0; i < x->n; i++)
    if (x->best_offloaded >> i & 1)
      offload(x->c, x->of[i], 1);
}

// Chooses stashes of at least `bytes`, or all if they have fewer.
static void choose(chooser *c, double bytes) {
  subsets x = {
      .c = c,
      .needed = bytes,
  };
  int n = 0;
  for (uint32_t i = 0; i < c->p->n; i++) {
    lm_stash *s = &c->p->all[i];
    bool recomputes = is_candidate(c, s) && may_recompute(c, s);
    if (!is_candidate(c, s) || (!recomputes && !may_offload(c, s)))
      continue;
    if (n < CANDIDATES) {
      x.of[n] = s;
      x.recomputes[n] = recomputes;
    }
    n++;
  }
  x.n = n;
  if (n <= CANDIDATES)
    choose_subset(&x);
  if (!x.found)
    choose_cheapest(c, bytes);
}

// The candidates that are recomputed, and those in the host's memory, times `sign`.
static void count(const chooser *c, int sign, lm_recompute *ask) {
  for (uint32_t i = 0; i < c->p->n; i++) {
    const lm_stash *s = &c->p->all[i];
    if (!is_candidate(c, s))
      continue;
    ask->chosen += s->recomputed ? sign : 0;
    ask->offloaded += s->on_host ? sign : 0;
  }
}

void lm_stashes_choose(lm_stashes *p, lm_recompute *ask) {
  chooser c;
  if (ask->bytes <= 0 || !chooser_make(p, ask, &c))
    return;
  count(&c, -1, ask);
  for (uint32_t i = 0; i < p->n; i++)
    if (p->all[i].on_host && is_candidate(&c, &p->all[i]))
      offload(&c, &p->all[i], 1);
  choose(&c, (double)ask->bytes);
  count(&c, 1, ask);
}
