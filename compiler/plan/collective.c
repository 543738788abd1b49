// collective.c - steps of collectives.
//
// %y = all_gather %x over(tp) (g@tp) -> (g) : f32[b, g], b = 4, g = 8, of two ranks:
//
//   start all_gather f32 16 over tp lane 0 as 0 work[0 : 64] -> work[64 : 128]
//   wait 0 work[0 : 64] -> work[64 : 128]
//   copy 2(64,16) 4(16,32) 4(4,4) work[64 : 128] -> work[192 : 128]
//
// Ranks exchange dense memory, in which the part of each rank follows that of the rank before it. A
// tensor that is divided along an inner axis is copied into that order before the collective, or
// out of it after. Along the outermost axis (of those larger than 1) no copy is needed, and the sum
// or maximum of a value that has no other use replaces it in its memory. Cost of the copies: the
// bytes that the collective moves, twice.
#include <string.h>

#include "compiler/plan/internal.h"

// A tensor at a location, of which axis 0 counts the ranks.
typedef struct slices {
  location at;
  lm_type type;
} slices;

// The tensor of type t at `whole` as the parts of its axis `axis`, each with the axis `part`.
static slices slices_of(planner *p, lm_op *op, lm_type t, const location *whole, lm_axis axis,
                        lm_axis part) {
  int at = lm_type_find(t, axis);
  slices s = {
      .at = *whole,
      .type = t,
  };
  int64_t size = lm_axis_size(p->m, part);
  if (t.rank == LM_RANK) {
    LM_PLAN_ERROR(p, op, E711, lm_op_info_of(op)->name, LM_RANK);
    return s;
  }
  s.type.axis[at] = part;
  memmove(s.type.axis + 1, s.type.axis, t.rank * sizeof *t.axis);
  s.type.axis[0] =
      lm_axis_shared(p->m, LM_SYM(p->m->ctx, "rank"), lm_axis_size(p->m, axis) / size, s.type);
  s.type.rank++;
  memcpy(s.at.stride + 1, whole->stride, t.rank * sizeof *s.at.stride);
  s.at.stride[0] = whole->stride[at] * size;
  return s;
}

static bool are_dense(const planner *p, const slices *s) {
  return lm_strides_are_dense(p->m, s->type, s->at.stride);
}

static location temporary(planner *p, lm_op *op, lm_type t) {
  const char *label = lm_plan_label(p->arena, p->m, op);
  return lm_location_dense(p, lm_storage_new(p, lm_type_bytes(p, t), p->depth, label), t);
}

// The operand as slices of dense memory, one for each rank.
static slices slices_sent(planner *p, lm_op *op, lm_axis axis, lm_axis part) {
  lm_value *x = op->in[0];
  slices s = slices_of(p, op, x->type, lm_value_location(p, x), axis, part);
  if (p->failed || are_dense(p, &s))
    return s;
  slices copy = {temporary(p, op, s.type), s.type};
  lm_step_copy(p, op, s.type, &s.at, &copy.at, false);
  return copy;
}

// The operation's result has the memory of its operand, if that has no other use.
static location reduced_location(planner *p, lm_op *op, const location *from) {
  const storage *s = from->at;
  bool moves = from->offset;
  for (int d = 0; d < LM_PLAN_DEPTH; d++)
    moves |= from->loop[d] != 0;
  bool own = s->arena == LM_ARENA_WORK && !s->into && !moves && s->depth == p->depth &&
             s->bytes == lm_type_bytes(p, op->out[0]->type) && s->last_use <= op->mark;
  if (!own)
    return lm_result_locate(p, op->out[0], op);
  lm_location_set(p, op->out[0], *from);
  return *from;
}

// counts: NULL, or the two operands of exchange_rows behind the rows.
static void step_make(planner *p, lm_step_kind kind, lm_op *op, const lm_plan_comm *comm,
                      const slices *from, const slices *counts, const slices *to) {
  int n_read = counts ? 3 : 1;
  pstep *s = lm_step_add(p, kind, op, n_read + 1);
  s->step.comm = LM_NEW(p->arena, lm_plan_comm);
  *s->step.comm = *comm;
  s->step.n_read = n_read;
  s->step.n_write = 1;
  s->refs[0] = lm_location_ref(p, &from->at, from->type);
  for (int i = 1; i < n_read; i++)
    s->refs[i] = lm_location_ref(p, &counts[i - 1].at, counts[i - 1].type);
  s->refs[n_read] = lm_location_ref(p, &to->at, to->type);
  if (kind == LM_STEP_START)
    s->step.moved = s->refs[0].bytes + s->refs[n_read].bytes;
}

// The ranks by which a ring_shift moves a value forwards in the ring.
static int distance_of(const planner *p, const lm_op *op) {
  int ranks = p->m->mesh.axis[op->attr.mesh - 1].size;
  int64_t by = op->code == LM_OP_RING_SHIFT ? op->attr.imm[0] % ranks : 0;
  return (int)(by < 0 ? by + ranks : by);
}

lm_coll_op lm_sum_kind(const planner *p, int axis, lm_dtype t) {
  return p->m->mesh.axis[axis].library && lm_dtype_is_float(t) ? LM_COLL_LIBRARY_SUM : LM_COLL_SUM;
}

