// check.c - all that can be known of a recipe without weights, data or a device.
#include "driver/check.h"

#include <string.h>

// What only generation requires. Without samples in the recipe its errors are warnings: the model
// may have another purpose.
static void generation_check(lm_session *s) {
  enum {
    CAPACITY = 64,
    CHUNK = 8
  };
  lm_ctx *c = s->ctx;
  lm_diag **end = c->diags_tail;
  lm_lower_options o = {.what = LM_LOWER_PROBE | LM_LOWER_DECODE,
                        .rows = 1,
                        .seq = 1,
                        .capacity = CAPACITY,
                        .chunk = CHUNK};
  if (!s->lowered->vocab)
    return; // no apply
  lm_lowered *l = lm_lower(c, s->program, s->recipe, &o);
  if (l)
    lm_status_free(lm_session_probe(s, l->m));
  if (!s->recipe->n_samples && *end)
    lm_diag_soften(c, *end, "lmc generate will refuse this model");
}

// Any shape of batch shows the parameters.
static lm_status recipe_check(lm_session *s) {
  enum {
    ROWS = 2,
    SEQ = 16
  };
  lm_recipe_report_unsupported(s->recipe);
  lm_check(s->ctx, s->program, s->recipe);
  LM_TRY(lm_verdict(s->ctx));
  s->run.rows = ROWS;
  s->run.seq = s->recipe->data.seq ? s->recipe->data.seq : SEQ;
  LM_TRY(lm_session_lower(s, LM_LOWER_TRAIN | LM_LOWER_MAPS, 0));
  LM_TRY(lm_session_probe(s, s->lowered->m));
  lm_session_analyzed(s);
  LM_TRY(lm_session_check_ids_of_recipe(s));
  s->run.n_micro =
      s->recipe->micro && !s->recipe->micro_auto ? s->recipe->batch / s->recipe->micro : 0;
  lm_session_rows_warn(s);
  generation_check(s);
  return lm_verdict(s->ctx);
}

typedef struct checker {
  lm_ctx *ctx;
  const lm_events *events;
  const lm_check_options *o;
  lm_program *program;
  void (*checked)(void *user, const lm_session *s);
  void *user;
} checker;

static lm_status named_check(const checker *x, const char *name) {
  const lm_recipe_choice *from = &x->o->from;
  lm_session s = {
      .ctx = x->ctx, .events = x->events, .program = x->program, .target = x->o->target};
  s.recipe = lm_recipe_resolve(x->ctx, x->program, name, &from->overrides);
  if (x->ctx->n_errors)
    lm_check(x->ctx, x->program, s.recipe);
  LM_TRY(lm_verdict(x->ctx));
  LM_TRY(recipe_check(&s));
  x->checked(x->user, &s);
  return NULL;
}

static bool is_wanted(const ast_decl *d, const char *name) {
  return d->kind == DC_RECIPE && (!name || !strcmp(d->name.text, name));
}

static lm_status recipes_check(const checker *x, int *out_n) {
  const lm_recipe_choice *from = &x->o->from;
  const ast_file *tree = x->program->files[0]->tree;
  for (uint32_t i = 0; i < tree->n; i++) {
    if (!is_wanted(tree->v[i], from->recipe))
      continue;
    (*out_n)++;
    LM_TRY(named_check(x, tree->v[i]->name.text));
  }
  if (!*out_n && (from->recipe || from->overrides.n_sets)) // reports which recipes there are
    lm_recipe_resolve(x->ctx, x->program, from->recipe, &from->overrides);
  else if (!*out_n)
    lm_check(x->ctx, x->program, NULL);
  return lm_verdict(x->ctx);
}

lm_status lm_check_run(lm_ctx *ctx, const lm_events *events, const lm_check_options *o,
                       void (*checked)(void *user, const lm_session *s), void *user, int *out_n) {
  checker x = {.ctx = ctx, .events = events, .o = o, .checked = checked, .user = user};
  *out_n = 0;
  x.program = lm_program_load(ctx, o->from.path);
  if (!x.program)
    return lm_verdict(ctx);
  if (ctx->n_errors)
    lm_check(ctx, x.program, NULL);
  LM_TRY(lm_verdict(ctx));
  return recipes_check(&x, out_n);
}
