// scan_lift.c - see scan_lift.h.
#include "compiler/passes/chunk/scan_lift.h"
#include <string.h>
#include "compiler/ops/widen.h"

static void ready_update(lm_scan_lift *l) {
  for (const lm_op *op = l->scan->body->first; op != l->scan->body->last; op = op->next) {
    bool ready = op->n_out == 1 && lm_widens(op);
    for (uint32_t i = 0; i < op->n_in; i++)
      ready &= l->ready[op->in[i]->id];
    for (uint32_t i = 0; i < op->n_out; i++)
      l->ready[op->out[i]->id] = ready;
  }
}

void lm_scan_lift_begin(lm_scan_lift *l, lm_op *scan) {
  lm_module *m = scan->parent->func->module;
  *l = (lm_scan_lift){.scan = scan,
                      .b = {m, scan->parent, scan, scan->loc, scan->remat},
                      .map = lm_calloc((size_t)m->n_values + 1, sizeof *l->map),
                      .ready = lm_calloc((size_t)m->n_values + 1, sizeof *l->ready),
                      .n = m->n_values};
  for (uint32_t i = lm_scan_carries(scan); i < scan->n_in; i++) {
    l->map[scan->body->args[i]->id] = scan->in[i];
    l->ready[scan->body->args[i]->id] = true;
  }
  ready_update(l);
}

void lm_scan_lift_end(lm_scan_lift *l) {
  lm_free(l->map);
  lm_free(l->ready);
}

void lm_scan_lift_carry(lm_scan_lift *l, uint32_t carry, lm_value *before) {
  const lm_value *arg = l->scan->body->args[carry];
  l->map[arg->id] = before;
  l->ready[arg->id] = true;
  ready_update(l);
}

// The lifted result x of an operation, in the order of axes that lifted values have.
static lm_value *ordered(lm_scan_lift *l, lm_value *x, lm_type in_region) {
  lm_axis order[LM_RANK + 1];
  int n = 0;
  if (lm_type_find(x->type, lm_scan_axis(l->scan)) >= 0)
    order[n++] = lm_scan_axis(l->scan);
  memcpy(order + n, in_region.axis, in_region.rank * sizeof *order);
  return lm_emit_permute(&l->b, x, order, n + in_region.rank);
}

lm_value *lm_scan_lift_of(lm_scan_lift *l, lm_value *v) {
  const lm_op *last = l->scan->body->last;
  lm_value *in[LM_RANK];
  uint8_t *wanted = lm_calloc((size_t)l->n + 1, 1);
  wanted[v->id] = 1;
  for (const lm_op *op = last->prev; op; op = op->prev)
    for (uint32_t i = 0; wanted[op->out[0]->id] && !l->map[op->out[0]->id] && i < op->n_in; i++)
      wanted[op->in[i]->id] = 1;
  for (const lm_op *op = l->scan->body->first; op != last; op = op->next) {
    lm_value **to = &l->map[op->out[0]->id];
    if (!wanted[op->out[0]->id] || *to)
      continue;
    for (uint32_t i = 0; i < op->n_in; i++)
      in[i] = l->map[op->in[i]->id];
    l->b.loc = op->loc;
    *to = ordered(l, lm_widen(&l->b, op, in), op->out[0]->type);
  }
  lm_free(wanted);
  return l->map[v->id];
}

lm_value *lm_scan_lift_stacked(lm_scan_lift *l, lm_value *v) {
  lm_value *x = lm_scan_lift_of(l, v);
  return lm_emit_expand(&l->b, x, lm_type_stacked(lm_scan_axis(l->scan), v->type));
}
