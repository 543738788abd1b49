// cmd_chat_lines.c - the lines of a conversation on standard input: messages and commands.
#define _GNU_SOURCE
#include "lmc/open.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/chat.h"
#include "runtime/base/utf8.h"
#include "runtime/io/json.h"

typedef struct {
  lm_chatter *chat;
  const char *system; // NULL: none
  lm_buf kept;        // the text of `system`, if a command set it
  bool terminal;      // people read and write: a prompt, and mistakes do not end it
  bool json;          // only the whole conversation is printed, at its end
  bool ended;
} talk;

static const char COMMANDS[] =
    "/again         another answer to the last message\n"
    "/history       the conversation as JSON\n"
    "/reset         begins another conversation\n"
    "/system TEXT   begins another conversation with this system message\n"
    "/exit          ends (also Ctrl-D)\n"
    "A line that begins with // is a message that begins with /.\n";

// ---- commands

static void text_print(const talk *t, const char *text) {
  if (!t->json)
    lm_cli_print("%s", text);
}

static void history_print(const talk *t) {
  char *text = json_dumps(lm_chatter_messages(t->chat), JSON_INDENT(2));
  text_print(t, text);
  text_print(t, "\n");
  lm_free(text);
}

static void conversation_print(const talk *t) {
  json_t *all = json_pack("{s:O}", "messages", lm_chatter_messages(t->chat));
  char *text = json_dumps(all, JSON_COMPACT);
  lm_cli_print("%s\n", text);
  lm_free(text);
  json_decref(all);
}

static void restart(talk *t, const char *system) {
  if (system) {
    t->kept.n = 0;
    lm_buf_puts(&t->kept, system);
    t->system = t->kept.p;
  }
  lm_chatter_reset(t->chat, t->system);
}

// The answer to a message; text NULL: another answer to the last message.
static lm_status answer(const talk *t, const char *text, size_t n) {
  int dropped = 0;
  lm_status s =
      text ? lm_chatter_say(t->chat, text, n, &dropped) : lm_chatter_again(t->chat, &dropped);
  text_print(t, "\n");
  if (dropped)
    lm_cli_note("the first %d messages are no longer in the context", dropped);
  return s;
}

static lm_status command_run(talk *t, const char *line) {
  if (!strcmp(line, "/exit") || !strcmp(line, "/quit"))
    t->ended = true;
  else if (!strcmp(line, "/help"))
    text_print(t, COMMANDS);
  else if (!strcmp(line, "/history"))
    history_print(t);
  else if (!strcmp(line, "/reset"))
    restart(t, NULL);
  else if (!strncmp(line, "/system ", 8))
    restart(t, line + 8);
  else if (!strcmp(line, "/again"))
    return answer(t, NULL, 0);
  else
    return lm_fail(LM_USER, "there is no command %.40s; /help lists them", line);
  return NULL;
}

static lm_status line_say(talk *t, const char *line, size_t n) {
  if (!n)
    return NULL;
  if (lm_utf8_valid(line, n) < n)
    return lm_fail(LM_USER, "a line is not UTF-8 text");
  if (*line == '/' && line[1] != '/')
    return command_run(t, line);
  size_t skip = *line == '/';
  return answer(t, line + skip, n - skip);
}

// In a terminal a mistake is shown and the conversation continues; in a pipe it ends.
static lm_status lines_say(talk *t) {
  lm_status s = NULL;
  char *line = NULL;
  size_t cap = 0;
  for (ssize_t n; !s && !t->ended; n = 0) {
    if (t->terminal)
      lm_cli_write(NULL, "> ", 2);
    if ((n = getline(&line, &cap, stdin)) < 0)
      break;
    n -= n && line[n - 1] == '\n';
    line[n] = 0;
    s = line_say(t, line, (size_t)n);
    if (s && t->terminal && s->kind == LM_USER) {
      lm_cli_note("%s", s->text);
      lm_status_free(s);
      s = NULL;
    }
  }
  free(line);
  return s;
}

lm_status lm_cli_talk(lm_chatter *chat, const char *system, bool terminal, bool json) {
  talk t = {
      .chat = chat,
      .system = system,
      .terminal = terminal,
      .json = json,
  };
  lm_status s = lines_say(&t);
  if (!s && json)
    conversation_print(&t);
  lm_buf_free(&t.kept);
  return s;
}
