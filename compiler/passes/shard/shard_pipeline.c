// shard_pipeline.c - the instances of a repetition as the stages of a pipeline.
//
// before: mesh pp = 2 rows pipeline 4
//         param @w : f32[layers, d, e] stacked 1                       layers = 6, b = 8
//         func @loss(%x: f32[b, d]) -> … {
//           %y = loop 6 %i carry(%c = %x) { %w = param @w[%i] … yield %n } : f32[b, d]
// after:  param @w : f32[layers@pp, d, e] stacked 1                    layers@pp = 3
//         func @loss(%x: f32[b@pp, d]) -> … {                          b@pp = 4, b.1@pp = 2
//           %r = rank over(pp)
//           %m = clamp(iota - %r, 0, 3) : int[tick]                    tick = 5: 4 + 2 - 1
//           %rows = %m * 2 + iota : int[tick, b.1@pp]
//           %g = all_gather %x over(pp) (b@pp) -> (b)
//           %xs = gather %g, %rows over(b) : f32[tick, b.1@pp, d]
//           %o, %ys = loop 5 over(tick) %k carry(%in = …) {
//             %first = at %xs, %k    %c0 = select %r == 0, %first, %in
//             %y = loop 3 %j carry(%c = %c0) { %w = param @w[%j] … yield %n }
//             %next = ring_shift %y over(pp) [1]
//             yield %next, %y } : f32[b.1@pp, d], f32[tick, b.1@pp, d]
//           %us = slice %ys (tick) -> (micro) [1, 1]
//           %vs = all_to_all %us over(pp) (b.1@pp, micro) -> (b.1, micro@pp)
//           %ws = slice %vs (b.1) -> (b.2) [2, 1]
//           %y = view %ws (micro@pp, b.2) -> (b@pp)
//
// The ranks along the axis are stages, each with the same number of consecutive instances of the
// repetition and with their parameters. A call computes all micro-batches of a step: in iteration k
// of the loop over ticks, stage r computes micro-batch k - r and sends the result to the next stage
// (GPipe, Huang et al. 2019). Pass `grad` derives the backward pipeline, a loop in which cotangents
// travel the other way. What precedes and follows the repetition, such as embedding and head, is
// divided by rows: every rank computes it for the same number of micro-batches, with whole
// parameters, whose gradients are added once a step. So an embedding that is also the head is no
// special case, and the last stage has no more work than the others.
//
// In the first and last iterations a stage may have no micro-batch: it computes one that has been
// or will be computed, and no rank uses the result. These stages - 1 iterations are the bubble.
//
// Cost: the bubble, the activations of all micro-batches, and two exchanges of the repetition's
// operand and result.
#include <string.h>
#include "compiler/passes/shard/shard.h"

typedef struct pipeline {
  lm_shard *s;
  const lm_shard_repetition *repetition;
  lm_op *loop; // over instances
  lm_op *tick; // over micro-batches, which contains it
  lm_axis rows, ticks, micro;
  lm_axis lane;                 // the rows of the micro-batches that all stages compute at a time
  int64_t n_micro;              // micro-batches
  lm_builder before;            // in front of the loop over ticks
  lm_builder top;               // at the beginning of its body
  lm_shard_lane axes;           // of a micro-batch
  lm_value *rank, *row_numbers; // int[ticks, lane@]: the row of each iteration
  lm_value *rows_now;           // the same in this iteration
  lm_value **map;               // by id of outer values: the value in the loop; NULL: not known
} pipeline;

static lm_axis part_of(const pipeline *p, lm_axis whole) {
  return lm_shard_part(p->s, whole);
}

static int64_t size_of(const pipeline *p, lm_axis a) {
  return lm_axis_size(p->s->m, a);
}

static lm_value *number(lm_builder *b, int64_t n) {
  return lm_emit_const(b, lm_type_make(LM_INT, NULL, 0), (double)n);
}

static lm_axis axis_add(const pipeline *p, const char *name, int64_t size) {
  return lm_axis_add(p->s->m, LM_SYM(p->s->m->ctx, name), size, 0);
}

