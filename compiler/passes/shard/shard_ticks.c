// shard_ticks.c - a whole model as a pipeline, one micro-batch after the other.
//
// before: mesh pp = 2 pipeline 4 one_f_one_b                           layers = 6, b = 8
//         func @loss(%x: f32[b, d]) -> … {
//           %e = param @e   %x0 = mul %x, %e
//           %y = loop 6 %i carry(%c = %x0) { %w = param @w[%i] … yield %n } : f32[b, d]
//           %s = sum %y over(b, d)   return %s, … }
// after:  param @w : f32[layers@pp, d] stacked 1                       layers@pp = 3
//         func @loss(%x: f32[b, d]) -> (sum: f32 partial(pp), …) {     b.1@pp = 1: 8 / 4 / 2
//           %e = param @e   %r = rank over(pp)                         b.2@pp = 2: 8 / 4
//           %_, %ss = loop 5 over(tick) %k carry(%in = 0) {            tick = 5: 4 + 2 - 1
//             %x1 = gather %x, rows(%k, %r) over(b) : f32[b.1@pp, d]   (the first operations)
//             %x0 = mul %x1, %e   %all = all_gather %x0 over(pp)
//             %c0 = select (%r == 0 | idle), %all, %in : f32[b.2@pp, d]
//             %y = loop 3 %i carry(%c = %c0) { … } : f32[b.2@pp, d]    (a stage)
//             %next = ring_shift %y over(pp) [1]
//             %z = %y of the last stage, by all_to_all : f32[b.1@pp, d]
//             %s = sum %z over(b.1@pp, d)                              (the last operations)
//             yield %next, select(%k >= 1, %s, 0) }
//           %s = sum %ss over(tick) … }
//
// In tick k all stages together compute the operations in front of the blocks for micro-batch k,
// stage r its blocks for k - r, and all together the operations behind the blocks for
// k - stages + 1: each has a part of the rows of that micro-batch. Nothing is kept from one
// micro-batch to the next but the carries, so a rank needs memory for one micro-batch. Pass `grad`
// interleaves the backward passes with these (grad_ticks.c); with GPipe, which has this form where
// the loss is no sum over rows, it derives the loop, and all micro-batches are kept.
//
// A value in front of the blocks that is needed in a block or behind the blocks and depends on the
// rows alone, as a mask, is computed for the rows of the present micro-batch at each of these; one
// that has a gradient is carried through the stages.
#include <string.h>
#include "compiler/ops/interface.h"
#include "compiler/passes/shard/shard.h"
#include "runtime/base/diag_code.h"

// The operations of the model that are computed for the rows of one micro-batch at a time.
typedef struct phase {
  lm_axis rows;       // of its values, instead of the rows of all micro-batches
  lm_shard_lane axes; // of the rows, and of those that routing sorts
  lm_value *numbers;  // int[rows]: the row of each element
  lm_value **map;     // by id of the values of the model: its copy, or NULL
  uint8_t *partial;   // by id of these: its copy is a sum over the rows of this rank alone
  bool whole;         // sums over rows are those of all ranks
} phase;

typedef struct ticks {
  lm_shard *s;
  lm_func *f;
  lm_op *blocks;         // the loop over instances of the model
  lm_op *loop;           // over ticks
  lm_builder b;          // at the end of its body
  lm_axis rows;          // of all micro-batches
  lm_axis all;           // the same, or those of all ranks, of which a rank has a part of each
  lm_value *part;        // micro-batch; its first row in a micro-batch, or NULL
  lm_axis micro;         // of one micro-batch
  lm_axis lane;          // those of the micro-batches that all stages compute at a time
  lm_axis stages;        // one element of each stage
  int64_t n_micro, size; // micro-batches, and the rows of one
  lm_shard_order order;  // in which they pass through the stages
  uint8_t *by_rows;      // by id: depends on the rows
  lm_value *rank;
  phase first, stage, last, metrics;
  bool failed;
} ticks;

static lm_axis part_of(const ticks *t, lm_axis whole) {
  return lm_shard_part(t->s, whole);
}

