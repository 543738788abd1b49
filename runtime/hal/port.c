// port.c - see port.h.
#include "runtime/hal/port.h"

#include "runtime/base/dtype.h"

void lm_port_store(lm_exec *e, const lm_plan_port *p, double value) {
  void *at = lm_exec_port(e, p);
  switch (p->dtype) {
  case LM_F32: *(float *)at = (float)value; break;
  case LM_F64: *(double *)at = value; break;
  case LM_INT: *(int32_t *)at = (int32_t)value; break;
  case LM_BOOL: *(uint8_t *)at = value != 0; break;
  default: LM_BUG("scalar %s is of type %d", p->name, p->dtype);
  }
}

double lm_port_value(lm_exec *e, const lm_plan_port *p) {
  const void *at = lm_exec_port(e, p);
  switch (p->dtype) {
  case LM_F32: return *(const float *)at;
  case LM_F64: return *(const double *)at;
  case LM_INT: return *(const int32_t *)at;
  case LM_BOOL: return *(const uint8_t *)at;
  default: LM_BUG("scalar %s is of type %d", p->name, p->dtype);
  }
}

void lm_port_set(lm_exec *e, const lm_plan_func *f, lm_port_id id, double value) {
  const lm_plan_port *p = lm_plan_port_get(f, id, false);
  if (p)
    lm_port_store(e, p, value);
}

double lm_port_get(lm_exec *e, const lm_plan_func *f, lm_port_id id, double missing) {
  const lm_plan_port *p = lm_plan_port_get(f, id, true);
  return p ? lm_port_value(e, p) : missing;
}
