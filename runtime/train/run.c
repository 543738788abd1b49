// run.c - the training loop.
#include "runtime/train/run.h"

#include <math.h>
#include <signal.h>
#include <string.h>

// ---- interruption. A signal handler can reach nothing but process-wide state.

static volatile sig_atomic_t interrupted;
static void on_signal(int number) { interrupted = 1; }

typedef struct { struct sigaction interrupt, terminate; } old_handlers;

// The handler is taken away by the first signal, so the second one acts as it always does.
static void signals_catch(old_handlers *old) {
  struct sigaction a = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND | SA_RESTART};
  sigemptyset(&a.sa_mask);
  interrupted = 0;
  sigaction(SIGINT, &a, &old->interrupt);
  sigaction(SIGTERM, &a, &old->terminate);
}

static void signals_release(const old_handlers *old) {
  sigaction(SIGINT, &old->interrupt, NULL);
  sigaction(SIGTERM, &old->terminate, NULL);
}

// ---- the run

typedef struct {
  const lm_run_options *o;
  lm_run_outcome *out;
  lm_progress progress;
  lm_checkpoint state;
  lm_metrics *metrics;                 // NULL: not written
  int64_t saved;                       // step of the newest checkpoint of this run, -1: none
} run;

static lm_status resume(run *r) {
  const lm_run_options *o = r->o;
  const char *path = o->resume == LM_RESUME_PATH ? o->resume_path : o->dir;
  bool found = false;
  if (o->resume == LM_RESUME_NEVER || !path) return NULL;
  LM_TRY(lm_checkpoint_load(o->trainer, path, &r->state, &found));
  if (!found) return o->resume == LM_RESUME_PATH ? lm_fail(LM_USER, "%s holds no checkpoint", path) : NULL;
  if (r->state.seed != o->seed)
    return lm_fail(LM_USER, "%s was made with seed %llu, the recipe says %llu", path, (unsigned long long)r->state.seed, (unsigned long long)o->seed);
  r->saved = r->state.step;
  lm_progress_say(&r->progress, "resumed at step %lld from %s", (long long)r->state.step, path);
  return NULL;
}

static lm_status metrics_open(run *r) {
  if (!r->o->dir) return NULL;
  lm_arena *a = lm_arena_create();
  lm_status s = lm_dir_make(r->o->dir);
  if (!s) s = lm_metrics_open(lm_path_join(a, r->o->dir, "metrics.jsonl"), r->state.step, &r->metrics);
  lm_arena_destroy(a);
  return s;
}

static lm_status metrics_write(run *r, int64_t step, const lm_step_result *x) {
  if (!r->metrics) return NULL;
  lm_metric line[5 + LM_TRAIN_METRICS] = {{"loss", x->loss}, {"grad_norm", x->grad_norm}, {"lr", x->lr},
                                          {"tokens", (double)r->state.tokens}, {"tokens_per_s", round(r->progress.rate)}};
  memcpy(line + 5, x->emitted, sizeof *line * (size_t)x->n_emitted);
  return lm_metrics_add(r->metrics, step, line, (size_t)(5 + x->n_emitted));
}

static lm_status save(run *r) {
  const lm_run_options *o = r->o;
  if (!o->dir || r->saved == r->state.step) return NULL;
  LM_TRY(lm_checkpoint_save(o->trainer, o->dir, &r->state, o->keep, o->keep_best ? r->state.best_step : -1));
  r->saved = r->state.step;
  return NULL;
}

// The watched loss: whether it is the best so far, and whether patience is at its end.
static void watch(run *r, double loss, bool *out_best) {
  lm_checkpoint *c = &r->state;
  *out_best = isnan(c->best) || loss < c->best;
  c->bad_evals = isnan(c->best) || loss < c->best - r->o->min_delta ? 0 : c->bad_evals + 1;
  if (*out_best) c->best = loss, c->best_step = c->step;
  r->out->stopped_early = r->o->patience && c->bad_evals >= r->o->patience;
}

static lm_status evaluate(run *r, int i) {
  const lm_run_eval *e = &r->o->evals[i];
  double loss, bits;
  bool best = false;
  lm_buf names[2] = {0};
  LM_TRY(lm_trainer_eval(r->o->trainer, e->part, &loss, &bits));
  lm_buf_printf(&names[0], "%s.loss", e->name);
  lm_buf_printf(&names[1], "%s.bits_per_byte", e->name);
  lm_metric line[2] = {{names[0].p, loss}, {names[1].p, bits}};
  lm_status s = r->metrics ? lm_metrics_add(r->metrics, r->state.step, line, isnan(bits) ? 1 : 2) : NULL;
  lm_buf_free(&names[0]);
  lm_buf_free(&names[1]);
  if (s) return s;
  lm_progress_say(&r->progress, "step %lld  %s loss %.4f", (long long)r->state.step, e->name, loss);
  if (i == r->o->watch) watch(r, loss, &best);
  return best && r->o->keep_best ? save(r) : NULL;
}

static lm_status evaluations(run *r) {
  for (int i = 0; i < r->o->n_evals; i++)
    if (r->state.step % r->o->evals[i].every == 0) LM_TRY(evaluate(r, i));
  return NULL;
}

static bool is_over(const run *r) { return r->state.step >= r->o->steps || interrupted || r->out->stopped_early; }

static lm_status step_run(run *r) {
  const lm_run_options *o = r->o;
  int64_t step = r->state.step + 1;
  lm_step_result *x = &r->out->last;
  LM_TRY(lm_trainer_gradients(o->trainer, step, x));
  LM_TRY(lm_trainer_update(o->trainer, step, x));
  r->state.step = step;
  r->state.tokens += x->tokens;
  lm_progress_step(&r->progress, step, x);
  LM_TRY(metrics_write(r, step, x));
  LM_TRY(evaluations(r));
  if (o->after_step) LM_TRY(o->after_step(o->user, step, x, &r->progress));
  if (is_over(r) || (o->every && step % o->every == 0)) LM_TRY(save(r));
  lm_progress_pause(&r->progress);
  return NULL;
}

static lm_status train(run *r) {
  LM_TRY(resume(r));
  LM_TRY(metrics_open(r));
  r->out->resumed = r->state.step;
  lm_progress_start(&r->progress, r->state.step);
  while (!is_over(r)) LM_TRY(step_run(r));
  return NULL;
}

static void outcome_tell(run *r) {
  r->out->step = r->state.step;
  r->out->interrupted = interrupted && r->state.step < r->o->steps;
  lm_progress_end(&r->progress);
  const char *saved = r->o->dir && r->saved == r->state.step ? ", saved" : "";
  if (r->out->interrupted) lm_progress_say(&r->progress, "interrupted after step %lld%s", (long long)r->state.step, saved);
  else if (r->out->stopped_early)
    lm_progress_say(&r->progress, "stopped after step %lld%s: no better loss than %.4f of step %lld", (long long)r->state.step, saved,
                    r->state.best, (long long)r->state.best_step);
}

lm_status lm_run_train(const lm_run_options *o, lm_run_outcome *out) {
  *out = (lm_run_outcome){0};
  run r = {.o = o, .out = out, .progress = o->progress, .saved = -1,
           .state = {.seed = o->seed, .keys = o->keys, .n_keys = o->n_keys, .best = NAN}};
  old_handlers old;
  signals_catch(&old);
  lm_status s = train(&r);
  signals_release(&old);
  lm_metrics_close(r.metrics);
  if (!s) outcome_tell(&r);
  else lm_progress_end(&r.progress);
  return s;
}