static lm_value *number(ticks *t, int64_t n) {
  return lm_emit_const(&t->b, lm_type_make(LM_INT, NULL, 0), (double)n);
}

static void refuse(ticks *t, lm_loc at, const char *what) {
  if (!t->failed)
    LM_REPORT(t->s->m->ctx, at.line ? at : t->s->by->loc, E915, t->s->by->name, what);
  t->failed = true;
}

// ---- which micro-batch

// What the rank computes in this tick.
static lm_value *own_pass(ticks *t) {
  return lm_emit2(&t->b, LM_OP_SUB, t->loop->body->args[0], t->rank);
}

// ---- which values depend on the rows

static bool depends(const ticks *t, const lm_value *v) {
  return t->by_rows[v->id];
}

static bool region_depends(const ticks *t, const lm_region *r) {
  for (const lm_op *op = r->first; op; op = op->next) {
    for (uint32_t i = 0; i < op->n_in; i++)
      if (depends(t, op->in[i]))
        return true;
    if (op->body && region_depends(t, op->body))
      return true;
  }
  return false;
}

static void dependence_find(ticks *t) {
  const lm_region *r = t->f->body;
  for (uint32_t i = 0; i < r->n_args; i++)
    t->by_rows[r->args[i]->id] = lm_type_find(r->args[i]->type, t->rows) >= 0;
  for (const lm_op *op = r->first; op; op = op->next) {
    bool found = op->body && region_depends(t, op->body);
    for (uint32_t i = 0; i < op->n_in; i++)
      found |= depends(t, op->in[i]);
    for (uint32_t i = 0; i < op->n_out; i++)
      found |= lm_type_find(op->out[i]->type, t->rows) >= 0;
    for (uint32_t i = 0; i < op->n_out; i++)
      t->by_rows[op->out[i]->id] = found;
  }
}

// ---- the operations of a phase

// An array of the rows of all micro-batches, which the loop over ticks reads.
static bool is_array(const ticks *t, const lm_value *v) {
  return !v->def || lm_shard_takes_part(v->def, t->rows);
}

// The rows of the phase of an array.
static lm_value *rows_read(ticks *t, const phase *p, lm_value *x) {
  lm_attr over = {.axes = {t->all}, .n_axes = 1};
  lm_builder before = t->b;
  before.at = t->f->body;
  before.before = t->loop;
  lm_value *all = t->all == t->rows ? x : lm_shard_rows_collect(&before, x, t->rows);
  lm_value *read = lm_emit(&t->b, LM_OP_GATHER, (lm_value *[]){all, p->numbers}, 2, &over, NULL);
  lm_axis order[LM_RANK];
  for (int i = 0; i < x->type.rank; i++)
    order[i] = x->type.axis[i] == t->rows ? p->rows : x->type.axis[i];
  return lm_emit_permute(&t->b, read, order, x->type.rank);
}

// The result of op, which may be a sum over the rows of the phase, of which each rank has a part.
static lm_value *rows_added(ticks *t, const phase *p, lm_op *op) {
  lm_factor kind = lm_op_info_of(op)->factor;
  bool max = p->whole && kind == LM_FACTOR_MAX;
  bool routes = kind == LM_FACTOR_ROUTE && (!p->whole || op->code != LM_OP_GROUP_COUNTS);
  if (!lm_shard_lane_is_over(&p->axes, op) || routes)
    return op->out[0];
  if ((kind != LM_FACTOR_SUM && !max) || lm_type_find(op->out[0]->type, p->rows) >= 0)
    refuse(t, op->loc, "a value of all rows that is no sum over them");
  lm_attr over = {.mesh = (uint8_t)t->s->mesh};
  lm_opcode code = max ? LM_OP_ALL_MAX : LM_OP_ALL_REDUCE;
  return p->whole && !t->failed ? lm_emit(&t->b, code, op->out, 1, &over, NULL) : op->out[0];
}

