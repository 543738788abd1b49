// project.c - a program, a recipe and its overrides, resolved.
#include "driver/project.h"

#include <string.h>

#include "driver/bundle.h"
#include "runtime/comm/comm.h"

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
  lm_recipe_report_unsupported(out->recipe);
  return lm_verdict(ctx);
}
