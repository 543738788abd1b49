// run.c - the training loop.
#include "runtime/train/run_save.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "runtime/train/checkpoint_folder.h"
#include "runtime/train/decisions.h"
#include "runtime/train/interrupt.h"
#include "runtime/train/log.h"
#include "runtime/train/rank_log.h"
#include "runtime/train/rank_sums.h"
#include "runtime/train/run_folder.h"
#include "runtime/train/run_outcome.h"

static const char *damage_text(lm_arena *a, const lm_checkpoint_choice *c) {
  int64_t lost = c->newest - c->step;
  return lm_arena_printf(
      a, "%s\n  the newest undamaged checkpoint is from step %lld: %lld step%s repeated", c->damage,
      (long long)c->step, (long long)lost, lost == 1 ? " is" : "s are");
}

// ---- early stopping

static const char *stop_on(const lm_run *r) {
  const lm_run_options *o = r->o;
  return o->patience && o->stop.eval >= 0
             ? lm_arena_printf(r->arena, "%s.%s", o->evals[o->stop.eval].name,
                               LM_EVAL_NAMES[o->stop.metric])
             : "";
}

// A run that early stopping ended continues if these settings have changed.
static const char *stop_terms(const lm_run *r) {
  return lm_arena_printf(r->arena, "patience %d, min_delta %.17g, %lld steps", r->o->patience,
                         r->o->min_delta, (long long)r->o->steps);
}

static void stop_resume(lm_run *r) {
  lm_checkpoint *c = &r->state;
  bool same = c->stop_on && !strcmp(c->stop_on, stop_on(r));
  if (!same)
    c->stop_best = NAN;
  r->out->stopped_early = same && c->ended && !strcmp(c->ended, stop_terms(r));
  if (!same || (c->ended && *c->ended && !r->out->stopped_early))
    c->bad_evals = 0;
  c->stop_on = stop_on(r);
  if (!r->out->stopped_early)
    c->ended = "";
}

static void stop_watch(lm_run *r, double value) {
  lm_checkpoint *c = &r->state;
  bool gain = isfinite(value) && !(value >= c->stop_best - r->o->min_delta);
  c->bad_evals = gain ? 0 : c->bad_evals + 1;
  if (gain)
    c->stop_best = value;
  r->out->stopped_early = r->o->patience && c->bad_evals >= r->o->patience;
  c->ended = r->out->stopped_early ? stop_terms(r) : "";
}

static const char *stop_text(const lm_run *r) {
  const char *what =
      r->o->min_delta > 0
          ? lm_arena_printf(r->arena, "a %s by %g below", stop_on(r), r->o->min_delta)
          : lm_arena_printf(r->arena, "a better %s than", stop_on(r));
  return lm_arena_printf(r->arena, "%lld evaluation%s without %s %.4f",
                         (long long)r->state.bad_evals, r->state.bad_evals == 1 ? "" : "s", what,
                         r->state.stop_best);
}

// ---- resuming from a checkpoint

static void mesh_compare(const lm_run *r, const char *path) {
  const char *was = r->state.mesh;
  const char *is = lm_run_mesh(r);
  if (strcmp(was, is) != 0)
    lm_run_warn(r, lm_arena_printf(
                       r->arena,
                       "%s: up to step %lld the run had %s, now it has %s: sums are taken in "
                       "another order,\n  so the bits differ from an uninterrupted run",
                       path, (long long)r->state.step, *was ? was : "1 rank", *is ? is : "1 rank"));
}

static lm_status data_compare(const lm_run *r, const char *path) {
  uint64_t key;
  LM_TRY(lm_run_data_key(r, &key));
  if (!r->state.data || r->state.data == key)
    return NULL;
  if (r->o->other_data)
    LM_TRY(r->o->other_data(r->o->user, path));
  lm_run_warn(
      r, lm_arena_printf(r->arena,
                         "%s: the data differs from the data that this run was trained on up to "
                         "step %lld.\n  Rows and their order differ: some rows may be used twice "
                         "and some never, and the result differs from an uninterrupted run",
                         path, (long long)r->state.step));
  return NULL;
}

