// command.h - what every subcommand is made of, and what it is given.
//
// A command returns a status; its kind is the exit status. Faults of the user's program are
// diagnostics in the context; lm_verdict turns them into a status without text, which main
// renders as the diagnostics.
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
  bool json;         // --json was given
  bool color;        // standard error is a terminal
  int interrupted;   // the signal that ended the command early, with its work saved; 0: none
  lm_module *module; // being compiled, for the dump after an internal error
  lm_events events;  // prints what the driver reports
} lm_cli;

struct lm_command {
  const char *name;
  const char *usage;   // what follows the name: "FILE [options]"
  const char *summary; // one line
  const char *help;    // more, with an example
  const lm_opt *options;
  uint32_t least, most; // arguments that are no options
  lm_status (*run)(lm_cli *cli);
};

extern const lm_command lm_cmd_check, lm_cmd_fmt, lm_cmd_compile, lm_cmd_run, lm_cmd_data,
    lm_cmd_generate, lm_cmd_trace, lm_cmd_explain, lm_cmd_eval, lm_cmd_export, lm_cmd_import,
    lm_cmd_tokenizer, lm_cmd_opt, lm_cmd_bench, lm_cmd_doctor, lm_cmd_new;

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
    .help = "takes optimizations also where they find that they do not pay"                        \
  }

#define LM_OPT_KERNELS                                                                             \
  {.name = "dump-dir",                                                                             \
   .kind = LM_OPT_TEXT,                                                                            \
   .value = "DIR",                                                                                 \
   .help = "writes the source of every kernel there"},                                             \
  {                                                                                                \
    .name = "load-dir", .kind = LM_OPT_TEXT, .value = "DIR",                                       \
    .help = "takes kernels from there that were dumped, and edited"                                \
  }

// Shows the diagnostics that were not shown yet, on standard error. At the end main does; before,
// what takes long and has warnings.
void lm_cli_diagnostics(const lm_cli *cli);
// Writes to standard output; nothing more can be done here if that fails, so main asks at the end.
void lm_cli_print(const char *fmt, ...) LM_PRINTF(1, 2);
void lm_cli_put(lm_buf *text); // prints and frees a text
// Writes bytes to standard output at once; a callback of the driver.
void lm_cli_write(void *user, const char *p, size_t n);
void lm_cli_note(const char *fmt, ...) LM_PRINTF(1, 2); // to standard error
// Fills cli->events.
void lm_cli_events(lm_cli *cli);
#endif
