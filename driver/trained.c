// trained.c - a model with its weights.
#include "driver/trained.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "driver/base.h"
#include "driver/bundle.h"
#include "driver/fingerprint.h"
#include "driver/history.h"
#include "driver/text.h"
#include "driver/tokenizer_files.h"
#include "driver/weights/import_folder.h"
#include "driver/weights/weights.h"
#include "runtime/base/diag_code.h"
#include "runtime/train/checkpoint_state.h"

static bool is_folder(const char *path) {
  struct stat st;
  return !stat(path, &st) && S_ISDIR(st.st_mode);
}

// The overrides that the run was started with, then the overrides of `more`.
static void sets_append(lm_arena *a, lm_recipe_overrides *o, const lm_recipe_overrides *more) {
  const char **all = LM_NEW_N(a, const char *, o->n_sets + more->n_sets + 1);
  for (int i = 0; i < o->n_sets; i++)
    all[i] = o->sets[i];
  for (int i = 0; i < more->n_sets; i++)
    all[o->n_sets + i] = more->sets[i];
  o->sets = all;
  o->n_sets += more->n_sets;
}

// Parts that an evaluation, a generation or an export depends on: the parameters and the loss,
// which in an evaluation may differ from the loss of training.
static bool is_compared(const lm_fingerprint *saved, const lm_fingerprint_change *c) {
  bool has_eval = false;
  for (uint32_t i = 0; i < saved->n; i++)
    has_eval |= lm_func_key_parse(saved->v[i].key).id == LM_FUNC_EVAL;
  if (!strncmp(c->part, "optimizer", strlen("optimizer"))) // or its states
    return false;
  return !has_eval || lm_func_key_parse(c->part).id != LM_FUNC_LOSS;
}

// LM_USER if the program is not the one that the checkpoint was trained with.
static lm_status program_compare(const lm_session *s, const char *folder,
                                 const lm_fingerprint *saved) {
  lm_ctx *ctx = s->project.ctx;
  lm_buf text = {0};
  lm_fingerprint is = lm_fingerprint_of(ctx, s->project.program, s->project.recipe);
  if (!saved->n || !is.n)
    return NULL; // errors of the program are reported when it is compiled
  lm_fingerprint_changes all = lm_fingerprint_compare(ctx->arena, saved, &is);
  for (uint32_t i = 0; i < all.n; i++)
    if (is_compared(saved, &all.v[i]))
      lm_fingerprint_change_print(&all.v[i], &text);
  lm_status status =
      text.n ? lm_fail(LM_USER,
                       "%s: the program %s computes something else than the one that these weights "
                       "were trained "
                       "with:%s\n  undo the change in that file, if it was edited; to use the "
                       "weights with another program, name them in it: model M = ... from \"%s\"",
                       folder, s->project.program->files[0]->path, text.p, folder)
             : NULL;
  lm_buf_free(&text);
  return status;
}

// LM_USER if the tokenizer is not the one that the checkpoint was trained with.
static lm_status tokenizer_compare(lm_session *s, const char *dir, const char *folder,
                                   const lm_fingerprint *saved) {
  lm_arena *a = s->project.ctx->arena;
  const char *original = s->project.recipe->data.tokenizer.file;
  LM_TRY(lm_session_tokenizer(s));
  const char *changed = lm_tokenizer_files_compare(s, saved).file;
  if (!changed)
    return NULL;
  const char *source = original ? lm_arena_printf(a, "; the run copied it from the folder %s",
                                                  lm_path_dir(a, original))
                                : "";
  return lm_fail(LM_USER,
                 "%s: these weights were trained with another tokenizer; the content of %s has "
                 "changed since\n  restore that file%s\n  to use the weights with another "
                 "tokenizer, name them in a program: model M = ... from \"%s\"",
                 folder, lm_path_join(a, dir, changed), source, folder);
}

static lm_status checkpoint_compare(lm_session *s, const char *dir, const char *folder) {
  lm_checkpoint was;
  LM_TRY(lm_checkpoint_state_read(s->project.ctx->arena, folder, &was));
  lm_fingerprint saved = lm_fingerprint_saved(&was);
  LM_TRY(program_compare(s, folder, &saved));
  return tokenizer_compare(s, dir, folder, &saved);
}

// LM_USER if the tokenizer is not the one that was imported with the weights.
static lm_status import_compare(lm_session *s, const char *dir) {
  lm_fingerprint saved;
  LM_TRY(lm_import_tokenizer_read(s->project.ctx->arena, dir, &saved));
  if (!saved.n)
    return NULL;
  LM_TRY(lm_session_tokenizer(s));
  const char *changed = lm_tokenizer_files_compare(s, &saved).file;
  bool pair = changed && s->n_tokenizer_files == 2 && changed == s->tokenizer_files[0].name;
  return !changed
             ? NULL
             : lm_fail(LM_USER,
                       "%s: the tokenizer is not the one that was imported with these weights; "
                       "the content of %s/%s has changed since\n  restore that file, or import "
                       "the model again; to use the weights with another tokenizer, name them "
                       "in a program: model M = ... from \"%s/model.safetensors\"",
                       dir, dir, pair ? "vocab.json or merges.txt" : changed, dir);
}

