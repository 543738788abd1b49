// run.c - lmc run: compiles and trains.
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver/bundle.h"
#include "lmc/open.h"
#include "lmc/output.h"
#include "driver/inspect/profile.h"
#include "driver/resume.h"
#include "driver/data.h"
#include "driver/generate.h"
#include "driver/tune/tune.h"
#include "driver/tune/tune_step.h"
#include "runtime/base/terminal.h"
#include "runtime/io/json.h"
#include "runtime/train/checkpoint_folder.h"
#include "runtime/train/run.h"

#define MICRO_TIMED_S 0.2 // to say how long the run will take

_Static_assert((int)LM_EMITS_MAX <= (int)LM_TRAIN_METRICS,
               "every emitted value has its place in a step's result");

#define LM_OPT_RESUME                                                                              \
  {.name = "resume",                                                                               \
   .kind = LM_OPT_TEXT,                                                                            \
   .value = "auto|never|PATH",                                                                     \
   .help =                                                                                         \
       "resume from the newest checkpoint of the run's folder, from none, or from this one; "      \
       "checkpoints that the run does not follow from are moved to superseded-N in the folder"},   \
      {.name = "change",                                                                           \
       .kind = LM_OPT_LIST,                                                                        \
       .value = "KEY",                                                                             \
       .help = "on resume accepts another value of KEY, such as optimizer.lr; may be repeated"},   \
  {                                                                                                \
    .name = "change-model", .kind = LM_OPT_FLAG,                                                   \
    .help = "on resume accepts a program that computes something else; the old one is kept as "    \
            "program-STEP"                                                                         \
  }

static const lm_opt options[] = {
    {.name = "steps",
     .kind = LM_OPT_WHOLE,
     .value = "N",
     .help = "the run's last step, in place of the recipe's",
     .least = 1,
     .most = 1e15},
    {.name = "out",
     .letter = 'o',
     .kind = LM_OPT_TEXT,
     .value = "DIR",
     .help = "the run's folder, in place of the recipe's"},
    LM_OPT_RESUME,
    LM_OPT_TARGET,
    {.name = "mode",
     .kind = LM_OPT_TEXT,
     .value = "MODE",
     .help =
         "in place of the recipe's: default, reduce-overhead, which is the same, or max-autotune"},
    {.name = "profile",
     .kind = LM_OPT_MAYBE,
     .value = "FILE",
     .help =
         "writes when what ran, to look at in ui.perfetto.dev (profile.json of the run's folder)"},
    {.name = "quiet", .letter = 'q', .kind = LM_OPT_FLAG, .help = "prints nothing but errors"},
    LM_OPT_PASSES,
    LM_OPT_KERNELS,
    LM_OPT_RECIPE,
    LM_OPT_JSON,
    {0}};

static lm_status resume_check(const char *how) {
  if (!strcmp(how, "auto") || !strcmp(how, "never") || !access(how, F_OK))
    return NULL;
  return lm_fail(LM_USER,
                 "--resume takes auto, never or the folder of a checkpoint; there is no %s", how);
}

typedef struct sampler_state {
  int64_t every, last;
  lm_sample_options o;
  const char *prompt;
} sampler_state;

typedef struct runner {
  lm_session *s;
  lm_cli *cli;
  FILE *to;        // NULL: silent
  const char *dir; // NULL: nothing is saved
  const char **sets;
  int n_sets; // with what options stand for
  sampler_state *samples;
  lm_resumption resumption;
  lm_run_options o;
} runner;

// ---- what the options say

