// tune_step.c - the search for the fastest variant of a step.
#include "driver/tune/tune_step.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "compiler/passes/pass.h"
#include "driver/tune/paired_timing.h"
#include "driver/tune/tune_machine.h"
#include "driver/tune/tune_variant.h"
#include "runtime/base/cache.h"
#include "runtime/io/json.h"

enum {
  MAX_BYTES = 16 << 20 // of a cache file
};
static const double SHARE = 0.5;         // of the budget
static const double MACHINE_SHARE = 0.8; // of memory, for two plans at once

// The changes to try, in the order of expected gain. A change that has no effect on the plan is not
// timed.
static const lm_variant changes[] = {
    {.off = "tile_vocab"},  {.on = "fuse_gemms"},   {.off = "fuse_gemms"}, {.on = "prepack"},
    {.off = "prepack"},     {.rows = 1024},         {.rows = 256},         {.rows = 2048},
    {.rows = 8192},         {.off = "fuse_loops"},  {.points = 8},         {.points = 128},
    {.points = 4096},       {.off = "licm"},        {.on = "tile_rows"},   {.off = "tile_rows"},
    {.on = "gemm_kernels"}, {.off = "gemm_kernels"}};

// ---- the cache

static lm_status cache_path(const lm_session *s, const lm_buf *plan, const char **out) {
  lm_arena *a = s->project.ctx->arena;
  const char *dir;
  const char *parts[] = {
      lm_tune_machine(s), lm_arena_printf(a, "%d", s->threads),
      lm_arena_printf(a, "%016llx", (unsigned long long)lm_hash(plan->p, plan->n, 0))};
  LM_TRY(lm_cache_dir(a, &dir));
  *out = lm_arena_printf(a, "%s/step-%s.json", dir, lm_cache_key_make(parts, LM_COUNT(parts)).text);
  return NULL;
}

static bool cache_read(lm_session *s, const char *path) {
  json_t *j = NULL;
  lm_variant v = {0};
  lm_buf text = {0};
  double gain;
  lm_status none = lm_cache_file_read(path, MAX_BYTES, &text);
  if (!none)
    none = lm_json_parse(text.p, text.n, path, &j);
  bool ok = !none && lm_variant_read(s->project.ctx->arena, j, &v, &gain);
  if (ok)
    lm_tune_step_set(s, &v, gain);
  json_decref(j);
  lm_buf_free(&text);
  lm_status_free(none);
  return ok;
}

static lm_status cache_write(const lm_session *s, const char *path) {
  lm_buf b = {0};
  lm_tune_step_json(s, &b);
  lm_status status = lm_cache_file_write(path, b.p, b.n);
  lm_buf_free(&b);
  return status;
}

// ---- trials

// A variant of the plan, in memory beside the session's plan.
typedef struct trial {
  lm_compiled *compiled;
  lm_execution execution;
  lm_buf plan; // its text
} trial;

typedef struct search {
  lm_session *s;
  trial *best;
  int64_t limit; // bytes of a plan
  // speedup of the best one over the default; time when the budget ends; seconds of a default step
  double gain;
  double end;
  double step;
  bool late; // there was no time for some variants
} search;

static lm_status trial_plan(lm_session *s, const lm_variant *v, trial *out) {
  lm_compile_spec spec = s->compiled.spec;
  spec.what = LM_LOWER_TRAIN;
  spec.variant = *v;
  spec.capacity = 0;
  spec.recompute = s->fit.freed;
  spec.dump = NULL;
  *out = (trial){.compiled = LM_NEW(s->project.ctx->arena, lm_compiled)};
  LM_TRY(lm_compile(&s->project, &spec, out->compiled));
  lm_plan_print(out->compiled->plan, &out->plan);
  return NULL;
}

// The first step faults its memory in and does not count.
static lm_status trial_start(const search *x, trial *t) {
  LM_TRY(lm_execution_start(t->compiled, &t->compiled->spec.exec, &t->execution));
  LM_TRY(lm_execution_train(&t->execution, &(lm_execution_training){
                                               .data = x->s->data,
                                               .resumes = x->s->resumes,
                                           }));
  LM_TRY(lm_step_batch(&t->execution, x->s->data));
  return lm_step_measure(&t->execution, false, &(lm_step_times){0});
}

static void trial_close(trial *t) {
  lm_execution_close(&t->execution);
  lm_buf_free(&t->plan);
}

static lm_status step_ms(void *user, double *out) {
  const trial *t = user;
  lm_step_times x = {0};
  LM_TRY(lm_step_measure(&t->execution, true, &x));
  *out = lm_step_ms(&t->execution, &x);
  return NULL;
}

static bool fits(const search *x, const trial *t) {
  int64_t bytes = lm_compiled_memory(t->compiled);
  int64_t both = bytes + lm_compiled_memory(x->best->compiled);
  return bytes <= x->limit && (x->s->target.kind == LM_TARGET_CUDA ||
                               both <= (int64_t)(MACHINE_SHARE * (double)lm_memory_of_machine()));
}

