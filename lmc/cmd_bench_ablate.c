// ablate.c - lmc bench --ablate: what each optimization is worth.
//
// Two models at a time are in memory, the whole one and one without a pass; their functions run in
// turn, so what else the machine does falls on both. A pass without which the plan is the same,
// line by line, may have declined: then the whole one is without it, and the other one is made as
// if it were asked for. If that is the same too, nothing needs measuring. Where runs of the
// recipe's micro-batch would take longer than the budget, smaller ones stand for it: of memory the
// plan tells at full size.
#include <stdio.h>
#include <string.h>

#include "compiler/passes/pass.h"
#include "lmc/cmd_bench.h"
#include "driver/tune/paired_timing.h"

enum {
  TURNS_LEAST = 2
};                               // of both models, behind a first one that counts for nothing
static const double START = 3;   // seconds to compile and to begin with a model, guessed
static const double SPEED = 0.4; // of the machine's peak, guessed, to choose a micro-batch by

typedef struct row {
  const char *pass;
  bool same, asked, late;
  double with_ms, without_ms;
  int64_t with_bytes, without_bytes;
} row;

typedef struct ablation {
  lm_cli *cli;
  lm_session whole;
  lm_buf plan; // the whole one's text
  row *rows;
  int n, to_measure, measured;
  int64_t turns, micro; // of both models at most; tokens of a micro-batch
  double end, spent;    // the budget's; seconds on rows that were measured
} ablation;

// ---- what there is to measure

static lm_status model_plan(const ablation *a, lm_session *s, const row *x, int64_t micro) {
  lm_variant v = {0};
  if (x)
    *(x->asked ? &v.on : &v.off) = x->pass;
  LM_TRY(lm_bench_open(s, a->cli, v, micro));
  return lm_bench_plan(s);
}

static lm_status model_start(lm_session *s) {
  LM_TRY(lm_bench_start(s));
  return lm_session_train(s);
}

static lm_status variant_plan(ablation *a, row *x) {
  lm_session part = {0};
  lm_buf text = {0};
  lm_status status = model_plan(a, &part, x, 0);
  if (!status)
    lm_plan_print(part.plan, &text);
  x->same = !status && text.n == a->plan.n && !memcmp(text.p, a->plan.p, text.n);
  x->with_bytes = x->without_bytes = lm_session_memory(&a->whole);
  if (!status)
    *(x->asked ? &x->with_bytes : &x->without_bytes) = lm_session_memory(&part);
  lm_buf_free(&text);
  lm_session_close(&part);
  return lm_annotate(status, "%s %s", x->asked ? "with" : "without", x->pass);
}

static lm_status rows_plan(ablation *a) {
  LM_TRY(model_plan(a, &a->whole, NULL, 0));
  lm_plan_print(a->whole.plan, &a->plan);
  a->rows = LM_NEW_N(a->cli->ctx->arena, row, lm_n_passes);
  for (int i = 0; i < lm_n_passes; i++) {
    if (lm_passes[i].off < 0)
      continue;
    row *x = &a->rows[a->n++];
    x->pass = lm_passes[i].name;
    LM_TRY(variant_plan(a, x));
    x->asked = x->same;
    if (x->asked)
      LM_TRY(variant_plan(a, x));
    a->to_measure += !x->same;
  }
  return NULL;
}

// The largest micro-batch of which every row has time for its turns.
static int64_t micro_choose(const ablation *a) {
  const lm_session *s = &a->whole;
  const lm_recipe *r = s->recipe;
  double per_token = lm_cost_of_step(s->plan, s->run.n_micro).flops / (double)r->batch /
                     (SPEED * lm_target_peak(&s->target, s->threads, s->lowered->compute));
  double run = ((a->end - lm_now()) / (a->to_measure + 1) - START) / (1 + 2 * TURNS_LEAST);
  int64_t best = s->run.seq;
  if (r->data.n_stages || !a->to_measure)
    return lm_run_micro(&s->run);
  for (int64_t m = s->run.seq; m <= lm_run_micro(&s->run); m += s->run.seq)
    if (r->batch % m == 0 && (double)m * per_token <= run)
      best = m;
  return best;
}

static lm_status whole_start(ablation *a) {
  LM_TRY(model_start(&a->whole));
  a->micro = micro_choose(a);
  if (a->micro == lm_run_micro(&a->whole.run))
    return NULL;
  lm_session_close(&a->whole);
  a->whole = (lm_session){0};
  LM_TRY(model_plan(a, &a->whole, NULL, a->micro));
  return model_start(&a->whole);
}

// ---- timing

