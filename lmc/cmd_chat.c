// cmd_chat.c - lmc chat: a conversation with a model, in a terminal or through a pipe.
#include <stdio.h>
#include <unistd.h>

#include "driver/chat.h"
#include "lmc/open.h"

static const lm_opt options[] = {
    {"system", 0, LM_OPT_TEXT, "TEXT", "the system's message at the beginning"},
    {"tokens", 'n', LM_OPT_WHOLE, "N",
     "most tokens of an answer (256, or half of a smaller context)", 1, 1e9},
    {"context", 0, LM_OPT_WHOLE, "N",
     "most tokens of the conversation that the model sees; earlier messages are left out (2048, or "
     "the model's positions)",
     2, 1e9},
    {"temperature", 't', LM_OPT_NUMBER, "T", "0: always the most probable token (0.7)", 0, 1000},
#include "lmc/sampler.def"
    LM_OPT_STEP,
    LM_OPT_TARGET,
    LM_OPT_RECIPE,
    LM_OPT_JSON,
    {0}};

static lm_status talk(lm_session *s, lm_cli *cli, const char *weights) {
  const lm_args *a = &cli->args;
  bool terminal = !cli->json && isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
  lm_chatter *chat;
  lm_chatter_options o = {.system = lm_args_text(a, "system", NULL),
                          .tokens = lm_args_whole(a, "tokens", 0),
                          .context = lm_args_whole(a, "context", 0),
                          .sampler = lm_cli_sampler(a, 0.7),
                          .write = cli->json ? NULL : lm_cli_write};
  LM_TRY(lm_chatter_create(s, weights, &o, &chat));
  if (terminal)
    lm_cli_note("/help lists commands");
  lm_status status = lm_cli_talk(chat, o.system, terminal, cli->json);
  lm_chatter_destroy(chat);
  return status;
}

static lm_status open_and_talk(lm_session *s, lm_cli *cli) {
  const char *weights;
  LM_TRY(lm_cli_target(cli, &s->target));
  LM_TRY(lm_cli_open_trained(cli, s, &weights));
  LM_TRY(lm_session_tokenizer(s));
  return talk(s, cli, weights);
}

static lm_status chat_run(lm_cli *cli) {
  lm_session s = {0};
  lm_status status = open_and_talk(&s, cli);
  lm_session_close(&s);
  return status;
}

const lm_command lm_cmd_chat = {
    .name = "chat",
    .usage = "RUN|FILE [options]",
    .summary = "a conversation with a trained model",
    .options = options,
    .least = 1,
    .most = 1,
    .run = chat_run,
    .help = "Each line of standard input is a message; the answer is printed token by token. The "
            "chat template of the run, or of its tokenizer, makes the prompt of the conversation. "
            "A line with / is a command: /help lists them. --json prints the conversation at its "
            "end: {\"messages\": [{\"role\": …, \"content\": …}, …]}.\n"
            "\n"
            "  lmc chat runs/tuned --system 'You are brief.'\n"
            "  echo 'Name a vowel.' | lmc chat runs/tuned -t 0\n"};
