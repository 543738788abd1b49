// cmd_help.c - lmc help: the commands and their arguments.
#include <stdio.h>
#include <string.h>

#include "driver/text.h"
#include "lmc/command.h"
#include "runtime/base/terminal.h"

enum {
  WIDTH = 100 // of docs/commands.md, and where there is no terminal
};

extern const lm_command lm_cmd_check, lm_cmd_fmt, lm_cmd_compile, lm_cmd_run, lm_cmd_data,
    lm_cmd_generate, lm_cmd_chat, lm_cmd_trace, lm_cmd_explain, lm_cmd_eval, lm_cmd_export,
    lm_cmd_import, lm_cmd_tokenizer, lm_cmd_opt, lm_cmd_bench, lm_cmd_doctor, lm_cmd_new;

static const lm_command *const commands[] = {
    &lm_cmd_new,   &lm_cmd_check,   &lm_cmd_run,     &lm_cmd_generate, &lm_cmd_chat,
    &lm_cmd_eval,  &lm_cmd_export,  &lm_cmd_import,  &lm_cmd_data,     &lm_cmd_tokenizer,
    &lm_cmd_trace, &lm_cmd_compile, &lm_cmd_explain, &lm_cmd_bench,    &lm_cmd_opt,
    &lm_cmd_fmt,   &lm_cmd_doctor,
};

static void overview_print(lm_buf *b) {
  lm_buf_puts(b, "lmc - a compiler and runtime for training language models\n\nusage: lmc COMMAND "
                 "[arguments]\n\n");
  for (size_t i = 0; i < LM_COUNT(commands); i++)
    lm_buf_printf(b, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
  lm_buf_puts(
      b, "\n`lmc COMMAND --help` says more, with an example. `lmc --version` prints the version.\n"
         "Exit status: 0 done, 1 the input is at fault, 2 the environment, 3 a bug in lmc; of a "
         "run that was interrupted and has saved its state 130 (Ctrl-C), 143 (SIGTERM), 129 "
         "(SIGHUP) or 138 (SIGUSR1).\n"
         "Diagnostics go to standard error. On a terminal their lines are wrapped to its width, "
         "except quoted source.\n");
}

static void option_print(const lm_opt *o, lm_buf *out) {
  lm_buf left = {0};
  if (o->letter)
    lm_buf_printf(&left, "-%c, ", o->letter);
  lm_buf_printf(&left, "--%s", o->name);
  if (o->value)
    lm_buf_printf(&left, o->kind == LM_OPT_MAYBE ? "[=%s]" : " %s", o->value);
  lm_buf_printf(out, "  %-28s %s\n", left.p, o->help);
  lm_buf_free(&left);
}

static void options_print(const lm_opt *table, lm_buf *out) {
  for (int i = 0; table[i].name; i++)
    option_print(&table[i], out);
  option_print(&(lm_opt){.name = "help", .letter = 'h', .help = "this text"}, out);
}

static void command_help_print(const lm_command *c, lm_buf *b) {
  lm_buf_printf(b, "lmc %s - %s\n\nusage: lmc %s %s\n\n", c->name, c->summary, c->name, c->usage);
  options_print(c->options, b);
  lm_buf_printf(b, "\n%s", c->help);
}

// Everything as one page, docs/commands.md.
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

// Where the description of an entry begins, which two blanks or more separate from its name; 0:
// the line is text, -1: a command, which can be copied only whole.
static int description(const char *line, size_t n) {
  size_t from = strspn(line, " ");
  if (!from || from >= n)
    return 0;
  for (size_t i = from; i + 2 < n; i++)
    if (line[i] == ' ' && line[i + 1] == ' ')
      return (int)(i + strspn(line + i, " "));
  return -1;
}

static void text_wrap(const char *text, int width, lm_buf *out) {
  while (*text) {
    size_t n = strcspn(text, "\n");
    int indent = description(text, n);
    lm_buf line = {0};
    lm_buf_add(&line, text, n);
    lm_text_wrap(out, line.n ? line.p : "", indent < 0 ? 0 : width, indent);
    lm_buf_puts(out, "\n");
    lm_buf_free(&line);
    text += n + (text[n] == '\n');
  }
}

void lm_help_print(const lm_command *c, bool markdown) {
  int terminal = markdown ? 0 : lm_terminal_width(stdout);
  lm_buf b = {0};
  lm_buf shown = {0};
  if (markdown)
    reference_print(&b);
  else if (c)
    command_help_print(c, &b);
  else
    overview_print(&b);
  text_wrap(b.p, terminal ? terminal : WIDTH, &shown);
  fputs(shown.p, stdout);
  lm_buf_free(&b);
  lm_buf_free(&shown);
}

const lm_command *lm_command_find(const char *name) {
  for (size_t i = 0; i < LM_COUNT(commands); i++)
    if (!strcmp(commands[i]->name, name))
      return commands[i];
  return NULL;
}

lm_status lm_command_unknown(const char *name) {
  static const struct { // names in other programs
    const char *word, *command;
  } others[] = {{"train", "run"},     {"start", "run"},      {"infer", "generate"},
                {"evaluate", "eval"}, {"validate", "check"}, {"format", "fmt"},
                {"init", "new"},      {"-v", "--version"},   {"-V", "--version"}};
  const char *names[LM_COUNT(commands) + LM_COUNT(others)];
  size_t n = 0;
  for (size_t i = 0; i < LM_COUNT(commands); i++)
    names[n++] = commands[i]->name;
  for (size_t i = 0; i < LM_COUNT(others); i++)
    names[n++] = others[i].word;
  const char *near = lm_meant(name, names, (int)n);
  for (size_t i = 0; i < LM_COUNT(others); i++)
    if (!strcmp(name, others[i].word) || (near && !strcmp(near, others[i].word)))
      near = others[i].command;
  if (near)
    return lm_fail(LM_USER, "there is no command '%s'; did you mean '%s'?", name, near);
  return lm_fail(LM_USER, "there is no command '%s'; `lmc --help` lists them", name);
}
