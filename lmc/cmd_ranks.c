// cmd_ranks.c - a command as one of several ranks, or as what starts them.
//
// Rank 0 prints; the others are silent, and rank 0 reports their failures (runtime/comm/comm.h).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver/ranks_fewer.h"
#include "lmc/open.h"
#include "runtime/comm/comm.h"
#include "runtime/comm/launch.h"
#include "runtime/comm/start.h"

// ---- --ranks N

static bool has_option(const lm_cli *cli, const char *name) {
  const lm_opt *o = cli->command->options;
  while (o->name && strcmp(o->name, name) != 0)
    o++;
  return o->name != NULL;
}

// Why ranks have ended that cannot say so themselves.
static void lost_report(lm_ranks_end *e, int ranks) {
  if (e->lost)
    lm_cli_note("lmc: %s\n", e->lost->text);
  else if (e->silent && e->status == LM_ENV && !lm_ranks_stopped())
    lm_cli_note("lmc: the %d ranks have ended without a message: one of them was killed before all "
                "had found each other, or all crashed or were killed\n",
                ranks);
  lm_status_free(e->lost);
}

// Runs the ranks, and runs them again, so often as --restarts says, if one was lost. They then
// continue from the newest checkpoint, whatever the first ones resumed from.
static lm_status ranks_repeat(const lm_cli *cli, int ranks, int *status) {
  static const char *const own[] = {"--ranks", "--restarts", "--resume"};
  bool repeats = has_option(cli, "restarts");
  int64_t most = repeats ? lm_args_whole(&cli->args, "restarts", 0) : 0;
  lm_ranks_retry retry = {
      .from = lm_cli_recipe(cli),
      .dir = repeats ? lm_args_text(&cli->args, "out", NULL) : NULL,
      .ranks = ranks,
      .least = repeats ? (int)lm_args_whole(&cli->args, "min-ranks", 0) : 0,
  };
  for (int64_t i = 0; i <= most; i++) {
    char **arguments;
    lm_ranks_end end;
    LM_TRY(lm_ranks_arguments(cli->ctx->arena, own, i ? 3 : 2, &arguments));
    LM_TRY(lm_ranks_start(retry.ranks, arguments, &end));
    lost_report(&end, retry.ranks);
    *status = end.status;
    if (*status != LM_ENV || lm_ranks_stopped() || i == most)
      return NULL;
    LM_TRY(lm_ranks_retry_next(cli->ctx, &retry));
    lm_cli_note("lmc: the ranks are started again%s: %lld of %lld restarts\n",
                retry.ranks < ranks ? lm_arena_printf(cli->ctx->arena, " as %d", retry.ranks) : "",
                (long long)i + 1, (long long)most);
  }
  return NULL;
}

static lm_status ranks_start(const lm_cli *cli) {
  int64_t ranks = lm_args_whole(&cli->args, "ranks", 0);
  lm_launch launch;
  int status;
  if (!ranks && has_option(cli, "restarts") && lm_args_given(&cli->args, "restarts"))
    return lm_fail(LM_USER, "--restarts needs --ranks N: other launchers start ranks themselves");
  if (!ranks)
    return NULL;
  LM_TRY(lm_launch_find(&launch));
  if (launch.size > 1)
    return lm_fail(LM_USER, "--ranks %lld is given to one of %d processes that %s started",
                   (long long)ranks, launch.size, launch.name);
  if (ranks == 1)
    return NULL;
  LM_TRY(ranks_repeat(cli, (int)ranks, &status));
  exit(status);
}

// ---- one of the ranks

// The caller computes, so that it has not noticed that the run has failed.
static void end(void *user, lm_kind kind, const char *text, bool speaks) {
  if (speaks)
    lm_cli_note("lmc: %s\n", text);
  _exit(lm_rank_ends((int)kind));
}

static lm_status join(lm_cli *cli) {
  LM_TRY(ranks_start(cli));
  LM_TRY(lm_comm_open(&(lm_comm_options){.end = end}, &cli->comm));
  if (lm_comm_is_first(cli->comm))
    return NULL;
  cli->events = (lm_events){
      .module = cli->events.module,
      .user = cli,
  };
  if (!freopen("/dev/null", "w", stdout))
    return lm_fail_errno("cannot open /dev/null");
  return NULL;
}

// mpirun gives its processes a terminal, wherever it prints itself.
bool lm_cli_terminal(const lm_cli *cli) {
  const char *started = getenv("LMC_RANKS_TERMINAL");
  return cli->comm ? started && !strcmp(started, "1") : isatty(STDOUT_FILENO);
}

// The text of a failure: the status's, or the diagnostics.
static lm_status failure_of(const lm_cli *cli, const lm_status s) {
  lm_buf b = {0};
  if (!*s->text)
    lm_diag_render(cli->ctx, &b, 0);
  lm_status whole = lm_fail(s->kind, "%s", b.n ? b.p : s->text);
  lm_buf_free(&b);
  return whole;
}

bool lm_cli_speaks(const lm_cli *cli) {
  return lm_comm_speaks(cli->comm);
}

// Behind the report: the launcher may end a rank as soon as another one has ended.
int lm_cli_leave(lm_cli *cli, lm_status s) {
  lm_comm *c = cli->comm;
  int kind = s ? (int)s->kind : LM_OK;
  bool first = lm_comm_is_first(c), speaks = lm_comm_speaks(c);
  lm_status failure = c && s ? failure_of(cli, s) : NULL;
  lm_comm_close(c, failure);
  lm_status_free(failure);
  lm_status_free(s);
  if (kind && !speaks)
    _exit(lm_rank_ends(kind)); // rank 0 reports it; the engine is left as it is
  if (!first)
    cli->interrupted = 0;
  return kind;
}

lm_status lm_cli_ranks_run(lm_cli *cli) {
  if (has_option(cli, "ranks"))
    LM_TRY(join(cli));
  return cli->command->run(cli);
}