// A value that is no sum over rows is added to one by the first rank alone.
static void terms_add(ticks *t, const phase *p, const lm_op *op, lm_op *copy) {
  lm_attr over = {.mesh = (uint8_t)t->s->mesh};
  bool adds = op->code == LM_OP_ADD || op->code == LM_OP_SUB;
  bool scales = lm_op_has(op, LM_T_BILINEAR | LM_T_LINEAR_FIRST);
  lm_builder b = t->b;
  b.before = copy;
  for (uint32_t i = 0; i < op->n_in; i++) {
    bool other = !p->partial[op->in[i]->id];
    if (other && adds)
      copy->in[i] = lm_emit(&b, LM_OP_FIRST, &copy->in[i], 1, &over, NULL);
    else if (other && !scales)
      refuse(t, op->loc, "a loss that is no sum over rows");
  }
}

static bool is_partial(const void *user, const lm_value *v) {
  return ((const phase *)user)->partial[v->id];
}

// Notes whether the copy of op is a sum over the rows of this rank.
static void partial_note(ticks *t, phase *p, const lm_op *op, lm_op *copy) {
  bool any = false;
  for (uint32_t i = 0; i < op->n_in; i++)
    any |= p->partial[op->in[i]->id];
  if (any && !lm_op_is_linear(op, is_partial, p))
    refuse(t, op->loc, "a loss that is no sum over rows");
  if (any && !t->failed)
    terms_add(t, p, op, copy);
  p->partial[op->out[0]->id] = any || lm_shard_lane_is_over(&p->axes, copy);
}

static lm_value *copied(ticks *t, phase *p, lm_value *v);

static void captured_copy(ticks *t, phase *p, const lm_region *r) {
  for (const lm_op *op = r->first; op; op = op->next) {
    for (uint32_t i = 0; i < op->n_in; i++)
      if (op->in[i]->region == t->f->body)
        copied(t, p, op->in[i]);
    if (op->body)
      captured_copy(t, p, op->body);
  }
}

// The value of the model for the rows of the phase; v itself if it depends on no row.
static lm_value *copied(ticks *t, phase *p, lm_value *v) {
  if (!depends(t, v) || t->failed)
    return v;
  if (p->map[v->id])
    return p->map[v->id];
  if (is_array(t, v))
    return p->map[v->id] = rows_read(t, p, v);
  lm_op *op = v->def;
  if (op->code == LM_OP_IOTA && v->type.axis[0] == t->rows)
    return p->map[v->id] = p->numbers;
  if (lm_op_has(op, LM_T_EFFECT))
    refuse(t, op->loc, "a model with states");
  for (uint32_t i = 0; i < op->n_in; i++)
    copied(t, p, op->in[i]);
  if (op->body)
    captured_copy(t, p, op->body);
  if (t->failed)
    return v;
  lm_op *copy = lm_op_clone(&t->b, op, p->map);
  lm_shard_lane_enter(&p->axes, copy);
  if (copy->n_out == 1)
    p->map[v->id] = rows_added(t, p, copy);
  if (copy->n_out == 1 && p->partial)
    partial_note(t, p, op, copy);
  return p->map[v->id];
}

// The phase computes micro-batch `tick - delay`; each rank has the rows of `rows`, from `first` on.
static phase phase_begin(ticks *t, lm_axis rows, lm_value *delay, lm_value *first, bool whole) {
  phase p = {
      .rows = rows,
      .whole = whole,
  };
  lm_type own = lm_type_make(LM_INT, &rows, 1);
  int64_t parts = lm_axis_size(t->s->m, t->all) / lm_axis_size(t->s->m, t->rows);
  lm_value *at = lm_emit2(&t->b, LM_OP_SUB, t->loop->body->args[0], delay);
  at = lm_shard_order_micro(&t->order, &t->b, at);
  lm_value *rows_of_all = number(t, t->size * parts);
  at = lm_emit2(&t->b, LM_OP_MUL, lm_emit_clamp(&t->b, at, t->n_micro), rows_of_all);
  at = t->part ? lm_emit2(&t->b, LM_OP_ADD, at, t->part) : at;
  at = lm_emit_expand(&t->b, lm_emit2(&t->b, LM_OP_ADD, at, first), own);
  p.numbers = lm_emit2(&t->b, LM_OP_ADD, at, lm_emit(&t->b, LM_OP_IOTA, NULL, 0, NULL, &own));
  p.axes = lm_shard_lane_open(t->s, t->f, t->rows, rows);
  p.map = lm_calloc((size_t)t->s->n_values + 1, sizeof *p.map);
  return p;
}

