// cmd_generate.c - lmc generate: cached decoding from a run folder or a file.
#include <string.h>

#include "driver/report/report.h"
#include "driver/tokenize.h"
#include "lmc/open.h"

enum {
  TOKENS = 128 // default number to generate
};

static const lm_opt options[] = {
    {.name = "prompt",
     .letter = 'p',
     .kind = LM_OPT_TEXT,
     .value = "TEXT",
     .help = "the text to continue"},
    {.name = "prompt-ids", .kind = LM_OPT_TEXT, .value = "1,2,3", .help = "the same as token ids"},
    {.name = "ids",
     .kind = LM_OPT_FLAG,
     .help = "prints the ids of N tokens, without the prompt's"},
    {.name = "tokens",
     .letter = 'n',
     .kind = LM_OPT_WHOLE,
     .value = "N",
     .help = "tokens to generate (128)",
     .least = 1,
     .most = 1e9},
    {.name = "temperature",
     .letter = 't',
     .kind = LM_OPT_NUMBER,
     .value = "T",
     .help = "0: always the most probable token (1)",
     .least = 0,
     .most = 1000},
    {.name = "top-k",
     .kind = LM_OPT_WHOLE,
     .value = "K",
     .help = "samples among the K most probable tokens (all)",
     .least = 0,
     .most = 1e9},
    {.name = "top-p",
     .kind = LM_OPT_NUMBER,
     .value = "P",
     .help = "samples among the most probable tokens that together reach probability P (all)",
     .least = 1e-9,
     .most = 1},
    {.name = "seed",
     .kind = LM_OPT_WHOLE,
     .value = "S",
     .help = "of sampling (0)",
     .least = 0,
     .most = 9e15},
    {.name = "stop",
     .kind = LM_OPT_LIST,
     .value = "TEXT",
     .help = "ends before this text; may be repeated"},
    LM_OPT_STEP,
    LM_OPT_TARGET,
    LM_OPT_RECIPE,
    LM_OPT_JSON,
    {0}};

// ---- the prompt

static lm_status prompt_read(const lm_session *s, const lm_args *a, const char *weights,
                             lm_tokens *out) {
  const char *text = lm_args_text(a, "prompt", NULL);
  const char *ids = lm_args_text(a, "prompt-ids", NULL);
  if (!text == !ids)
    return lm_fail(LM_USER, "give either --prompt TEXT or --prompt-ids 1,2,3");
  LM_TRY(ids ? lm_annotate(lm_ids_parse(ids, strlen(ids), out), "--prompt-ids %s", ids)
             : lm_sample_encode(s, weights, text, out));
  return out->n ? NULL : lm_fail(LM_USER, "the prompt is empty; give one token or more");
}

// ---- the text

static lm_status json_print(const lm_session *s, const lm_sample_options *o) {
  lm_sample_result r;
  lm_buf b = {0};
  lm_status status = lm_sample_make(s, o, &r);
  if (!status)
    lm_report_sample_json(&r, &b);
  lm_cli_put(&b);
  lm_sample_free(&r);
  return status;
}

static lm_status stops_read(const lm_args *a, lm_sample_options *o) {
  o->stops = lm_args_list(a, "stop", &o->n_stops);
  for (int i = 0; i < o->n_stops; i++)
    if (!*o->stops[i])
      return lm_fail(LM_USER, "--stop needs text of at least one byte");
  return NULL;
}

static lm_status generate(lm_session *s, const lm_cli *cli, const lm_tokens *prompt,
                          const char *weights) {
  const lm_args *a = &cli->args;
  int64_t n = lm_args_whole(a, "tokens", TOKENS);
  lm_sampler sampler = {lm_args_number(a, "temperature", 1), (int32_t)lm_args_whole(a, "top-k", 0),
                        lm_args_number(a, "top-p", 1), (uint64_t)lm_args_whole(a, "seed", 0)};
  bool json = cli->json;
  lm_sample_options o = {.prompt = prompt->ids,
                         .n_prompt = (int64_t)prompt->n,
                         .n = n,
                         .sampler = sampler,
                         .write = json ? NULL : lm_cli_write,
                         .ids = lm_args_given(a, "ids")};
  LM_TRY(stops_read(a, &o));
  LM_TRY(lm_sample_start(s, (int64_t)prompt->n + n, weights));
  return json ? json_print(s, &o) : lm_sample_print(s, &o);
}

static lm_status open_and_generate(lm_session *s, lm_cli *cli, lm_tokens *prompt) {
  const char *weights;
  LM_TRY(lm_cli_target(cli, &s->target));
  LM_TRY(lm_cli_open_trained(cli, s, &weights));
  LM_TRY(lm_session_tokenizer(s));
  LM_TRY(prompt_read(s, &cli->args, weights, prompt));
  return generate(s, cli, prompt, weights);
}

static lm_status generate_run(lm_cli *cli) {
  lm_session s = {0};
  lm_tokens prompt = {0};
  lm_status status = open_and_generate(&s, cli, &prompt);
  lm_tokens_free(&prompt);
  lm_session_close(&s);
  return status;
}

const lm_command lm_cmd_generate = {
    .name = "generate",
    .usage = "RUN|FILE --prompt TEXT [options]",
    .summary = "generates text with a trained model",
    .options = options,
    .least = 1,
    .most = 1,
    .run = generate_run,
    .help =
        "RUN is the folder of a run; its newest checkpoint is used. Given a FILE, the weights are "
        "those that its model is declared\n"
        "`from`. Generation ends after N tokens, at the end of a document (not with --ids), or "
        "before a --stop text.\n"
        "--json prints one object at the end: {\"text\": without the prompt, \"ids\": [...], "
        "\"end\": \"length\", \"eos\" or \"stop\"}.\n"
        "\n"
        "  lmc generate runs/quickstart --prompt 'In the beginning' -n 200 --temperature 0.8\n"};