// Times t; it replaces the best variant if it wins. A variant for which no memory is left is
// skipped.
static lm_status trial_run(search *x, trial *t) {
  double gain = 0;
  lm_status status = trial_start(x, t);
  if (!status)
    status = lm_pair_compare(step_ms, x->best, t, &gain);
  if (status && status->kind == LM_ENV) {
    lm_status_free(status);
    status = NULL;
    gain = 0;
  }
  if (status || !gain)
    return status;
  trial was = *x->best;
  *x->best = *t;
  *t = was;
  x->gain *= gain;
  return NULL;
}

static bool names_one(const char *list, const char *pass) {
  return list && pass && strstr(list, pass);
}

static const char *both(lm_arena *a, const char *x, const char *y) {
  return x && y ? lm_arena_printf(a, "%s,%s", x, y) : x ? x : y;
}

// Adds a change to the best variant; false if that already sets the same option.
static bool changed(lm_arena *a, const lm_variant *best, const lm_variant *change,
                    lm_variant *out) {
  bool said = names_one(best->off, change->off) || names_one(best->off, change->on) ||
              names_one(best->on, change->off) || names_one(best->on, change->on);
  *out = (lm_variant){both(a, best->off, change->off), both(a, best->on, change->on),
                      change->rows ? change->rows : best->rows,
                      change->points ? change->points : best->points};
  return !said && !(best->rows && change->rows) && !(best->points && change->points);
}

// True if the change applies to the target: tiles of rows fit the caches of cores, while a GPU
// computes all rows at once.
static bool is_for(const lm_session *s, const lm_variant *change) {
  return s->target.kind == LM_TARGET_CPU || !names_one(change->on, "tile_rows");
}

static lm_status change_try(search *x, const lm_variant *change) {
  trial t;
  lm_variant v;
  if (!is_for(x->s, change) ||
      !changed(x->s->project.ctx->arena, &x->best->compiled->spec.variant, change, &v))
    return NULL;
  lm_status status = trial_plan(x->s, &v, &t);
  bool same =
      !status && t.plan.n == x->best->plan.n && !memcmp(t.plan.p, x->best->plan.p, t.plan.n);
  if (!status && !same && fits(x, &t))
    status = trial_run(x, &t);
  trial_close(&t);
  return lm_annotate(status, "a step %s", lm_variant_text(x->s->project.ctx->arena, &v));
}

static void progress(const search *x, int i) {
  const lm_session *s = x->s;
  if (i == (int)LM_COUNT(changes))
    lm_event_progress_end(s->project.events);
  else
    lm_event_progress(s->project.events, "measuring steps: %s, %d of %d, at most %.0f s left",
                      lm_variant_text(s->project.ctx->arena, &changes[i]), i + 1,
                      (int)LM_COUNT(changes), x->end - lm_now());
}

static lm_status changes_try(search *x) {
  lm_step_times once = {0};
  for (int i = 0; i < 2; i++)
    LM_TRY(lm_step_measure(&x->best->execution, true, &once));
  x->step = once.micro.seconds + once.norm.seconds + once.update.seconds;
  for (int i = 0; i < (int)LM_COUNT(changes); i++) {
    progress(x, i);
    if (lm_now() + (1 + 2 * LM_PAIR_COMPARISONS) * x->step < x->end)
      LM_TRY(change_try(x, &changes[i]));
    else
      x->late = true;
  }
  progress(x, LM_COUNT(changes));
  return NULL;
}

// ---- finding

static lm_status best_find(lm_session *s, trial *base) {
  const lm_recipe *r = s->project.recipe;
  search x = {.s = s,
              .best = base,
              .gain = 1,
              .limit = r->memory.budget ? r->memory.budget : INT64_MAX,
              .end = lm_now() + SHARE * r->compile_budget};
  const char *path;
  LM_TRY(cache_path(s, &base->plan, &path));
  if (cache_read(s, path))
    return NULL;
  if (r->compile_budget <= 0 || !fits(&x, base))
    return NULL;
  LM_TRY(trial_start(&x, base));
  LM_TRY(changes_try(&x));
  lm_tune_step_set(s, &base->compiled->spec.variant, x.gain);
  return x.late ? NULL : cache_write(s, path); // another run may have the time
}

lm_status lm_tune_step_find(lm_session *s) {
  trial base;
  double start = lm_now();
  if (!lm_tune_is_requested(s) || lm_variant_is_given(s) || s->tuning.recalled)
    return NULL;
  lm_status status = trial_plan(s, &s->variant, &base);
  if (!status)
    status = best_find(s, &base);
  trial_close(&base);
  lm_event_module(s->project.events, s->compiled.lowered->m);
  s->tuning.spent = lm_now() - start;
  if (status || s->tuning.step_gain <= 1)
    return status;
  return lm_session_compile(s, s->compiled.spec.what, s->compiled.spec.capacity);
}