static void phase_end(phase *p) {
  lm_free(p->axes.of);
  lm_free(p->map);
  lm_free(p->partial);
}

// ---- the stage

static lm_shard_stages stages_axes(const ticks *t) {
  lm_axis lane = part_of(t, t->lane);
  lm_axis stage = part_of(t, t->stages);
  return (lm_shard_stages){.lane = lane, .stage = stage, .micro = t->micro};
}

// The operand of the blocks that the first stage takes.
static lm_value *operand(ticks *t, lm_value *v) {
  lm_shard_stages axes = stages_axes(t);
  bool rows = lm_type_find(v->type, t->rows) >= 0;
  if (!rows && depends(t, v))
    refuse(t, t->blocks->loc, "a value of all rows in front of the blocks, which they carry,");
  lm_value *x = rows ? copied(t, &t->first, v) : v;
  if (t->failed)
    return NULL;
  return rows ? lm_shard_stage_operand(t->s, &t->b, &axes, x)
              : lm_emit_expand(&t->b, x, lm_shard_stages_type(&axes, x->type));
}

// True where this rank takes the first stage's operand: on the first stage, and without a
// micro-batch, so that it computes with numbers of the model.
static lm_value *takes_operand(ticks *t) {
  return lm_shard_order_takes(&t->order, &t->b, own_pass(t), t->rank);
}

static void numbers_replace(const ticks *t, lm_region *r) {
  const phase *p = &t->stage;
  for (lm_op *op = r->first; op; op = op->next) {
    for (uint32_t i = 0; i < op->n_in; i++) {
      const lm_op *def = op->in[i]->def;
      if (def && def->code == LM_OP_IOTA && def->parent != t->loop->body &&
          op->in[i]->type.axis[0] == p->rows)
        op->in[i] = p->numbers;
    }
    if (op->body)
      numbers_replace(t, op->body);
  }
}

// The blocks of this rank; what its body computes of the rows alone is computed in front of them.
static lm_op *stage_copy(ticks *t, lm_value *const *operands) {
  phase *p = &t->stage;
  const lm_op *own = lm_shard_repetition_of(t->s, t->f)->own;
  int n = 0;
  for (const lm_op *op = t->blocks->body->first; op != own; op = op->next)
    n++;
  captured_copy(t, p, t->blocks->body);
  if (t->failed)
    return NULL;
  lm_value *pass = own_pass(t), *micro = lm_shard_order_micro(&t->order, &t->b, pass);
  lm_op *loop = lm_op_clone(&t->b, t->blocks, p->map);
  for (uint32_t i = 0; i < loop->n_in; i++)
    loop->in[i] = operands[i];
  lm_shard_lane_enter(&p->axes, loop);
  numbers_replace(t, loop->body);
  for (lm_op *op = loop->body->first, *next; n--; op = next) {
    next = op->next;
    lm_op_remove(op);
    lm_op_insert_before(loop, op);
  }
  lm_builder before = {
      .m = t->s->m,
      .at = t->loop->body,
      .before = loop,
      .loc = loop->loc,
  };
  lm_builder end = t->b;
  t->b = before;
  lm_shard_chunk_set(t->s, &t->order, &t->b, loop, t->loop->body->args[0], pass);
  t->b = end;
  lm_shard_stages axes = stages_axes(t);
  t->failed = !lm_shard_statistics(t->s, &axes, loop);
  lm_shard_additions_scale(&before, loop->body, micro, t->n_micro);
  lm_shard_loop_shorten(t->s, loop, t->rank);
  return t->failed ? NULL : loop;
}

// ---- the loop over ticks