// A collective begins and ends in adjacent steps, so one is under way at a time.
static void steps_of(planner *p, lm_op *op, lm_coll_kind kind, int64_t count, const slices *from,
                     const slices *counts, const slices *to) {
  lm_dtype t = (lm_dtype)from->type.dtype;
  lm_plan_comm comm = {
      .kind = kind,
      .op = op->code == LM_OP_ALL_MAX ? LM_COLL_MAX : lm_sum_kind(p, op->attr.mesh - 1, t),
      .dtype = t,
      .count = count,
      .group = op->attr.mesh,
      .peer = distance_of(p, op),
  };
  step_make(p, LM_STEP_START, op, &comm, from, counts, to);
  step_make(p, LM_STEP_WAIT, op, &comm, from, counts, to);
}

static void steps_make(planner *p, lm_op *op, lm_coll_kind kind, int64_t count, const slices *from,
                       const slices *to) {
  steps_of(p, op, kind, count, from, NULL, to);
}

// start exchange_rows f32 16 over ep lane 0 as 0 rows, send, receive -> rows
static void rows_exchange(planner *p, lm_op *op) {
  lm_value *x = op->in[0];
  slices from = {lm_value_dense(p, x, op), x->type};
  slices to = {.type = op->out[0]->type};
  slices counts[2];
  for (int i = 0; i < 2; i++)
    counts[i] = (slices){lm_value_dense(p, op->in[1 + i], op), op->in[1 + i]->type};
  int64_t row = lm_type_elements(p->m, x->type) / lm_axis_size(p->m, x->type.axis[0]);
  to.at = lm_result_locate(p, op->out[0], op);
  steps_of(p, op, LM_COLL_EXCHANGE_ROWS, row, &from, counts, &to);
}

// Receives slices of the result.
static void slices_receive(planner *p, lm_op *op, lm_coll_kind kind, int64_t count,
                           const slices *from, lm_axis axis, lm_axis part) {
  lm_value *y = op->out[0];
  location whole = lm_result_locate(p, y, op);
  slices to = slices_of(p, op, y->type, &whole, axis, part);
  if (p->failed)
    return;
  if (are_dense(p, &to)) {
    steps_make(p, op, kind, count, from, &to);
    return;
  }
  slices received = {temporary(p, op, to.type), to.type};
  steps_make(p, op, kind, count, from, &received);
  lm_step_copy(p, op, to.type, &received.at, &to.at, false);
}

void lm_step_collective(planner *p, lm_op *op) {
  lm_type x = op->in[0]->type;
  lm_type y = op->out[0]->type;
  const lm_attr *a = &op->attr;
  slices from, to = {.type = y};
  switch (op->code) {
  case LM_OP_ALL_REDUCE:
  case LM_OP_ALL_MAX:
    from = (slices){lm_value_dense(p, op->in[0], op), x};
    to.at = reduced_location(p, op, &from.at);
    steps_make(p, op, LM_COLL_ALL_REDUCE, lm_type_elements(p->m, x), &from, &to);
    return;
  case LM_OP_ALL_GATHER:
  case LM_OP_COLLECT:
    from = (slices){lm_value_dense(p, op->in[0], op), x};
    slices_receive(p, op, LM_COLL_ALL_GATHER, lm_type_elements(p->m, x), &from, a->to[0],
                   a->axes[0]);
    return;
  case LM_OP_REDUCE_SCATTER:
    from = slices_sent(p, op, a->axes[0], a->to[0]);
    to.at = lm_result_locate(p, op->out[0], op);
    if (!p->failed)
      steps_make(p, op, LM_COLL_REDUCE_SCATTER, lm_type_elements(p->m, y), &from, &to);
    return;
  case LM_OP_ALL_TO_ALL:
    from = slices_sent(p, op, a->axes[1], a->to[1]);
    if (!p->failed)
      slices_receive(p, op, LM_COLL_ALL_TO_ALL,
                     lm_type_elements(p->m, x) / lm_axis_size(p->m, from.type.axis[0]), &from,
                     a->to[0], a->axes[0]);
    return;
  case LM_OP_EXCHANGE_ROWS: rows_exchange(p, op); return;
  case LM_OP_EXCHANGE_COUNTS:
    from = (slices){lm_value_dense(p, op->in[0], op), x};
    to.at = lm_result_locate(p, op->out[0], op);
    steps_make(p, op, LM_COLL_ALL_TO_ALL, 1, &from, &to);
    return;
  case LM_OP_RING_SHIFT:
    from = (slices){lm_value_dense(p, op->in[0], op), x};
    to.at = lm_result_locate(p, op->out[0], op);
    steps_make(p, op, LM_COLL_RING_SHIFT, lm_type_elements(p->m, x), &from, &to);
    return;
  default: LM_PLAN_ERROR(p, op, E712, lm_op_info_of(op)->name);
  }
}

// The executor writes the coordinate to memory.
void lm_rank_locate(planner *p, lm_op *op) {
  int64_t *rank = &p->plan->mesh.axis[op->attr.mesh - 1].rank;
  if (*rank < 0) {
    *rank = p->io_bytes;
    p->io_bytes += LM_PLAN_ALIGN;
  }
  location at = lm_location_dense(p, p->fixed[LM_ARENA_IO], op->out[0]->type);
  at.offset = *rank;
  lm_location_set(p, op->out[0], at);
}
