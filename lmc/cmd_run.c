// cmd_run.c - lmc run: compiles and trains.
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "driver/report/report.h"
#include "lmc/open.h"

#define LM_OPT_RESUME                                                                              \
  {.name = "resume",                                                                               \
   .kind = LM_OPT_TEXT,                                                                            \
   .value = "auto|never|PATH",                                                                     \
   .help = "resumes from the newest checkpoint of the run's folder, from none, or from this one; " \
           "newer checkpoints are moved to superseded-N in the folder"},                           \
      {.name = "change",                                                                           \
       .kind = LM_OPT_LIST,                                                                        \
       .value = "KEY",                                                                             \
       .help = "on resume, accepts another value of KEY, such as optimizer.lr; may be repeated"},  \
  {                                                                                                \
    .name = "change-model", .kind = LM_OPT_FLAG,                                                   \
    .help = "on resume, accepts a program that computes something else; the old one is kept as "   \
            "program-STEP"                                                                         \
  }

static const lm_opt options[] = {
    {.name = "steps",
     .kind = LM_OPT_WHOLE,
     .value = "N",
     .help = "the run's last step, instead of the recipe's",
     .least = 1,
     .most = 1e15},
    {.name = "out",
     .letter = 'o',
     .kind = LM_OPT_TEXT,
     .value = "DIR",
     .help = "the run's folder, instead of the recipe's: new, empty or the folder of a run"},
    LM_OPT_RESUME,
    LM_OPT_TARGET,
    {.name = "mode",
     .kind = LM_OPT_TEXT,
     .value = "MODE",
     .help =
         "instead of the recipe's: default, reduce-overhead, which is the same, or max-autotune"},
#include "lmc/ranks.def"
#include "lmc/restarts.def"
    {.name = "profile",
     .kind = LM_OPT_MAYBE,
     .value = "FILE",
     .help = "writes a timeline of kernels for ui.perfetto.dev (profile.json in the run's folder)"},
    {.name = "quiet", .letter = 'q', .kind = LM_OPT_FLAG, .help = "prints diagnostics only"},
    LM_OPT_PASSES,
    LM_OPT_KERNELS,
    LM_OPT_RECIPE,
    LM_OPT_JSON,
    {0}};

static lm_status resume_check(const char *how) {
  if (!strcmp(how, "auto") || !strcmp(how, "never") || !access(how, F_OK))
    return NULL;
  return lm_fail(LM_USER,
                 "--resume takes auto, never or the folder of a checkpoint; there is no %s", how);
}

static lm_status options_read(lm_cli *cli, lm_training *x, lm_training_options *o) {
  const lm_args *a = &cli->args;
  bool first = lm_comm_is_first(cli->comm), shows = !lm_args_given(a, "quiet") && !cli->json;
  *o = (lm_training_options){.from = lm_cli_recipe(cli),
                             .dir = lm_args_text(a, "out", NULL),
                             .resume = {.how = lm_args_text(a, "resume", NULL),
                                        .change_model = lm_args_given(a, "change-model")},
                             .samples = shows,
                             .logs = lm_args_given(a, "logs"),
                             .profile = first && lm_args_given(a, "profile"),
                             .profile_path = lm_args_text(a, "profile", NULL),
                             .terminal = lm_cli_terminal(cli)};
  o->resume.changes = lm_args_list(a, "change", &o->resume.n_changes);
  o->to = shows && first ? stdout : NULL;
  o->write = o->to ? lm_cli_write : NULL;
  x->s.variant = lm_cli_variant(cli);
  lm_cli_kernels(cli, &x->s);
  LM_TRY(lm_cli_target(cli, &x->s.target));
  LM_TRY(resume_check(lm_args_text(a, "resume", "auto")));
  o->from.least_ranks = (int)lm_args_whole(a, "min-ranks", 0);
  o->from.overrides.steps = lm_args_whole(a, "steps", 0);
  o->from.overrides.mode = lm_args_text(a, "mode", NULL);
  return o->from.overrides.mode ? lm_recipe_mode_check(o->from.overrides.mode) : NULL;
}

// ---- the run

static lm_status train(lm_cli *cli, lm_training *x) {
  lm_training_options o;
  lm_run_outcome out;
  LM_TRY(options_read(cli, x, &o));
  LM_TRY(lm_training_open(x, cli->ctx, &cli->events, &o));
  LM_TRY(lm_training_plan(x));
  if (!cli->json && lm_comm_is_first(cli->comm))
    lm_cli_diagnostics(cli); // before the training, which may take days
  if (o.to)
    LM_TRY(lm_report_run_plan(x));
  LM_TRY(lm_training_run(x, &out));
  lm_buf text = {0};
  if (cli->json && lm_comm_is_first(cli->comm))
    lm_report_run_json(x, &out, &text);
  else if (o.to)
    lm_report_run(x, &out, &text);
  lm_cli_put(&text);
  cli->interrupted = out.interrupted;
  return NULL;
}

// Training continues when its output is no longer read (`| head`).
static lm_status train_run(lm_cli *cli) {
  signal(SIGPIPE, SIG_IGN);
  lm_training x = {0};
  lm_status status = train(cli, &x);
  lm_training_close(&x);
  return status;
}

const lm_command lm_cmd_run = {
    .name = "run",
    .usage = "FILE [options]",
    .summary = "compiles a recipe and trains it",
    .options = options,
    .least = 1,
    .most = 1,
    .run = train_run,
    .help =
        "Prints the memory that the plan needs, then a status line during training. The run's "
        "folder holds the checkpoints, metrics.jsonl and a copy of the program; the same command, "
        "given again, resumes from the newest checkpoint. Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 save "
        "and stop, "
        "with exit status 130, 143, 129 and 138; a second signal stops at once.\n"
        "\n"
        "A run is resumed with the same values of model, optimizer, data and whatever else shapes "
        "its result, and with a program that computes the same. Otherwise the command fails and "
        "lists the differences. --change KEY and --change-model accept them; history.json in the "
        "run's folder records the changes (lmc explain RUN changes). With --resume never or an "
        "older checkpoint, the newer checkpoints are moved to superseded-N in the folder, which is "
        "a run folder too. Only `keep` deletes checkpoints, and only the ones of this run.\n"
        "\n"
        "  lmc run examples/quickstart.lm --set optimizer.lr=1e-3 --out runs/mine\n"};