static bool gathers_rows(const ticks *t, const lm_op *op) {
  const lm_module *m = t->s->m;
  return op && op->code == LM_OP_COLLECT &&
         lm_shard_rows_axis(m, op->attr.axes[0]) == lm_shard_rows_axis(m, t->rows);
}

// Operand i of the function's end, or the part of it that ranks with other rows gather.
static lm_value **result_at(const ticks *t, const lm_op *end, uint32_t i) {
  lm_value **of = &end->in[i];
  while (gathers_rows(t, (*of)->def))
    of = &(*of)->def->in[0];
  return of;
}

static lm_axis rows_new(const ticks *t, int64_t size) {
  lm_module *m = t->s->m;
  return t->all == t->rows ? lm_axis_add(m, m->axes[t->rows].name, size, 0)
                           : lm_shard_rows_like(m, t->rows, size);
}

static void axes_make(ticks *t) {
  lm_module *m = t->s->m;
  int stages = t->s->by->size;
  int64_t rows = lm_axis_size(m, t->rows), n = t->s->by->pipeline;
  t->n_micro = rows % (n * stages) == 0 ? n : rows % (stages * stages) ? 1 : stages;
  t->order = (lm_shard_order){
      .ranks = stages,
      .chunks = lm_mesh_axis_chunks(t->s->by),
      .n_micro = t->n_micro,
  };
  t->size = rows / t->n_micro;
  t->micro = rows_new(t, t->size);
  t->lane = rows_new(t, t->size * stages);
  t->stages = lm_axis_add(m, LM_SYM(m->ctx, "stage"), stages, 0);
}

// True if result i of the function is a sum over rows: others of a loss are metrics.
static bool is_sum(const ticks *t, uint32_t i) {
  return t->f->key.id == LM_FUNC_EVAL || (t->f->key.id == LM_FUNC_LOSS && i < 2);
}

// The results of one micro-batch, 0 in ticks that complete none.
static lm_value *result(ticks *t, phase *p, lm_value *v) {
  lm_value *done = lm_shard_order_ends(&t->order, &t->b, t->loop->body->args[0]);
  lm_value *x = copied(t, p, v);
  if (t->failed)
    return NULL;
  if (lm_type_find(x->type, t->last.rows) > 0)
    refuse(t, v->def ? v->def->loc : (lm_loc){0}, "a result with rows behind another axis");
  lm_value *none = lm_emit_const(&t->b, x->type, 0);
  lm_attr over = {.mesh = (uint8_t)t->s->mesh};
  if (p->partial && !p->partial[v->id] && lm_type_find(x->type, t->last.rows) < 0)
    x = lm_emit(&t->b, LM_OP_FIRST, &x, 1, &over, NULL);
  return lm_emit_select(&t->b, done, x, none);
}

static bool has_rows(const ticks *t, const lm_value *v) {
  return lm_type_find(v->type, t->rows) >= 0;
}

static lm_type carry_type(const ticks *t, const lm_value *v) {
  lm_shard_stages axes = stages_axes(t);
  lm_type of = v->type;
  if (!has_rows(t, v))
    return lm_shard_stages_type(&axes, of);
  of.axis[lm_type_find(of, t->rows)] = part_of(t, t->lane);
  return of;
}

// Of the rows of a micro-batch, the first one of this rank's part.
static lm_value *part_first(ticks *t) {
  lm_value *size = number(t, t->size);
  return lm_emit2(&t->b, LM_OP_MUL, lm_shard_rows_part(&t->b, t->rows), size);
}

static void loop_open(ticks *t) {
  uint32_t n = t->blocks->n_in;
  int64_t count = lm_shard_order_ticks(&t->order);
  lm_value **start = LM_NEW_N(t->s->m->arena, lm_value *, n);
  for (uint32_t i = 0; i < n; i++)
    start[i] = lm_emit_const(&t->b, carry_type(t, t->blocks->in[i]), 0);
  lm_axis tick = lm_axis_add(t->s->m, LM_SYM(t->s->m->ctx, "tick"), count, 0);
  t->loop = lm_loop_begin(&t->b, count, tick, start, n);
}