static lm_status options_read(runner *x) {
  const lm_args *a = &x->cli->args;
  int n;
  const char *const *sets = lm_args_list(a, "set", &n);
  const char *mode = lm_args_text(a, "mode", NULL);
  LM_TRY(lm_cli_target(x->cli, &x->s->target));
  if (mode)
    LM_TRY(lm_cli_mode_check(mode));
  LM_TRY(resume_check(lm_args_text(a, "resume", "auto")));
  x->s->variant = lm_cli_variant(x->cli);
  lm_cli_kernels(x->cli, x->s);
  x->sets = LM_NEW_N(x->cli->ctx->arena, const char *, n + 3);
  for (int i = 0; i < n; i++)
    x->sets[x->n_sets++] = sets[i];
  if (mode)
    x->sets[x->n_sets++] = lm_arena_printf(x->cli->ctx->arena, "compile = mode(\"%s\")", mode);
  if (lm_args_given(a, "steps"))
    x->sets[x->n_sets++] = lm_arena_printf(x->cli->ctx->arena, "run = %lld steps",
                                           (long long)lm_args_whole(a, "steps", 0));
  x->to = lm_args_given(a, "quiet") || x->cli->json ? NULL : stdout;
  return NULL;
}

// ---- evaluation and checkpoints

static lm_run_eval eval_of(const runner *x, const lm_recipe_eval *e) {
  return (lm_run_eval){e->name,
                       e->holdout + 1,
                       lm_recipe_every_steps(x->s->recipe, e->every, x->s->run.epoch_tokens),
                       {[LM_EVAL_LOSS] = true,
                        [LM_EVAL_BITS_PER_BYTE] = e->metrics[LM_RECIPE_METRIC_BITS_PER_BYTE],
                        [LM_EVAL_PERPLEXITY] = e->metrics[LM_RECIPE_METRIC_PERPLEXITY]}};
}

static lm_run_watch watch_of(lm_recipe_watch w) {
  static const lm_eval_metric metrics[] = {[LM_RECIPE_METRIC_LOSS] = LM_EVAL_LOSS,
                                           [LM_RECIPE_METRIC_BITS_PER_BYTE] = LM_EVAL_BITS_PER_BYTE,
                                           [LM_RECIPE_METRIC_PERPLEXITY] = LM_EVAL_PERPLEXITY};
  return (lm_run_watch){w.eval, metrics[w.metric]};
}

static void evals_collect(runner *x) {
  const lm_recipe *r = x->s->recipe;
  lm_run_eval *evals = LM_NEW_N(x->cli->ctx->arena, lm_run_eval, r->n_evals + 1);
  for (uint32_t i = 0; i < r->n_evals; i++)
    evals[i] = eval_of(x, &r->evals[i]);
  x->o.evals = evals;
  x->o.n_evals = (int)r->n_evals;
  x->o.best = watch_of(r->save.best);
  if (!x->dir || !r->save.dir)
    x->o.best.eval = -1;
  x->o.stop = watch_of(r->stop.on);
  x->o.patience = (int)r->stop.patience;
  x->o.min_delta = r->stop.min_delta;
  x->o.guard = (lm_guard_options){
      .skip = r->guard.skip, .rollback = r->guard.rollback, .spike = r->guard.spike};
}

// ---- samples

static lm_status sample_prepare(runner *x, const lm_recipe_sample *r, sampler_state *out) {
  lm_tokens prompt = {0};
  LM_TRY(lm_tokenizer_encode(x->s->tokenizer, r->prompt, strlen(r->prompt), &prompt));
  if (!prompt.n)
    lm_error(x->cli->ctx, r->loc, "E213", "a sample needs a prompt of at least one token");
  int32_t *ids = LM_NEW_N(x->cli->ctx->arena, int32_t, prompt.n + 1);
  if (prompt.n)
    memcpy(ids, prompt.ids, prompt.n * sizeof *ids);
  *out = (sampler_state){.every =
                             lm_recipe_every_steps(x->s->recipe, r->every, x->s->run.epoch_tokens),
                         .prompt = r->prompt,
                         .o = {.prompt = ids,
                               .n_prompt = (int64_t)prompt.n,
                               .n = r->n,
                               .write = x->to ? lm_cli_write : NULL,
                               .sampler = {r->temperature, (int32_t)r->top_k, r->top_p, r->seed}}};
  lm_tokens_free(&prompt);
  return lm_verdict(x->cli->ctx);
}

