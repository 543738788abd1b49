// shard_decode.c - programs that continue texts, on the stages of a pipeline.
//
// before: mesh pp = 2 rows pipeline 4                                  layers = 6
//         func @decode(%tok, …) -> (logits) {
//           …
//           %y = loop 6 %i carry(%c = %x) { … %k = append @k[%i], %at, … yield %n } : f32[b, t, d]
// after:  %r = rank over(pp)
//         %own = loop 2 %k carry(%own = %x) {
//           %y = loop 3 %i carry(%c = %own) { … %k = append @k[%i], %at, … yield %n }
//           %z = ring_shift %y over(pp) [1]
//           yield select(%r == (%k + 1) mod 2, %z, %own) }
//         %y = all_reduce(select %r == 0, %own, 0) over(pp)            layers@pp = 3
//
// The stages compute one after the other: in iteration k stage k has its operand, which it keeps.
// Before it has it, a stage computes from others' operands, and afterwards again from its own: the
// same positions of its caches are written each time, at last with their values. So the caches of a
// stage are those of its blocks. All other operations are computed by every rank. Declines: blocks
// with states that a repeated computation would change are an error. Cost: each stage computes as
// often as there are stages, in the time of one process.
#include "compiler/passes/shard/shard.h"
#include "runtime/base/diag_code.h"

static bool refuse(const lm_shard *s, lm_loc at, const char *what) {
  LM_REPORT(s->m->ctx, at.line ? at : s->by->loc, E915, s->by->name, what);
  return false;
}

static void state_note(lm_op *op, void *user) {
  const lm_op **found = user;
  if (!*found && (op->code == LM_OP_RETAIN || op->code == LM_OP_RECALL))
    *found = op;
}

static bool loop_check(const lm_shard *s, const lm_op *loop) {
  const lm_op *state = NULL;
  lm_region_walk(loop->body, state_note, &state);
  if (state)
    return refuse(s, state->loc, "blocks that keep states while a text is continued");
  if (loop->n_out != loop->n_in)
    return refuse(s, loop->loc,
                  "blocks that compute more than their carry while a text is "
                  "continued");
  return true;
}

static lm_value *number(lm_builder *b, int64_t n) {
  return lm_emit_const(b, lm_type_make(LM_INT, NULL, 0), (double)n);
}

// Emits the loop over stages in front of the loop over instances; out: its results, on all ranks.
static void stages_run(lm_shard *s, const lm_op *old, lm_value **out) {
  lm_module *m = s->m;
  int stages = s->by->size;
  lm_attr along = {.mesh = (uint8_t)s->mesh}, on = {
                                                  .mesh = along.mesh,
                                                  .imm = {1},
                                                  .n_imm = 1,
                                              };
  lm_builder b = {
      .m = m,
      .at = old->parent,
      .before = (lm_op *)old,
      .loc = old->loc,
  };
  lm_value *rank = lm_emit(&b, LM_OP_RANK, NULL, 0, &along, NULL);
  lm_value **next = LM_NEW_N(m->arena, lm_value *, old->n_in + 1);
  lm_value **map = lm_calloc((size_t)m->n_values + 1, sizeof *map);
  lm_op *loop = lm_loop_begin(&b, stages, 0, old->in, old->n_in);
  lm_op *own = lm_op_clone(&b, old, map);
  lm_value *behind = lm_emit2(&b, LM_OP_ADD, loop->body->args[0], number(&b, 1));
  lm_value *receiver = lm_emit2(&b, LM_OP_MOD, behind, number(&b, stages));
  lm_value *receives = lm_emit2(&b, LM_OP_EQ, rank, receiver);
  for (uint32_t i = 0; i < old->n_in; i++) {
    own->in[i] = loop->body->args[i + 1];
    next[i] = lm_emit(&b, LM_OP_RING_SHIFT, &own->out[i], 1, &on, NULL);
    next[i] = lm_emit_select(&b, receives, next[i], own->in[i]);
  }
  lm_shard_loop_shorten(s, own, rank);
  lm_loop_end(&b, loop, next, old->n_in, NULL, 0);
  lm_value *first = lm_emit2(&b, LM_OP_EQ, rank, number(&b, 0));
  for (uint32_t i = 0; i < old->n_in; i++) {
    lm_value *none = lm_emit_const(&b, loop->out[i]->type, 0);
    lm_value *x = lm_emit_select(&b, first, loop->out[i], none);
    out[i] = lm_emit(&b, LM_OP_ALL_REDUCE, &x, 1, &along, NULL);
  }
  lm_free(map);
}

bool lm_shard_decode(lm_shard *s, lm_func *f) {
  lm_op *loop = lm_shard_repetition_find(s, f);
  if (!loop || !loop_check(s, loop))
    return false;
  uint32_t n_map = s->m->n_values;
  lm_value **out = LM_NEW_N(s->m->arena, lm_value *, loop->n_out + 1);
  lm_value **map = lm_calloc((size_t)n_map + 1, sizeof *map);
  stages_run(s, loop, out);
  for (uint32_t i = 0; i < loop->n_out; i++)
    map[loop->out[i]->id] = out[i];
  lm_op_remove(loop);
  lm_func_substitute(f, map, n_map);
  lm_free(map);
  return true;
}
