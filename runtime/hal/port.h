// port.h - access to scalar arguments and results of a plan's functions, by id.
#ifndef LM_HAL_PORT_H
#define LM_HAL_PORT_H
#include "runtime/hal/exec.h"

// Values are converted from and to the port's type. Setting an argument that f lacks does nothing,
// since a function has only the arguments that it uses. Getting a result that f lacks returns
// `missing`.
void lm_port_set(lm_exec *e, const lm_plan_func *f, lm_port_id id, double value);
double lm_port_get(lm_exec *e, const lm_plan_func *f, lm_port_id id, double missing);
double lm_port_value(lm_exec *e, const lm_plan_port *p);
void lm_port_store(lm_exec *e, const lm_plan_port *p, double value);
#endif