// ---- micro-batches

static void axes_make(pipeline *p) {
  lm_module *m = p->s->m;
  int stages = p->s->by->size;
  int64_t rows = size_of(p, p->rows);
  p->n_micro = rows % p->s->by->pipeline ? stages : p->s->by->pipeline;
  p->ticks = axis_add(p, "tick", p->n_micro + stages - 1);
  p->micro = axis_add(p, "micro", p->n_micro);
  p->lane = lm_axis_add(m, m->axes[p->rows].name, rows / p->n_micro * stages, 0);
}

static lm_type type_int(lm_axis a, lm_axis b) {
  return lm_type_make(LM_INT, (lm_axis[]){a, b}, b ? 2 : 1);
}

// The row of each element of the micro-batch that this rank computes in each iteration. Without a
// micro-batch it is one that another iteration has.
static void row_numbers_make(pipeline *p) {
  lm_builder *b = &p->before;
  lm_axis lane = part_of(p, p->lane);
  lm_type ticks = type_int(p->ticks, 0), own = type_int(lane, 0), both = type_int(p->ticks, lane);
  p->rank = lm_emit(b, LM_OP_RANK, NULL, 0, &(lm_attr){.mesh = (uint8_t)p->s->mesh}, NULL);
  lm_value *tick = lm_emit(b, LM_OP_IOTA, NULL, 0, NULL, &ticks);
  lm_value *micro = lm_emit_clamp(b, lm_emit2(b, LM_OP_SUB, tick, p->rank), p->n_micro);
  lm_value *first = lm_emit2(b, LM_OP_MUL, micro, number(b, size_of(p, lane)));
  lm_value *row = lm_emit(b, LM_OP_IOTA, NULL, 0, NULL, &own);
  row = lm_emit_expand(b, row, both);
  p->row_numbers = lm_emit2(b, LM_OP_ADD, lm_emit_expand(b, first, both), row);
}

// x has the axis of rows: its rows in each iteration, with the axis of ticks in front.
static lm_value *rows_of_ticks(pipeline *p, lm_value *x) {
  lm_builder *b = &p->before;
  lm_attr over = {
      .axes = {p->rows},
      .n_axes = 1,
  };
  lm_value *all = lm_emit(b, LM_OP_GATHER, (lm_value *[]){x, p->row_numbers}, 2, &over, NULL);
  lm_axis order[LM_RANK] = {p->ticks};
  if (!lm_type_find(x->type, p->rows))
    return all;
  for (int i = 0; i < x->type.rank; i++)
    order[i + 1] = x->type.axis[i] == p->rows ? part_of(p, p->lane) : x->type.axis[i];
  return lm_emit_permute(b, all, order, all->type.rank);
}

// Element k of x along the axis of ticks, in iteration k.
static lm_value *now(pipeline *p, lm_value *x) {
  lm_attr each = {
      .imm = {0, 1},
      .n_imm = 2,
  };
  lm_value *in[] = {x, p->tick->body->args[0]};
  return lm_emit(&p->top, LM_OP_AT, in, 2, &each, NULL);
}

// ---- what the repetition reads

static lm_value *captured(pipeline *p, lm_value *v) {
  if (p->map[v->id])
    return p->map[v->id];
  bool has_rows = lm_type_find(lm_shard_of(p->s, v)->type, p->rows) >= 0;
  lm_value *x = lm_shard_terms(p->s, v, p->tick);
  x = has_rows ? now(p, rows_of_ticks(p, x)) : x;
  return p->map[v->id] = x;
}

