// main.c - the command `lmc`: finds the subcommand, reads its arguments, renders diagnostics,
// decides the exit status.
//
// Exit status: 0 done; 1 the user's input is at fault; 2 the environment; 3 a bug in lmc; 128 + the
// number of the signal that interrupted a run, once its state is saved.
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "driver/inspect/ir_dump.h"
#include "driver/session.h"
#include "lmc/command.h"
#include "runtime/base/terminal.h"

// ---- one invocation

static lm_status count_check(const lm_cli *cli) {
  const lm_command *c = cli->command;
  uint32_t n = cli->args.n_rest;
  if (n < c->least)
    return lm_fail(LM_USER, "an argument is missing: lmc %s %s (`lmc %s --help` says more)",
                   c->name, c->usage, c->name);
  if (n > c->most && cli->args.after_maybe)
    return lm_fail(LM_USER,
                   "'%s' is one argument too many; if it is the value of --%s, write --%s=%s",
                   cli->args.after_maybe, cli->args.maybe, cli->args.maybe, cli->args.after_maybe);
  if (n > c->most)
    return lm_fail(LM_USER, "'%s' is one argument too many: lmc %s %s (`lmc %s --help` says more)",
                   cli->args.rest[c->most], c->name, c->usage, c->name);
  return NULL;
}

static bool has_option(const lm_command *c, const char *name) {
  return lm_opt_find(c->options, name, strlen(name)) >= 0;
}

// Called before options are parsed, because their errors are reported as JSON too.
static bool wants_json(const lm_command *c, int argc, char **argv) {
  bool given = false;
  for (int i = 0; i < argc && strcmp(argv[i], "--"); i++)
    given |= !strcmp(argv[i], "--json");
  return given && has_option(c, "json");
}

static lm_status command_run(lm_cli *cli, int argc, char **argv) {
  bool help;
  cli->json = wants_json(cli->command, argc, argv);
  LM_TRY(lm_args_parse(cli->ctx->arena, cli->command->options, argc, argv, &cli->args, &help));
  if (help) {
    lm_help_print(cli->command, false);
    return NULL;
  }
  LM_TRY(count_check(cli));
  for (uint32_t i = 0; i < cli->args.n_rest; i++)
    LM_TRY(lm_path_check(cli->ctx->arena, cli->args.rest[i]));
  static const char *const lists[] = {"disable-pass", "enable-pass", "pass", "print-after"};
  for (size_t i = 0; i < LM_COUNT(lists); i++)
    if (has_option(cli->command, lists[i]))
      lm_pass_names_note(&cli->events, lists[i], lm_args_text(&cli->args, lists[i], NULL));
  return lm_cli_ranks_run(cli);
}

static lm_status dispatch(lm_cli *cli, int argc, char **argv) {
  const char *first = argc > 1 ? argv[1] : "--help";
  if (!strcmp(first, "--version") || !strcmp(first, "version")) {
    lm_cli_print("lmc " LM_VERSION "\n");
    return NULL;
  }
  bool help = !strcmp(first, "--help") || !strcmp(first, "-h") || !strcmp(first, "help");
  bool markdown = help && argc > 2 && !strcmp(argv[2], "--markdown");
  const lm_command *named = lm_command_find(help && argc > 2 ? argv[2] : first);
  if (help && (named || argc <= 2 || markdown)) {
    lm_help_print(named, markdown);
    return NULL;
  }
  if (!named)
    return lm_command_unknown(help ? argv[2] : first);
  cli->command = named;
  return command_run(cli, argc - 2, argv + 2);
}

// ---- the end

static void bug_report(void *user) {
  const char *path = lm_module_dump(*(lm_module **)user);
  if (path)
    fprintf(stderr, "lmc: this is a bug in lmc; the IR at that point is in %s\n", path);
}

// As JSON it is one of the diagnostics, without a location.
static void status_report(const lm_cli *cli, const lm_status s) {
  const char *whose = s && s->kind == LM_BUG_STATUS ? "this is a bug in lmc: " : "";
  bool has_text = s && *s->text;
  lm_buf hint = {0};
  if (cli->color && !cli->json)
    lm_diag_hint(cli->ctx, &hint);
  if (has_text && cli->json)
    lm_report_plain(cli->ctx, (lm_loc){0}, "%s%s", whose, s->text);
  lm_cli_diagnostics(cli);
  if (has_text && !cli->json)
    lm_cli_note("lmc: %s%s\n", whose, s->text);
  fputs(hint.p ? hint.p : "", stderr);
  lm_buf_free(&hint);
}

// Whether the reader has closed the pipe, as `| head -1` does.
static bool reader_is_gone(void) {
  struct pollfd p = {.fd = STDOUT_FILENO, .events = POLLOUT};
  return poll(&p, 1, 0) > 0 && p.revents & POLLERR;
}

static int output_close(int kind) {
  if (fflush(stdout) == 0 && !ferror(stdout))
    return kind;
  if (reader_is_gone())
    return kind;
  fprintf(stderr, "lmc: cannot write to standard output\n");
  return kind ? kind : LM_ENV;
}

int main(int argc, char **argv) {
  lm_status s = lm_process_prepare();
  lm_cli cli = {.ctx = lm_ctx_create(), .color = isatty(STDERR_FILENO)};
  lm_cli_events(&cli);
  lm_bug_hook_set(bug_report, &cli.module);
  s = s ? s : dispatch(&cli, argc, argv);
  s = s ? s : lm_verdict(cli.ctx);
  fflush(stdout);
  if (lm_cli_speaks(&cli))
    status_report(&cli, s);
  int kind = output_close(lm_cli_leave(&cli, s));
  if (!kind && cli.interrupted)
    kind = 128 + cli.interrupted;
  lm_ctx_destroy(cli.ctx);
  return lm_rank_ends(kind);
}