// Warns about changes with which the run can continue, but not bit for bit as if uninterrupted.
static lm_status bits_compare(const lm_run *r, const char *path) {
  const lm_trainer_options *t = lm_trainer_options_of(r->o->trainer);
  long long step = (long long)r->state.step;
  long long was = (long long)r->state.n_micro;
  long long is = (long long)lm_trainer_micros(t);
  LM_TRY(data_compare(r, path));
  if (was && was != is)
    lm_run_warn(
        r, lm_arena_printf(r->arena,
                           "%s: up to step %lld a step had %lld micro-batch%s, now it has %lld: "
                           "sums are taken in another order,\n"
                           "  so the bits differ from an uninterrupted run",
                           path, step, was, was == 1 ? "" : "es", is));
  mesh_compare(r, path);
  return NULL;
}

static lm_status resume(lm_run *r) {
  const lm_run_options *o = r->o;
  const char *path = o->resume == LM_RESUME_PATH ? o->resume_path : o->dir;
  lm_checkpoint_choice from;
  r->state.stop_on = stop_on(r);
  if (o->resume == LM_RESUME_NEVER || !path)
    return NULL;
  LM_TRY(lm_checkpoint_load(r->arena, o->trainer, path, &r->state, &from));
  if (!from.folder)
    return o->resume == LM_RESUME_PATH ? lm_fail(LM_USER, "%s has no checkpoint", path) : NULL;
  r->state.seed = o->seed;
  if (o->resume != LM_RESUME_PATH)
    r->saved = r->state.step;
  r->newest = from.folder;
  stop_resume(r);
  if (from.damage)
    lm_run_warn(r, damage_text(r->arena, &from));
  if (r->state.step < o->steps && !r->out->stopped_early)
    LM_TRY(bits_compare(r, path));
  lm_progress_say(&r->progress, "resumed at step %lld from %s", (long long)r->state.step, path);
  return NULL;
}

// ---- disk space for checkpoints

static int64_t checkpoints_kept(const lm_run_options *o) {
  int64_t saved = 1 + (o->every ? o->steps / o->every : 0);
  int64_t kept = o->keep + (o->best.eval >= 0);
  return o->keep && kept < saved ? kept : saved;
}

// Rank 0 alone writes metrics.
static lm_status log_open(lm_run *r) {
  bool writes = r->o->dir && lm_comm_is_first(r->o->comm);
  return writes ? lm_run_log_open(r->o->dir, r->state.step, &r->log) : NULL;
}

static lm_status rank_log_open(lm_run *r) {
  const lm_run_options *o = r->o;
  bool writes = o->dir && o->logs && o->comm;
  return writes ? lm_rank_log_open(o->dir, o->comm, r->state.step, &r->rank_log) : NULL;
}

static lm_status folder_lock(lm_run *r) {
  if (!r->o->dir)
    return NULL;
  LM_TRY(lm_dir_make(r->o->dir));
  return r->o->lock ? NULL : lm_run_folder_lock(r->o->dir, &r->lock);
}

static lm_status folder_open(lm_run *r) {
  const char *dir = r->o->dir;
  if (!dir)
    return NULL;
  if (access(dir, W_OK | X_OK))
    return lm_fail_errno("cannot write to the run's folder %s", dir);
  int64_t bytes = lm_checkpoint_bytes(lm_trainer_options_of(r->o->trainer)->plan);
  LM_TRY(lm_run_folder_space(dir, bytes, checkpoints_kept(r->o), &r->progress));
  return log_open(r);
}

// ---- metrics and checkpoints

static lm_status metrics_write(lm_run *r, int64_t step, const lm_step_result *x) {
  lm_metric line[9 + LM_TRAIN_METRICS] = {{"loss", x->loss},
                                          {"grad_norm", x->grad_norm},
                                          {"lr", x->lr},
                                          {"tokens", (double)r->state.tokens},
                                          {"tokens_per_s", round(r->progress.rate)}};
  size_t n = 5;
  if (r->state.guard.skipped)
    line[n++] = (lm_metric){"skipped", (double)r->state.guard.skipped};
  if (r->state.guard.empty)
    line[n++] = (lm_metric){"empty", (double)r->state.guard.empty};
  if (x->loss_scale > 0)
    line[n++] = (lm_metric){"loss_scale", x->loss_scale};
  if (r->state.guard.overflows)
    line[n++] = (lm_metric){"overflows", (double)r->state.guard.overflows};
  memcpy(line + n, x->emitted, sizeof *line * (size_t)x->n_emitted);
  return lm_run_log_add(r->log, step, line, n + (size_t)x->n_emitted);
}

