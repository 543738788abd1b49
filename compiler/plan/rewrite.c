// rewrite.c - changes of the list of steps of the current function.
#include "compiler/plan/internal.h"

void lm_steps_nest(planner *p) {
  int around[LM_PLAN_DEPTH + 1] = {-1}; // the LOOP steps; the innermost is around[depth]
  int depth = 0;
  for (int i = 0; i < (int)p->n_steps; i++) {
    pstep *s = &p->steps[i];
    if (s->step.kind == LM_STEP_END) {
      s->step.match = around[depth--];
      p->steps[s->step.match].step.match = i;
    }
    s->loop = around[depth];
    if (s->step.kind == LM_STEP_LOOP)
      around[++depth] = i;
  }
}

pstep *lm_steps_push(const planner *p, step_list *list, const pstep *s) {
  pstep *out = &LM_PUSH(p->arena, list->v, list->n, list->cap);
  *out = *s;
  return out;
}

void lm_steps_replace(planner *p, const step_list *list) {
  p->steps = list->v;
  p->n_steps = list->n;
  p->cap_steps = list->cap;
  lm_steps_nest(p);
}

void lm_steps_remove(planner *p, const bool *gone) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < p->n_steps; i++)
    if (!gone[i])
      p->steps[n++] = p->steps[i];
  p->n_steps = n;
  lm_steps_nest(p);
}
