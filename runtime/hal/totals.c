// totals.c - see totals.h; host implementation for backends that share its memory.
#include "runtime/hal/totals.h"

#include "runtime/hal/port.h"
#include "runtime/hal/scale.h"

lm_status lm_totals_add(lm_exec *e, const lm_plan_func *f, bool first) {
  if (f->n_out > LM_TOTALS_MAX)
    return lm_fail(LM_BUG_STATUS, "%s has %d results", f->name, f->n_out);
  if (e->ops->totals_add)
    return e->ops->totals_add(e, f, first);
  for (int i = 0; i < LM_TOTALS_MAX; i++) {
    double before = first ? 0 : e->totals[i];
    e->totals[i] = i < f->n_out && !f->out[i].rank ? before + lm_port_value(e, &f->out[i]) : before;
  }
  return NULL;
}

lm_status lm_totals_scale(lm_exec *e, const lm_scale_rule *r) {
  if (e->ops->totals_scale)
    return e->ops->totals_scale(e, r);
  lm_port_store(e, r->scale,
                lm_scale_of(e->totals[r->sum], e->totals[r->weight], lm_port_value(e, r->norm),
                            r->loss_scale, r->clip, r->limit));
  return NULL;
}

lm_status lm_totals_read(lm_exec *e, const double **out) {
  *out = e->totals;
  return e->ops->totals_read ? e->ops->totals_read(e) : lm_exec_wait(e);
}

lm_status lm_totals_write(lm_exec *e) {
  return e->ops->totals_write ? e->ops->totals_write(e) : NULL;
}
