// bench.c - lmc bench: how fast a recipe trains here, beside its matrix products alone.
#include "lmc/cmd_bench.h"

#include "driver/tune/tune.h"
#include "driver/tune/tune_step.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
  BUDGET = 120,
  STEPS = 5,
  WARM = 1,
  REPEATS = 5 /* of GEMMs alone, at most: no more than steps are run */
};

static const lm_opt options[] = {
    {.name = "steps",
     .kind = LM_OPT_WHOLE,
     .value = "N",
     .help = "steps that are timed (5)",
     .least = 1,
     .most = 1e6},
    {.name = "threads",
     .kind = LM_OPT_WHOLE,
     .value = "N",
     .help = "threads (as many as there are cores, and OMP_NUM_THREADS says at most)",
     .least = 1,
     .most = 4096},
    {.name = "ablate",
     .kind = LM_OPT_FLAG,
     .help = "a row for each optimization: the step with all, and without it"},
    {.name = "budget",
     .kind = LM_OPT_NUMBER,
     .value = "SECONDS",
     .help = "about how long --ablate may take (120)",
     .least = 1,
     .most = 1e6},
    LM_OPT_PASSES,
    LM_OPT_KERNELS,
    LM_OPT_TARGET,
    LM_OPT_RECIPE,
    LM_OPT_JSON,
    {0}};

typedef struct figures {
  double ms_per_step, ms_mean, ms_first, first_s, tokens_per_s, gemm_ms, model_flops, peak_flops,
      compile_s;
  int64_t params, peak_bytes, resident_bytes;
  int kernels, compiled, tuned, measured;
} figures;

lm_status lm_bench_open(lm_session *s, lm_cli *cli, lm_variant variant, int64_t micro) {
  s->variant = variant;
  s->threads = (int)lm_args_whole(&cli->args, "threads", 0);
  LM_TRY(lm_cli_target(cli, &s->target));
  LM_TRY(lm_cli_open(cli, s));
  LM_TRY(lm_session_data(s));
  if (micro)
    lm_run_spec_set_micro(&s->run, s->recipe, micro);
  return NULL;
}

lm_status lm_bench_plan(lm_session *s) {
  LM_TRY(lm_session_lower(s, LM_LOWER_TRAIN, 0));
  LM_TRY(lm_session_plan(s));
  return lm_session_check_ids(s);
}

lm_status lm_bench_start(lm_session *s) {
  LM_TRY(lm_tuned_find(s, s->threads));
  return lm_session_start(s, NULL);
}

lm_status lm_bench_step(lm_session *s, int64_t i, double *out_ms) {
  int64_t finished = lm_data_info_of(s->data).steps;
  int64_t step = finished ? (i - 1) % finished + 1 : i;
  lm_step_result r;
  double start = lm_now();
  LM_TRY(lm_trainer_step(s->trainer, step, step - 1, INFINITY, &r));
  LM_TRY(lm_step_check(step, &r));
  *out_ms = 1e3 * (lm_now() - start);
  return NULL;
}

// The best step is the program's own time; the mean of all includes the effect of other load on the
// machine.
static lm_status steps_time(lm_session *s, int64_t steps, double began, figures *out) {
  for (int64_t i = 1; i <= WARM + steps; i++) {
    double ms;
    LM_TRY(lm_bench_step(s, i, &ms));
    if (i == 1) {
      out->ms_first = ms;
      out->first_s = lm_now() - began;
    }
    if (i <= WARM)
      continue;
    if (!out->ms_per_step || ms < out->ms_per_step)
      out->ms_per_step = ms;
    out->ms_mean += ms / (double)steps;
  }
  return NULL;
}

// Anonymous memory of the process, of which the plan foretells most; 0 where /proc does not say.
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
  const lm_weight_products *all = &lm_analysis_of(s->lowered->m)->products;
  lm_cpu_linear *p = LM_NEW_N(s->ctx->arena, lm_cpu_linear, all->n + 1);
  for (uint32_t i = 0; i < all->n; i++) {
    const lm_weight_product *x = &all->v[i];
    p[i] = (lm_cpu_linear){x->m, x->k, x->n, x->count};
  }
  return lm_cpu_gemm_bench(p, (int)all->n, s->lowered->compute, threads, repeats);
}

static lm_status measure(lm_session *s, lm_cli *cli, figures *out) {
  double began = lm_now();
  int64_t steps = lm_args_whole(&cli->args, "steps", STEPS);
  int64_t repeats = WARM + steps < REPEATS ? WARM + steps : REPEATS;
  lm_cli_kernels(cli, s);
  LM_TRY(lm_bench_open(s, cli, lm_cli_variant(cli), 0));
  double opened = lm_now();
  LM_TRY(lm_bench_plan(s));
  LM_TRY(lm_tuned_step_find(s));
  LM_TRY(lm_bench_start(s));
  out->compile_s = lm_now() - opened;
  LM_TRY(lm_session_train(s));
  int threads = lm_exec_threads(s->exec);
  LM_TRY(steps_time(s, steps, began, out));
  out->resident_bytes = resident_bytes();
  lm_cpu_gemm_times gemm = {0};
  if (!s->target.arch)
    gemm = gemms_time(s, threads, (int)repeats);
  out->gemm_ms = 1e3 * (double)s->run.n_micro * (gemm.forward + gemm.data + gemm.weight);
  out->tokens_per_s = (double)s->recipe->batch / out->ms_per_step * 1e3;
  out->model_flops = (double)s->run.n_micro * s->model_flops;
  out->peak_flops = lm_target_peak(&s->target, threads, s->lowered->compute);
  out->params = s->params;
  out->peak_bytes = lm_session_memory(s);
  out->kernels = s->plan->n_kernels;
  out->compiled = lm_exec_kernels_compiled(s->exec);
  out->tuned = s->tuned.chosen;
  out->measured = s->tuned.measured;
  return NULL;
}