// The run's checkpoint and the program that it was trained with. An imported model has no
// checkpoints: its program names its weights.
typedef struct run_choice {
  lm_checkpoint_choice checkpoint;
  lm_bundle *program;
} run_choice;

static lm_status run_choose(lm_arena *a, const char *dir, const char *step, run_choice *out) {
  lm_history h;
  out->program = LM_NEW(a, lm_bundle);
  LM_TRY(lm_bundle_read(a, dir, out->program));
  LM_TRY(
      lm_checkpoint_choose(a, dir, step ? step : "last", LM_CHECKPOINT_WEIGHTS, &out->checkpoint));
  if (!out->checkpoint.folder)
    return NULL;
  LM_TRY(lm_history_read(a, dir, &h));
  const char *folder = lm_history_program(a, &h, dir, out->checkpoint.step);
  return folder == dir ? NULL : lm_bundle_read(a, folder, out->program);
}

static lm_status checkpoint_take(lm_session *s, const char *dir, const char *step,
                                 const lm_checkpoint_choice *c, const char **out_weights) {
  if (!c->folder && !step && s->project.recipe->from)
    return import_compare(s, dir);
  if (!c->folder)
    return lm_fail(LM_USER, "%s holds no checkpoint yet", dir);
  if (c->damage)
    lm_event_warning(s->project.events,
                     "%s\n  the newest complete checkpoint, of step %lld, is loaded", c->damage,
                     (long long)c->step);
  *out_weights = lm_path_join(s->project.ctx->arena, c->folder, "model.safetensors");
  return checkpoint_compare(s, dir, c->folder);
}

// LM_USER if `dir` is the folder of a checkpoint within a run.
static lm_status refuse_checkpoint(lm_arena *a, const char *dir) {
  const char *name = strrchr(dir, '/');
  const char *run = lm_path_dir(a, dir);
  long long step;
  if (sscanf(name ? name + 1 : dir, "step-%lld", &step) != 1 || !lm_bundle_exists(a, run))
    return NULL;
  return lm_fail(LM_USER,
                 "%s is a checkpoint of the run %s, which holds the program: give the run's folder "
                 "with --step %lld",
                 dir, run, step);
}

static lm_status bundle_open(lm_session *s, lm_ctx *ctx, const lm_events *events,
                             const lm_recipe_choice *x, lm_bundle *b) {
  sets_append(ctx->arena, &b->overrides, &x->overrides);
  s->run.recorded_micro = b->micro;
  lm_recipe_choice from = {.path = b->path,
                           .recipe = x->recipe ? x->recipe : b->recipe,
                           .overrides = b->overrides,
                           .bundle = b,
                           .comm = x->comm};
  return lm_session_open(s, ctx, events, &from);
}

lm_status lm_program_open(lm_session *s, lm_ctx *ctx, const lm_events *events,
                          const lm_recipe_choice *x) {
  if (!is_folder(x->path) || !lm_bundle_exists(ctx->arena, x->path))
    return lm_session_open(s, ctx, events, x);
  lm_bundle *b = LM_NEW(ctx->arena, lm_bundle);
  LM_TRY(lm_bundle_read(ctx->arena, x->path, b));
  return bundle_open(s, ctx, events, x, b);
}

static lm_status run_open(lm_session *s, lm_ctx *ctx, const lm_events *events,
                          const lm_trained_choice *x, const char **out_weights) {
  lm_arena *a = ctx->arena;
  const char *dir = x->from->path;
  run_choice run;
  LM_TRY(refuse_checkpoint(a, dir));
  LM_TRY(run_choose(a, dir, x->step, &run));
  LM_TRY(bundle_open(s, ctx, events, x->from, run.program));
  return checkpoint_take(s, dir, x->step, &run.checkpoint, out_weights);
}

static lm_status program_open(lm_session *s, lm_ctx *ctx, const lm_events *events,
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
  return is_folder(path) ? run_open(s, ctx, events, x, out_weights)
                         : program_open(s, ctx, events, x);
}

lm_status lm_trained_load(const lm_session *s, const char *weights, lm_weights w) {
  lm_arena *a = s->project.ctx->arena;
  if (!weights)
    return lm_weights_load_from(&s->compiled, w);
  if (s->compiled.plan->n_frozen) {
    lm_checkpoint was;
    LM_TRY(lm_checkpoint_state_read(a, lm_path_dir(a, weights), &was));
    lm_fingerprint saved = lm_fingerprint_saved(&was);
    lm_fingerprint base;
    LM_TRY(lm_base_of(s, &base));
    LM_TRY(lm_base_compare(s, weights, &saved, &base));
    LM_TRY(lm_weights_load_from(&s->compiled, w));
  }
  w.trained_only = true;
  return lm_weights_load(&s->compiled, weights, w);
}

lm_status lm_trained_params(lm_session *s, uint32_t what) {
  s->run.rows = s->run.seq = 1;
  return lm_session_compile(s, LM_LOWER_MAPS | what, 0);
}
