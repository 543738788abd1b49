// cmd_export.c - lmc export: a trained model as other programs read it.
#include <string.h>

#include "driver/weights/export.h"
#include "lmc/open.h"
#include "runtime/base/terminal.h"

static const lm_opt options[] = {
    {.name = "format",
     .kind = LM_OPT_TEXT,
     .value = "hf|peft",
     .help = "hf: the model as transformers reads it, adapters merged; peft: the adapters alone, "
             "as PEFT reads them (hf)"},
    {.name = "out",
     .letter = 'o',
     .kind = LM_OPT_TEXT,
     .value = "DIR",
     .help = "the folder to write: new, empty or an earlier export, which is replaced"},
    {.name = "dtype",
     .kind = LM_OPT_TEXT,
     .value = "f32|bf16|f16",
     .help = "what the weights are rounded to (f32)"},
    LM_OPT_STEP,
    LM_OPT_RECIPE,
    LM_OPT_JSON,
    {0}};

static lm_status options_read(const lm_args *a, lm_export_options *o, bool *out_peft) {
  const char *format = lm_args_text(a, "format", "hf");
  *o = (lm_export_options){.dir = lm_args_text(a, "out", NULL),
                           .dtype = lm_args_text(a, "dtype", "f32"),
                           .from = a->rest[0]};
  if (!o->dir)
    return lm_fail(LM_USER, "--out DIR is missing: the folder to write");
  *out_peft = !strcmp(format, "peft");
  return *out_peft || !strcmp(format, "hf")
             ? NULL
             : lm_fail(LM_USER, "--format is hf or peft, not '%s'", format);
}

static void result_text(const lm_export_options *o, const lm_export_result *r, bool peft,
                        lm_buf *out) {
  const char *config = peft ? "adapter_config.json" : "config.json";
  lm_buf_printf(out, "%s: %s (%zu tensors, %s)", o->dir, r->weights, r->tensors, o->dtype);
  if (r->config)
    lm_buf_printf(out, ", %s (%s)", config, r->config);
  if (r->tokenizer)
    lm_buf_printf(out, ", %s", r->tokenizer);
  lm_buf_puts(out, "\n");
}

static void result_json(const lm_export_options *o, const lm_export_result *r, bool peft,
                        int64_t params, lm_buf *out) {
  lm_buf_puts(out, "{\"folder\": ");
  lm_buf_json(out, o->dir);
  lm_buf_printf(out, ", \"tensors\": %zu, \"parameters\": %lld, \"model_type\": ", r->tensors,
                (long long)params);
  if (r->config)
    lm_buf_json(out, r->config);
  else
    lm_buf_puts(out, "null");
  lm_buf_puts(out, "}\n");
}

static lm_status export(lm_session *s, lm_cli *cli) {
  lm_export_options o;
  lm_export_result r;
  lm_buf text = {0};
  bool peft;
  LM_TRY(options_read(&cli->args, &o, &peft));
  LM_TRY(lm_cli_open_trained(cli, s, &o.weights));
  LM_TRY((peft ? lm_export_peft : lm_export_hf)(s, &o, &r));
  if (cli->json)
    result_json(&o, &r, peft, s->compiled.params, &text);
  else
    result_text(&o, &r, peft, &text);
  lm_print_report(stdout, cli->json, &text);
  return NULL;
}

static lm_status export_run(lm_cli *cli) {
  lm_session s = {0};
  lm_status status = export(&s, cli);
  lm_session_close(&s);
  return status;
}

const lm_command lm_cmd_export = {
    .name = "export",
    .usage = "RUN|FILE -o DIR [options]",
    .summary = "writes a trained model for transformers",
    .options = options,
    .least = 1,
    .most = 1,
    .run = export_run,
    .help = "Writes the weights under the names and layouts of the model's `map hf`. config.json "
            "holds keys that follow from the tensors and from `config { … }`. transformers loads "
            "the folder: AutoModelForCausalLM.from_pretrained(\"DIR\").\n"
            "With --format peft, writes the adapters that `with { adapt … }` adds, for "
            "PeftModel.from_pretrained(base, \"DIR\").\n"
            "\n"
            "  lmc export runs/quickstart --format hf -o quickstart-hf\n"};
