// chunk_cost.c - the time of a linear recurrence in chunks and of its loop, by the cost model.
//
// Both are counted for a training step. Per position, a loop computes its operations on the state,
// four times: forward, again in the backward pass, and about twice for their derivatives. It loads
// and stores the carries. Chunks multiply matrices three times, and write and read weights, states
// and operands; with a decay for each key the weights of two positions have axis n until they are
// summed. With the delta rule a loop over the chunks launches kernels for each.
//
// Speeds of a CPU that were measured would let the choice, and so the results, differ between runs:
// its ratios are assumed, 16 FLOPs of a GEMM and 8 instructions in the time of a byte.
#include "compiler/passes/chunk/chunk.h"
#include "compiler/plan/cost.h"

enum {
  PASSES = 4, // of a loop's operations
  GEMMS = 3,  // a GEMM and its two derivatives
  MOVES = 6,  // times that a value is written or read
  LAUNCHES = 15
};
static const double CARRIES = 0.0625; // of a loop on a CPU: its carries are in caches

static lm_target machine_of(const lm_target *t) {
  lm_target machine = lm_target_any(LM_TARGET_CPU);
  if (t && t->kind == LM_TARGET_CUDA) {
    bool known = lm_target_bandwidth(t) > 0 && t->units && t->rates.lanes > 0;
    if (known || !lm_target_known("h100", &machine))
      machine = *t;
    return machine;
  }
  for (int i = 0; i < LM_DTYPES; i++)
    machine.math[i].peak = 16;
  lm_target_set_bandwidth(&machine, 1);
  machine.rates = (lm_target_rates){
      .memory = 1,
      .math = 1,
      .lanes = 8,
  };
  return machine;
}

typedef struct sizes {
  const lm_target *t;
  lm_dtype dtype; // of factors of GEMMs and of their results
  double p, n, batch, positions, of_chunk;
} sizes;

// Operations on elements of the state, and the loads and the store of a carry.
static double operations(const lm_chunk *c) {
  double count = 3;
  const lm_op *scan = c->lift.scan;
  int rank = scan->in[0]->type.rank;
  for (const lm_op *op = scan->body->first; op != scan->body->last; op = op->next) {
    bool whole = op->out[0]->type.rank >= rank && op->n_in > 1;
    count += whole + 2 * (op->code == LM_OP_DOT);
  }
  return count;
}

// The operations of `times` passes. A thread on a GPU computes one of `points` points, in so many
// runs through the positions.
static double loop_passes(const sizes *s, double operations, double times, double points,
                          double runs) {
  double states = s->batch * s->positions * s->p * s->n;
  bool threads = s->t->kind == LM_TARGET_CUDA;
  lm_cost_kernel k = {.bytes = 2 * sizeof(float) * states * times * (threads ? 1 : CARRIES),
                      .instructions = times * operations * states,
                      .threads = points,
                      .waits = runs * s->positions};
  return lm_cost_of_kernel(s->t, &k).seconds;
}

// A read sums over n, and the cotangents of k and c over p.
static double loop_seconds(const sizes *s, const lm_chunk *c) {
  double count = operations(c);
  double forward = loop_passes(s, count, 1, s->batch * s->p, 1);
  return forward + loop_passes(s, count, PASSES - 1, s->batch, 2);
}

static double gemms(const sizes *s, double m, double n, double k) {
  double batch = s->batch * s->positions / s->of_chunk;
  lm_cost_gemm g = {.m = m,
                    .n = n,
                    .k = k,
                    .batch = batch,
                    .ab = s->dtype,
                    .bytes = lm_dtype_bytes(s->dtype) * batch * (m * n + m * k + n * k),
                    .alignment = 16};
  return GEMMS * lm_cost_of_gemm(s->t, &g).seconds;
}

static double moved(const sizes *s, double values) {
  double bytes = MOVES * lm_dtype_bytes(s->dtype) * values * s->batch * s->positions / s->of_chunk;
  return lm_cost_of_kernel(s->t,
                           &(lm_cost_kernel){
                               .bytes = bytes,
                           })
      .seconds;
}

static double chunk_seconds(const sizes *s, const lm_chunk *c) {
  double i = s->of_chunk;
  bool delta = c->delta >= 0;
  bool keyed = c->keyed && lm_chunk_bounded(c) < (int64_t)i;
  double weights = i * i * (keyed ? s->n : 1);
  double seconds = (1 + delta) * gemms(s, s->p, s->n, i);
  for (int r = 0; r < c->n_reads * (1 + delta); r++) {
    seconds += keyed ? 0 : gemms(s, i, i, s->n);
    seconds += gemms(s, i, s->p, i) + gemms(s, i, s->p, s->n);
    seconds += moved(s, weights);
  }
  seconds += moved(s, (1 + delta) * s->p * s->n + i * (s->p + s->n));
  double launch = s->t->rates.launch + s->t->rates.gap;
  return seconds + LAUNCHES * launch * (1 + delta * s->positions / i);
}

bool lm_chunk_is_profitable(const lm_target *target, const lm_chunk *c, int64_t of_chunk) {
  const lm_op *scan = c->lift.scan;
  const lm_module *m = c->lift.b.m;
  const lm_target t = machine_of(target);
  sizes s = {.t = &t,
             .dtype = c->dtype,
             .p = (double)lm_type_elements(m, c->p),
             .n = (double)lm_type_elements(m, c->n),
             .positions = (double)lm_axis_size(m, lm_scan_axis(scan)),
             .of_chunk = (double)of_chunk};
  s.batch = (double)lm_type_elements(m, scan->in[0]->type) / (s.p * s.n);
  return chunk_seconds(&s, c) < loop_seconds(&s, c);
}
