// trained.c - a model with its weights.
#include "lmc/trained.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lmc/bundle.h"
#include "lmc/weights.h"
#include "runtime/train/checkpoint.h"

static bool is_folder(const char *path) {
  struct stat st;
  return !stat(path, &st) && S_ISDIR(st.st_mode);
}

// The run's own overrides, then the command's.
static void sets_append(lm_cli *cli, lm_bundle *b) {
  int n;
  const char *const *more = lm_args_list(&cli->args, "set", &n);
  const char **all = LM_NEW_N(cli->ctx->arena, const char *, b->n_sets + n + 1);
  for (int i = 0; i < b->n_sets; i++)
    all[i] = b->sets[i];
  for (int i = 0; i < n; i++)
    all[b->n_sets + i] = more[i];
  b->sets = all;
  b->n_sets += n;
}

// An imported model has no checkpoints: its program says where its weights are.
static lm_status checkpoint_find(lm_session *s, const char *dir, const char **out_weights) {
  lm_arena *a = s->ctx->arena;
  const char *which = lm_args_text(&s->cli->args, "step", NULL);
  lm_checkpoint_choice c;
  LM_TRY(lm_checkpoint_choose(a, dir, which ? which : "last", LM_CHECKPOINT_WEIGHTS, &c));
  if (!c.folder && !which && s->recipe->from)
    return NULL;
  if (!c.folder)
    return lm_fail(LM_USER, "%s holds no checkpoint yet", dir);
  if (c.damage)
    lm_cli_note("warning: %s\n  the newest checkpoint that is whole is taken, that of step %lld\n",
                c.damage, (long long)c.step);
  *out_weights = lm_path_join(a, c.folder, "model.safetensors");
  return NULL;
}

// The folder of a checkpoint is part of a run.
static lm_status no_run(lm_arena *a, const char *dir) {
  const char *name = strrchr(dir, '/');
  const char *run = lm_path_dir(a, dir);
  long long step;
  if (sscanf(name ? name + 1 : dir, "step-%lld", &step) != 1 ||
      access(lm_path_join(a, run, "program.json"), F_OK))
    return NULL;
  return lm_fail(
      LM_USER,
      "%s is a checkpoint of the run %s: its program is there, so give that, with --step %lld", dir,
      run, step);
}

static lm_status run_open(lm_session *s, lm_cli *cli, const char *dir, const char **out_weights) {
  lm_bundle *b = LM_NEW(cli->ctx->arena, lm_bundle);
  LM_TRY(no_run(cli->ctx->arena, dir));
  LM_TRY(lm_bundle_read(cli->ctx->arena, dir, b));
  sets_append(cli, b);
  s->bundle = b;
  LM_TRY(lm_session_open(s, cli, b->path, lm_args_text(&cli->args, "recipe", b->recipe), b->sets,
                         b->n_sets));
  return checkpoint_find(s, dir, out_weights);
}

static lm_status file_open(lm_session *s, lm_cli *cli) {
  LM_TRY(lm_session_open_args(s, cli));
  if (lm_args_given(&cli->args, "step"))
    return lm_fail(LM_USER, "--step is of a run's folder; %s is a file", cli->args.rest[0]);
  if (s->recipe->from)
    return NULL;
  lm_diag *d = lm_error(s->ctx, s->recipe->model.loc, "E212",
                        "this model is not `from` any weights, so there is nothing to %s with",
                        cli->command->name);
  if (s->recipe->save.dir)
    lm_diag_help(s->ctx, d, "once it is trained: lmc %s %s", cli->command->name,
                 lm_show_word(s->ctx->arena, s->recipe->save.dir));
  return lm_cli_verdict(cli);
}

lm_status lm_trained_open(lm_session *s, lm_cli *cli, const char **out_weights) {
  const char *path = cli->args.rest[0];
  *out_weights = NULL;
  if (access(path, F_OK))
    return lm_fail(LM_USER, "there is no run folder and no file %s", path);
  return is_folder(path) ? run_open(s, cli, path, out_weights) : file_open(s, cli);
}

lm_status lm_trained_load(const lm_session *s, const char *weights, float *arena) {
  const lm_recipe *r = s->recipe;
  if (weights)
    return lm_weights_load(s, weights, arena);
  return r->from_hf ? lm_weights_import(s, r->from, arena) : lm_weights_load(s, r->from, arena);
}

lm_status lm_trained_params(lm_session *s) {
  s->rows = s->seq = 1;
  LM_TRY(lm_session_lower(s, LM_LOWER_MAPS, 0));
  return lm_session_plan(s);
}
