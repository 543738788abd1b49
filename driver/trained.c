// trained.c - a model with its weights.
#include "driver/trained.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "driver/bundle.h"
#include "driver/text.h"
#include "driver/weights/weights.h"
#include "runtime/base/diag_code.h"
#include "runtime/train/checkpoint.h"

static bool is_folder(const char *path) {
  struct stat st;
  return !stat(path, &st) && S_ISDIR(st.st_mode);
}

// The overrides that the run was started with, then those of `more`.
static void sets_append(lm_arena *a, lm_recipe_overrides *o, const lm_recipe_overrides *more) {
  const char **all = LM_NEW_N(a, const char *, o->n_sets + more->n_sets + 1);
  for (int i = 0; i < o->n_sets; i++)
    all[i] = o->sets[i];
  for (int i = 0; i < more->n_sets; i++)
    all[o->n_sets + i] = more->sets[i];
  o->sets = all;
  o->n_sets += more->n_sets;
}

// An imported model has no checkpoints: its program names its weights.
static lm_status checkpoint_find(lm_session *s, const char *dir, const char *step,
                                 const char **out_weights) {
  lm_arena *a = s->project.ctx->arena;
  lm_checkpoint_choice c;
  LM_TRY(lm_checkpoint_choose(a, dir, step ? step : "last", LM_CHECKPOINT_WEIGHTS, &c));
  if (!c.folder && !step && s->project.recipe->from)
    return NULL;
  if (!c.folder)
    return lm_fail(LM_USER, "%s holds no checkpoint yet", dir);
  if (c.damage)
    lm_event_warning(s->project.events,
                     "%s\n  the newest complete checkpoint is loaded, that of step %lld", c.damage,
                     (long long)c.step);
  *out_weights = lm_path_join(a, c.folder, "model.safetensors");
  return NULL;
}

// LM_USER if `dir` is the folder of a checkpoint within a run.
static lm_status refuse_checkpoint(lm_arena *a, const char *dir) {
  const char *name = strrchr(dir, '/');
  const char *run = lm_path_dir(a, dir);
  long long step;
  if (sscanf(name ? name + 1 : dir, "step-%lld", &step) != 1 ||
      access(lm_path_join(a, run, "program.json"), F_OK))
    return NULL;
  return lm_fail(LM_USER,
                 "%s is a checkpoint of the run %s, which holds the program: give the run's folder "
                 "with --step %lld",
                 dir, run, step);
}

static lm_status run_open(lm_session *s, lm_ctx *ctx, const lm_events *events,
                          const lm_trained_choice *x, const char **out_weights) {
  lm_arena *a = ctx->arena;
  const char *dir = x->from->path;
  lm_bundle *b = LM_NEW(a, lm_bundle);
  LM_TRY(refuse_checkpoint(a, dir));
  LM_TRY(lm_bundle_read(a, dir, b));
  sets_append(a, &b->overrides, &x->from->overrides);
  s->run.recorded_micro = b->micro;
  lm_recipe_choice from = {.path = b->path,
                           .recipe = x->from->recipe ? x->from->recipe : b->recipe,
                           .overrides = b->overrides,
                           .bundle = b};
  LM_TRY(lm_session_open(s, ctx, events, &from));
  return checkpoint_find(s, dir, x->step, out_weights);
}

static lm_status file_open(lm_session *s, lm_ctx *ctx, const lm_events *events,
                           const lm_trained_choice *x) {
  LM_TRY(lm_session_open(s, ctx, events, x->from));
  if (x->step)
    return lm_fail(LM_USER, "--step takes the folder of a run; %s is a file", x->from->path);
  if (s->project.recipe->from)
    return NULL;
  lm_diag *d = LM_REPORT(ctx, s->project.recipe->model.loc, E212, x->command);
  if (s->project.recipe->save.dir)
    lm_diag_help(ctx, d, "once it is trained: lmc %s %s", x->command,
                 lm_show_word(ctx->arena, s->project.recipe->save.dir));
  return lm_verdict(ctx);
}

lm_status lm_trained_open(lm_session *s, lm_ctx *ctx, const lm_events *events,
                          const lm_trained_choice *x, const char **out_weights) {
  const char *path = x->from->path;
  *out_weights = NULL;
  if (access(path, F_OK))
    return lm_fail(LM_USER, "there is no run folder and no file %s", path);
  return is_folder(path) ? run_open(s, ctx, events, x, out_weights) : file_open(s, ctx, events, x);
}

lm_status lm_trained_load(const lm_session *s, const char *weights, float *arena) {
  const lm_recipe *r = s->project.recipe;
  if (weights)
    return lm_weights_load(&s->compiled, weights, arena);
  return r->from_hf ? lm_weights_import(&s->compiled, r->from, arena)
                    : lm_weights_load(&s->compiled, r->from, arena);
}

lm_status lm_trained_params(lm_session *s) {
  s->run.rows = s->run.seq = 1;
  return lm_session_compile(s, LM_LOWER_MAPS, 0);
}
