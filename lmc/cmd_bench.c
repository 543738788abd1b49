// cmd_bench.c - lmc bench: how fast a recipe trains on this machine, and its GEMMs alone.
#include <stdio.h>

#include "driver/report/report.h"
#include "lmc/open.h"

enum {
  BUDGET = 120,
  STEPS = 5
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
     .help = "threads (one for each core, at most OMP_NUM_THREADS)",
     .least = 1,
     .most = 4096},
    {.name = "ablate",
     .kind = LM_OPT_FLAG,
     .help = "a row for each optimization: the step with all of them, and without this one"},
    {.name = "budget",
     .kind = LM_OPT_NUMBER,
     .value = "SECONDS",
     .help = "about how long --ablate may take (120)",
     .least = 1,
     .most = 1e6},
    LM_OPT_PASSES,
    LM_OPT_KERNELS,
#include "lmc/ranks.def"
    LM_OPT_TARGET,
    LM_OPT_RECIPE,
    LM_OPT_JSON,
    {0}};

static lm_status options_read(const lm_cli *cli, lm_bench_options *o) {
  const lm_args *a = &cli->args;
  *o = (lm_bench_options){.from = lm_cli_recipe(cli),
                          .variant = lm_cli_variant(cli),
                          .threads = (int)lm_args_whole(a, "threads", 0),
                          .steps = lm_args_whole(a, "steps", STEPS),
                          .dump_dir = lm_args_text(a, "dump-dir", NULL),
                          .load_dir = lm_args_text(a, "load-dir", NULL)};
  return lm_cli_target(cli, &o->target);
}

// ---- --ablate

typedef struct table {
  bool json;
  int rows;
  lm_load load;
} table;

static void row_print(void *user, const lm_ablation_row *x, int64_t micro) {
  table *t = user;
  lm_buf b = {0};
  bool first = t->rows++ == 0;
  t->load = x->load;
  (t->json ? lm_report_ablation_json : lm_report_ablation)(x, micro, first, &b);
  lm_cli_put(&b);
  fflush(stdout);
}

static lm_status ablate(const lm_cli *cli, const lm_bench_options *bench) {
  table t = {.json = cli->json};
  lm_ablation_options o = {.bench = *bench,
                           .budget = lm_args_number(&cli->args, "budget", BUDGET),
                           .row = row_print,
                           .user = &t};
  static const char *const alone[] = {"disable-pass", "enable-pass", "dump-dir", "load-dir"};
  if (cli->comm)
    return lm_fail(LM_USER, "--ablate is unsupported with several ranks");
  for (size_t i = 0; i < LM_COUNT(alone); i++)
    if (lm_args_given(&cli->args, alone[i]))
      return lm_fail(LM_USER, "--%s cannot be combined with --ablate, which chooses passes itself",
                     alone[i]);
  LM_TRY(lm_ablation_run(cli->ctx, &cli->events, &o));
  lm_buf end = {0};
  if (cli->json)
    lm_buf_puts(&end, "\n]\n");
  else
    lm_load_line(&t.load, &end);
  lm_cli_put(&end);
  return NULL;
}

static lm_status bench_run(lm_cli *cli) {
  lm_bench_options o;
  lm_bench_figures x;
  lm_buf b = {0};
  LM_TRY(options_read(cli, &o));
  if (lm_args_given(&cli->args, "ablate"))
    return ablate(cli, &o);
  LM_TRY(lm_bench_run(cli->ctx, &cli->events, &o, &x));
  (cli->json ? lm_report_bench_json : lm_report_bench)(&x, &b);
  lm_cli_put(&b);
  return NULL;
}

const lm_command lm_cmd_bench = {
    .name = "bench",
    .usage = "FILE [options]",
    .summary = "times training steps, and their GEMMs alone",
    .options = options,
    .least = 1,
    .most = 1,
    .run = bench_run,
    .help = "The step is the fastest of those timed. GEMMs alone: forward, data and weight "
            "gradient of every GEMM with a parameter, once for each micro-batch, on random data in "
            "the same process; 0 on a GPU, where they are not timed. Nothing is saved.\n"
            "--ablate runs the default plan and one without a pass alternately, in one process; a "
            "ratio above 1 is the pass's speedup.\n"
            "If a pass finds itself unprofitable, the plan that forces it is run, as with "
            "--enable-pass: off by default.\n"
            "It takes about --budget seconds, if necessary with smaller micro-batches, which it "
            "reports.\n"
            "\n"
            "  lmc bench examples/bench-6m.lm --steps 10 --json\n"};
