// mesh.c - collectives on the tensors of all ranks, and the parts of whole tensors.
#include <math.h>
#include <string.h>
#include "compiler/eval/internal.h"

static lm_tensor *of(lm_eval *e, const lm_value *v) {
  return &e->env[v->id];
}

// ---- parts

// Operand k of a nest over parts is of type t. Where t has a whole axis, the part of `rank` is
// meant.
static void operand(const lm_eval *e, nest *n, int k, lm_type t, int rank) {
  for (int i = 0; i < n->rank; i++) {
    lm_axis a = n->axis[i];
    int64_t first = 0;
    while (a && lm_type_find(t, a) < 0) {
      const lm_axis_info *info = &e->m->axes[a];
      if (info->mesh)
        first += info->size * lm_mesh_coordinate(e->m, rank, info->mesh);
      a = info->whole;
    }
    n->step[k][i] = a ? stride_of(e, t, a) : 0;
    n->start[k] += first * n->step[k][i];
  }
}

lm_tensor lm_eval_part(const lm_module *m, int rank, const lm_tensor *whole, lm_type type) {
  lm_eval e = {.m = (lm_module *)m};
  lm_tensor out = lm_eval_tensor(&e, type);
  nest n = nest_over(&e, type.axis, type.rank);
  operand(&e, &n, 0, type, rank);
  operand(&e, &n, 1, whole->type, rank);
  lm_eval_copy(&n, out.v, whole->v, false);
  return out;
}

void lm_eval_whole_set(const lm_module *m, int rank, const lm_tensor *part, lm_tensor *whole) {
  lm_eval e = {.m = (lm_module *)m};
  nest n = nest_over(&e, part->type.axis, part->type.rank);
  operand(&e, &n, 0, whole->type, rank);
  operand(&e, &n, 1, part->type, rank);
  lm_eval_copy(&n, whole->v, part->v, false);
}

// ---- collectives

// The ranks that differ from `rank` along one axis of the mesh only.
typedef struct group {
  int first, stride, size, own; // own: the coordinate of the rank
} group;

static group group_of(const lm_module *m, int rank, int mesh) {
  int stride = lm_mesh_stride(m, mesh);
  int own = lm_mesh_coordinate(m, rank, mesh);
  return (group){rank - own * stride, stride, m->mesh.axis[mesh - 1].size, own};
}

static int member(group g, int64_t k) {
  int64_t at = (k % g.size + g.size) % g.size;
  return g.first + (int)at * g.stride;
}

typedef double combine(double x, double y);
static double add(double x, double y) {
  return x + y;
}
static double larger(double x, double y) {
  return y > x || y != y ? y : x;
}

// The members' operands, combined in the order of the ranks.
static lm_tensor combined(lm_eval *const *rank, group g, const lm_op *op, combine *f) {
  lm_tensor sum = lm_tensor_copy(of(rank[member(g, 0)], op->in[0]));
  for (int k = 1; k < g.size; k++) {
    const lm_tensor *x = of(rank[member(g, k)], op->in[0]);
    for (int64_t i = 0; i < sum.n; i++)
      sum.v[i] = f(sum.v[i], x->v[i]);
  }
  return sum;
}

static void gather(lm_eval *const *rank, group g, const lm_op *op, lm_tensor *out) {
  for (int k = 0; k < g.size; k++) {
    int from = member(g, k);
    lm_eval_whole_set(rank[0]->m, from, of(rank[from], op->in[0]), out);
  }
}

// The part along attr.to[1] of each member's operand becomes its part along attr.to[0].
static void exchange(lm_eval *const *rank, group g, const lm_op *op, lm_tensor *out) {
  lm_type box = op->in[0]->type;
  box.axis[lm_type_find(box, op->attr.axes[1])] = op->attr.to[1];
  for (int k = 0; k < g.size; k++) {
    int from = member(g, k);
    nest n = nest_over(rank[0], box.axis, box.rank);
    operand(rank[0], &n, 0, out->type, from);
    operand(rank[0], &n, 1, op->in[0]->type, member(g, g.own));
    lm_eval_copy(&n, out->v, of(rank[from], op->in[0])->v, false);
  }
}

