// ports.c - see ports.h.
#include "runtime/train/ports.h"

lm_status lm_batch_ports_open(lm_exec *e, const lm_plan_func *f, lm_batch_ports *out) {
  static const char *const names[5] = {"tok", "pos", "seg", "next", "w"};
  void *at[5];
  *out = (lm_batch_ports){0};
  for (int c = 0; c < 5; c++) {
    const lm_plan_port *p = lm_plan_port_find(f, names[c], false);
    at[c] = p ? lm_exec_port(e, p) : NULL;
    if (!p || p->rank != 2)
      continue;
    out->rows = p->shape[0];
    out->seq = p->shape[1];
  }
  if (!out->rows)
    return lm_fail(LM_BUG_STATUS, "%s takes no batch", f->name);
  for (int c = 0; c < 5; c++)
    if (!at[c])
      at[c] = out->spare[c] = lm_calloc((size_t)(out->rows * out->seq), 4);
  out->batch = (lm_batch){at[0], at[1], at[2], at[3], at[4]};
  return NULL;
}

void lm_batch_ports_close(lm_batch_ports *b) {
  for (int c = 0; c < 5; c++)
    lm_free(b->spare[c]);
  *b = (lm_batch_ports){0};
}
