// ports.c - see ports.h.
#include "runtime/train/ports.h"

static void more_open(lm_exec *e, const lm_plan_func *f, lm_batch_ports *out) {
  out->batch.more = out->more = lm_calloc((size_t)f->n_in + 1, sizeof *out->more);
  for (int i = 0; i < f->n_in; i++) {
    const lm_plan_port *p = &f->in[i];
    const char *name = lm_column_name_of(p->name);
    if (!name)
      continue;
    lm_batch_column *x = &out->more[out->batch.n_more++];
    *x = (lm_batch_column){name, lm_exec_port(e, p), 1};
    for (int k = 1; k < p->rank; k++)
      x->row *= p->shape[k];
  }
}

lm_status lm_batch_ports_open(lm_exec *e, const lm_plan_func *f, lm_batch_ports *out) {
  *out = (lm_batch_ports){0};
  for (int c = 0; c < LM_COLUMNS; c++) {
    const lm_plan_port *p = lm_plan_port_get(f, (lm_port_id)c, false);
    out->batch.column[c] = p ? lm_exec_port(e, p) : NULL;
    if (!p || p->rank != 2)
      continue;
    out->rows = p->shape[0];
    out->seq = p->shape[1];
  }
  if (!out->rows)
    return lm_fail(LM_BUG_STATUS, "%s takes no batch", f->name);
  size_t positions = (size_t)(out->rows * out->seq);
  for (int c = 0; c < LM_COLUMNS; c++)
    if (!out->batch.column[c])
      out->batch.column[c] = out->spare[c] = lm_calloc(positions, LM_COLUMN_BYTES);
  more_open(e, f, out);
  return NULL;
}

void lm_batch_ports_close(lm_batch_ports *b) {
  for (int c = 0; c < LM_COLUMNS; c++)
    lm_free(b->spare[c]);
  lm_free(b->more);
  *b = (lm_batch_ports){0};
}
