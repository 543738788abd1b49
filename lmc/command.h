// command.h - the definition of a subcommand, and its environment.
//
// A command returns a status; its kind is the exit status. Errors in the user's program are
// diagnostics in the context; lm_verdict makes them a status without text, for which main
// renders the diagnostics.
#ifndef LMC_COMMAND_H
#define LMC_COMMAND_H
#include "driver/events.h"
#include "driver/text.h"
#include "lmc/options.h"

typedef struct lm_command lm_command;

typedef struct lm_cli {
  const lm_command *command;
  lm_args args;
  lm_ctx *ctx;
  bool json;            // --json was given
  bool color;           // standard error is a terminal
  struct lm_comm *comm; // the ranks of the run; NULL: one process
  int interrupted;      // the signal that ended the command early, with its work saved; 0: none
  lm_module *module;    // being compiled, for the dump after an internal error
  lm_events events;     // prints what the driver reports
} lm_cli;

struct lm_command {
  const char *name;
  const char *usage;   // the arguments after the name: "FILE [options]"
  const char *summary; // one line
  const char *help;    // more, with an example; a paragraph is one line, wrapped when printed
  const lm_opt *options;
  uint32_t least, most; // arguments that are not options
  lm_status (*run)(lm_cli *cli);
};

// ---- cmd_help.c
const lm_command *lm_command_find(const char *name); // NULL: there is none
lm_status lm_command_unknown(const char *name);      // the error, with the nearest name
// To standard output: one command's help; all commands if it is NULL; everything as Markdown.
void lm_help_print(const lm_command *c, bool markdown);

// Options that several commands share.
#define LM_OPT_JSON                                                                                \
  { .name = "json", .kind = LM_OPT_FLAG, .help = "results and diagnostics as JSON" }
#define LM_OPT_RECIPE                                                                              \
  {.name = "recipe",                                                                               \
   .kind = LM_OPT_TEXT,                                                                            \
   .value = "NAME",                                                                                \
   .help = "which recipe, where the file has several"},                                            \
  {                                                                                                \
    .name = "set", .kind = LM_OPT_LIST, .value = "KEY=VALUE",                                      \
    .help = "overrides a value of the recipe, data.KEY=VALUE one of its data; may be repeated"     \
  }

#define LM_OPT_PASSES                                                                              \
  {.name = "disable-pass",                                                                         \
   .kind = LM_OPT_TEXT,                                                                            \
   .value = "A,B",                                                                                 \
   .help = "leaves optimizations out (`lmc opt --list`)"},                                         \
  {                                                                                                \
    .name = "enable-pass", .kind = LM_OPT_TEXT, .value = "A,B",                                    \
    .help = "forces optimizations that find themselves unprofitable"                               \
  }

#define LM_OPT_KERNELS                                                                             \
  {.name = "dump-dir",                                                                             \
   .kind = LM_OPT_TEXT,                                                                            \
   .value = "DIR",                                                                                 \
   .help = "writes the source of every kernel there"},                                             \
  {                                                                                                \
    .name = "load-dir", .kind = LM_OPT_TEXT, .value = "DIR",                                       \
    .help = "uses the kernels there, which were dumped and edited"                                 \
  }

// Runs the command; one with the option `ranks` by as many, or as one of them.
lm_status lm_cli_ranks_run(lm_cli *cli);
bool lm_cli_speaks(const lm_cli *cli);      // this process reports to the user
int lm_cli_leave(lm_cli *cli, lm_status s); // leaves the other ranks; s: taken; its exit status
bool lm_cli_terminal(const lm_cli *cli);    // standard output is a terminal

// Prints the diagnostics that were not printed yet to standard error. main does so at the end; a
// command does so before work that takes long.
void lm_cli_diagnostics(const lm_cli *cli);
// To standard output, escaped like messages; main checks at the end whether writing failed.
void lm_cli_print(const char *fmt, ...) LM_PRINTF(1, 2);
void lm_cli_put(lm_buf *text);                          // prints and frees a text
void lm_cli_write(void *user, const char *p, size_t n); // lm_terminal_write; a callback
void lm_cli_note(const char *fmt, ...) LM_PRINTF(1, 2); // to standard error
void lm_cli_events(lm_cli *cli);                        // fills cli->events
#endif
