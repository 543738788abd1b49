// tune_machine.c - whether a session is tuned, for how long, and the machine that is measured.
#include "driver/tune/tune_machine.h"

#include <math.h>

bool lm_tune_is_requested(const lm_session *s) {
  return s->project.recipe->compile == LM_RECIPE_COMPILE_MAX_AUTOTUNE;
}

double lm_tune_budget(const lm_session *s) {
  return fmax(0, s->project.recipe->compile_budget - s->tuning.spent);
}

const char *lm_tune_processor(lm_arena *a, const lm_cpu_info *cpu) {
  return lm_arena_printf(a, "%s %s %s", cpu->model, cpu->isa, cpu->march);
}

const char *lm_tune_machine(const lm_session *s) {
  lm_cpu_info cpu;
  if (s->target.kind == LM_TARGET_CUDA)
    return s->target.arch;
  lm_cpu_detect(&cpu);
  return lm_arena_printf(s->project.ctx->arena, "%s %016llx %s",
                         lm_tune_processor(s->project.ctx->arena, &cpu),
                         (unsigned long long)cpu.features, cpu.onednn);
}
