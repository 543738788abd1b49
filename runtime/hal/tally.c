// tally.c - see tally.h; what is here is done by the host, for backends whose memory it shares.
#include "runtime/hal/tally.h"

#include "runtime/hal/port.h"
#include "runtime/hal/scale.h"

lm_status lm_tally_add(lm_exec *e, const lm_plan_func *f, bool first) {
  if (f->n_out > LM_TALLY_MOST)
    return lm_fail(LM_BUG_STATUS, "%s has %d results", f->name, f->n_out);
  if (e->ops->tally_add)
    return e->ops->tally_add(e, f, first);
  for (int i = 0; i < LM_TALLY_MOST; i++) {
    double before = first ? 0 : e->totals[i];
    e->totals[i] = i < f->n_out && !f->out[i].rank ? before + lm_port_value(e, &f->out[i]) : before;
  }
  return NULL;
}

lm_status lm_tally_judge(lm_exec *e, const lm_tally_rule *r) {
  if (e->ops->tally_judge)
    return e->ops->tally_judge(e, r);
  lm_port_store(e, r->scale,
                lm_scale_of(e->totals[r->sum], e->totals[r->weight], lm_port_value(e, r->norm),
                            r->clip, r->limit));
  return NULL;
}

lm_status lm_tally_read(lm_exec *e, const double **out) {
  *out = e->totals;
  return e->ops->tally_read ? e->ops->tally_read(e) : lm_exec_wait(e);
}