static lm_status samples_prepare(runner *x, int64_t *out_places) {
  const lm_recipe *r = x->s->recipe;
  x->samples = LM_NEW_N(x->cli->ctx->arena, sampler_state, r->n_samples + 1);
  *out_places = 0;
  for (uint32_t i = 0; i < r->n_samples; i++) {
    LM_TRY(sample_prepare(x, &r->samples[i], &x->samples[i]));
    int64_t places = x->samples[i].o.n_prompt + x->samples[i].o.n;
    if (places > *out_places)
      *out_places = places;
  }
  return NULL;
}

static lm_status samples_check(const runner *x) {
  for (uint32_t i = 0; i < x->s->recipe->n_samples; i++)
    LM_TRY(lm_sample_check(x->s, x->samples[i].o.n_prompt, x->samples[i].o.n));
  return NULL;
}

static lm_status begin(void *user) {
  runner *x = user;
  if (!x->dir)
    return NULL;
  LM_TRY(lm_resume_record(x->s, &x->resumption));
  LM_TRY(lm_session_tokenizer_write(x->s, x->dir));
  LM_TRY(lm_tuned_write(x->s, x->dir));
  return lm_bundle_write(x->s, x->dir, x->sets, x->n_sets);
}

static lm_status after_step(void *user, int64_t step, const lm_step_result *result,
                            lm_progress *progress) {
  runner *x = user;
  for (uint32_t i = 0; x->to && i < x->s->recipe->n_samples; i++) {
    sampler_state *s = &x->samples[i];
    if (step != x->o.steps && (!s->every || step % s->every))
      continue;
    lm_progress_say(progress, "\nsample after step %lld:", (long long)step);
    LM_TRY(lm_sample_print(x->s, &s->o));
    fputc('\n', x->to);
  }
  return NULL;
}

static void warn(void *user, const char *text) {
  lm_cli_note("warning: %s\n", text);
}

// ---- the plan in three lines

enum {
  INDENT = 8
}; // of what follows their first words

static void memory_line(const lm_session *s, lm_buf *b) {
  static const struct {
    lm_arena_id id;
    const char *name;
  } parts[] = {{LM_ARENA_PARAM, "parameters"}, {LM_ARENA_GRAD, "gradients"},
               {LM_ARENA_STATE, "optimizer"},  {LM_ARENA_WORK, "activations"},
               {LM_ARENA_COPY, "copies"},      {LM_ARENA_CACHE, "caches of decoding"}};
  int64_t scratch = lm_session_workspace(s);
  lm_show_bytes(b, (double)(lm_session_arenas(s) + scratch));
  for (size_t i = 0; i < LM_COUNT(parts); i++) {
    if (!s->plan->arena_bytes[parts[i].id])
      continue;
    lm_buf_printf(b, "%s%s ", i ? ", " : ": ", parts[i].name);
    lm_show_bytes(b, (double)s->plan->arena_bytes[parts[i].id]);
  }
  if (!scratch)
    return;
  lm_buf_puts(b, ", scratch of products ");
  lm_show_bytes(b, (double)scratch);
}

// Of the steps behind `done`: a micro-batch of each stage is timed.
static lm_status steps_time(const lm_session *s, int64_t done, double *out) {
  double seconds;
  *out = 0;
  for (int i = 0; i < s->run.stages.n; i++) {
    const lm_run_stage *x = &s->run.stages.v[i];
    int64_t first = x->first > done ? x->first : done + 1;
    if (x->last < first)
      continue;
    LM_TRY(lm_session_func_time(s, x->micro, MICRO_TIMED_S, &seconds));
    *out += seconds * (double)(s->run.n_micro * (x->last - first + 1));
  }
  return NULL;
}