// A parameter that all instances read. Its gradient is a sum over the stages.
static lm_value *shared_param(pipeline *p, lm_value *v) {
  lm_shard *s = p->s;
  lm_global *g = lm_global_find(s->m, v->def->attr.sym);
  if (s->f->key.id != LM_FUNC_LOSS || !lm_shard_of(s, v)->active)
    return v;
  if (!s->whole_params[g - s->m->globals]) {
    g->partial |= (lm_mesh_set)(1 << (s->mesh - 1));
    return v;
  }
  lm_builder b = {
      .m = s->m,
      .at = v->region,
      .before = v->def->next,
      .loc = v->def->loc,
  };
  lm_attr over = {.mesh = (uint8_t)s->mesh};
  return lm_emit(&b, LM_OP_FAN, &v, 1, &over, NULL);
}

static bool reads_all(const pipeline *p, const lm_value *v) {
  return v->def && v->def->code == LM_OP_PARAM &&
         lm_shard_indexed(v->def, p->loop->body->args[0]) < 0;
}

static lm_value *operand(pipeline *p, lm_value *v) {
  if (v->id >= p->s->n_values || v == p->loop->body->args[0])
    return v;
  if (p->map[v->id])
    return p->map[v->id];
  if (v->region == p->tick->parent)
    return captured(p, v);
  bool rows = v->def && v->def->code == LM_OP_IOTA && v->type.axis[0] == part_of(p, p->lane);
  return p->map[v->id] = rows ? p->rows_now : reads_all(p, v) ? shared_param(p, v) : v;
}

// ---- the repetition of one stage

static void operands_enter(pipeline *p, lm_op *op) {
  for (uint32_t i = 0; i < op->n_in; i++)
    op->in[i] = operand(p, op->in[i]);
  for (lm_op *in = op->body ? op->body->first : NULL; in; in = in->next)
    operands_enter(p, in);
}

// Opens the loop over ticks; xs are the operands of all iterations.
static void tick_open(pipeline *p, lm_value *const *xs, lm_builder *b) {
  uint32_t n = p->loop->n_in;
  lm_value **start = LM_NEW_N(p->s->m->arena, lm_value *, n);
  lm_attr begin = {
      .axes = {p->ticks},
      .n_axes = 1,
      .imm = {0, 1},
      .n_imm = 2,
  };
  for (uint32_t i = 0; i < n; i++)
    start[i] =
        lm_emit1(b, LM_OP_STOP, lm_emit(b, LM_OP_SLICE, (lm_value **)&xs[i], 1, &begin, NULL));
  lm_value *is_first = lm_emit2(b, LM_OP_EQ, p->rank, number(b, 0));
  p->tick = lm_loop_begin(b, size_of(p, p->ticks), p->ticks, start, n);
  for (uint32_t i = 0; i < n; i++) {
    lm_attr each = {
        .imm = {0, 1},
        .n_imm = 2,
    };
    lm_value *in[] = {xs[i], p->tick->body->args[0]};
    lm_value *x = lm_emit(b, LM_OP_AT, in, 2, &each, NULL);
    p->loop->in[i] = lm_emit_select(b, is_first, x, p->tick->body->args[i + 1]);
  }
}

// Moves the loop over instances into that over ticks, and what its body computes of the rows alone
// in front of it.
static void tick_fill(pipeline *p, lm_op *following) {
  lm_op *next, *first;
  lm_op_remove(p->loop);
  lm_op_insert_before(following, p->loop);
  for (lm_op *op = p->loop->body->first; op != p->repetition->own; op = next) {
    next = op->next;
    lm_op_remove(op);
    lm_op_insert_before(p->loop, op);
  }
  first = p->tick->body->first;
  p->top = (lm_builder){
      .m = p->s->m,
      .at = p->tick->body,
      .before = first,
      .loc = p->loop->loc,
  };
  p->rows_now = now(p, p->row_numbers);
  for (lm_op *op = first; op != following; op = op->next)
    operands_enter(p, op);
  lm_value *micro = lm_emit2(&p->top, LM_OP_SUB, p->tick->body->args[0], p->rank);
  lm_shard_additions_scale(&p->top, p->loop->body, micro, p->n_micro);
  lm_shard_loop_shorten(p->s, p->loop, p->rank);
}

