// analysis.c - see analysis.h.
#include "compiler/analysis/analysis.h"

static lm_analysis *results(lm_module *m) {
  if (!m->analysis)
    m->analysis = LM_NEW(m->arena, lm_analysis);
  return m->analysis;
}

void lm_analysis_of_model(lm_module *m) {
  lm_analysis *a = results(m);
  a->limits = lm_limits_find(m);
  a->row_mix = lm_row_mix_find(m);
  a->gemms = lm_weight_gemms_find(m->arena, m);
}

void lm_analysis_count(lm_module *m) {
  lm_analysis *a = results(m);
  a->n_flops = 0;
  for (const lm_func *f = m->funcs; f; f = f->next)
    LM_PUSH(m->arena, a->flops, a->n_flops, a->cap_flops) = lm_model_flops_of(f);
}

const lm_analysis *lm_analysis_of(const lm_module *m) {
  if (!m->analysis)
    LM_BUG("the module was not analyzed");
  return m->analysis;
}

double lm_analysis_flops(const lm_module *m, lm_func_id loss, int64_t seq) {
  const lm_analysis *a = lm_analysis_of(m);
  for (uint32_t i = 0; i < a->n_flops; i++)
    if (lm_func_key_equal(a->flops[i].func, (lm_func_key){loss, seq}))
      return a->flops[i].flops;
  return 0;
}
