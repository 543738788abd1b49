// port.h - scalar arguments and results of a plan's functions, by name, in an executor's memory.
#ifndef LM_HAL_PORT_H
#define LM_HAL_PORT_H
#include "runtime/hal/exec.h"

// Converted from and to the port's type. Setting a name that is no argument does nothing: a
// function takes what it uses. Getting one that is no result gives `otherwise`.
void lm_port_set(lm_exec *e, const lm_plan_func *f, const char *name, double value);
double lm_port_get(lm_exec *e, const lm_plan_func *f, const char *name, double otherwise);
double lm_port_value(lm_exec *e, const lm_plan_port *p);
void lm_port_store(lm_exec *e, const lm_plan_port *p, double value);
#endif
