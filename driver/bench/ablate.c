// ablate.c - measures how much each optimization contributes.
//
// Two models at a time are in memory, the one with the default plan and one without a pass. Their
// functions run alternately, so that other load on the machine affects both. If the plan without
// the pass is the same, line by line, the pass may have declined, and the plan with the pass forced
// is compared instead; if that is the same too, nothing is measured. If steps with the recipe's
// micro-batch would exceed the budget, smaller ones are timed; memory is always reported for the
// plan at full size.
#include <string.h>

#include "compiler/passes/pass.h"
#include "driver/bench/bench.h"
#include "driver/tune/paired_timing.h"

enum {
  MIN_STEPS = 2 // of both models, after a first one that does not count
};
static const double CONFIRM_SECONDS = 0.5; // of a row, after which only the wanted steps follow
static const double START = 3;             // seconds to compile and start a model, an estimate
static const double SPEED = 0.4; // share of the machine's peak, an estimate to choose a micro-batch

typedef struct ablation {
  lm_ctx *ctx;
  const lm_events *events;
  const lm_ablation_options *o;
  lm_session full; // with the default plan
  lm_buf plan;     // its text
  lm_ablation_row *rows;
  int n;
  int to_measure;
  int measured;
  int64_t micro;     // tokens of a micro-batch
  double end, spent; // time when the budget ends; seconds on rows that were measured
  lm_load load;
} ablation;

// ---- plans

static lm_status model_plan(const ablation *a, lm_session *s, const lm_ablation_row *x,
                            int64_t micro) {
  lm_variant v = {0};
  if (x)
    *(x->off ? &v.on : &v.off) = x->pass;
  lm_bench_options o = a->o->bench;
  o.variant = v;
  LM_TRY(lm_bench_open(s, a->ctx, a->events, &o, micro));
  return lm_bench_plan(s);
}

static lm_status model_start(lm_session *s) {
  LM_TRY(lm_bench_start(s));
  return lm_session_train(s);
}

static lm_status variant_plan(ablation *a, lm_ablation_row *x) {
  lm_session part = {0};
  lm_buf text = {0};
  lm_status status = model_plan(a, &part, x, 0);
  if (!status)
    lm_plan_print(part.compiled.plan, &text);
  x->same = !status && text.n == a->plan.n && !memcmp(text.p, a->plan.p, text.n);
  x->with_bytes = x->without_bytes = lm_session_memory(&a->full);
  if (!status)
    *(x->off ? &x->with_bytes : &x->without_bytes) = lm_session_memory(&part);
  lm_buf_free(&text);
  lm_session_close(&part);
  return lm_annotate(status, "%s %s", x->off ? "with" : "without", x->pass);
}

static lm_status rows_plan(ablation *a) {
  LM_TRY(model_plan(a, &a->full, NULL, 0));
  lm_plan_print(a->full.compiled.plan, &a->plan);
  a->rows = LM_NEW_N(a->ctx->arena, lm_ablation_row, lm_n_passes);
  for (int i = 0; i < lm_n_passes; i++) {
    if (lm_passes[i].off < 0)
      continue;
    lm_ablation_row *x = &a->rows[a->n++];
    x->pass = lm_passes[i].name;
    x->load = a->load;
    LM_TRY(variant_plan(a, x));
    x->off = x->same;
    if (x->off)
      LM_TRY(variant_plan(a, x));
    a->to_measure += !x->same;
  }
  return NULL;
}

// The largest micro-batch with which every row has time for its steps.
static int64_t micro_choose(const ablation *a) {
  const lm_session *s = &a->full;
  const lm_recipe *r = s->run.recipe;
  double per_token = lm_cost_of_training(NULL, s->compiled.plan, s->run.n_micro).flops /
                     (double)r->batch / (SPEED * lm_compiled_peak(&s->compiled, s->threads));
  double run = ((a->end - lm_now()) / (a->to_measure + 1) - START) / (1 + 2 * MIN_STEPS);
  int64_t best = s->run.seq;
  if (r->data.n_stages || !a->to_measure)
    return lm_run_micro(&s->run);
  for (int64_t m = s->run.seq; m <= lm_run_micro(&s->run); m += s->run.seq)
    if (r->batch % m == 0 && (double)m * per_token <= run)
      best = m;
  return best;
}

static lm_status full_start(ablation *a) {
  LM_TRY(model_start(&a->full));
  a->micro = micro_choose(a);
  if (a->micro == lm_run_micro(&a->full.run))
    return NULL;
  lm_session_close(&a->full);
  a->full = (lm_session){0};
  LM_TRY(model_plan(a, &a->full, NULL, a->micro));
  return model_start(&a->full);
}

