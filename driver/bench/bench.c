// bench.c - how fast a recipe trains on this machine.
#include "driver/bench/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "driver/ranks.h"
#include "driver/tune/tune.h"
#include "driver/tune/tune_step.h"
#include "driver/tune/tune_variant.h"

enum {
  WARM = 1,
  REPEATS = 5 // of the GEMMs alone, at most; no more than steps are run
};

lm_status lm_bench_open(lm_session *s, lm_ctx *ctx, const lm_events *events,
                        const lm_bench_options *o, int64_t micro) {
  s->variant = o->variant;
  s->threads = o->threads;
  s->target = o->target;
  s->dump_dir = o->dump_dir;
  s->load_dir = o->load_dir;
  LM_TRY(lm_session_open(s, ctx, events, &o->from));
  LM_TRY(lm_ranks_need(s));
  LM_TRY(lm_ranks_data(s));
  if (micro)
    lm_run_spec_set_micro(&s->run, micro);
  return NULL;
}

lm_status lm_bench_plan(lm_session *s) {
  LM_TRY(lm_session_compile(s, LM_LOWER_TRAIN, 0));
  return lm_session_check_ids(s);
}

lm_status lm_bench_start(lm_session *s) {
  LM_TRY(lm_tune_find(s, s->threads));
  return lm_ranks_session_start(s, NULL);
}

// What a step takes, in milliseconds: on the clock, and of the processors by all threads.
typedef struct step_ms {
  double clock, processor;
} step_ms;

// Runs step i, from 1; finished batches are repeated when they end.
static lm_status step_time(lm_session *s, int64_t i, step_ms *out) {
  int64_t finished = lm_data_info_of(s->data).steps;
  int64_t step = finished ? (i - 1) % finished + 1 : i;
  lm_step_result r;
  double start = lm_now(), processor = lm_process_seconds();
  LM_TRY(lm_trainer_step(s->execution.trainer, step, step - 1, INFINITY, &r));
  LM_TRY(lm_step_check(step, &r));
  out->clock = 1e3 * (lm_now() - start);
  out->processor = 1e3 * (lm_process_seconds() - processor);
  return NULL;
}
static void least(double *at, double ms) {
  if (!*at || ms < *at)
    *at = ms;
}

// The best step is the program's own time; the mean of all includes the effect of other load on the
// machine, most of which processor time leaves out.
static lm_status steps_time(lm_session *s, int64_t steps, double began, lm_bench_figures *out) {
  for (int64_t i = 1; i <= WARM + steps; i++) {
    step_ms ms;
    LM_TRY(step_time(s, i, &ms));
    if (i == 1) {
      out->ms_first = ms.clock;
      out->first_s = lm_now() - began;
    }
    if (i <= WARM)
      continue;
    least(&out->ms_per_step, ms.clock);
    least(&out->ms_processor, ms.processor);
    out->ms_mean += ms.clock / (double)steps;
  }
  return NULL;
}

// Anonymous memory of the process, most of which the plan predicts; 0 if /proc does not report it.
static int64_t resident_bytes(void) {
  lm_buf text = {0};
  lm_status s = lm_file_read("/proc/self/status", 1 << 20, &text);
  const char *at = s ? NULL : strstr(text.p, "RssAnon:");
  int64_t bytes = at ? 1024 * strtoll(at + strlen("RssAnon:"), NULL, 10) : 0;
  lm_status_free(s);
  lm_buf_free(&text);
  return bytes;
}

// The GEMMs of the model's weights alone, as a library computes them.
static lm_cpu_gemm_times gemms_time(const lm_session *s, int threads, int repeats) {
  const lm_weight_gemms *all = &lm_analysis_of(s->compiled.lowered->m)->gemms;
  lm_cpu_linear *p = LM_NEW_N(s->project.ctx->arena, lm_cpu_linear, all->n + 1);
  for (uint32_t i = 0; i < all->n; i++) {
    const lm_weight_gemm *x = &all->v[i];
    p[i] = (lm_cpu_linear){x->m, x->k, x->n, x->count};
  }
  return lm_cpu_gemm_bench(p, (int)all->n, s->compiled.compute, threads, repeats);
}

static void model_describe(const lm_session *s, lm_bench_figures *out) {
  lm_buf step = {0};
  lm_tune_step_report(s, &step);
  out->compute = lm_session_compute(s);
  out->tuned_text = lm_tune_step_text(s);
  out->tuned_step = lm_arena_strndup(s->project.ctx->arena, step.p, step.n);
  out->params = s->compiled.params;
  out->peak_bytes = lm_session_memory(s);
  out->kernels = s->compiled.plan->n_kernels;
  out->compiled = lm_exec_kernels_compiled(s->execution.exec);
  out->tuned = s->tuning.chosen;
  out->measured = s->tuning.measured;
  lm_buf_free(&step);
}

static lm_status session_measure(lm_session *s, lm_ctx *ctx, const lm_events *events,
                                 const lm_bench_options *o, lm_bench_figures *out) {
  double began = lm_now();
  int64_t repeats = WARM + o->steps < REPEATS ? WARM + o->steps : REPEATS;
  LM_TRY(lm_bench_open(s, ctx, events, o, 0));
  double opened = lm_now();
  LM_TRY(lm_bench_plan(s));
  LM_TRY(lm_tune_step_find(s));
  LM_TRY(lm_bench_start(s));
  out->compile_s = lm_now() - opened;
  LM_TRY(lm_session_train(s));
  int threads = lm_exec_threads(s->execution.exec);
  LM_TRY(steps_time(s, o->steps, began, out));
  out->resident_bytes = resident_bytes();
  lm_cpu_gemm_times gemm = {0};
  if (s->target.kind == LM_TARGET_CPU)
    gemm = gemms_time(s, threads, (int)repeats);
  out->gemm_ms = 1e3 * (double)s->run.n_micro * (gemm.forward + gemm.data + gemm.weight);
  out->tokens_per_s = (double)s->run.recipe->batch / out->ms_per_step * 1e3;
  out->model_flops = (double)s->run.n_micro * s->compiled.model_flops;
  out->peak_flops = lm_comm_self_of(s->comm).size * lm_compiled_peak(&s->compiled, threads);
  model_describe(s, out);
  return NULL;
}

lm_status lm_bench_run(lm_ctx *ctx, const lm_events *events, const lm_bench_options *o,
                       lm_bench_figures *out) {
  lm_session s = {0};
  *out = (lm_bench_figures){.load = lm_load_measure()};
  lm_status status = session_measure(&s, ctx, events, o, out);
  lm_session_close(&s);
  return status;
}