// ---- evaluations

static bool best_watch(lm_run *r, double value) {
  lm_checkpoint *c = &r->state;
  if (!isfinite(value) || value >= c->best)
    return false; // c->best is NAN at first, which compares false
  c->best = value;
  c->best_step = c->step;
  return true;
}

static lm_status eval_write(lm_run *r, const lm_run_eval *e, const lm_eval_result *x) {
  lm_metric line[LM_EVAL_METRICS];
  size_t n = 0;
  for (int k = 0; k < LM_EVAL_METRICS; k++)
    if (e->metrics[k] && !isnan(x->value[k]))
      line[n++] =
          (lm_metric){lm_arena_printf(r->arena, "%s.%s", e->name, LM_EVAL_NAMES[k]), x->value[k]};
  return n ? lm_run_log_add(r->log, r->state.step, line, n) : NULL;
}

// Reports an evaluation whose weights sum to 0, which has no loss. Training does not depend on it,
// so it is reported only once.
static lm_status eval_empty(lm_run *r, const lm_run_eval *e, const lm_eval_result *x) {
  if (!r->evals_empty)
    lm_progress_say(
        &r->progress,
        "step %lld  %s: the weights of its tokens sum to %g, so there is nothing to evaluate",
        (long long)r->state.step, e->name, x->weight);
  r->evals_empty = true;
  return NULL;
}

// True if a longer run makes this evaluation too.
static bool is_regular(const lm_run *r, const lm_run_eval *e, int64_t step) {
  return step % e->every == 0 && r->now.verdict == LM_GUARD_GOOD;
}

// The last step is always evaluated, also a bad one, which has changed nothing.
static bool is_due(const lm_run *r, const lm_run_eval *e, int64_t step) {
  return step == r->o->steps || is_regular(r, e, step);
}

static lm_status evaluate(lm_run *r, int i) {
  const lm_run_eval *e = &r->o->evals[i];
  const lm_trainer_options *t = lm_trainer_options_of(r->o->trainer);
  lm_eval_result x;
  lm_buf more = {0};
  double start = lm_timeline_now(t->timeline);
  LM_TRY(lm_trainer_eval_begin(r->o->trainer));
  LM_TRY(lm_eval_run(t->exec, t->plan, t->data, e->part, r->o->comm, NULL, &x));
  LM_TRY(lm_trainer_eval_end(r->o->trainer));
  lm_timeline_add(t->timeline, LM_ROW_RUN, "evaluation", NULL, r->state.step, start);
  if (x.weight <= 0)
    return eval_empty(r, e, &x);
  LM_TRY(eval_write(r, e, &x));
  if (e->metrics[LM_EVAL_BITS_PER_BYTE] && !isnan(x.value[LM_EVAL_BITS_PER_BYTE]))
    lm_buf_printf(&more, "  bits/byte %.4f", x.value[LM_EVAL_BITS_PER_BYTE]);
  if (e->metrics[LM_EVAL_PERPLEXITY])
    lm_buf_printf(&more, "  perplexity %.2f", x.value[LM_EVAL_PERPLEXITY]);
  lm_progress_say(&r->progress, "step %lld  %s loss %.4f%s", (long long)r->state.step, e->name,
                  x.value[LM_EVAL_LOSS], more.p ? more.p : "");
  lm_buf_free(&more);
  if (i == r->o->stop.eval && is_regular(r, e, r->state.step))
    stop_watch(r, x.value[r->o->stop.metric]);
  if (i == r->o->best.eval && best_watch(r, x.value[r->o->best.metric]))
    r->best = true;
  return NULL;
}

// ---- decisions

static bool any_due(const lm_run *r, int64_t step) {
  for (int i = 0; i < r->o->n_evals; i++)
    if (is_due(r, &r->o->evals[i], step))
      return true;
  return false;
}

