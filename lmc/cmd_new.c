// cmd_new.c - lmc new: a first recipe for a text, sized for this machine.
#include "driver/starter/starter.h"
#include "lmc/command.h"

static const lm_opt options[] = {
    {.name = "data",
     .letter = 'd',
     .kind = LM_OPT_TEXT,
     .value = "PATH",
     .help =
         "the text: a file, a folder or a 'pattern*'; plain, .jsonl, either as .zst or .gz; of a "
         "folder and all folders below, every kind of file that is UTF-8 text and has an "
         "extension, at most 100,000 files"},
    {.name = "minutes",
     .letter = 'm',
     .kind = LM_OPT_TEXT,
     .value = "M",
     .help = "how long the training may take: minutes, or '90m', '1h', '1h 30m', '45 s' (10)"},
    {.name = "arch",
     .letter = 'a',
     .kind = LM_OPT_TEXT,
     .value = "NAME",
     .help =
         "the model: a file of examples/zoo without .lm, such as qwen3 or mamba2 (a plain Llama)"},
    {.name = "params",
     .letter = 'p',
     .kind = LM_OPT_TEXT,
     .value = "N",
     .help = "the number of its parameters, such as 50M (as many as suit the text and the time)"},
    LM_OPT_JSON,
    {0}};

static void result_print(const lm_cli *cli, const lm_starter *x) {
  lm_buf json = {0};
  if (cli->json)
    lm_starter_json(x, &json);
  else
    lm_starter_print(x, stdout);
  lm_cli_put(&json);
}

static lm_status new_run(lm_cli *cli) {
  lm_starter x;
  lm_starter_options o = {.name = cli->args.rest[0],
                          .data = lm_args_text(&cli->args, "data", NULL),
                          .time = lm_args_text(&cli->args, "minutes", "10"),
                          .arch = lm_args_text(&cli->args, "arch", NULL),
                          .params = lm_args_text(&cli->args, "params", NULL)};
  lm_status status = lm_starter_make(cli->ctx, &cli->events, &o, &x);
  if (!status)
    result_print(cli, &x);
  lm_starter_free(&x);
  return status;
}

const lm_command lm_cmd_new = {
    .name = "new",
    .usage = "NAME --data PATH [options]",
    .summary = "writes a first recipe for a text, sized for this machine",
    .options = options,
    .least = 1,
    .most = 1,
    .run = new_run,
    .help = "Inspects the text, measures the machine, and writes NAME.lm: a commented model with "
            "its recipe, whose run takes about the requested time. Prints its choices and their "
            "reasons. An existing file is never overwritten.\n"
            "\n"
            "  lmc new bible --data data/bible.txt --minutes 10\n"
            "  lmc new qwen --data data/bible.txt --arch qwen3 --params 50M --minutes 90\n"};
