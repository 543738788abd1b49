// shard_lane.c - the operations of a block for the rows of one micro-batch, of all that a call has.
//
// The rows that routing sorts are another axis, n, as many as the rows and what each is
// sorted by: with n_micro micro-batches, a rank along pp has n / n_micro of them at a time.
//   before: %order = group_order %id, %counts (b, t, k) -> (n)           b = 8, n = 64
//   after:  %order = group_order %id, %counts (b.1@pp, t, k) -> (n.1@pp) b.1@pp = 2, n.1@pp = 16
// What a block adds to a state is multiplied by 0 where a stage has no micro-batch.
#include "compiler/ops/interface.h"
#include "compiler/passes/shard/shard.h"
#include "runtime/base/diag_code.h"

// ---- axes

// The axis that stands for a, divided by the same axes of the mesh.
static lm_axis replaced(lm_shard_lane *l, lm_axis a) {
  const lm_axis_info info = l->s->m->axes[a];
  lm_module *m = l->s->m;
  int64_t ranks = l->s->by->size;
  if (l->of[a])
    return l->of[a];
  if (info.whole) {
    l->of[a] = lm_axis_part(m, replaced(l, info.whole), info.mesh);
  } else {
    int64_t size = info.size / lm_axis_size(m, l->rows) * lm_axis_size(m, l->part);
    l->of[a] = lm_axis_part(m, lm_axis_add(m, info.name, size * ranks, 0), l->s->mesh);
  }
  return l->of[a];
}

static bool has_rows(const lm_shard_lane *l, const lm_axis *axes, int n) {
  for (int i = 0; i < n; i++)
    if (l->of[axes[i]])
      return true;
  return false;
}

static bool sorts_rows(const lm_op *op) {
  return op->attr.n_to && (op->code == LM_OP_GROUP_ORDER || op->code == LM_OP_GROUP_ROWS ||
                           op->code == LM_OP_EXCHANGE_ROWS || op->code == LM_OP_UNGROUP_ROWS);
}

static bool merges_rows(const lm_op *op) {
  return op->code == LM_OP_VIEW && op->attr.n_to == 1;
}

static void follow(lm_op *op, void *user) {
  lm_shard_lane *l = user;
  if (merges_rows(op) && has_rows(l, op->attr.axes, 1))
    replaced(l, op->attr.to[0]);
  if (!sorts_rows(op))
    return;
  if (op->code != LM_OP_UNGROUP_ROWS && has_rows(l, op->attr.axes, op->attr.n_axes))
    replaced(l, op->attr.to[0]);
  if (op->code == LM_OP_UNGROUP_ROWS && has_rows(l, op->attr.to, op->attr.n_to))
    replaced(l, op->attr.axes[0]);
}

lm_shard_lane lm_shard_lane_open(lm_shard *s, lm_func *f, lm_axis rows, lm_axis part) {
  lm_shard_lane l = {
      .s = s,
      .rows = rows,
      .part = part,
      .n = s->m->n_axes,
  };
  l.of = lm_calloc(l.n, sizeof *l.of);
  l.of[rows] = part;
  lm_region_walk(f->body, follow, &l);
  return l;
}

static void axes_rename(const lm_shard_lane *l, lm_axis *axes, int n) {
  for (int i = 0; i < n; i++)
    if (axes[i] < l->n && l->of[axes[i]])
      axes[i] = l->of[axes[i]];
}

void lm_shard_lane_enter(const lm_shard_lane *l, lm_op *op) {
  axes_rename(l, op->attr.axes, op->attr.n_axes);
  axes_rename(l, op->attr.to, op->attr.n_to);
  for (uint32_t i = 0; i < op->n_out; i++)
    axes_rename(l, op->out[i]->type.axis, op->out[i]->type.rank);
  for (uint32_t i = 0; op->body && i < op->body->n_args; i++)
    axes_rename(l, op->body->args[i]->type.axis, op->body->args[i]->type.rank);
  for (lm_op *in = op->body ? op->body->first : NULL; in; in = in->next)
    lm_shard_lane_enter(l, in);
}

bool lm_shard_lane_is_over(const lm_shard_lane *l, const lm_op *op) {
  for (uint32_t a = 0; a < l->n && !merges_rows(op); a++)
    if (l->of[a] && lm_attr_has_axis(&op->attr, l->of[a]))
      return true;
  return false;
}

// ---- states

static bool adds(const lm_region *r) {
  for (const lm_op *op = r->first; op; op = op->next)
    if (op->code == LM_OP_ACCUM || (op->body && adds(op->body)))
      return true;
  return false;
}

static void scale(lm_module *m, lm_region *r, lm_value *busy) {
  for (lm_op *op = r->first; op; op = op->next) {
    if (op->body)
      scale(m, op->body, busy);
    if (op->code != LM_OP_ACCUM)
      continue;
    lm_builder b = {
        .m = m,
        .at = r,
        .before = op,
        .loc = op->loc,
    };
    lm_value **x = &op->in[op->n_in - 1];
    *x = lm_emit2(&b, LM_OP_MUL, *x, lm_emit_cast(&b, busy, (lm_dtype)(*x)->type.dtype));
  }
}

void lm_shard_additions_scale(lm_builder *b, lm_region *r, lm_value *micro, int64_t n_micro) {
  lm_type number = lm_type_make(LM_INT, NULL, 0);
  if (!adds(r))
    return;
  lm_value *begun = lm_emit2(b, LM_OP_GE, micro, lm_emit_const(b, number, 0));
  lm_value *more = lm_emit2(b, LM_OP_LT, micro, lm_emit_const(b, number, (double)n_micro));
  scale(b->m, r, lm_emit2(b, LM_OP_AND, begun, more));
}

// ---- counts of a rank's rows

bool lm_shard_count_is_added(const lm_region *r, const lm_value *v) {
  for (const lm_op *op = r->first; op; op = op->next) {
    if (op->body && !lm_shard_count_is_added(op->body, v))
      return false;
    for (uint32_t i = 0; i < op->n_in; i++) {
      bool sorts = lm_op_info_of(op)->factor == LM_FACTOR_ROUTE || op->code == LM_OP_EXCHANGE_ROWS;
      bool count = op->n_out == 1 && (op->out[0]->type.dtype == LM_INT || op->code == LM_OP_CAST);
      bool adds = op->code == LM_OP_ACCUM && i + 1 == op->n_in;
      if (op->in[i] == v && !sorts && !adds && !(count && lm_shard_count_is_added(r, op->out[0])))
        return false;
    }
  }
  return true;
}

bool lm_shard_routes_rows(const lm_op *op) {
  if (lm_op_info_of(op)->factor != LM_FACTOR_ROUTE)
    return false;
  return op->code != LM_OP_GROUP_COUNTS || lm_shard_count_is_added(op->parent, op->out[0]);
}
