// chunk_scan.c - computes linear recurrences over outer products in chunks, by GEMMs.
//
// before: %h, %y = scan over(t) [1, 4, 0] (%s = %h0, %a.1 = %a, %u.1 = %u, %k.1 = %k, %c.1 = %c) {
//           %n = %a.1 * %s + %u.1 * %k.1 : f32[b, h, p, n]
//           %o = dot %n, %c.1 over(n)
//           yield %n, %o
//         }
// after:  t is divided into chunks of C positions, t = (chunk, i); j also counts the positions of a
//         chunk
//         %l = scan over(i) … : f32[i, chunk, b, h, j]     a[j + 1] … a[i], 0 for j > i
//         %q = scan over(i) … : f32[i, chunk, b, h]        a[0] … a[i]
//         %w = dot(%c, %k[j], n) * %l
//         %s = dot(%u[j] * %l[C - 1, j], %k[j], j)         what the chunk adds to the state
//         %h, %before = scan over(chunk) … h = %q[C - 1] * h + %s : f32[b, h, p, n]
//         %y = dot(%w, %u[j], j) + dot(%c, %before, n) * %q
//
// This is the chunked form of Mamba-2 (Dao and Gu 2024, "Transformers are SSMs", section 6) and of
// linear attention with a decay for each head. The state of size p * n is passed from chunk to
// chunk only; all else is GEMMs and elementwise operations. `grad` differentiates the result. The
// scan is recognized by chunk_match.c; chunk_decay.c computes decays, chunk_weights.c also those
// that differ along n, as in gated linear attention, and chunk_bounded.c those with a bound;
// chunk_delta.c handles the delta rule, as in DeltaNet and RWKV-7.
//
// Where all reads round the state to bf16, factors and results of GEMMs are bf16, so that tensor
// cores multiply them; the result of c and k is f32. States are passed on in f32. The
// weights and the reads are kept for the backward pass, which would compute both again, unless the
// plan must fit less memory. Weights that pass mix_kernels will compute where they are multiplied
// are not kept.
//
// Declines: a that depends on p, also on p and n, as in Mamba, where each element of the state has
// its own decay and chunks would take C times the operations of the scan; results that need the
// state itself; updates that depend on two reads, or on one in another way than linearly; lengths
// without a divisor from 16 to 64 (128 if reads round), or from 8 to 16 if chunks are short (to 64
// with the delta rule on a GPU, or with a bound of a: longer ones read fewer states and invert
// larger matrices); scans that are faster by the cost model (chunk_cost.c), unless the pass is
// forced: small states, and on a CPU short chunks; lengths that are known at run time only, as in
// prefill, where the scan stays. Cost: memory for C numbers for each position and head.
#include <string.h>
#include "compiler/ops/widen.h"
#include "compiler/passes/chunk/chunk.h"
#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"
#include "compiler/plan/planner.h"

enum {
  LEAST_POSITIONS = 8,
  SHORT = 16,     // positions of a chunk if a has n, or with the delta rule on a CPU
  DELTA = 64,     // with the delta rule on a GPU, if a lacks n
  POSITIONS = 64, // of other chunks
  LONG = 128      // of those whose reads round the state
};

// ---- states

typedef struct passed_on {
  lm_value *last, *before; // the state after the last chunk; that before each one of x->later
} passed_on;

// True if the state before the first chunk is 0 and nothing uses that after the last one.
static bool is_alone(const lm_op *scan) {
  double start;
  uint32_t *uses = lm_func_uses(scan->parent->func);
  bool alone = !uses[scan->out[0]->id] && lm_const_of(scan->in[0], &start) && start == 0;
  lm_free(uses);
  return alone;
}

static lm_axis later_of(lm_chunked *x) {
  lm_module *m = x->b->m;
  int64_t n = lm_axis_size(m, x->chunk) - 1;
  if (x->of->delta >= 0 || !is_alone(x->of->lift.scan))
    return x->chunk;
  return n ? lm_axis_add(m, m->axes[x->chunk].name, n, 0) : 0;
}

