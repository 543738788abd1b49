// move.h - the steps of a plan that move memory: copies, appends, sums into gradients, fills. Every
// thread of a team calls them with its share.
#ifndef LM_CPU_MOVE_H
#define LM_CPU_MOVE_H
#include "runtime/cpu/share.h"
#include "runtime/plan/plan.h"

// to = from, or to += from (add, f32), elementwise by the dims of m; `to` is offset by `at`
// elements along m->at_dim.
void lm_cpu_move(const lm_plan_move *m, const int64_t *var, const char *from, char *to, int64_t at,
                 bool add, const lm_share *share);
void lm_cpu_fill(char *to, int64_t bytes, uint64_t pattern, int element, const lm_share *share);
#endif