// Nothing of a run that is finished.
static lm_status time_print(const runner *x) {
  const lm_session *s = x->s;
  int64_t done = x->resumption.was.step;
  int64_t left = s->run.steps - done;
  double seconds;
  lm_buf time = {0};
  if (left <= 0)
    return NULL;
  LM_TRY(steps_time(s, done, &seconds));
  lm_show_seconds(&time, seconds);
  lm_print_wrapped(x->to, INDENT,
                   "time    about %s: %lld %sstep%s of %lld tokens, measured on one micro-batch\n",
                   time.p, (long long)left, done ? "further " : "", left == 1 ? "" : "s",
                   (long long)s->recipe->batch);
  lm_buf_free(&time);
  return NULL;
}

static lm_status plan_print(runner *x) {
  const lm_session *s = x->s;
  lm_buf params = {0}, memory = {0};
  lm_show_count(&params, (double)s->params);
  memory_line(s, &memory);
  lm_print_wrapped(x->to, INDENT, "model   %s: %s parameters in %d tensors, computed in %s\n",
                   s->recipe->model.name, params.p, s->plan->n_params, lm_session_compute(s));
  lm_print_wrapped(x->to, INDENT, "memory  %s\n", memory.p);
  if (s->run.micro_auto && s->run.n_micro > 1)
    lm_print_wrapped(x->to, INDENT, "micro   %lld tokens, the most that fit\n",
                     (long long)lm_run_micro(&s->run));
  if (s->fit.recomputed)
    lm_print_wrapped(
        x->to, INDENT,
        "        %d of %d kept values are computed again to fit, about %.2f times the time\n",
        s->fit.recomputed, s->fit.candidates, s->fit.slowdown);
  if (lm_tuned_step_text(s))
    lm_print_wrapped(x->to, INDENT, "tuned   the step is %s\n", lm_tuned_step_text(s));
  if (s->tuned.products)
    lm_print_wrapped(
        x->to, INDENT,
        "tuned   %d of %d products are computed otherwise than by default; %d measured now\n",
        s->tuned.chosen, s->tuned.products, s->tuned.measured);
  lm_buf_free(&params);
  lm_buf_free(&memory);
  LM_TRY(time_print(x));
  fflush(x->to);
  return NULL;
}

// ---- the run

static lm_status model_start(runner *x) {
  lm_session *s = x->s;
  // A run that is resumed keeps its tokens, and for its bits its plan and how its GEMMs are cut.
  const char *run = x->resumption.run;
  int64_t places;
  s->goes_on = run;
  LM_TRY(lm_session_data(s));
  LM_TRY(samples_prepare(x, &places));
  LM_TRY(lm_session_lower_run(s, places));
  if (run)
    LM_TRY(lm_tuned_recall(s, run));
  LM_TRY(lm_session_plan(s));
  LM_TRY(lm_session_check_ids(s));
  LM_TRY(samples_check(x));
  LM_TRY(lm_tuned_step_find(s));
  LM_TRY(lm_tuned_find(s, 0));
  LM_TRY(lm_session_start(s, &(lm_exec_options){.timeline = s->timeline}));
  if (!x->cli->json)
    lm_cli_diagnostics(x->cli); // warnings before the training, which may take days
  if (x->to)
    LM_TRY(plan_print(x));
  return lm_session_train(s);
}

static const lm_progress_stage *progress_stages(const lm_session *s) {
  lm_progress_stage *stages = LM_NEW_N(s->ctx->arena, lm_progress_stage, s->run.stages.n);
  for (int i = 0; i < s->run.stages.n; i++)
    stages[i] = (lm_progress_stage){s->run.stages.v[i].first,
                                    s->run.stages.v[i].flops / (double)(s->run.rows * s->run.seq)};
  return stages;
}

