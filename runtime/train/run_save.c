// run_save.c - the checkpoints of a run; see run_save.h.
#include "runtime/train/run_save.h"

#include "runtime/train/checkpoint_folder.h"
#include "runtime/train/rank_sums.h"

lm_status lm_run_data_key(const lm_run *r, uint64_t *out) {
  return lm_data_key(lm_trainer_options_of(r->o->trainer)->data,
                     r->state.step + r->state.guard.shift, out);
}

const char *lm_run_mesh_text(lm_arena *a, const lm_plan *plan, const char *schedule) {
  const char *ranks = lm_plan_mesh_text(a, plan);
  return schedule && *ranks ? lm_arena_printf(a, "%s with %s", ranks, schedule) : ranks;
}

const char *lm_run_mesh(const lm_run *r) {
  const lm_plan *plan = lm_trainer_options_of(r->o->trainer)->plan;
  return lm_run_mesh_text(r->arena, plan, r->o->schedule);
}

static lm_status checkpoint_prepare(lm_run *r) {
  const lm_trainer_options *t = lm_trainer_options_of(r->o->trainer);
  LM_TRY(lm_data_unchanged(t->data));
  LM_TRY(lm_run_data_key(r, &r->state.data));
  r->state.n_micro = lm_trainer_micros(t);
  r->state.loss_scale = lm_trainer_loss_scale(r->o->trainer);
  r->state.mesh = lm_run_mesh(r);
  return NULL;
}

// The outcome of a checkpoint in the background. A failure of the run itself ends it.
static lm_status background_judge(lm_run *r, lm_status s) {
  if (!s || s->kind != LM_ENV)
    return s;
  lm_status lost = lm_comm_check(r->o->comm);
  if (lost) {
    lm_status_free(lost);
    return s;
  }
  lm_run_warn(
      r, lm_arena_printf(r->arena, "%s\n  this step is not saved; the run continues%s%s", s->text,
                         r->newest ? ", and the newest checkpoint is " : " without a checkpoint",
                         r->newest ? r->newest : ""));
  lm_status_free(s);
  return NULL;
}

static lm_status saving_end(lm_run *r) {
  lm_checkpoint_saving *x = r->saving;
  r->saving = NULL;
  LM_TRY(lm_checkpoint_save_end(x));
  r->saved = r->saving_step;
  r->newest = lm_checkpoint_path(r->arena, r->o->dir, r->saved);
  return lm_run_log_draw(r->log);
}

lm_status lm_run_background_end(lm_run *r) {
  return r->saving ? background_judge(r, saving_end(r)) : NULL;
}

static lm_status saving_begin(lm_run *r, bool background) {
  const lm_run_options *o = r->o;
  lm_checkpoint_options how = {
      .dir = o->dir,
      .max_file = o->max_file ? o->max_file : INT64_MAX,
      .keep = o->keep,
      .also = o->best.eval >= 0 ? r->state.best_step : -1,
      .background = background,
  };
  r->saving_step = r->state.step;
  return lm_checkpoint_save_begin(o->trainer, &r->state, &how, &r->saving);
}

// The last checkpoint is not in the background: the run would wait for it at once.
lm_status lm_run_save(lm_run *r) {
  const lm_run_options *o = r->o;
  const lm_trainer_options *t = lm_trainer_options_of(o->trainer);
  bool background = o->background && !r->now.over;
  double start = lm_timeline_now(lm_run_timeline(r));
  LM_TRY(lm_run_background_end(r));
  if (!o->dir || r->saved == r->state.step)
    return NULL;
  r->state.guard.rollbacks = 0;
  LM_TRY(lm_rank_params_compare(o->comm, t->exec, t->plan));
  LM_TRY(lm_comm_settle(o->comm, "the data", checkpoint_prepare(r)));
  lm_status s = saving_begin(r, background);
  if (background)
    s = background_judge(r, s);
  else if (!s)
    s = saving_end(r);
  lm_timeline_add(lm_run_timeline(r), LM_ROW_SAVE, "checkpoint", NULL, r->state.step, start);
  return s;
}

static void background_abandon(lm_run *r) {
  lm_checkpoint_save_abandon(r->saving);
  r->saving = NULL;
  lm_run_warn(r, lm_arena_printf(r->arena,
                                 "the run failed while the checkpoint of step %lld was written, "
                                 "which is removed",
                                 (long long)r->saving_step));
}

// The checkpoint in the background of a run that ends with the error s. One process has all of it
// in the host's memory and completes it. Ranks may have failed at different moments, so they cannot
// agree to publish it.
lm_status lm_run_background_close(lm_run *r, lm_status s) {
  if (!s || !r->saving)
    return s;
  if (r->o->comm) {
    background_abandon(r);
    return s;
  }
  lm_status failed = saving_end(r);
  if (failed)
    lm_run_warn(r, failed->text);
  lm_status_free(failed);
  return s;
}