// The best checkpoint is saved after all evaluations, so that it contains their effect on the
// state. A signal that any rank has received counts for all of them.
static lm_status end_decide(lm_run *r, lm_decisions *d) {
  int64_t step = r->state.step;
  d->interrupted = lm_interrupted();
  LM_TRY(lm_comm_any(r->o->comm, "the end of the step", &d->interrupted));
  int writing = r->saving && !lm_checkpoint_save_written(r->saving);
  if (r->saving)
    LM_TRY(lm_comm_any(r->o->comm, "the checkpoint in the background", &writing));
  d->written = r->saving && !writing;
  d->over = step >= r->o->steps || d->interrupted || r->out->stopped_early;
  d->save = d->over || r->best || (r->o->every && step % r->o->every == 0 && !r->state.guard.bad);
  return NULL;
}

// Makes the decisions of a moment of the current step. No other function makes them: several
// processes of one run must act on the same ones.
static lm_status decide(lm_run *r, lm_moment moment, const lm_step_result *x) {
  lm_decisions *d = &r->now;
  const char *bad;
  switch (moment) {
  case LM_AT_RESULT:
    d->verdict = lm_guard_judge(&r->state.guard, &r->o->guard, x, &d->why);
    d->evaluate = any_due(r, r->state.step + 1);
    return NULL;
  case LM_AT_END: return end_decide(r, d);
  case LM_AT_SAVE:
    LM_TRY(lm_trainer_not_finite(r->o->trainer, &bad));
    d->not_finite = bad;
    return NULL;
  }
  return NULL;
}

// ---- steps

static lm_status evaluations(lm_run *r) {
  for (int i = 0; i < r->o->n_evals; i++)
    if (is_due(r, &r->o->evals[i], r->state.step))
      LM_TRY(evaluate(r, i));
  return NULL;
}

static void step_count(lm_run *r, int64_t step, const lm_step_result *x) {
  r->state.step = step;
  r->state.tokens += x->tokens;
}

static lm_status step_good(lm_run *r, int64_t step, lm_step_result *x) {
  step_count(r, step, x);
  lm_progress_step(&r->progress, step, x);
  return metrics_write(r, step, x);
}

static lm_status step_skip(lm_run *r, int64_t step, lm_step_result *x, const char *why) {
  step_count(r, step, x);
  lm_progress_say(&r->progress, "step %lld: %s; its batch is skipped", (long long)step, why);
  return metrics_write(r, step, x);
}

static bool none_was_good(const lm_run *r) {
  return !r->state.guard.seen;
}

static lm_status give_up(const lm_run *r, int64_t step, const char *why) {
  return lm_fail(LM_USER, "step %lld: %s%s; training stops and this state is not saved (%s%s). %s",
                 (long long)step, why,
                 r->state.guard.rollbacks ? ", also after a rollback to the newest checkpoint" : "",
                 r->newest ? "the newest checkpoint is " : "there is no checkpoint",
                 r->newest ? r->newest : "",
                 none_was_good(r)
                     ? "No step succeeded: check the model, its initial weights and the data"
                     : "A smaller learning rate or a smaller `clip` may help");
}

// Whether the data lasts until the end of the run. Only precomputed batches are finite.
static bool batches_suffice(const lm_run *r, int64_t shift) {
  int64_t batches = lm_data_info_of(lm_trainer_options_of(r->o->trainer)->data).steps;
  return !batches || r->o->steps + shift <= batches;
}

static lm_status step_rollback(lm_run *r, int64_t step, const char *why) {
  lm_guard then = r->state.guard;
  lm_checkpoint_choice from;
  LM_TRY(lm_run_background_end(r));
  if (!r->newest || then.rollbacks >= r->o->guard.rollback)
    return give_up(r, step, why);
  LM_TRY(lm_checkpoint_load(r->arena, r->o->trainer, r->newest, &r->state, &from));
  stop_resume(r);
  lm_guard_rollback(&r->state.guard, &then, r->state.step, step);
  if (!batches_suffice(r, r->state.guard.shift))
    return lm_annotate(lm_fail(LM_USER, "there are no more batches to continue with"),
                       "step %lld: %s", (long long)step, why);
  lm_progress_say(&r->progress,
                  "step %lld: %s; rolling back to step %lld and skipping the batches since then",
                  (long long)step, why, (long long)r->state.step);
  lm_run_log_close(r->log);
  r->log = NULL;
  LM_TRY(log_open(r));
  return decide(r, LM_AT_END, NULL);
}