static void run_options_fill(runner *x) {
  const lm_session *s = x->s;
  x->o.trainer = s->trainer;
  x->o.steps = s->run.steps;
  x->o.seed = s->recipe->seed;
  x->o.dir = x->dir;
  x->o.every = lm_recipe_every_steps(s->recipe, s->recipe->save.every, s->run.epoch_tokens);
  x->o.keep = (int)s->recipe->save.keep;
  x->o.progress = (lm_progress){
      .to = x->to,
      .terminal = isatty(STDOUT_FILENO),
      .steps = s->run.steps,
      .memory = lm_session_memory(s),
      .stages = progress_stages(s),
      .n_stages = s->run.stages.n,
      .peak_flops =
          x->to ? lm_target_peak(&s->target, lm_exec_threads(s->exec), s->lowered->compute) : 0};
  x->o.begin = begin;
  x->o.warn = warn;
  x->o.after_step = after_step;
  x->o.user = x;
  x->o.resume = x->resumption.how;
  x->o.resume_path = x->resumption.path;
  x->o.keys = x->resumption.keys.v;
  x->o.n_keys = (int)x->resumption.keys.n;
  x->o.model = x->resumption.fingerprint.v;
  x->o.n_model = (int)x->resumption.fingerprint.n;
}

// ---- the profile

enum {
  SPANS_MOST = 1 << 18
}; // some tens of MB as text

// A file that can't be written is told before hours of work.
static lm_status profile_begin(runner *x) {
  const char *path = lm_args_text(&x->cli->args, "profile", NULL);
  if (!lm_args_given(&x->cli->args, "profile"))
    return NULL;
  LM_TRY(lm_output_check_recipe(x->cli, x->s->recipe, path));
  if (path)
    LM_TRY(lm_file_write_atomic(path, "", 0));
  x->s->timeline = LM_NEW(x->cli->ctx->arena, lm_timeline);
  *x->s->timeline = (lm_timeline){.arena = x->cli->ctx->arena, .most = SPANS_MOST, .threads = true};
  return NULL;
}

static lm_status profile_end(runner *x) {
  const lm_timeline *t = x->s->timeline;
  if (!t)
    return NULL;
  lm_arena *a = x->cli->ctx->arena;
  const char *path = lm_args_text(&x->cli->args, "profile",
                                  lm_path_join(a, x->dir ? x->dir : ".", "profile.json"));
  lm_roofline roofline;
  lm_target_roofline(&x->s->target, lm_exec_threads(x->s->exec), x->s->lowered->compute, &roofline);
  LM_TRY(lm_profile_write(x->s->plan, t, &roofline, path));
  if (!x->to)
    return NULL;
  fprintf(x->to, "profile: %s", lm_show_path(a, path));
  fprintf(x->to, t->left_out ? ", the first %.0f%% of the run\n" : "\n",
          100.0 * t->n_spans / (t->n_spans + (double)t->left_out));
  return NULL;
}

static void outcome_json(const runner *x, const lm_run_outcome *out) {
  lm_arena *a = x->cli->ctx->arena;
  lm_buf b = {0};
  lm_buf_printf(&b, "{\"step\": %lld, \"resumed\": %lld, \"loss\": ", (long long)out->step,
                (long long)out->resumed);
  lm_json_number(&b, out->step > out->resumed ? out->last.loss : NAN);
  lm_buf_printf(&b, ", \"skipped\": %lld, \"empty\": %lld", (long long)out->skipped,
                (long long)out->empty);
  lm_buf_printf(&b, ", \"interrupted\": %s, \"stopped_early\": %s",
                out->interrupted ? "true" : "false", out->stopped_early ? "true" : "false");
  lm_buf_printf(&b, ", \"peak_bytes\": %lld, \"checkpoint\": ", (long long)lm_session_memory(x->s));
  if (x->dir)
    lm_buf_json(&b, lm_checkpoint_path(a, x->dir, out->step));
  else
    lm_buf_puts(&b, "null");
  lm_buf_printf(&b, ", \"tuned\": %d, \"measured\": %d, \"tuned_step\": ", x->s->tuned.chosen,
                x->s->tuned.measured);
  lm_tuned_step_json(x->s, &b);
  lm_cli_print("%s}\n", b.p);
  lm_buf_free(&b);
}

