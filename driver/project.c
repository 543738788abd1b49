// project.c - a program, a recipe and its overrides, resolved.
#include "driver/project.h"

#include <string.h>

#include "driver/bundle.h"
#include "runtime/comm/comm.h"

// Resolves the recipe with fewer ranks along dp if the run has fewer than its mesh.
static lm_status mesh_fit(lm_project *p, const lm_recipe_choice *from, lm_recipe_overrides *o) {
  int ranks = lm_comm_self_of(from->comm).size;
  if (ranks < from->least_ranks && ranks >= p->recipe->parallel.ranks)
    return lm_fail(LM_USER, "--min-ranks %d needs at least %d ranks, this run has %d",
                   from->least_ranks, from->least_ranks, ranks);
  bool fewer = ranks < p->recipe->parallel.ranks && from->least_ranks;
  const char *mesh = fewer && ranks >= from->least_ranks
                         ? lm_recipe_mesh_of(p->ctx->arena, p->recipe, ranks)
                         : NULL;
  if (!mesh)
    return NULL;
  const char **sets = LM_NEW_N(p->ctx->arena, const char *, o->n_sets + 1);
  for (int i = 0; i < o->n_sets; i++)
    sets[i] = o->sets[i];
  sets[o->n_sets++] = lm_arena_printf(p->ctx->arena, "parallel.mesh=%s", mesh);
  o->sets = sets;
  p->recipe = lm_recipe_resolve(p->ctx, p->program, from->recipe, o);
  return NULL;
}

lm_status lm_project_open(lm_ctx *ctx, const lm_events *events, const lm_recipe_choice *from,
                          lm_project *out) {
  *out = (lm_project){
      .ctx = ctx,
      .events = events,
      .bundle = from->bundle,
  };
  out->program = lm_program_load(ctx, from->path);
  LM_TRY(lm_verdict(ctx));
  if (from->bundle)
    lm_bundle_restore(out->program, from->bundle);
  lm_recipe_overrides overrides = from->overrides;
  overrides.ranks = from->comm ? lm_comm_self_of(from->comm).size : 0;
  out->recipe = lm_recipe_resolve(ctx, out->program, from->recipe, &overrides);
  LM_TRY(lm_verdict(ctx));
  LM_TRY(mesh_fit(out, from, &overrides));
  LM_TRY(lm_verdict(ctx));
  lm_recipe_report_unsupported(out->recipe);
  return lm_verdict(ctx);
}