// Detects values that became infinite or NAN in the update of a step whose loss was finite.
static lm_status save_or_rollback(lm_run *r, int64_t step) {
  if (!r->o->dir)
    return NULL;
  LM_TRY(decide(r, LM_AT_SAVE, NULL));
  if (r->now.not_finite)
    return step_rollback(
        r, step, lm_arena_printf(r->arena, "parameter %s is no longer finite", r->now.not_finite));
  return lm_run_save(r);
}

enum {
  EMPTY_MAX = 100 // maximum number of empty steps before the first good one
};

// Data may contain such batches, so only the first one is reported.
static lm_status step_empty(lm_run *r, int64_t step, lm_step_result *x) {
  bool last = step >= r->o->steps || r->state.guard.empty + 1 >= EMPTY_MAX;
  r->state.guard.empty++;
  if (none_was_good(r) && last)
    return lm_fail(LM_USER,
                   "step %lld: the weights of its tokens sum to %g, and no step had a positive sum "
                   "so far (%lld empty steps); check the weights (`w`) of the data",
                   (long long)step, x->weight, (long long)r->state.guard.empty);
  step_count(r, step, x);
  if (!r->out->empty++)
    lm_progress_say(&r->progress,
                    "step %lld: the weights of its tokens sum to %g; this batch and all further "
                    "ones like it are "
                    "skipped",
                    (long long)step, x->weight);
  return metrics_write(r, step, x);
}

// The trainer has halved the scale.
static lm_status step_overflow(lm_run *r, int64_t step, lm_step_result *x) {
  step_count(r, step, x);
  lm_progress_say(&r->progress,
                  "step %lld: the gradient overflows at a loss scale of %g, which is halved; its "
                  "batch is skipped",
                  (long long)step, x->loss_scale);
  return metrics_write(r, step, x);
}

static lm_status step_act(lm_run *r, int64_t step, lm_step_result *x) {
  const lm_decisions *d = &r->now;
  switch (d->verdict) {
  case LM_GUARD_EMPTY: return step_empty(r, step, x);
  case LM_GUARD_OVERFLOW: return step_overflow(r, step, x);
  case LM_GUARD_ROLLBACK: return step_rollback(r, step, d->why);
  case LM_GUARD_GOOD: return step_good(r, step, x);
  case LM_GUARD_SKIP: break;
  }
  LM_TRY(step_skip(r, step, x, d->why));
  return r->state.step >= r->o->steps && none_was_good(r) ? give_up(r, step, d->why) : NULL;
}

static lm_status step_run(lm_run *r) {
  const lm_run_options *o = r->o;
  int64_t step = r->state.step + 1;
  lm_step_result *x = &r->out->last;
  r->best = false;
  LM_TRY(lm_trainer_step(o->trainer, step, step - 1 + r->state.guard.shift,
                         lm_guard_limit(&r->state.guard, &o->guard), x));
  LM_TRY(decide(r, LM_AT_RESULT, x));
  LM_TRY(step_act(r, step, x));
  if (r->state.step != step)
    return NULL; // rolled back
  if (r->now.evaluate)
    LM_TRY(evaluations(r));
  if (o->after_step)
    LM_TRY(o->after_step(o->user, step, x, &r->progress));
  LM_TRY(decide(r, LM_AT_END, x));
  if (r->now.written)
    LM_TRY(lm_run_background_end(r));
  if (r->now.save)
    LM_TRY(save_or_rollback(r, step));
  LM_TRY(lm_rank_log_step(r->rank_log, step));
  lm_progress_pause(&r->progress);
  return NULL;
}

// ---- the folder of the run

// The last step of the checkpoints in the run's folder that this run continues; -1: none.
static int64_t own_last(const lm_run *r) {
  bool own = r->newest && lm_run_folder_same(lm_path_dir(r->arena, r->newest), r->o->dir);
  return own ? r->state.step : -1;
}

// True if the folder is that of a run which has all of its steps or was stopped early.
static bool is_finished(const lm_run *r) {
  bool complete = r->state.step >= r->o->steps || r->out->stopped_early;
  return r->o->dir && own_last(r) >= 0 && complete;
}

