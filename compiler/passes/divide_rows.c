// divide_rows.c - divides the rows of a micro-batch among the ranks of the mesh axis dp.
//
//   axis b = 8                  axis b = 4
//   func @loss(%tok: int[b, t], …)
//
// With env->ranks = 2. The module computes the part of one rank, of any one: the first row of the
// part is the argument `row`, as that of a micro-batch is. Sizes that the program has computed from
// b are numbers by now, and remain those of the whole micro-batch, so a mean over b is the sum over
// the part divided by all rows. The driver checks that the loss is a sum over rows (row_mix.h).
// Declines without a mesh. An error where a view merges rows with other axes. Cost: a visit of each
// operation.
#include "compiler/ops/interface.h"
#include "compiler/passes/pass.h"
#include "runtime/base/diag_code.h"

typedef struct divider {
  lm_module *m;
  int ranks;
  bool *is_row; // by axis
  bool good;
} divider;

static void axis_mark(divider *d, lm_axis axis) {
  if (d->is_row[axis])
    return;
  if (d->m->axes[axis].size % d->ranks)
    LM_BUG("%d ranks do not divide axis %s", d->ranks, d->m->axes[axis].name);
  d->is_row[axis] = true;
  d->m->axes[axis].size /= d->ranks;
}

// True if one of the axes is of rows.
static bool any_row(const divider *d, const lm_axis *axes, int n) {
  for (int i = 0; i < n; i++)
    if (d->is_row[axes[i]])
      return true;
  return false;
}

// Another name of the rows is an axis of rows too.
static void op_visit(divider *d, const lm_op *op) {
  if (!lm_op_has(op, LM_T_ORDERED) || !any_row(d, op->attr.axes, op->attr.n_axes))
    return;
  if (op->code == LM_OP_VIEW) {
    LM_REPORT(d->m->ctx, op->loc, E257, "a view of the axis of rows");
    d->good = false;
    return;
  }
  for (int i = 0; i < op->attr.n_to; i++)
    if (d->is_row[op->attr.axes[i]])
      axis_mark(d, op->attr.to[i]);
}

static void region_visit(divider *d, const lm_region *r) {
  for (const lm_op *op = r->first; op; op = op->next) {
    op_visit(d, op);
    if (op->body)
      region_visit(d, op->body);
  }
}

bool lm_pass_divide_rows(lm_module *m, const lm_pass_env *env) {
  divider d = {m, env->ranks, NULL, true};
  if (env->ranks < 2)
    return true;
  lm_arena *a = lm_arena_create();
  d.is_row = LM_NEW_N(a, bool, m->n_axes + 1);
  for (const lm_func *f = m->funcs; f; f = f->next)
    if (f->key.id == LM_FUNC_LOSS || f->key.id == LM_FUNC_EVAL) {
      axis_mark(&d, f->body->args[0]->type.axis[0]);
      region_visit(&d, f->body);
    }
  lm_arena_destroy(a);
  return d.good;
}
