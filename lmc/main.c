// main.c - the command `lmc`: finds the subcommand, reads its arguments, renders diagnostics,
// decides the exit status.
//
// Exit status: 0 done; 1 the user's input is at fault; 2 the environment; 3 a bug in lmc; 128 + the
// number of the signal that interrupted a run, once its state is saved.
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compiler/ir/ir.h"
#include "compiler/passes/pass.h"
#include "lmc/command.h"

static const lm_command *const commands[] = {
    &lm_cmd_new,       &lm_cmd_check,  &lm_cmd_run,     &lm_cmd_generate,
    &lm_cmd_eval,      &lm_cmd_export, &lm_cmd_import,  &lm_cmd_data,
    &lm_cmd_tokenizer, &lm_cmd_trace,  &lm_cmd_compile, &lm_cmd_explain,
    &lm_cmd_bench,     &lm_cmd_opt,    &lm_cmd_fmt,     &lm_cmd_doctor,
};

// ---- help

static void overview_print(lm_buf *b) {
  lm_buf_puts(b, "lmc - a compiler and runtime for training language models\n\nusage: lmc COMMAND "
                 "[arguments]\n\n");
  for (size_t i = 0; i < LM_COUNT(commands); i++)
    lm_buf_printf(b, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
  lm_buf_puts(
      b, "\n`lmc COMMAND --help` says more, with an example. `lmc --version` prints the version.\n"
         "Exit status: 0 done, 1 the input is at fault, 2 the environment, 3 a bug in lmc; of a "
         "run that was interrupted and has saved\n"
         "its state 130 (Ctrl-C), 143 (SIGTERM) or 129 (SIGHUP).\n");
}

static void command_help_print(const lm_command *c, lm_buf *b) {
  lm_buf_printf(b, "lmc %s - %s\n\nusage: lmc %s %s\n\n", c->name, c->summary, c->name, c->usage);
  lm_opt_table_print(c->options, b);
  lm_buf_printf(b, "\n%s", c->help);
}

// All of it as one page, docs/commands.md.
static void reference_print(lm_buf *b) {
  lm_buf_puts(b, "# Commands\n\nWritten by `lmc help --markdown`.\n\n```text\n");
  overview_print(b);
  lm_buf_puts(b, "```\n");
  for (size_t i = 0; i < LM_COUNT(commands); i++) {
    lm_buf_printf(b, "\n## lmc %s\n\n```text\n", commands[i]->name);
    command_help_print(commands[i], b);
    lm_buf_puts(b, "```\n");
  }
}

static void help_print(const lm_command *c, bool markdown) {
  lm_buf b = {0};
  if (markdown)
    reference_print(&b);
  else if (c)
    command_help_print(c, &b);
  else
    overview_print(&b);
  fputs(b.p, stdout);
  lm_buf_free(&b);
}

// ---- one invocation

static const lm_command *command_find(const char *name) {
  for (size_t i = 0; i < LM_COUNT(commands); i++)
    if (!strcmp(commands[i]->name, name))
      return commands[i];
  return NULL;
}

static lm_status command_unknown(const char *name) {
  static const struct {
    const char *word, *command;
  } others[] = {// what other programs call it
                {"train", "run"},     {"start", "run"},      {"infer", "generate"},
                {"evaluate", "eval"}, {"validate", "check"}, {"format", "fmt"},
                {"init", "new"}};
  const char *names[LM_COUNT(commands) + LM_COUNT(others)];
  size_t n = 0;
  for (size_t i = 0; i < LM_COUNT(commands); i++)
    names[n++] = commands[i]->name;
  for (size_t i = 0; i < LM_COUNT(others); i++)
    names[n++] = others[i].word;
  const char *near = lm_nearest(name, names, (int)n);
  for (size_t i = 0; i < LM_COUNT(others); i++)
    if (!strcmp(name, others[i].word) || (near && !strcmp(near, others[i].word)))
      near = others[i].command;
  if (near)
    return lm_fail(LM_USER, "there is no command '%s'; did you mean '%s'?", name, near);
  return lm_fail(LM_USER, "there is no command '%s'; `lmc --help` lists them", name);
}

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
  for (const lm_opt *o = c->options; o->name; o++)
    if (!strcmp(o->name, name))
      return true;
  return false;
}