// ---- timing

// Runs a step of each of the n models in turn, `steps` times or until `end`. If they have not
// confirmed the shortest by then, because other processes disturb them, further ones follow.
static lm_status alternate(const lm_session *const *models, lm_step_times *times, int n,
                           int64_t steps, double end) {
  double begin = lm_now();
  double start = begin;
  for (int64_t i = 0;; i++) {
    double now = lm_now();
    bool confirmed = lm_step_is_confirmed(&times[0]) && lm_step_is_confirmed(&times[n - 1]);
    if (i >= steps && (confirmed || now - begin > CONFIRM_SECONDS))
      return NULL;
    if (i >= MIN_STEPS && 2 * now - start > end)
      return NULL;
    start = now;
    for (int k = 0; k < n; k++)
      LM_TRY(lm_step_measure(&models[k]->execution, true, &times[k]));
  }
}

// The first step of a model faults its memory in and does not count. The number of further steps
// follows from the row's share of the budget. times: of the default plan, of the other one.
static lm_status pair_measure(ablation *a, lm_session *part, lm_step_times *times) {
  double share = (a->end - lm_now()) / (a->to_measure - a->measured);
  double end = lm_now() + share;
  LM_TRY(lm_step_batch(&part->execution, part->data));
  LM_TRY(lm_step_measure(&part->execution, false, &times[1]));
  return alternate((const lm_session *const[]){&a->full, part}, times, 2, a->o->bench.steps, end);
}

static lm_status row_measure(ablation *a, lm_ablation_row *x) {
  lm_session part = {0};
  lm_step_times times[2] = {0};
  lm_status status = model_plan(a, &part, x, a->micro);
  if (!status)
    status = model_start(&part);
  if (!status)
    status = pair_measure(a, &part, times);
  if (!status)
    *(x->off ? &x->without_ms : &x->with_ms) = lm_step_ms(&a->full.execution, &times[0]);
  if (!status)
    *(x->off ? &x->with_ms : &x->without_ms) = lm_step_ms(&part.execution, &times[1]);
  lm_session_close(&part);
  return lm_annotate(status, "%s %s", x->off ? "with" : "without", x->pass);
}

// The time of the default plan, if the plan without the pass is the same.
static lm_status row_same(ablation *a, lm_ablation_row *x) {
  lm_step_times t = {0};
  const lm_session *full = &a->full;
  LM_TRY(alternate(&full, &t, 1, 1, lm_now() + CONFIRM_SECONDS));
  x->with_ms = x->without_ms = lm_step_ms(&a->full.execution, &t);
  return NULL;
}

// ---- all rows

static void progress(const ablation *a, const lm_ablation_row *x) {
  double left =
      a->measured ? a->spent / a->measured * (a->to_measure - a->measured) : a->end - lm_now();
  lm_event_progress(a->events, "%s %s: %d of %d, about %.0f s left", x->off ? "with" : "without",
                    x->pass, a->measured + 1, a->to_measure, left > 0 ? left : 0);
}

double lm_ablation_ratio(const lm_ablation_row *x) {
  return x->unmeasured ? 0 : x->without_ms / x->with_ms;
}
static lm_status rows_measure(ablation *a) {
  LM_TRY(lm_step_batch(&a->full.execution, a->full.data));
  LM_TRY(lm_step_measure(&a->full.execution, false, &(lm_step_times){0}));
  for (int i = 0; i < a->n; i++) {
    double start = lm_now();
    lm_ablation_row *x = &a->rows[i];
    progress(a, x);
    x->unmeasured = !x->same && a->measured && start > a->end;
    if (!x->unmeasured)
      LM_TRY((x->same ? row_same : row_measure)(a, x));
    if (!x->same) {
      a->measured++;
      a->spent += lm_now() - start;
    }
    lm_event_progress_end(a->events);
    a->o->row(a->o->user, x, a->micro);
  }
  return NULL;
}

lm_status lm_ablation_run(lm_ctx *ctx, const lm_events *events, const lm_ablation_options *o) {
  ablation a = {
      .ctx = ctx, .events = events, .o = o, .end = lm_now() + o->budget, .load = lm_load_measure()};
  lm_status status = rows_plan(&a);
  if (!status)
    status = full_start(&a);
  if (!status)
    status = rows_measure(&a);
  lm_session_close(&a.full);
  lm_buf_free(&a.plan);
  return status;
}