static void phases_open(ticks *t) {
  lm_axis part = part_of(t, t->micro);
  lm_value *none = number(t, 0), *stages = number(t, t->s->by->size - 1);
  lm_value *first = lm_emit2(&t->b, LM_OP_MUL, t->rank, number(t, lm_axis_size(t->s->m, part)));
  t->first = phase_begin(t, part, none, first, false);
  t->stage = phase_begin(t, part_of(t, t->lane), t->rank, none, false);
  t->last = phase_begin(t, part, stages, first, false);
  t->metrics = (phase){
      .rows = part,
      .axes = t->last.axes,
      .numbers = t->last.numbers,
      .whole = true,
  };
  t->metrics.map = lm_calloc((size_t)t->s->n_values + 1, sizeof *t->metrics.map);
  t->last.partial = lm_calloc((size_t)t->s->n_values + 1, 1);
}

// What the stages send on, and the results of the last one.
static void stages_run(ticks *t, lm_value **next) {
  lm_attr on = {
      .mesh = (uint8_t)t->s->mesh,
      .imm = {1},
      .n_imm = 1,
  };
  uint32_t n = t->blocks->n_in;
  lm_value *takes = takes_operand(t);
  lm_value **operands = LM_NEW_N(t->s->m->arena, lm_value *, n);
  for (uint32_t i = 0; i < n; i++) {
    lm_value *x = operand(t, t->blocks->in[i]);
    if (t->failed)
      return;
    operands[i] = lm_emit_select(&t->b, takes, x, t->loop->body->args[i + 1]);
  }
  lm_op *loop = stage_copy(t, operands);
  lm_shard_stages axes = stages_axes(t);
  for (uint32_t i = 0; loop && i < n; i++) {
    next[i] = lm_emit(&t->b, LM_OP_RING_SHIFT, &loop->out[i], 1, &on, NULL);
    lm_value *z = lm_shard_stage_result(t->s, &t->b, &axes, loop->out[i]);
    t->last.map[t->blocks->out[i]->id] = t->metrics.map[t->blocks->out[i]->id] = z;
  }
}

// The rows of all micro-batches, on every rank.
static lm_value *rows_return(ticks *t, lm_value *all) {
  lm_axis micro = lm_axis_add(t->s->m, LM_SYM(t->s->m->ctx, "micro"), t->n_micro, 0);
  lm_attr whole = {.mesh = (uint8_t)t->s->mesh,
                   .axes = {t->last.rows},
                   .n_axes = 1,
                   .to = {t->micro},
                   .n_to = 1};
  all = lm_shard_order_last(&t->order, &t->b, all, micro);
  all = lm_emit(&t->b, LM_OP_COLLECT, &all, 1, &whole, NULL);
  return lm_emit_join(&t->b, all, micro, t->micro, t->rows);
}

// The result of the function for that of the loop: the sum over the ticks, or the rows of all.
// Metrics are means over the micro-batches.
static lm_value *result_of(ticks *t, lm_value *all, bool is_sum) {
  lm_axis tick = t->loop->attr.axes[0];
  if (lm_type_find(all->type, t->last.rows) >= 0)
    return rows_return(t, all);
  lm_value *sum = lm_emit_reduce(&t->b, LM_OP_SUM, all, &tick, 1);
  lm_value *n = is_sum ? NULL : lm_emit_const(&t->b, sum->type, (double)t->n_micro);
  return is_sum ? sum : lm_emit2(&t->b, LM_OP_DIV, sum, n);
}

// The operations that gather rows are behind the loop.
static void last_keep(ticks *t, lm_op *end, lm_op *op) {
  if (!gathers_rows(t, op))
    return;
  last_keep(t, end, op->in[0]->def);
  t->by_rows[op->out[0]->id] = false;
  lm_op_remove(op);
  lm_op_insert_before(end, op);
}