static void outcome_print(const runner *x, const lm_run_outcome *out) {
  if (x->cli->json)
    outcome_json(x, out);
  if (!x->to)
    return;
  const char *prompt = x->s->recipe->n_samples ? x->s->recipe->samples[0].prompt : "...";
  if (!x->dir) {
    fprintf(x->to, "done; nothing was saved, as the recipe has no `save`\n");
    return;
  }
  lm_arena *a = x->cli->ctx->arena;
  const char *dir = lm_show_path(a, x->dir);
  if (out->interrupted)
    fprintf(x->to, "the same command resumes from %s\n", dir);
  else
    fprintf(x->to, "done: %s/step-%06lld; next: lmc generate %s --prompt %s\n", dir,
            (long long)out->step, lm_show_word(a, dir), lm_show_quoted(a, prompt));
}

// A run whose micro-batch was chosen once keeps it, as another one would round differently.
static void micro_recall(runner *x) {
  lm_bundle before = {0};
  if (!x->dir || x->resumption.how == LM_RESUME_NEVER)
    return;
  lm_status none = lm_bundle_read(x->cli->ctx->arena, x->dir, &before);
  lm_status_free(none);
  x->s->run.recorded_micro = none ? 0 : before.micro;
}

static lm_status train(runner *x) {
  lm_cli *cli = x->cli;
  LM_TRY(options_read(x));
  LM_TRY(lm_session_open(x->s, cli->ctx, &cli->events,
                         &(lm_recipe_choice){cli->args.rest[0],
                                             lm_args_text(&cli->args, "recipe", NULL), x->sets,
                                             x->n_sets}));
  x->dir = lm_args_text(&cli->args, "out", x->s->recipe->save.dir);
  if (x->dir)
    LM_TRY(lm_run_folder_lock(x->dir, &x->o.lock));
  lm_resume_choice wanted = {.how = lm_args_text(&cli->args, "resume", NULL),
                             .change_model = lm_args_given(&cli->args, "change-model")};
  wanted.changes = lm_args_list(&cli->args, "change", &wanted.n_changes);
  LM_TRY(lm_resume_find(x->s, x->dir, &wanted, &x->resumption));
  micro_recall(x);
  LM_TRY(profile_begin(x));
  LM_TRY(model_start(x));
  if (x->s->timeline)
    x->s->timeline->n_spans = 0; // the plan's estimate is no part of the run
  run_options_fill(x);
  evals_collect(x);
  lm_run_outcome out;
  LM_TRY(lm_run_train(&x->o, &out));
  LM_TRY(profile_end(x));
  outcome_print(x, &out);
  cli->interrupted = out.interrupted;
  return NULL;
}

// A training does not end because nobody reads its progress any more (`| head`).
static lm_status run(lm_cli *cli) {
  signal(SIGPIPE, SIG_IGN);
  lm_session s = {0};
  runner x = {.s = &s, .cli = cli};
  lm_status status = train(&x);
  if (x.o.lock)
    close(x.o.lock);
  lm_session_close(&s);
  return status;
}

const lm_command lm_cmd_run = {
    .name = "run",
    .usage = "FILE [options]",
    .summary = "compiles a recipe and trains it",
    .options = options,
    .least = 1,
    .most = 1,
    .run = run,
    .help = "Prints what the plan takes, then a status line while training. Checkpoints, "
            "metrics.jsonl and the program itself\n"
            "go to the run's folder; the same command resumes from the newest checkpoint. Ctrl-C, "
            "SIGTERM and SIGHUP save and stop,\n"
            "with exit status 130, 143 and 129; a second one stops at once.\n\n"
            "A run is resumed with the values that shape its result (model, optimizer, data, ...) "
            "as they were, and with a program that\n"
            "computes the same; another one is refused, with what differs. --change KEY and "
            "--change-model accept it; the run's\n"
            "history.json says what was changed (lmc explain RUN changes). Checkpoints that a run "
            "does not follow from, with --resume\n"
            "never or an older one, are moved to superseded-N in its folder, which is a run folder "
            "too: nothing is deleted but what\n"
            "`keep` says of this run's own.\n\n"
            "  lmc run examples/quickstart.lm --set optimizer.lr=1e-3 --out runs/mine\n"};
