// read_program.h - reads a program as `lmc check` does, for tests of its diagnostics.
#ifndef LM_READ_PROGRAM_H
#define LM_READ_PROGRAM_H
#include "compiler/passes/pass.h"
#include "dsl/lower/lower.h"

typedef struct read_options {
  const char *recipe;      // NULL: the only one
  const char *const *sets; // as --set
  int n_sets;
  bool incomplete; // the models are incomplete: they are not checked if nothing else is wrong
  bool probes;     // checks that no position depends on a later one
  bool decodes;    // also lowers prefill and decode
} read_options;

static inline bool has_recipe(const lm_program *p) {
  for (uint32_t i = 0; i < p->files[0]->tree->n; i++)
    if (p->files[0]->tree->v[i]->kind == DC_RECIPE)
      return true;
  return false;
}

static inline void read_lower(lm_ctx *c, lm_program *p, lm_recipe *r, bool decodes) {
  lm_lower_options o = {.what = LM_LOWER_PROBE | (decodes ? LM_LOWER_DECODE : 0),
                        .rows = 2,
                        .seq = 16,
                        .capacity = 64,
                        .chunk = 8};
  lm_lowered *l = lm_lower(c, p, r, &o);
  if (l)
    lm_pipeline_run(l->m, LM_STAGE_GRAPH, &(lm_pass_env){0});
}

static inline void read_program(lm_ctx *c, const lm_program *library, const char *path,
                                const read_options *o) {
  lm_program *p = lm_program_load_with(c, path, library);
  if (!p)
    return;
  if (c->n_errors) { // as `lmc check`, which reports further errors and none twice
    lm_recipe_check_all(c, p);
    lm_check(c, p, NULL);
    return;
  }
  lm_recipe_overrides overrides = {.sets = o->sets, .n_sets = o->n_sets};
  lm_recipe *r = has_recipe(p) || o->recipe ? lm_recipe_resolve(c, p, o->recipe, &overrides) : NULL;
  if (r)
    lm_recipe_report_unsupported(r);
  if (!c->n_errors || !o->incomplete)
    lm_check(c, p, r);
  if (r && !c->n_errors && (o->probes || o->decodes))
    read_lower(c, p, r, o->decodes);
}
#endif
