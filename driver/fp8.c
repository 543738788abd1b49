// fp8.c - see fp8.h.
#include "driver/fp8.h"

#include <string.h>

#include "compiler/passes/fp8/fp8.h"
#include "compiler/passes/pass.h"
#include "runtime/base/diag_code.h"

// The instances of a parameter that a pattern matches.
static int64_t matches(lm_ctx *ctx, const char *pattern, const lm_global *g) {
  int64_t n = 0;
  for (int64_t i = 0; i < g->n_paths; i++)
    n += lm_pattern_match(ctx, pattern, g->paths[i], NULL);
  return n;
}

static void keep(const lm_compiled *c, const lm_recipe_keep *k, lm_fp8_kept *kept, uint32_t *n) {
  const lm_module *m = c->lowered->m;
  lm_ctx *ctx = c->project->ctx;
  uint32_t before = *n;
  if (!strcmp(k->type, "f32") && c->compute != LM_F32)
    LM_REPORT(ctx, k->loc, E2F3);
  for (uint32_t i = 0; i < m->n_globals; i++) {
    const lm_global *g = &m->globals[i];
    int64_t some = lm_global_is_weight(g) ? matches(ctx, k->pattern, g) : 0;
    if (some && some < g->n_paths)
      LM_REPORT(ctx, k->loc, E2F1, k->pattern, (long long)some, (long long)g->n_paths, g->name);
    if (some)
      kept[(*n)++] = (lm_fp8_kept){g->name, k->pattern};
  }
  if (*n == before)
    LM_REPORT(ctx, k->loc, E0B0, k->pattern);
}

// What a GPU does not support; NULL: nothing.
static const char *unsupported(const lm_compiled *c, const lm_recipe_precision *p) {
  const lm_target *t = &c->spec.target;
  if (t->kind != LM_TARGET_CUDA)
    return NULL;
  if (t->arch[0] && !t->math[LM_E4M3].native)
    return lm_arena_printf(c->project->ctx->arena, "on %s", t->arch);
  if (!p->fp8.narrow_forward && !p->fp8.narrow_backward)
    return "on a GPU with fwd = e5m2 and bwd = e5m2";
  if (p->fp8.scale == LM_RECIPE_SCALE_MX && t->arch[0] && !t->codes_mx)
    return lm_arena_printf(c->project->ctx->arena, "on %s with scale = mx", t->arch);
  if (p->fp8.scale == LM_RECIPE_SCALE_BLOCK && t->arch[0] && !t->codes_blocks)
    return lm_arena_printf(c->project->ctx->arena, "on %s with scale = block", t->arch);
  return NULL;
}

// The tokens of a micro-batch, by those of the module.
static double tokens_by_module(const lm_run_spec *x) {
  return x->predicted ? (double)x->predicted / (double)lm_run_micro(x) : 1;
}

lm_status lm_fp8_make(lm_compiled *c) {
  const lm_recipe_precision *p = &c->project->recipe->precision;
  static const lm_fp8_scaling scalings[] = {
      [LM_RECIPE_SCALE_DELAYED] = LM_FP8_DELAYED,
      [LM_RECIPE_SCALE_CURRENT] = LM_FP8_CURRENT,
      [LM_RECIPE_SCALE_BLOCK] = LM_FP8_BLOCKS,
      [LM_RECIPE_SCALE_MX] = LM_FP8_MX,
  };
  lm_ctx *ctx = c->project->ctx;
  if (!p->fp8.on || c->spec.no_fp8 || !(c->spec.what & LM_LOWER_TRAIN))
    return NULL;
  size_t most = (size_t)p->n_keep * c->lowered->m->n_globals + 1;
  lm_fp8_kept *kept = LM_NEW_N(ctx->arena, lm_fp8_kept, most);
  uint32_t n = 0;
  lm_pass_env env = {0};
  if (c->spec.variant.on)
    LM_TRY(lm_pass_force(ctx->arena, c->spec.variant.on, &env));
  const char *missing = unsupported(c, p);
  if (missing)
    LM_REPORT(ctx, p->fp8.loc, E2F2, missing);
  for (uint32_t i = 0; i < p->n_keep; i++)
    keep(c, &p->keep[i], kept, &n);
  lm_fp8 *o = LM_NEW(ctx->arena, lm_fp8);
  *o = (lm_fp8){
      .forward = p->fp8.narrow_forward ? LM_E4M3 : LM_E5M2,
      .backward = p->fp8.narrow_backward ? LM_E4M3 : LM_E5M2,
      .scaling = scalings[p->fp8.scale],
      .head = p->fp8.head,
      .target = c->spec.target,
      .all = lm_pass_is_forced(&env, "fp8"),
      .margin = c->spec.fp8_margin,
      .tokens = tokens_by_module(&c->run),
      .micro_batches = c->run.n_micro > 0 ? (double)c->run.n_micro : 1,
      .kept = kept,
      .n_kept = n,
      .loc = p->fp8.loc,
  };
  c->fp8 = o;
  return lm_verdict(ctx);
}
