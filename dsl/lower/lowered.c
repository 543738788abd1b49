// lowered.c - sizes of a lowered program.
#include <string.h>

#include "dsl/lower/lower.h"

// Of the whole parameter, whether pass shard has divided it or not.
static int64_t elements(const lm_module *m, const lm_global *g) {
  return lm_type_elements(m, lm_type_whole(m, g->type));
}

int64_t lm_lowered_params(const lm_lowered *l) {
  int64_t n = 0;
  for (uint32_t i = 0; i < l->m->n_globals; i++)
    if (lm_global_is_weight(&l->m->globals[i]) && !l->m->globals[i].untrained)
      n += elements(l->m, &l->m->globals[i]);
  return n;
}

bool lm_lowered_is_state(const lm_lowered *l, const char *path) {
  for (uint32_t i = 0; i < l->n_paths; i++)
    if (l->paths[i].group < 0 && !strcmp(l->paths[i].path, path))
      return true;
  return false;
}

int64_t lm_lowered_trained(const lm_lowered *l) {
  int64_t n = 0;
  for (uint32_t i = 0; i < l->m->n_globals; i++)
    if (lm_global_is_updated(&l->m->globals[i]))
      n += elements(l->m, &l->m->globals[i]);
  return n;
}