// Ends the loop over ticks; its last results are those of all iterations.
static void tick_close(pipeline *p, lm_builder *b) {
  uint32_t n = p->loop->n_in;
  lm_value **next = LM_NEW_N(p->s->m->arena, lm_value *, n);
  lm_attr on = {
      .mesh = (uint8_t)p->s->mesh,
      .imm = {1},
      .n_imm = 1,
  };
  lm_shard_lane_enter(&p->axes, p->loop);
  for (uint32_t i = 0; i < n; i++)
    next[i] = lm_emit(b, LM_OP_RING_SHIFT, &p->loop->out[i], 1, &on, NULL);
  lm_loop_end(b, p->tick, next, n, p->loop->out, n);
  tick_fill(p, next[0]->def);
  b->before = p->tick->next;
}

// ---- the results of the loop

// The rows of this rank's part, of the results of all iterations. The last stage has them, and
// sends each rank its micro-batches.
static lm_value *own_rows(pipeline *p, lm_builder *b, lm_value *ys) {
  int stages = p->s->by->size;
  lm_axis lane = part_of(p, p->lane), micro = part_of(p, p->micro);
  int64_t n = size_of(p, lane);
  lm_attr end = {.axes = {p->ticks},
                 .n_axes = 1,
                 .to = {p->micro},
                 .n_to = 1,
                 .imm = {stages - 1, 1},
                 .n_imm = 2};
  lm_attr exchange = {.mesh = (uint8_t)p->s->mesh,
                      .axes = {lane, p->micro},
                      .n_axes = 2,
                      .to = {p->lane, micro},
                      .n_to = 2};
  lm_axis row = lm_axis_add(p->s->m, p->s->m->axes[p->rows].name, n, 0);
  lm_attr last = {.axes = {p->lane},
                  .n_axes = 1,
                  .to = {row},
                  .n_to = 1,
                  .imm = {(stages - 1) * n, 1},
                  .n_imm = 2};
  lm_value *x = lm_emit(b, LM_OP_SLICE, &ys, 1, &end, NULL);
  x = lm_emit(b, LM_OP_ALL_TO_ALL, &x, 1, &exchange, NULL);
  x = lm_emit(b, LM_OP_SLICE, &x, 1, &last, NULL);
  lm_axis order[LM_RANK];
  int k = 0;
  for (int i = 1; i < x->type.rank; i++) {
    if (x->type.axis[i] == row)
      order[k++] = micro;
    order[k++] = x->type.axis[i];
  }
  if (x->type.axis[1] != row)
    x = lm_emit_permute(b, x, order, k);
  return lm_emit_join(b, x, micro, row, part_of(p, p->rows));
}

void lm_shard_pipeline(lm_shard *s, lm_op *loop) {
  const lm_shard_repetition *r = lm_shard_repetition_of(s, s->f);
  pipeline p = {
      .s = s,
      .repetition = r,
      .loop = loop,
      .rows = r->rows,
  };
  uint32_t n = loop->n_in;
  lm_value **xs = LM_NEW_N(s->m->arena, lm_value *, n);
  for (uint32_t i = 0; i < n; i++)
    xs[i] = lm_shard_terms(s, loop->in[i], loop);
  lm_builder b = {
      .m = s->m,
      .at = loop->parent,
      .before = loop,
      .loc = loop->loc,
  };
  p.before = b;
  p.map = lm_calloc((size_t)s->n_values + 1, sizeof *p.map);
  axes_make(&p);
  p.axes = lm_shard_lane_open(s, s->f, p.rows, part_of(&p, p.lane));
  row_numbers_make(&p);
  for (uint32_t i = 0; i < n; i++)
    xs[i] = rows_of_ticks(&p, xs[i]);
  tick_open(&p, xs, &b);
  p.before.before = p.tick;
  tick_close(&p, &b);
  for (uint32_t i = 0; i < n; i++)
    lm_shard_of(s, loop->out[i])->now = own_rows(&p, &b, p.tick->out[n + i]);
  lm_free(p.axes.of);
  lm_free(p.map);
}
