// shard_order.c - the order in which micro-batches pass through the stages of a pipeline, as
// numbers that the loop over ticks computes.
//
// A rank computes one stage for as many micro-batches as there are ranks, then its next stage for
// the same ones (Narayanan et al. 2021, the interleaved schedule). Two ranks with two stages each,
// four micro-batches; 2.0 is micro-batch 2 in the rank's first stage:
//
//   tick     0    1    2    3    4    5    6    7    8
//   rank 0   0.0  1.0  0.1  1.1  2.0  3.0  2.1  3.1  -
//   rank 1   -    0.0  1.0  0.1  1.1  2.0  3.0  2.1  3.1
//
// The last rank sends the result of its stage to the first one, which computes its next stage from
// it in the next tick. With one stage on each rank, pass u of a rank is that of micro-batch u.
#include "compiler/passes/shard/shard.h"

static lm_value *arith(lm_builder *b, lm_opcode code, lm_value *x, int64_t n) {
  return lm_emit2(b, code, x, lm_emit_const(b, lm_type_make(LM_INT, NULL, 0), (double)n));
}

static int64_t period_of(const lm_shard_order *o) {
  return o->ranks * o->chunks;
}

int64_t lm_shard_order_ticks(const lm_shard_order *o) {
  int64_t groups = (o->n_micro + o->ranks - 1) / o->ranks;
  int64_t passes = o->chunks == 1 ? o->n_micro : groups * period_of(o);
  return passes + o->ranks - 1;
}

lm_value *lm_shard_order_micro(const lm_shard_order *o, lm_builder *b, lm_value *pass) {
  if (o->chunks == 1)
    return pass;
  lm_value *group = arith(b, LM_OP_IDIV, pass, period_of(o));
  lm_value *in_group = arith(b, LM_OP_MOD, pass, o->ranks);
  return lm_emit2(b, LM_OP_ADD, arith(b, LM_OP_MUL, group, o->ranks), in_group);
}

lm_value *lm_shard_order_chunk(const lm_shard_order *o, lm_builder *b, lm_value *pass) {
  return arith(b, LM_OP_IDIV, arith(b, LM_OP_MOD, pass, period_of(o)), o->ranks);
}

static lm_value *in_chunk(const lm_shard_order *o, lm_builder *b, lm_value *so, lm_value *pass,
                          int64_t chunk) {
  if (o->chunks == 1)
    return so;
  lm_value *is = arith(b, LM_OP_EQ, lm_shard_order_chunk(o, b, pass), chunk);
  return lm_emit2(b, LM_OP_AND, so, is);
}

lm_value *lm_shard_order_takes(const lm_shard_order *o, lm_builder *b, lm_value *pass,
                               lm_value *rank) {
  lm_value *micro = lm_shard_order_micro(o, b, pass);
  lm_value *before = arith(b, LM_OP_LT, micro, 0);
  lm_value *idle = lm_emit2(b, LM_OP_OR, before, arith(b, LM_OP_GE, micro, o->n_micro));
  lm_value *first = in_chunk(o, b, arith(b, LM_OP_EQ, rank, 0), pass, 0);
  return lm_emit2(b, LM_OP_OR, first, idle);
}

lm_value *lm_shard_order_ends(const lm_shard_order *o, lm_builder *b, lm_value *tick) {
  if (o->chunks == 1)
    return arith(b, LM_OP_GE, tick, o->ranks - 1);
  lm_value *pass = arith(b, LM_OP_SUB, tick, o->ranks - 1);
  lm_value *micro = lm_shard_order_micro(o, b, pass);
  lm_value *known = arith(b, LM_OP_LT, micro, o->n_micro);
  known = lm_emit2(b, LM_OP_AND, known, arith(b, LM_OP_GE, pass, 0));
  return in_chunk(o, b, known, pass, o->chunks - 1);
}

lm_value *lm_shard_order_last(const lm_shard_order *o, lm_builder *b, lm_value *all,
                              lm_axis micro) {
  lm_type each = lm_type_make(LM_INT, &micro, 1);
  lm_attr over = {
      .axes = {all->type.axis[0]},
      .n_axes = 1,
  };
  lm_attr end = {
      .axes = {all->type.axis[0]},
      .n_axes = 1,
      .to = {micro},
      .n_to = 1,
      .imm = {o->ranks - 1, 1},
      .n_imm = 2,
  };
  if (o->chunks == 1)
    return lm_emit(b, LM_OP_SLICE, &all, 1, &end, NULL);
  lm_value *i = lm_emit(b, LM_OP_IOTA, NULL, 0, NULL, &each);
  lm_value *group = arith(b, LM_OP_MUL, arith(b, LM_OP_IDIV, i, o->ranks), period_of(o));
  lm_value *at = lm_emit2(b, LM_OP_ADD, group, arith(b, LM_OP_MOD, i, o->ranks));
  lm_value *in[] = {all, arith(b, LM_OP_ADD, at, period_of(o) - 1)};
  return lm_emit(b, LM_OP_GATHER, in, 2, &over, NULL);
}
