// cost.h - what a plan's functions cost, and the products of a model with its weights.
#ifndef LMC_COST_H
#define LMC_COST_H
#include "compiler/ir/ir.h"
#include "runtime/cpu/gemm.h"
#include "runtime/plan/plan.h"

// Of one run, loops counted as often as they turn.
typedef struct lm_cost { double flops, bytes; int64_t launches; } lm_cost;
lm_cost lm_cost_of(const lm_plan_func *f);
// Of a whole step: n_micro micro-batches, norm, update.
lm_cost lm_cost_of_step(const lm_plan *p, int64_t n_micro);

// What a micro-batch takes by the usual count: three times the products and attentions of its loss, before anything is
// computed twice.
double lm_cost_of_model(lm_module *m, const char *loss);

// Every product of @loss with a parameter, in `a`; the module has no calls.
typedef struct lm_projections { lm_cpu_projection *v; uint32_t n, cap; } lm_projections;
lm_projections lm_projections_find(lm_arena *a, lm_module *m);
#endif