static int64_t sum_before(const lm_tensor *counts, int n) {
  int64_t sum = 0;
  for (int i = 0; i < n; i++)
    sum += (int64_t)counts->v[i];
  return sum;
}

// The rows of each member for this one, in the order of the ranks.
static void rows_exchange(lm_eval *const *rank, group g, const lm_op *op, lm_tensor *out) {
  int64_t row = out->n / lm_axis_size(rank[0]->m, op->attr.to[0]);
  int64_t to = 0;
  for (int k = 0; k < g.size; k++) {
    lm_eval *e = rank[member(g, k)];
    const lm_tensor *x = of(e, op->in[0]);
    const lm_tensor *send = of(e, op->in[1]);
    int64_t from = sum_before(send, g.own) * row;
    int64_t n = (int64_t)send->v[g.own] * row;
    if (n < 0 || from < 0 || from + n > x->n || to + n > out->n) {
      rank[0]->failed = lm_fail(LM_BUG_STATUS, "exchange_rows: rows that are not there");
      return;
    }
    memcpy(out->v + to, x->v + from, (size_t)n * sizeof *x->v);
    to += n;
  }
}

static void collective(lm_eval *const *rank, int r, const lm_op *op, lm_tensor *out) {
  const lm_module *m = rank[0]->m;
  group g = group_of(m, r, op->attr.mesh);
  const lm_tensor *x = op->n_in ? of(rank[r], op->in[0]) : NULL;
  lm_tensor sum;
  *out = lm_eval_tensor(rank[0], op->out[0]->type);
  switch (op->code) {
  case LM_OP_RANK: out->v[0] = g.own; break;
  case LM_OP_CYCLE: out->v[0] = (double)lm_cycle_at(op, (int64_t)x->v[0], g.own); break;
  case LM_OP_FAN: memcpy(out->v, x->v, (size_t)x->n * sizeof *x->v); break;
  case LM_OP_FIRST:
    if (!g.own)
      memcpy(out->v, x->v, (size_t)x->n * sizeof *x->v);
    break;
  case LM_OP_RING_SHIFT:
    x = of(rank[member(g, g.own - op->attr.imm[0])], op->in[0]);
    memcpy(out->v, x->v, (size_t)x->n * sizeof *x->v);
    break;
  case LM_OP_ALL_REDUCE:
  case LM_OP_ALL_MAX:
    lm_tensor_free(out);
    *out = combined(rank, g, op, op->code == LM_OP_ALL_MAX ? larger : add);
    break;
  case LM_OP_REDUCE_SCATTER:
    sum = combined(rank, g, op, add);
    lm_tensor_free(out);
    *out = lm_eval_part(m, r, &sum, op->out[0]->type);
    lm_tensor_free(&sum);
    break;
  case LM_OP_PART:
    lm_tensor_free(out);
    *out = lm_eval_part(m, r, x, op->out[0]->type);
    break;
  case LM_OP_ALL_TO_ALL: exchange(rank, g, op, out); break;
  case LM_OP_EXCHANGE_COUNTS:
    for (int k = 0; k < g.size; k++)
      out->v[k] = of(rank[member(g, k)], op->in[0])->v[g.own];
    break;
  case LM_OP_EXCHANGE_ROWS: rows_exchange(rank, g, op, out); break;
  default: gather(rank, g, op, out); break;
  }
}

void lm_eval_collective(lm_eval *const *rank, int n, const lm_op *op) {
  for (int r = 0; r < n; r++) {
    if (n == lm_mesh_ranks(rank[0]->m)) {
      collective(rank, r, op, of(rank[r], op->out[0]));
      continue;
    }
    *of(rank[r], op->out[0]) = lm_eval_tensor(rank[r], op->out[0]->type);
    if (!rank[r]->failed)
      rank[r]->failed = lm_fail(LM_BUG_STATUS, "%s: one rank of %d runs alone",
                                lm_op_info_of(op)->name, lm_mesh_ranks(rank[r]->m));
  }
}
