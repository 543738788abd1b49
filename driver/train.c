// train.c - a training run: from a recipe to steps, checkpoints, evaluations and samples.
#include "driver/train.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "driver/bundle.h"
#include "driver/data.h"
#include "driver/inspect/profile.h"
#include "driver/outputs.h"
#include "driver/ranks.h"
#include "driver/run_record.h"
#include "driver/text.h"
#include "driver/tune/tune.h"
#include "driver/tune/tune_step.h"
#include "runtime/base/diag_code.h"

_Static_assert((int)LM_EMITS_MAX <= (int)LM_TRAIN_METRICS,
               "a step's result has an element for every emitted value");

enum {
  MAX_SPANS = 1 << 18 // of a profile: some tens of MB as text
};

// ---- evaluation and checkpoints

static lm_run_eval eval_of(const lm_training *x, const lm_recipe_eval *e) {
  return (lm_run_eval){e->name,
                       e->holdout + 1,
                       lm_recipe_every_steps(x->s.run.recipe, e->every, x->s.run.epoch_tokens),
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

static void evals_collect(lm_training *x) {
  const lm_recipe *r = x->s.project.recipe;
  lm_run_eval *evals = LM_NEW_N(x->s.project.ctx->arena, lm_run_eval, r->n_evals + 1);
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

static lm_status sample_prepare(lm_training *x, const lm_recipe_sample *r,
                                lm_training_sample *out) {
  const lm_recipe_data *data = &x->s.project.recipe->data;
  lm_tokens prompt = {0};
  LM_TRY(lm_tokenizer_encode(x->s.tokenizer, r->prompt, strlen(r->prompt), &prompt));
  if (!prompt.n)
    LM_REPORT(x->s.project.ctx, r->loc, E213);
  int32_t *ids = LM_NEW_N(x->s.project.ctx->arena, int32_t, prompt.n + 1);
  if (prompt.n)
    memcpy(ids, prompt.ids, prompt.n * sizeof *ids);
  *out = (lm_training_sample){
      .every = lm_recipe_every_steps(x->s.run.recipe, r->every, x->s.run.epoch_tokens),
      .o = {.prompt = ids,
            .n_prompt = (int64_t)prompt.n,
            .n = r->n,
            .bare = data->seq2seq && !strcmp(r->prompt, data->sources[0].start),
            .write = x->options.write,
            .user = x->options.user,
            .sampler = {r->temperature, (int32_t)r->top_k, r->top_p, r->seed}}};
  lm_tokens_free(&prompt);
  return lm_verdict(x->s.project.ctx);
}

// The columns of a sample with a source, as long as those of the data. They are known once the plan
// is compiled.
static lm_status sample_encode(lm_training *x, const lm_recipe_sample *r, lm_training_sample *out) {
  lm_tokens source = {0};
  if (!r->source)
    return NULL;
  lm_status status = lm_sample_encode_source(&x->s, NULL, r->source, &source);
  if (!status)
    status = lm_request_source(&x->s, &source, &out->request);
  lm_tokens_free(&source);
  out->o.request = &out->request;
  return status ? status : lm_request_check(&x->s, &out->request);
}

static lm_status samples_prepare(lm_training *x, int64_t *out_positions) {
  const lm_recipe *r = x->s.project.recipe;
  x->samples = LM_NEW_N(x->s.project.ctx->arena, lm_training_sample, r->n_samples + 1);
  *out_positions = 0;
  for (uint32_t i = 0; i < r->n_samples; i++) {
    LM_TRY(sample_prepare(x, &r->samples[i], &x->samples[i]));
    int64_t positions = x->samples[i].o.n_prompt + x->samples[i].o.n;
    if (positions > *out_positions)
      *out_positions = positions;
  }
  return NULL;
}

// A user error becomes a diagnostic at the sample.
static lm_status sample_located(const lm_training *x, const lm_recipe_sample *r, lm_status fault) {
  if (!fault || fault->kind != LM_USER || !*fault->text)
    return fault;
  lm_report_plain(x->s.project.ctx, r->loc, "%s", fault->text);
  lm_status_free(fault);
  return lm_verdict(x->s.project.ctx);
}

static lm_status samples_check(lm_training *x) {
  for (uint32_t i = 0; i < x->s.project.recipe->n_samples; i++) {
    const lm_recipe_sample *r = &x->s.project.recipe->samples[i];
    lm_status fault = sample_encode(x, r, &x->samples[i]);
    if (!fault)
      fault = lm_sample_check(&x->s, x->samples[i].o.n_prompt, x->samples[i].o.n);
    LM_TRY(sample_located(x, r, fault));
  }
  return NULL;
}

// ---- callbacks of the run

static lm_status other_data(void *user, const char *path) {
  lm_training *x = user;
  return lm_resume_other_data(&x->s, &x->resumption, path);
}

static lm_status begin(void *user) {
  lm_training *x = user;
  if (!x->dir)
    return NULL;
  LM_TRY(lm_resume_record(&x->s, &x->resumption));
  LM_TRY(lm_session_tokenizer_write(&x->s, x->dir));
  LM_TRY(lm_tune_write(&x->s, x->dir));
  LM_TRY(lm_bundle_write(&x->s, x->dir, &x->options.from.overrides));
  return lm_run_record_write(&x->s, &x->options.from.overrides, x->dir);
}

// Rank 0 prints; the others take part if they have parts of the model.
static lm_status sample_make(lm_training *x, const lm_sample_options *o) {
  lm_sample_result result;
  if (x->options.write)
    return lm_sample_print(&x->s, o);
  if (!lm_sample_exchanges(&x->s))
    return NULL;
  lm_status status = lm_sample_make(&x->s, o, &result);
  lm_sample_free(&result);
  return status;
}

static lm_status after_step(void *user, int64_t step, const lm_step_result *result,
                            lm_progress *progress) {
  lm_training *x = user;
  for (uint32_t i = 0; x->options.samples && i < x->s.project.recipe->n_samples; i++) {
    lm_training_sample *s = &x->samples[i];
    if (step != x->o.steps && (!s->every || step % s->every))
      continue;
    lm_progress_say(progress, "\nsample after step %lld:", (long long)step);
    LM_TRY(lm_trainer_eval_begin(x->s.execution.trainer));
    LM_TRY(sample_make(x, &s->o));
    LM_TRY(lm_trainer_eval_end(x->s.execution.trainer));
    if (x->options.write)
      x->options.write(x->options.user, "\n", 1);
  }
  return NULL;
}

static void warn(void *user, const char *text) {
  const lm_training *x = user;
  lm_event_warning(x->s.project.events, "%s", text);
}

// ---- opening

static const char *schedule_text(const lm_training *x) {
  const lm_recipe_parallel *p = &x->s.project.recipe->parallel;
  if (lm_recipe_mesh_size(x->s.project.recipe, "pp") < 2 || !p->ticks)
    return NULL;
  return p->chunks ? lm_arena_printf(x->s.project.ctx->arena, "interleaved %d", p->chunks)
                   : "one_f_one_b";
}

// The ranks of the recipe's mesh, as checkpoints name them.
static const char *mesh_text(const lm_training *x) {
  const lm_recipe_parallel *p = &x->s.project.recipe->parallel;
  lm_plan plan = {.mesh.n = p->n};
  for (int k = 0; k < p->n; k++) {
    plan.mesh.axis[k].name = p->axis[k].name;
    plan.mesh.axis[k].size = p->axis[k].size;
  }
  return lm_run_mesh_text(x->s.project.ctx->arena, &plan, schedule_text(x));
}

// A run keeps the micro-batch and the kind of plan that were chosen once, as others would round
// differently. On another mesh, which rounds differently anyway, both are chosen again: the part of
// a rank may be too large, or the mesh may not divide the rows.
static lm_status choices_recall(lm_training *x) {
  const lm_resumption *from = &x->resumption;
  lm_run_record before;
  if (!x->dir || from->how == LM_RESUME_NEVER)
    return NULL;
  if (from->run && strcmp(from->was.mesh ? from->was.mesh : "", mesh_text(x)) != 0)
    return NULL;
  LM_TRY(lm_run_record_read(x->s.project.ctx->arena, x->dir, &before));
  x->s.run.recorded_micro = before.micro;
  x->s.less_memory = before.less_memory;
  x->s.small_tiles = before.small_tiles;
  x->s.by_layer = before.by_layer;
  return NULL;
}

// ---- the profile

// A file that cannot be written is reported before the training. Leaves no new file, and an old one
// as it is.
static lm_status profile_check(const char *path) {
  if (!path)
    return NULL;
  bool is_new = access(path, F_OK) != 0;
  int fd = open(path, O_WRONLY | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0666);
  if (fd < 0)
    return lm_fail_errno("cannot write %s", path);
  close(fd);
  return is_new && unlink(path) ? lm_fail_errno("cannot remove %s", path) : NULL;
}

static lm_status profile_begin(lm_training *x) {
  lm_arena *a = x->s.project.ctx->arena;
  if (!x->options.profile)
    return NULL;
  LM_TRY(lm_output_check_recipe(x->s.project.recipe, x->options.profile_path));
  LM_TRY(profile_check(x->options.profile_path));
  x->s.timeline = LM_NEW(a, lm_timeline);
  *x->s.timeline = (lm_timeline){
      .arena = a,
      .max = MAX_SPANS,
      .threads = true,
  };
  return NULL;
}

// A run that had finished, or is interrupted before its first step, keeps an earlier profile.
static lm_status profile_end(const lm_training *x, const lm_run_outcome *out) {
  const lm_timeline *t = x->s.timeline;
  lm_arena *a = x->s.project.ctx->arena;
  const char *path = x->options.profile_path;
  if (!t || (out->step == out->resumed && out->interrupted))
    return NULL;
  if (out->step == out->resumed)
    return lm_fail(
        LM_USER,
        "--profile: the run had finished with step %lld, so there is no step to profile\n"
        "  --steps N with a larger N continues the run; --out DIR trains in another "
        "folder",
        (long long)out->step);
  if (!path)
    path = lm_path_join(a, x->dir ? x->dir : ".", "profile.json");
  lm_target machine = lm_compiled_machine(&x->s.compiled, lm_exec_threads(x->s.execution.exec));
  LM_TRY(lm_profile_write(x->s.compiled.plan, t, &machine, x->s.compiled.compute, path));
  if (!x->options.to)
    return NULL;
  fprintf(x->options.to, "profile: %s", lm_shown(a, lm_show_path(a, path)));
  fprintf(x->options.to, t->left_out ? ", the first %.0f%% of the run\n" : "\n",
          100.0 * t->n_spans / (t->n_spans + (double)t->left_out));
  return NULL;
}

// Rank 0 locks the folder for all.
static lm_status folder_lock(lm_training *x) {
  if (!x->dir || !lm_comm_is_first(x->s.comm))
    return NULL;
  LM_TRY(lm_run_folder_lock(x->dir, &x->o.lock)); // another run may be writing its first files
  return lm_output_kind_check(x->dir, &LM_OUTPUT_RUN);
}

lm_status lm_training_open(lm_training *x, lm_ctx *ctx, const lm_events *events,
                           const lm_training_options *o) {
  x->options = *o;
  x->s.divides = true;
  LM_TRY(lm_session_open(&x->s, ctx, events, &o->from));
  LM_TRY(lm_ranks_need(&x->s));
  x->dir = o->dir ? o->dir : x->s.project.recipe->save.dir;
  if (o->logs && !(x->s.comm && x->dir))
    return lm_fail(LM_USER, "--logs is for several ranks and a run that has a folder: give %s",
                   x->dir ? "--ranks N" : "--out DIR");
  LM_TRY(lm_comm_settle(x->s.comm, "the folder of the run", folder_lock(x)));
  LM_TRY(lm_resume_find(&x->s, x->dir, &o->resume, &x->resumption));
  LM_TRY(choices_recall(x));
  return profile_begin(x);
}

static void batch_check(const lm_session *s) {
  const lm_recipe *r = s->project.recipe;
  lm_data_reread x;
  if (!lm_data_rereads(s->data, r->batch, &x))
    return;
  const char *of = x.source < 0 ? ""
                                : lm_arena_printf(s->project.ctx->arena, " of source %s",
                                                  r->data.sources[x.source].name);
  LM_REPORT(s->project.ctx, r->batch_loc, W21C, (long long)x.step, of, (long long)x.epoch);
}

static lm_status data_prepare(void *user) {
  lm_training *x = user;
  LM_TRY(lm_session_tokenizer(&x->s));
  LM_TRY(lm_resume_tokenizer(&x->s, &x->resumption));
  LM_TRY(lm_session_data(&x->s));
  batch_check(&x->s);
  return NULL;
}

lm_status lm_training_plan(lm_training *x) {
  lm_session *s = &x->s;
  // A resumed run keeps its vocabulary and, for equal bits, its plan and the tilings of its GEMMs.
  const char *run = x->resumption.run;
  int64_t positions;
  s->resumed_run = run;
  s->resumes = run != NULL;
  LM_TRY(lm_ranks_in_order(s->comm, "the data", data_prepare, x));
  LM_TRY(samples_prepare(x, &positions));
  if (run)
    LM_TRY(lm_tune_recall(s, run));
  LM_TRY(lm_session_compile_run(s, positions));
  LM_TRY(lm_session_check_ids(s));
  LM_TRY(lm_session_check_vocabulary(s));
  LM_TRY(lm_resume_base(s, &x->resumption));
  LM_TRY(samples_check(x));
  LM_TRY(lm_tune_step_find(s));
  LM_TRY(lm_tune_find(s, 0));
  return lm_ranks_session_start(s, &(lm_exec_options){.timeline = s->timeline});
}

// ---- estimated time

#define MICRO_TIMED_S 0.2

static lm_status stages_time(const lm_session *s, int64_t done, double *out_seconds) {
  for (int i = 0; i < s->run.stages.n; i++) {
    const lm_run_stage *stage = &s->run.stages.v[i];
    int64_t first = stage->first > done ? stage->first : done + 1;
    double seconds;
    if (stage->last < first)
      continue;
    lm_event_progress(s->project.events, "measuring one micro-batch of %lld tokens",
                      (long long)(s->run.rows * s->run.seq));
    LM_TRY(lm_execution_func_time(&s->execution, LM_FUNC_MICRO, stage->func_seq, MICRO_TIMED_S,
                                  &seconds));
    *out_seconds += seconds * (double)(s->run.n_micro * (stage->last - first + 1));
  }
  return NULL;
}

lm_status lm_training_time(const lm_training *x, int64_t *out_steps, double *out_seconds) {
  const lm_session *s = &x->s;
  int64_t done = x->resumption.was.step;
  *out_steps = s->run.steps - done;
  *out_seconds = 0;
  if (lm_plan_exchanges(lm_plan_func_get(s->compiled.plan, LM_FUNC_MICRO, 0)))
    return NULL;
  lm_status status = stages_time(s, done, out_seconds);
  lm_event_progress_end(s->project.events);
  return status;
}

// ---- running

static const lm_progress_stage *progress_stages(const lm_session *s) {
  lm_progress_stage *stages = LM_NEW_N(s->project.ctx->arena, lm_progress_stage, s->run.stages.n);
  for (int i = 0; i < s->run.stages.n; i++)
    stages[i] = (lm_progress_stage){s->run.stages.v[i].first,
                                    s->run.stages.v[i].flops / (double)(s->run.rows * s->run.seq)};
  return stages;
}

static void run_options_fill(lm_training *x) {
  const lm_session *s = &x->s;
  x->o.trainer = s->execution.trainer;
  x->o.logs = x->options.logs;
  x->o.comm = s->comm;
  x->o.steps = s->run.steps;
  x->o.seed = s->project.recipe->seed;
  x->o.dir = x->dir;
  x->o.every =
      lm_recipe_every_steps(s->run.recipe, s->project.recipe->save.every, s->run.epoch_tokens);
  x->o.keep = (int)s->project.recipe->save.keep;
  x->o.max_file = s->project.recipe->save.max_file;
  x->o.background = lm_compiled_saves_in_background(&s->compiled);
  x->o.progress = (lm_progress){
      .to = x->options.to,
      .terminal = x->options.terminal,
      .steps = s->run.steps,
      .memory = lm_session_memory(s),
      .stages = progress_stages(s),
      .n_stages = s->run.stages.n,
      .peak_flops = x->options.to
                        ? lm_comm_self_of(s->comm).size *
                              lm_compiled_peak(&s->compiled, lm_exec_threads(s->execution.exec))
                        : 0};
  x->o.begin = begin;
  x->o.other_data = other_data;
  x->o.warn = warn;
  x->o.after_step = after_step;
  x->o.user = x;
  x->o.resume = x->resumption.how;
  x->o.resume_path = x->resumption.path;
  x->o.schedule = schedule_text(x);
  x->o.keys = x->resumption.keys.v;
  x->o.n_keys = (int)x->resumption.keys.n;
  x->o.model = x->resumption.fingerprint.v;
  x->o.n_model = (int)x->resumption.fingerprint.n;
}

lm_status lm_training_run(lm_training *x, lm_run_outcome *out) {
  LM_TRY(lm_session_train(&x->s));
  if (x->s.timeline)
    x->s.timeline->n_spans = 0; // without the micro-batches that were timed
  run_options_fill(x);
  evals_collect(x);
  LM_TRY(lm_run_train(&x->o, out));
  return profile_end(x, out);
}

void lm_training_close(lm_training *x) {
  if (x->o.lock)
    close(x->o.lock);
  for (uint32_t i = 0; x->samples && i < x->s.project.recipe->n_samples; i++)
    lm_request_free(&x->samples[i].request);
  lm_session_close(&x->s);
}