static void figures_text(const lm_session *s, const figures *x) {
  lm_buf memory = {0};
  lm_show_bytes(&memory, (double)x->peak_bytes);
  lm_cli_print("step          %10.1f ms   (first %.1f ms)\n", x->ms_per_step, x->ms_first);
  lm_cli_print("tokens        %10.0f a second\n", x->tokens_per_s);
  if (x->gemm_ms)
    lm_cli_print("GEMMs alone   %10.1f ms   step / GEMMs %.2f\n", x->gemm_ms,
                 x->ms_per_step / x->gemm_ms);
  lm_cli_print("utilisation   %10.1f %%    of %.0f GFLOP/s\n",
               100 * x->model_flops / (x->ms_per_step * 1e-3) / x->peak_flops,
               x->peak_flops * 1e-9);
  lm_cli_print("memory        %13s\n", memory.p);
  lm_cli_print("first step    %10.2f s    after the start\n", x->first_s);
  lm_cli_print("compilation   %10.2f s    %d kernels, %d newly compiled\n", x->compile_s,
               x->kernels, x->compiled);
  if (lm_tuned_step_text(s))
    lm_cli_print("tuned         the step is %s\n", lm_tuned_step_text(s));
  if (x->tuned || x->measured)
    lm_cli_print("tuned         %10d       products, %d measured now\n", x->tuned, x->measured);
  lm_buf_free(&memory);
}

static void figures_json(const lm_session *s, const figures *x) {
  lm_buf step = {0};
  lm_tuned_step_json(s, &step);
  lm_cli_print("{\"compute\": \"%s\", \"tokens_per_s\": %.1f, \"ms_per_step\": %.3f, "
               "\"ms_per_step_mean\": %.3f, \"ms_first_step\": %.3f, \"first_step_s\": %.4f, "
               "\"gemm_ms\": %.3f, \"step_over_gemms\": %.4f, "
               "\"mfu\": %.5f, \"model_flops\": %.0f, \"peak_flops\": %.0f, \"peak_bytes\": %lld, "
               "\"resident_bytes\": %lld, \"params\": %lld, \"kernels\": %d, "
               "\"kernels_compiled\": %d, \"compile_s\": %.3f, \"tuned\": %d, \"measured\": %d, "
               "\"tuned_step\": %s}\n",
               lm_dtype_name(s->lowered->compute), x->tokens_per_s, x->ms_per_step, x->ms_mean,
               x->ms_first, x->first_s, x->gemm_ms, x->gemm_ms ? x->ms_per_step / x->gemm_ms : 0,
               x->model_flops / (x->ms_per_step * 1e-3) / x->peak_flops, x->model_flops,
               x->peak_flops, (long long)x->peak_bytes, (long long)x->resident_bytes,
               (long long)x->params, x->kernels, x->compiled, x->compile_s, x->tuned, x->measured,
               step.p);
  lm_buf_free(&step);
}

static lm_status run(lm_cli *cli) {
  lm_session s = {0};
  figures x = {0};
  if (lm_args_given(&cli->args, "ablate")) {
    if (lm_args_given(&cli->args, "disable-pass") || lm_args_given(&cli->args, "enable-pass"))
      return lm_fail(LM_USER, "--ablate switches passes off itself; --disable-pass and "
                              "--enable-pass have no place beside it");
    return lm_bench_ablate(cli, lm_args_whole(&cli->args, "steps", STEPS),
                           lm_args_number(&cli->args, "budget", BUDGET));
  }
  lm_status status = measure(&s, cli, &x);
  if (!status)
    (cli->json ? figures_json : figures_text)(&s, &x);
  lm_session_close(&s);
  return status;
}

const lm_command lm_cmd_bench = {
    .name = "bench",
    .usage = "FILE [options]",
    .summary = "times training steps, beside their matrix products alone",
    .options = options,
    .least = 1,
    .most = 1,
    .run = run,
    .help = "The step is the best of those timed. GEMMs alone: forward, data and weight gradient "
            "of every product with a\n"
            "parameter, once for each micro-batch, on random data in the same process; not on a "
            "GPU, where that is 0. Nothing is saved.\n"
            "--ablate runs the whole model and one without a pass in turn, in one process; a ratio "
            "above 1 is what the pass is worth.\n"
            "Of a pass that finds that it does not pay, the whole model and one with it: off by "
            "default, as --enable-pass takes it.\n"
            "It takes about --budget seconds, if need be with smaller micro-batches, which it "
            "tells.\n\n"
            "  lmc bench examples/bench-6m.lm --steps 10 --json\n"};