// Results of a loss that depend on no row are added by the first rank.
static void results_replace(ticks *t, lm_op *end) {
  lm_attr over = {.mesh = (uint8_t)t->s->mesh};
  uint32_t n = t->loop->n_in;
  for (uint32_t i = 0; i < end->n_in; i++) {
    bool sum = is_sum(t, i);
    lm_value **of = result_at(t, end, i);
    if (depends(t, *of))
      *of = result_of(t, t->loop->out[n++], sum);
    else if (sum)
      *of = lm_emit(&t->b, LM_OP_FIRST, of, 1, &over, NULL);
    last_keep(t, end, end->in[i]->def);
    if (sum)
      t->f->out_partial[i] |= (lm_mesh_set)(1 << (t->s->mesh - 1));
  }
}

static void loop_fill(ticks *t, lm_op *end) {
  lm_arena *a = t->s->m->arena;
  uint32_t n = 0;
  lm_value **next = LM_NEW_N(a, lm_value *, t->blocks->n_in);
  lm_value **results = LM_NEW_N(a, lm_value *, end->n_in + 1);
  stages_run(t, next);
  for (uint32_t i = 0; i < end->n_in && !t->failed; i++)
    if (depends(t, *result_at(t, end, i)))
      results[n++] = result(t, is_sum(t, i) ? &t->last : &t->metrics, *result_at(t, end, i));
  if (!t->failed)
    lm_loop_end(&t->b, t->loop, next, t->blocks->n_in, results, n);
}

// ---- the function

static void gradients_note(ticks *t) {
  lm_module *m = t->s->m;
  for (uint32_t i = 0; i < m->n_globals; i++) {
    bool divided = false;
    for (int k = 0; k < m->globals[i].n_stack; k++)
      divided |= t->s->stacks[m->globals[i].type.axis[k]];
    if (!divided && m->globals[i].kind == LM_GLOBAL_PARAM)
      m->globals[i].partial |= (lm_mesh_set)(1 << (t->s->mesh - 1));
  }
}

static void model_remove(ticks *t) {
  for (lm_op *op = t->f->body->last, *prev; op; op = prev) {
    prev = op->prev;
    bool model = op->n_out && op->out[0]->id < t->s->n_values && depends(t, op->out[0]) &&
                 !is_array(t, op->out[0]);
    if (model)
      lm_op_remove(op);
  }
}

// What other operations than those of blocks add to states.
static void additions_check(ticks *t) {
  for (const lm_op *op = t->f->body->first; op; op = op->next)
    if (op->code == LM_OP_ACCUM)
      refuse(t, op->loc, "states outside of the list of blocks");
}

bool lm_shard_ticks(lm_shard *s, lm_func *f) {
  lm_shard_repetition *r = lm_shard_repetition_of(s, f);
  lm_op *end = f->body->last;
  ticks t = {
      .s = s,
      .f = f,
      .rows = r->rows,
  };
  bool mixes = s->mixes && lm_shard_takes_batch(f);
  t.all = mixes ? lm_shard_rows_axis(s->m, t.rows) : t.rows;
  s->f = f;
  lm_shard_repetition_carry(s, r);
  t.blocks = r->loop;
  t.b = (lm_builder){
      .m = s->m,
      .at = f->body,
      .before = end,
      .loc = r->loop->loc,
  };
  s->n_values = s->m->n_values;
  t.by_rows = lm_calloc((size_t)s->n_values + 1, 1);
  dependence_find(&t);
  if (!f->out_partial)
    f->out_partial = LM_NEW_N(s->m->arena, lm_mesh_set, f->n_out);
  additions_check(&t);
  if (!t.failed) {
    axes_make(&t);
    t.rank = lm_emit(&t.b, LM_OP_RANK, NULL, 0, &(lm_attr){.mesh = (uint8_t)s->mesh}, NULL);
    t.part = t.all != t.rows ? part_first(&t) : NULL;
    loop_open(&t);
    phases_open(&t);
    loop_fill(&t, end);
    phase_end(&t.first);
    phase_end(&t.stage);
    phase_end(&t.last);
    lm_free(t.metrics.map);
  }
  if (!t.failed) {
    results_replace(&t, end);
    model_remove(&t);
    gradients_note(&t);
  }
  lm_free(t.by_rows);
  return !t.failed;
}
