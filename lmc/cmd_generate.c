// cmd_generate.c - lmc generate: cached decoding from a run folder or a file.
#include <string.h>

#include "driver/chat.h"
#include "driver/report/report.h"
#include "driver/tokenize.h"
#include "lmc/open.h"

enum {
  TOKENS = 128 // default number to generate, at most
};

static const lm_opt options[] = {
    {"prompt", 'p', LM_OPT_TEXT, "TEXT", "the text to continue"},
    {"chat", 0, LM_OPT_TEXT, "TEXT",
     "a user's message: the chat template makes the prompt, and the answer is printed"},
    {"prompt-ids", 0, LM_OPT_TEXT, "1,2,3", "the same as token ids"},
#include "lmc/request.def"
    {"ids", 0, LM_OPT_FLAG, NULL, "prints the ids of N tokens, without the prompt's"},
    {"tokens", 'n', LM_OPT_WHOLE, "N",
     "tokens to generate (128, or as many as the model has positions for)", 1, 1e9},
    {"temperature", 't', LM_OPT_NUMBER, "T", "0: always the most probable token (1)", 0, 1000},
#include "lmc/sampler.def"
    {.name = "stop",
     .kind = LM_OPT_LIST,
     .value = "TEXT",
     .help = "ends before this text; may be repeated"},
    LM_OPT_STEP,
#include "lmc/ranks.def"
    LM_OPT_TARGET,
    LM_OPT_RECIPE,
    LM_OPT_JSON,
    {0}};

// ---- the prompt

// The tokens of the prompt, the columns, and how an answer to a chat ends.
typedef struct {
  lm_tokens ids;
  bool starts; // the prompt is the start token of the decoder
  lm_request request;
  lm_buf stop;
  int32_t end;
} question;

static lm_status prompt_read(lm_session *s, const lm_args *a, const char *weights, question *q) {
  const char *text = lm_args_text(a, "prompt", NULL), *chat = lm_args_text(a, "chat", NULL);
  const char *ids = lm_args_text(a, "prompt-ids", NULL);
  lm_tokens *out = &q->ids;
  if (!text && !chat && !ids)
    LM_TRY(lm_request_start(s, out));
  q->starts = out->n > 0;
  if ((text != NULL) + (ids != NULL) + (chat != NULL) + q->starts != 1)
    return lm_fail(LM_USER, "give one of --prompt TEXT, --chat TEXT and --prompt-ids 1,2,3");
  if (q->starts)
    return NULL;
  if (chat)
    return lm_session_question(s, chat, out, &q->stop, &q->end);
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

static lm_status stops_read(lm_arena *arena, const lm_args *a, const question *q,
                            lm_sample_options *o) {
  const char *const *given = lm_args_list(a, "stop", &o->n_stops);
  const char **stops = LM_NEW_N(arena, const char *, o->n_stops + 1);
  if (given)
    memcpy(stops, given, (size_t)o->n_stops * sizeof *stops);
  o->stops = stops;
  bool chat = lm_args_given(a, "chat");
  o->bare = chat || q->starts;
  o->end_id = q->end;
  o->has_end = chat && q->end >= 0;
  for (int i = 0; i < o->n_stops; i++)
    if (!*o->stops[i])
      return lm_fail(LM_USER, "--stop needs text of at least one byte");
  if (!o->has_end && q->stop.n)
    stops[o->n_stops++] = q->stop.p;
  return NULL;
}

static lm_status generate(lm_session *s, const lm_cli *cli, const question *q,
                          const char *weights) {
  const lm_args *a = &cli->args;
  int64_t n_prompt = (int64_t)q->ids.n;
  int64_t asked = lm_args_whole(a, "tokens", 0);
  lm_sample_options o = {.prompt = q->ids.ids,
                         .n_prompt = n_prompt,
                         .request = &q->request,
                         .sampler = lm_cli_sampler(a, 1),
                         .write = cli->json ? NULL : lm_cli_write,
                         .ids = lm_args_given(a, "ids")};
  LM_TRY(stops_read(cli->ctx->arena, a, q, &o));
  LM_TRY(lm_sample_start(s, n_prompt + (asked ? asked : TOKENS), &q->request, weights));
  o.n = lm_sample_tokens(s, n_prompt, asked, TOKENS);
  return cli->json ? json_print(s, &o) : lm_sample_print(s, &o);
}

static lm_status open_and_generate(lm_session *s, lm_cli *cli, question *prompt) {
  const char *weights;
  LM_TRY(lm_cli_target(cli, &s->target));
  LM_TRY(lm_cli_open_trained(cli, s, &weights));
  LM_TRY(lm_session_tokenizer(s));
  LM_TRY(prompt_read(s, &cli->args, weights, prompt));
  LM_TRY(lm_cli_request(s, &cli->args, weights, &prompt->request));
  return generate(s, cli, prompt, weights);
}

static lm_status generate_run(lm_cli *cli) {
  lm_session s = {0};
  question prompt = {0};
  lm_status status = open_and_generate(&s, cli, &prompt);
  lm_tokens_free(&prompt.ids);
  lm_request_free(&prompt.request);
  lm_buf_free(&prompt.stop);
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
        "those that its model is declared `from`. Generation ends after N tokens, at the end of a "
        "document (not with --ids), or before a --stop text.\n"
        "--json prints one object at the end: {\"text\": without the prompt, \"ids\": [...], "
        "\"end\": \"length\", \"eos\" or \"stop\"}.\n"
        "\n"
        "  lmc generate runs/quickstart --prompt 'In the beginning' -n 200 -t 0.8\n"};
