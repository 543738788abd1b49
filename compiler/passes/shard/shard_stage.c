// shard_stage.c - sends the rows of a micro-batch to the first stage of a pipeline, and receives
// them from the last stage, in one tick (shard_ticks.c).
//
// In front of the blocks and behind them each rank computes a part of the rows, b.1@pp; a stage
// computes all, b.2@pp: as many as b.1.
//   operand  %a = all_gather %x over(pp) (b.1@pp) -> (b.1)
//            %c = the rows %a on every rank : f32[b.2@pp, d]
//   result   %s = view %y (b.2@pp) -> (stage@pp, b.1)
//            %e = all_to_all %s over(pp) (stage@pp, b.1) -> (stage, b.1@pp)
//            %z = slice %e (stage) -> () [last, 1] : f32[b.1@pp, d]
#include "compiler/passes/shard/shard.h"

static lm_axis whole_of(const lm_shard *s, lm_axis part) {
  return s->m->axes[part].whole;
}

// A value that is equal on all ranks, as their parts along the axis of stages in front of `at`: the
// one element of another axis, by a number that depends on the rank.
static lm_value *stages_expand(lm_builder *b, lm_axis stage, lm_axis at, lm_value *x) {
  lm_axis order[LM_RANK], one = lm_axis_add(b->m, LM_SYM(b->m->ctx, "one"), 1, 0);
  lm_type own = lm_type_make(LM_INT, &stage, 1);
  lm_attr over = {
      .axes = {one},
      .n_axes = 1,
  };
  x = lm_emit_split(b, x, at, one, at);
  for (int i = 0; i < x->type.rank; i++)
    order[i] = x->type.axis[i] == one ? stage : x->type.axis[i];
  lm_value *in[] = {x, lm_emit(b, LM_OP_IOTA, NULL, 0, NULL, &own)};
  x = lm_emit(b, LM_OP_GATHER, in, 2, &over, NULL);
  return lm_emit_permute(b, x, order, x->type.rank);
}

lm_value *lm_shard_stage_operand(const lm_shard *s, lm_builder *b, const lm_shard_stages *axes,
                                 lm_value *x) {
  lm_attr all = {
      .mesh = (uint8_t)s->mesh,
      .axes = {lm_shard_part(s, axes->micro)},
      .n_axes = 1,
      .to = {axes->micro},
      .n_to = 1,
  };
  x = lm_emit(b, LM_OP_ALL_GATHER, &x, 1, &all, NULL);
  x = stages_expand(b, axes->stage, axes->micro, x);
  return lm_emit_join(b, x, axes->stage, axes->micro, axes->lane);
}

static lm_value *last_stage(const lm_shard *s, lm_builder *b, lm_axis stages, lm_value *x) {
  lm_attr last = {
      .axes = {stages},
      .n_axes = 1,
      .imm = {s->by->size - 1, 1},
      .n_imm = 2,
  };
  return lm_emit(b, LM_OP_SLICE, &x, 1, &last, NULL);
}

lm_value *lm_shard_stage_result(const lm_shard *s, lm_builder *b, const lm_shard_stages *axes,
                                lm_value *y) {
  lm_axis stages = whole_of(s, axes->stage);
  lm_attr all = {
      .mesh = (uint8_t)s->mesh,
      .axes = {axes->stage},
      .n_axes = 1,
      .to = {stages},
      .n_to = 1,
  };
  lm_attr exchange = {
      .mesh = (uint8_t)s->mesh,
      .axes = {axes->stage, axes->micro},
      .n_axes = 2,
      .to = {stages, lm_shard_part(s, axes->micro)},
      .n_to = 2,
  };
  if (lm_type_find(y->type, axes->lane) < 0)
    return last_stage(s, b, stages, lm_emit(b, LM_OP_ALL_GATHER, &y, 1, &all, NULL));
  y = lm_emit_split(b, y, axes->lane, axes->stage, axes->micro);
  return last_stage(s, b, stages, lm_emit(b, LM_OP_ALL_TO_ALL, &y, 1, &exchange, NULL));
}