static lm_status supersede(lm_run *r) {
  lm_checkpoint_aside aside;
  if (!r->o->dir || r->now.over)
    return NULL;
  LM_TRY(lm_checkpoint_steps_set_aside(r->arena, r->o->dir, own_last(r), &aside));
  if (!aside.folder)
    return NULL;
  lm_buf steps = {0};
  for (uint32_t i = aside.steps.n; i-- > 0;)
    lm_buf_printf(&steps, "%s%lld", steps.n ? ", " : "", (long long)aside.steps.v[i]);
  const char *s = aside.steps.n == 1 ? "" : "s";
  lm_run_warn(r,
              lm_arena_printf(
                  r->arena,
                  "this run does not continue the checkpoint%s of step%s %s in %s;\n  moved to %s",
                  s, s, steps.p, r->o->dir, aside.folder));
  lm_buf_free(&steps);
  return NULL;
}

// Rank 0 prepares the folder and writes the files of the beginning.
static lm_status folder_prepare(lm_run *r) {
  if (!lm_comm_is_first(r->o->comm))
    return NULL;
  LM_TRY(folder_lock(r));
  LM_TRY(supersede(r));
  LM_TRY(folder_open(r));
  return r->o->begin && !is_finished(r) ? r->o->begin(r->o->user) : NULL;
}

static lm_status train(lm_run *r) {
  LM_TRY(resume(r));
  // All ranks read the same folder, so it has to be on a file system that they share.
  LM_TRY(lm_comm_equal(r->o->comm, "the newest checkpoint", (uint64_t)r->state.step));
  LM_TRY(decide(r, LM_AT_END, NULL));
  LM_TRY(lm_comm_settle(r->o->comm, "the folder of the run", folder_prepare(r)));
  LM_TRY(rank_log_open(r));
  r->out->resumed = r->state.step;
  lm_progress_start(&r->progress, r->state.step);
  while (!r->now.over)
    LM_TRY(step_run(r));
  LM_TRY(lm_data_unchanged(lm_trainer_options_of(r->o->trainer)->data));
  return lm_run_log_draw(r->log);
}

// Adds to a failure of the environment, such as a full disk, where the run resumes.
static lm_status resumes_from(const lm_run *r, lm_status s) {
  if (!s || s->kind != LM_ENV || own_last(r) < 0)
    return s;
  lm_status out =
      lm_fail(LM_ENV, "%s\n  the newest complete checkpoint is %s; the run resumes there", s->text,
              r->newest);
  lm_status_about(out, s->subject);
  lm_status_free(s);
  return out;
}

static void outcome_report(lm_run *r) {
  r->out->step = r->state.step;
  r->out->skipped = r->state.guard.skipped;
  r->out->empty = r->state.guard.empty;
  r->out->overflows = r->state.guard.overflows;
  r->out->interrupted = r->state.step < r->o->steps ? r->now.interrupted : 0;
  lm_progress_end(&r->progress);
  bool saved = r->o->dir && r->saved == r->state.step;
  lm_run_outcome_say(&r->progress, r->out, r->o->steps, saved, stop_text(r));
}

lm_status lm_run_train(const lm_run_options *o, lm_run_outcome *out) {
  *out = (lm_run_outcome){0};
  lm_run r = {.o = o,
              .out = out,
              .arena = lm_arena_create(),
              .progress = o->progress,
              .saved = -1,
              .state = {.seed = o->seed,
                        .keys = o->keys,
                        .n_keys = o->n_keys,
                        .model = o->model,
                        .n_model = o->n_model,
                        .best = NAN,
                        .stop_best = NAN}};
  lm_interrupts signals;
  lm_interrupts_catch(&signals);
  lm_status s = train(&r);
  s = resumes_from(&r, lm_run_background_close(&r, s));
  lm_interrupts_release(&signals);
  lm_run_log_close(r.log);
  lm_rank_log_close(r.rank_log, s);
  if (r.lock)
    close(r.lock);
  if (!s)
    outcome_report(&r);
  else
    lm_progress_end(&r.progress);
  lm_arena_destroy(r.arena);
  return s;
}