// Passes the state from chunk to chunk, h = whole * h + added.
static passed_on pass_on(lm_chunked *x, lm_value *whole, lm_value *added) {
  lm_builder b = *x->b;
  lm_op *scan = lm_scan_begin(&b, x->later, false, x->of->lift.scan->in, 1);
  lm_value *factor = lm_scan_slice(b.m, scan, whole);
  added = lm_scan_slice(b.m, scan, added);
  lm_value *before = scan->body->args[0];
  lm_value *next = lm_emit2(&b, LM_OP_MUL, before, factor);
  next = lm_emit2(&b, LM_OP_ADD, next, lm_emit_cast(&b, added, LM_F32));
  lm_value *stacked = lm_emit_cast(&b, x->later == x->chunk ? before : next, x->of->dtype);
  lm_scan_end(&b, scan, &next, &stacked, 1);
  return (passed_on){scan->out[0], scan->out[1]};
}

// The states before those of x->later, for the chunks that they follow.
static lm_value *before_earlier(lm_chunked *x, lm_value *states) {
  if (x->later == x->chunk)
    return states;
  return lm_scan_before(x->b, states, x->later, x->of->lift.scan->in[0]);
}

// The state before each chunk, where reads round it. The cotangent of `whole` is the sum of the
// state times its cotangent. A scan that computes it writes both in f32: the states of all chunks
// forward, the terms of the sum backward. So the scan that is differentiated computes neither: its
// factor has no cotangent, and `added` passes its own one, which is rounded for the GEMMs anyway,
// on to `whole` times the rounded state.
static passed_on rounded_states(lm_chunked *x, lm_value *whole, lm_value *added) {
  passed_on value = pass_on(x, whole, added);
  lm_value *state = before_earlier(x, lm_emit1(x->b, LM_OP_STOP, value.before));
  state = lm_chunk_f32(x, state);
  lm_value *term = lm_widen_to(x->b, lm_chunk_emit2(x->b, LM_OP_MUL, state, whole), state->type);
  lm_value *next = lm_emit2(x->b, LM_OP_ADD, lm_chunk_f32(x, added), term);
  next = lm_emit_cast(x->b, next, x->of->dtype);
  added = lm_emit2(x->b, LM_OP_STRAIGHT, added, next);
  passed_on back = pass_on(x, lm_emit1(x->b, LM_OP_STOP, whole), added);
  value.last = lm_emit2(x->b, LM_OP_STRAIGHT, value.last, back.last);
  value.before = lm_emit2(x->b, LM_OP_STRAIGHT, value.before, back.before);
  return value;
}

// The state before each chunk of x->later. Returns the state after the last one; NULL: is not used.
static lm_value *states(lm_chunked *x) {
  if (!x->later)
    return NULL;
  lm_value *added = lm_chunk_added(x);
  if (x->later != x->chunk && lm_axis_size(x->b->m, x->later) == 1) {
    x->states = added;
    return NULL;
  }
  lm_value *whole = lm_chunk_front(x, lm_chunk_earlier(x, x->whole), &x->later, 1);
  bool rounds = x->of->dtype != LM_F32;
  passed_on h = rounds ? rounded_states(x, whole, added) : pass_on(x, whole, added);
  x->states = h.before;
  return h.last;
}

// ---- reads

// v, which has x->later, with 0 at the first chunk if that lacks it.
static lm_value *all_chunks(lm_chunked *x, lm_value *v) {
  lm_attr a = {
      .axes = {x->later}, .n_axes = 1, .to = {x->chunk}, .n_to = 1, .imm = {1, 1}, .n_imm = 2};
  return x->later == x->chunk ? v : lm_emit(x->b, LM_OP_PAD, &v, 1, &a, NULL);
}