// Called before options are parsed, because their errors are reported as JSON too.
static bool wants_json(const lm_command *c, int argc, char **argv) {
  bool given = false;
  for (int i = 0; i < argc && strcmp(argv[i], "--"); i++)
    given |= !strcmp(argv[i], "--json");
  return given && has_option(c, "json");
}

// Reports the former names in the value of an option that takes a list of passes.
static void former_names_note(const lm_cli *cli, const char *option) {
  const char *names =
      has_option(cli->command, option) ? lm_args_text(&cli->args, option, NULL) : NULL;
  while (names) {
    size_t n = strcspn(names, ",");
    const lm_pass *pass = lm_pass_former(names, n);
    if (pass)
      lm_cli_note("note: pass %.*s is now called %s; --%s accepts the former name in this release "
                  "only\n",
                  (int)n, names, pass->name, option);
    names = names[n] ? names + n + 1 : NULL;
  }
}

static lm_status command_run(lm_cli *cli, int argc, char **argv) {
  bool help;
  cli->json = wants_json(cli->command, argc, argv);
  LM_TRY(lm_args_parse(cli->ctx->arena, cli->command->options, argc, argv, &cli->args, &help));
  if (help) {
    help_print(cli->command, false);
    return NULL;
  }
  LM_TRY(count_check(cli));
  static const char *const lists[] = {"disable-pass", "enable-pass", "pass", "print-after"};
  for (size_t i = 0; i < LM_COUNT(lists); i++)
    former_names_note(cli, lists[i]);
  return cli->command->run(cli);
}

static lm_status dispatch(lm_cli *cli, int argc, char **argv) {
  const char *first = argc > 1 ? argv[1] : "--help";
  if (!strcmp(first, "--version") || !strcmp(first, "version")) {
    lm_cli_print("lmc " LM_VERSION "\n");
    return NULL;
  }
  bool help = !strcmp(first, "--help") || !strcmp(first, "-h") || !strcmp(first, "help");
  bool markdown = help && argc > 2 && !strcmp(argv[2], "--markdown");
  const lm_command *named = command_find(help && argc > 2 ? argv[2] : first);
  if (help && (named || argc <= 2 || markdown)) {
    help_print(named, markdown);
    return NULL;
  }
  if (!named)
    return command_unknown(help ? argv[2] : first);
  cli->command = named;
  return command_run(cli, argc - 2, argv + 2);
}

// ---- an internal error

// Writes the module that is being compiled to a file in ${TMPDIR:-/tmp}. user: lm_module *const *.
static void module_dump(void *user) {
  const lm_module *m = *(lm_module *const *)user;
  if (!m)
    return;
  const char *dir = getenv("TMPDIR");
  char path[4096];
  snprintf(path, sizeof path, "%s/lmc-bug-XXXXXX.lmir", dir && *dir ? dir : "/tmp");
  int fd = mkstemps(path, (int)strlen(".lmir"));
  FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
  if (!f)
    return;
  lm_buf text = {0};
  lm_module_print(m, &text);
  fputs(text.p, f);
  fclose(f);
  fprintf(stderr, "lmc: this is a bug in lmc; the IR at that point is in %s\n", path);
}

// ---- the end

// As JSON it is a diagnostic without a place, among the others.
static int status_report(lm_cli *cli, lm_status s) {
  if (!s)
    s = lm_verdict(cli->ctx);
  int kind = s ? (int)s->kind : LM_OK;
  const char *whose = kind == LM_BUG_STATUS ? "this is a bug in lmc: " : "";
  bool told = s && *s->text;
  if (told && cli->json)
    lm_report_plain(cli->ctx, (lm_loc){0}, "%s%s", whose, s->text);
  lm_cli_diagnostics(cli);
  if (told && !cli->json)
    fprintf(stderr, "lmc: %s%s\n", whose, s->text);
  lm_status_free(s);
  return kind;
}

// Nobody reads any more, as behind `| head -1`.
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
  signal(SIGXFSZ, SIG_IGN); // a file that may grow no further is an error of the write
  lm_cli cli = {.ctx = lm_ctx_create(), .color = isatty(STDERR_FILENO)};
  lm_cli_events(&cli);
  lm_bug_hook_set(module_dump, &cli.module);
  lm_status s = dispatch(&cli, argc, argv);
  fflush(stdout);
  int kind = output_close(status_report(&cli, s));
  if (!kind && cli.interrupted)
    kind = 128 + cli.interrupted;
  lm_ctx_destroy(cli.ctx);
  return kind;
}