// The first turn of a model touches its memory. Of the others there are as many as the row's share
// of the budget allows.
static lm_status alternate(ablation *a, lm_session *part, lm_step_times *of_whole,
                           lm_step_times *of_part) {
  double share = (a->end - lm_now()) / (a->to_measure - a->measured);
  double end = lm_now() + share;
  LM_TRY(lm_step_batch(part));
  LM_TRY(lm_step_measure(part, false, of_part));
  for (int64_t i = 0; i < a->turns; i++) {
    double start = lm_now();
    LM_TRY(lm_step_measure(&a->whole, true, of_whole));
    LM_TRY(lm_step_measure(part, true, of_part));
    if (i + 1 >= TURNS_LEAST && 2 * lm_now() - start > end)
      break;
  }
  return NULL;
}

static lm_status row_measure(ablation *a, row *x) {
  lm_session part = {0};
  lm_step_times of_whole = {0}, of_part = {0};
  lm_status status = model_plan(a, &part, x, a->micro);
  if (!status)
    status = model_start(&part);
  if (!status)
    status = alternate(a, &part, &of_whole, &of_part);
  if (!status)
    *(x->asked ? &x->without_ms : &x->with_ms) = lm_step_ms(&a->whole, &of_whole);
  if (!status)
    *(x->asked ? &x->with_ms : &x->without_ms) = lm_step_ms(&part, &of_part);
  lm_session_close(&part);
  return lm_annotate(status, "%s %s", x->asked ? "with" : "without", x->pass);
}

// The whole one's time where there is nothing to compare it with.
static lm_status row_same(ablation *a, row *x) {
  lm_step_times t = {0};
  LM_TRY(lm_step_measure(&a->whole, true, &t));
  x->with_ms = x->without_ms = lm_step_ms(&a->whole, &t);
  return NULL;
}

// ---- showing

static void progress(const ablation *a, const row *x) {
  if (!a->cli->color)
    return;
  double left =
      a->measured ? a->spent / a->measured * (a->to_measure - a->measured) : a->end - lm_now();
  if (!x)
    fprintf(stderr, "\r\033[K");
  else
    fprintf(stderr, "\r%s %s: %d of %d, about %.0f s left\033[K", x->asked ? "with" : "without",
            x->pass, a->measured + 1, a->to_measure, left > 0 ? left : 0);
}

static double ratio_of(const row *x) {
  return x->late ? 0 : x->without_ms / x->with_ms;
}

static void row_text(const ablation *a, const row *x, bool first) {
  lm_buf with = {0}, without = {0};
  lm_show_bytes(&with, (double)x->with_bytes);
  lm_show_bytes(&without, (double)x->without_bytes);
  if (first)
    lm_cli_print("pass          with ms  without ms  ratio       with  without (memory)   step by "
                 "micro-batches of %lld\n",
                 (long long)a->micro);
  lm_cli_print("%-10s  %9.2f   %9.2f  %5.2f   %8s  %8s%s\n", x->pass, x->with_ms, x->without_ms,
               ratio_of(x), with.p, without.p,
               x->same    ? "            the same plan"
               : x->late  ? "            no time was left"
               : x->asked ? "            off by default"
                          : "");
  lm_buf_free(&with);
  lm_buf_free(&without);
}

static void row_json(const ablation *a, const row *x, bool first) {
  lm_cli_print("%s  {\"pass\": \"%s\", \"measured\": %s, \"same\": %s, \"default\": %s, \"micro\": "
               "%lld, \"with_ms\": %.6g, \"without_ms\": %.6g, \"ratio\": %.6g, \"with_bytes\": "
               "%lld, \"without_bytes\": %lld}",
               first ? "[\n" : ",\n", x->pass, x->late ? "false" : "true",
               x->same ? "true" : "false", x->asked && !x->same ? "false" : "true",
               (long long)a->micro, x->with_ms, x->without_ms, ratio_of(x),
               (long long)x->with_bytes, (long long)x->without_bytes);
}

static lm_status rows_measure(ablation *a) {
  LM_TRY(lm_step_batch(&a->whole));
  LM_TRY(lm_step_measure(&a->whole, false, &(lm_step_times){0}));
  for (int i = 0; i < a->n; i++) {
    double start = lm_now();
    row *x = &a->rows[i];
    progress(a, x);
    x->late = !x->same && a->measured && start > a->end;
    if (!x->late)
      LM_TRY((x->same ? row_same : row_measure)(a, x));
    if (!x->same) {
      a->measured++;
      a->spent += lm_now() - start;
    }
    progress(a, NULL);
    (a->cli->json ? row_json : row_text)(a, x, i == 0);
    fflush(stdout);
  }
  if (a->cli->json)
    lm_cli_print("\n]\n");
  return NULL;
}

lm_status lm_bench_ablate(lm_cli *cli, int64_t turns, double budget) {
  ablation a = {.cli = cli, .turns = turns, .end = lm_now() + budget};
  lm_status status = rows_plan(&a);
  if (!status)
    status = whole_start(&a);
  if (!status)
    status = rows_measure(&a);
  lm_session_close(&a.whole);
  lm_buf_free(&a.plan);
  return status;
}
