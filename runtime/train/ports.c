// ports.c - arguments and results of a plan's functions.
#include "runtime/train/ports.h"

#include <string.h>

#include "runtime/base/dtype.h"

static void scalar_store(lm_exec *e, const lm_plan_port *p, double value) {
  void *at = lm_exec_port(e, p);
  switch (p->dtype) {
    case LM_F32: *(float *)at = (float)value; break;
    case LM_F64: *(double *)at = value; break;
    case LM_INT: *(int32_t *)at = (int32_t)value; break;
    default: LM_BUG("scalar %s is of type %d", p->name, p->dtype);
  }
}

double lm_port_value(lm_exec *e, const lm_plan_port *p) {
  const void *at = lm_exec_port(e, p);
  switch (p->dtype) {
    case LM_F32: return *(const float *)at;
    case LM_F64: return *(const double *)at;
    case LM_INT: return *(const int32_t *)at;
    default: LM_BUG("scalar %s is of type %d", p->name, p->dtype);
  }
}

void lm_port_set(lm_exec *e, const lm_plan_func *f, const char *name, double value) {
  const lm_plan_port *p = lm_plan_port_find(f, name, false);
  if (p) scalar_store(e, p, value);
}

double lm_port_get(lm_exec *e, const lm_plan_func *f, const char *name, double otherwise) {
  const lm_plan_port *p = lm_plan_port_find(f, name, true);
  return p ? lm_port_value(e, p) : otherwise;
}

lm_status lm_batch_ports_open(lm_exec *e, const lm_plan_func *f, lm_batch_ports *out) {
  static const char *const names[5] = {"tok", "pos", "seg", "next", "w"};
  void *at[5];
  *out = (lm_batch_ports){0};
  for (int c = 0; c < 5; c++) {
    const lm_plan_port *p = lm_plan_port_find(f, names[c], false);
    at[c] = p ? lm_exec_port(e, p) : NULL;
    if (!p || p->rank != 2) continue;
    out->rows = p->shape[0];
    out->seq = p->shape[1];
  }
  if (!out->rows) return lm_fail(LM_BUG_STATUS, "%s takes no batch", f->name);
  for (int c = 0; c < 5; c++)
    if (!at[c]) at[c] = out->spare[c] = lm_calloc((size_t)(out->rows * out->seq), 4);
  out->batch = (lm_batch){at[0], at[1], at[2], at[3], at[4]};
  return NULL;
}

void lm_batch_ports_close(lm_batch_ports *b) {
  for (int c = 0; c < 5; c++) lm_free(b->spare[c]);
  *b = (lm_batch_ports){0};
}
