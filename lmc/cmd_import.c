// cmd_import.c - lmc import: reads a Hugging Face model.
#include <string.h>

#include "driver/text.h"
#include "driver/weights/import.h"
#include "lmc/command.h"
#include "runtime/base/terminal.h"
#include "driver/outputs.h"

static const lm_opt options[] = {
    {.name = "model",
     .letter = 'm',
     .kind = LM_OPT_TEXT,
     .value = "FILE:NAME",
     .help = "the model, if it is not in examples/zoo; NAME may be a call such as Llama(d = 512)"},
    {.name = "out",
     .letter = 'o',
     .kind = LM_OPT_TEXT,
     .value = "DIR",
     .help =
         "the folder to write: without files of its names, or an earlier import, unedited, which "
         "is replaced"},
    {.name = "ignore-config",
     .kind = LM_OPT_LIST,
     .value = "KEY",
     .help = "neither uses nor checks KEY of config.json; * is every key; may be repeated"},
    LM_OPT_JSON,
    {0}};

static lm_status options_read(const lm_args *a, lm_import_options *o) {
  *o = (lm_import_options){.from = a->rest[1],
                           .dir = lm_args_text(a, "out", NULL),
                           .model = lm_args_text(a, "model", NULL)};
  o->ignored = lm_args_list(a, "ignore-config", &o->n_ignored);
  if (strcmp(a->rest[0], "hf"))
    return lm_fail(LM_USER, "lmc import reads hf, not '%s'", a->rest[0]);
  return o->dir ? NULL : lm_fail(LM_USER, "--out DIR is missing: the folder to write");
}

// LM_USER if a file that is read would be overwritten.
static lm_status outputs_check(lm_arena *a, const lm_import_options *o) {
  LM_TRY(lm_output_check(o->dir, &o->from, 1));
  const char *colon = o->model ? strrchr(o->model, ':') : NULL;
  if (!colon)
    return NULL;
  const char *file = lm_arena_strndup(a, o->model, (size_t)(colon - o->model));
  return lm_output_check(lm_path_join(a, o->dir, "imported.lm"), &file, 1);
}

static void result_print(const lm_cli *cli, const lm_import_options *o, const lm_import_result *r) {
  lm_buf b = {0};
  if (cli->json) {
    lm_buf_puts(&b, "{\"folder\": ");
    lm_buf_json(&b, o->dir);
    lm_buf_puts(&b, ", \"model\": ");
    lm_buf_json(&b, r->call);
    lm_buf_printf(&b, ", \"tensors\": %d, \"parameters\": %lld}\n", r->tensors,
                  (long long)r->params);
  } else {
    lm_show_count(&b, (double)r->params);
    lm_buf_printf(&b, " parameters in %d tensors, as %s\nnext: %s\n", r->tensors, r->call, r->next);
  }
  lm_print_report(stdout, cli->json, &b);
}

static lm_status import_run(lm_cli *cli) {
  lm_import_options o;
  lm_import_result r;
  LM_TRY(options_read(&cli->args, &o));
  LM_TRY(outputs_check(cli->ctx->arena, &o));
  LM_TRY(lm_import_hf(cli->ctx, &cli->events, &o, &r));
  result_print(cli, &o, &r);
  return NULL;
}

const lm_command lm_cmd_import = {
    .name = "import",
    .usage = "hf DIR -o DIR [--model FILE:NAME] [options]",
    .summary = "reads a Hugging Face model",
    .options = options,
    .least = 2,
    .most = 2,
    .run = import_run,
    .help = "The model follows from model_type in config.json: the models of examples/zoo are part "
            "of the command, and --model names another one. Its sizes, and whatever else `map hf { "
            "config { … } }` ties to its parameters, come from config.json; the weights are read "
            "through its map. Every tensor must be mapped, and every key that affects the "
            "computation must agree with the model. The folder that is written holds the model's "
            "text: it can be trained, generated from and exported.\n"
            "\n"
            "  lmc import hf ckpt/qwen -o runs/qwen\n"
            "  lmc import hf ckpt/mine --model mine.lm:Mine -o runs/mine\n"};