// The part of a read that the state before the chunk contributes.
static lm_value *earlier(lm_chunked *x, const lm_chunk_read *r) {
  lm_type n = x->of->n;
  lm_value *c = lm_chunk_of(x, r->c);
  lm_value *q = r->inclusive ? x->now : x->before;
  lm_value *y = x->of->keyed ? lm_chunk_emit2(x->b, LM_OP_MUL, lm_chunk_f32(x, c), q) : c;
  y = lm_chunk_later(x, lm_emit_cast(x->b, y, x->of->dtype));
  y = all_chunks(x, lm_chunk_dot(x, y, x->states, n, false));
  if (x->by_position)
    return lm_chunk_decayed(x, lm_chunk_f32(x, lm_chunk_merged(x, y)), q);
  y = lm_chunk_f32(x, y);
  if (x->of->keyed)
    return y;
  return lm_chunk_emit2(x->b, LM_OP_MUL, y, lm_chunk_front(x, q, &x->chunk, 1));
}

// The part of a read that the updates of the same chunk contribute.
static lm_value *recent(lm_chunked *x, int index) {
  lm_type j = lm_type_make(LM_F32, &x->j, 1);
  lm_value *y = lm_chunk_dot(x, x->of_k[index], x->u, j, false);
  y = lm_chunk_f32(x, x->by_position ? lm_chunk_merged(x, y) : y);
  if (!x->of_w[index])
    return y;
  lm_value *of_delta = lm_chunk_dot(x, x->of_w[index], x->delta, j, false);
  return lm_chunk_emit2(x->b, LM_OP_ADD, y, lm_chunk_f32(x, of_delta));
}

static lm_value *read(lm_chunked *x, int index) {
  const lm_chunk_read *r = &x->of->read[index];
  lm_type in_region = r->of->type;
  lm_value *y;
  if (index == x->of->delta && x->delta)
    y = lm_chunk_rename(x, x->delta, x->j, x->i);
  else {
    y = recent(x, index);
    y = x->states ? lm_chunk_emit2(x->b, LM_OP_ADD, y, earlier(x, r)) : y;
  }
  y = x->by_position ? y : lm_chunk_merged(x, y);
  y = lm_emit_cast(x->b, y, in_region.dtype);
  if (r->rounded)
    lm_chunk_keep(x, y);
  lm_type to = lm_type_stacked(x->t, in_region);
  y = lm_widen_to(x->b, y, to);
  return r->plus ? lm_emit2(x->b, LM_OP_ADD, y, lm_widen_to(x->b, r->plus, to)) : y;
}

// ---- the pass

static bool is_gpu(const lm_pass_env *env) {
  return env->target && env->target->kind == LM_TARGET_CUDA;
}

static bool is_short(const lm_chunk *c) {
  return c->keyed || c->delta >= 0;
}

static int64_t most_positions(const lm_chunk *of, bool gpu) {
  int64_t bounded = lm_chunk_bounded(of);
  if (gpu && of->keyed && bounded > SHORT)
    return bounded < DELTA ? bounded : DELTA;
  if (is_short(of))
    return gpu && !of->keyed ? DELTA : SHORT;
  return of->dtype == LM_F32 ? POSITIONS : LONG;
}

// True if pass mix_kernels will compute the weights where they are multiplied: those of one read,
// which heads on one axis share.
static bool mixes(const lm_chunk *c, int64_t size, const lm_pass_env *env) {
  const lm_codegen *g = env->codegen;
  const lm_type u = c->u->type, k = c->k->type;
  int heads = 0;
  if (!g || !g->mixes || lm_pass_is_off(env, "mix_kernels") || c->dtype != LM_BF16 ||
      c->n_reads != 1 || c->p.rank != 1 || c->keyed || c->delta >= 0)
    return false;
  for (int i = 1; i < u.rank; i++)
    heads += u.axis[i] != c->p.axis[0] && lm_type_find(k, u.axis[i]) < 0 &&
             lm_type_find(c->read[0].c->type, u.axis[i]) < 0;
  return heads == 1 && g->mixes_sizes(size, lm_axis_size(c->lift.b.m, c->p.axis[0]));
}

