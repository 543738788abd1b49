// lowered.c - sizes of a lowered program.
#include "dsl/lower/lower.h"

// Of the whole parameter, whether pass shard has divided it or not.
static int64_t elements(const lm_module *m, const lm_global *g) {
  return lm_type_elements(m, lm_type_whole(m, g->type));
}

int64_t lm_lowered_params(const lm_lowered *l) {
  int64_t n = 0;
  for (uint32_t i = 0; i < l->m->n_globals; i++)
    if (lm_global_is_weight(&l->m->globals[i]))
      n += elements(l->m, &l->m->globals[i]);
  return n;
}

int64_t lm_lowered_trained(const lm_lowered *l) {
  int64_t n = 0;
  for (uint32_t i = 0; i < l->m->n_globals; i++)
    if (l->m->globals[i].kind == LM_GLOBAL_PARAM)
      n += elements(l->m, &l->m->globals[i]);
  return n;
}