// The positions of a chunk: the largest divisor of n up to a limit, of those whose weights are
// computed where they are multiplied if one is not short; 0 if there is none.
static int64_t positions_of(const lm_chunk *of, int64_t n, const lm_pass_env *env) {
  int64_t most = most_positions(of, is_gpu(env));
  for (int64_t c = most; c >= POSITIONS; c--)
    if (n % c == 0 && mixes(of, c, env))
      return c;
  for (int64_t c = most; c >= (is_short(of) ? SHORT / 2 : SHORT); c--)
    if (n % c == 0)
      return c;
  return 0;
}

static void rewrite(lm_chunk *c, int64_t size, uint32_t n_values, const lm_pass_env *env) {
  bool gpu = is_gpu(env);
  bool keeps = !env->less_memory && !(env->recompute && env->recompute->bytes);
  lm_op *scan = c->lift.scan;
  lm_module *m = c->lift.b.m;
  lm_axis t = lm_scan_axis(scan);
  lm_sym name = LM_SYM(m->ctx, m->axes[t].name);
  lm_chunked x = {
      .b = &c->lift.b,
      .of = c,
      .t = t,
      .keeps = keeps,
  };
  x.by_position = gpu && !c->keyed && c->delta < 0;
  x.mixes = x.by_position && mixes(c, size, env);
  x.chunk = lm_axis_add(m, LM_SYM(m->ctx, "chunk"), lm_axis_size(m, t) / size, 0);
  x.i = lm_axis_add(m, name, size, 0);
  x.j = lm_axis_add(m, name, size, 0);
  x.later = later_of(&x);
  c->lift.b.loc = scan->loc;
  x.u = x.by_position ? lm_emit_cast(x.b, c->u, c->dtype) : c->u;
  if (x.mixes)
    lm_chunk_keep(&x, x.u);
  x.u = lm_chunk_at_j(&x, lm_chunk_of(&x, x.u));
  x.k = lm_chunk_at_j(&x, lm_chunk_of(&x, c->k));
  x.w = c->w ? lm_chunk_at_j(&x, lm_chunk_of(&x, c->w)) : NULL;
  lm_value **map = lm_calloc((size_t)n_values + 1, sizeof *map);
  lm_chunk_decays(&x);
  lm_chunk_weights(&x);
  map[scan->out[0]->id] = c->delta < 0 ? states(&x) : lm_chunk_delta(&x);
  for (int i = 0; i < c->n_reads; i++) {
    c->lift.map[c->read[i].of->id] = read(&x, i);
    c->lift.ready[c->read[i].of->id] = true;
  }
  for (uint32_t i = 1; i < scan->n_out; i++)
    map[scan->out[i]->id] = lm_scan_lift_stacked(&c->lift, scan->body->last->in[i]);
  lm_func_substitute(scan->parent->func, map, n_values);
  lm_free(map);
  lm_op_remove(scan);
}

static void chunk_visit(lm_module *m, lm_region *r, const lm_pass_env *env) {
  bool forced = lm_pass_is_forced(env, "chunk_scan");
  for (lm_op *op = r->first, *next; op; op = next) {
    next = op->next;
    if (op->code == LM_OP_LOOP)
      chunk_visit(m, op->body, env);
    if (op->code != LM_OP_SCAN || lm_scan_is_backward(op) || m->axes[lm_scan_axis(op)].dyn)
      continue;
    lm_chunk c;
    uint32_t n_values = m->n_values;
    bool fits = lm_chunk_match(op, &c);
    int64_t size = fits ? positions_of(&c, lm_axis_size(m, lm_scan_axis(op)), env) : 0;
    if (size && (forced || lm_chunk_is_profitable(env->target, &c, size)))
      rewrite(&c, size, n_values, env);
    lm_scan_lift_end(&c.lift);
  }
}

bool lm_pass_chunk_scan(lm_module *m, const lm_pass_env *env) {
  for (lm_func *f = m->funcs; f; f = f->next)
    chunk_visit(m, f->body, env);
  return true;
}
