// chat.c - see chat.h.
#define _GNU_SOURCE
#include "driver/chat.h"

#include <string.h>
#include <time.h>

#include "driver/request.h"
#include "driver/template.h"
#include "driver/trained.h"
#include "runtime/base/utf8.h"

enum {
  TOKENS = 256, // of an answer, at most
  CONTEXT = 2048
};

// ---- a question

static void message_add(json_t *messages, const char *role, const char *text, size_t n) {
  json_array_append_new(messages, json_pack("{s:s, s:s%}", "role", role, "content", text, n));
}

// Seconds since 1970 on the local clock.
static int64_t local_now(void) {
  time_t now = time(NULL);
  struct tm local;
  localtime_r(&now, &local);
  return (int64_t)timegm(&local);
}

static lm_status chat_open(lm_session *s, lm_chat *out) {
  LM_TRY(lm_session_template(s));
  *out = (lm_chat){
      .train_on = 1u << LM_CHAT_ASSISTANT,
      .now = local_now(),
  };
  lm_session_chat_fill(s, true, out);
  return NULL;
}

// LM_USER if the model does not continue texts alone.
static lm_status model_check(const lm_session *s) {
  lm_ctx *c = s->project.ctx;
  const ast_decl *model = s->project.recipe->model.target.decl;
  const char *option = lm_request_option(c, model);
  if (!lm_model_has_apply(c, model))
    return lm_fail(LM_USER,
                   "%s is an encoder, without `apply`, so it writes no answers; lmc eval evaluates "
                   "it, and lmc export writes it for transformers",
                   model->name.text);
  if (option)
    return lm_fail(LM_USER,
                   "%s is an encoder-decoder model, which encodes a source for each text, and a "
                   "conversation has none; use lmc generate with --%s",
                   model->name.text, option);
  return NULL;
}

// How answers end; where the template cannot show it, at the end of a document.
static void stop_find(const lm_session *s, const lm_chat *chat, lm_buf *stop, int32_t *end) {
  lm_status status = lm_chat_stop(chat, stop, end);
  if (status)
    lm_event_warning(s->project.events, "%s; answers end at the end of a document", status->text);
  lm_status_free(status);
}

// *out_marked: the tokens up to the first answer, which the column `prompt` marks.
static lm_status prompt_take(const lm_chat *chat, const lm_conversation *c, lm_tokens *out,
                             int64_t *out_marked) {
  out->n = 0;
  LM_TRY(lm_chat_encode(chat, c, true, out));
  int64_t marked = 0;
  while (marked < (int64_t)out->n && out->ids[marked] & LM_TOKEN_UNTRAINED)
    marked++;
  *out_marked = marked;
  for (size_t i = 0; i < out->n; i++)
    out->ids[i] &= ~LM_TOKEN_UNTRAINED;
  return NULL;
}

lm_status lm_session_question(lm_session *s, const char *text, lm_tokens *out, lm_buf *out_stop,
                              int32_t *out_end) {
  lm_chat chat;
  LM_TRY(chat_open(s, &chat));
  if (lm_utf8_valid(text, strlen(text)) < strlen(text))
    return lm_fail(LM_USER, "the message is not UTF-8 text");
  lm_conversation c = {
      .messages = json_array(),
      .given = json_object(),
  };
  message_add(c.messages, "user", text, strlen(text));
  int64_t marked; // all of them
  lm_status status = prompt_take(&chat, &c, out, &marked);
  if (!status)
    stop_find(s, &chat, out_stop, out_end);
  lm_conversation_free(&c);
  return status;
}

// ---- a conversation with the model

struct lm_chatter {
  lm_session *s;
  lm_chatter_options o;
  lm_chat chat;
  lm_conversation conversation;
  lm_buf stop; // text that ends an answer
  int32_t stop_id;
  lm_sample_result last;
  bool said;
};

void lm_chatter_reset(lm_chatter *c, const char *system) {
  json_array_clear(c->conversation.messages);
  if (system)
    message_add(c->conversation.messages, "system", system, strlen(system));
  c->said = false;
}

// Sets the sizes that the options leave open; a model with few positions limits them.
static lm_status sizes_choose(const lm_session *s, lm_chatter_options *o) {
  int64_t most = s->compiled.limits.pos;
  if (!o->context)
    o->context = most < CONTEXT ? most : CONTEXT;
  if (o->context > most)
    return lm_fail(LM_USER, "the model has %lld positions, fewer than --context %lld",
                   (long long)most, (long long)o->context);
  if (!o->tokens)
    o->tokens = o->context < 2 * TOKENS ? o->context / 2 : TOKENS;
  if (o->tokens >= o->context)
    return lm_fail(LM_USER, "--tokens %lld leaves no room for a prompt in a context of %lld",
                   (long long)o->tokens, (long long)o->context);
  return NULL;
}

lm_status lm_chatter_create(lm_session *s, const char *weights, const lm_chatter_options *o,
                            lm_chatter **out) {
  lm_chat chat;
  lm_chatter_options sized = *o;
  *out = NULL;
  LM_TRY(model_check(s));
  LM_TRY(chat_open(s, &chat));
  LM_TRY(lm_sample_start(s, o->context ? o->context : CONTEXT, NULL, weights));
  LM_TRY(sizes_choose(s, &sized));
  lm_chatter *c = lm_alloc(sizeof *c);
  *c = (lm_chatter){
      .s = s,
      .o = sized,
      .chat = chat,
  };
  c->conversation = (lm_conversation){
      .messages = json_array(),
      .given = json_object(),
  };
  stop_find(s, &chat, &c->stop, &c->stop_id);
  lm_chatter_reset(c, o->system);
  *out = c;
  return NULL;
}

void lm_chatter_destroy(lm_chatter *c) {
  if (!c)
    return;
  lm_conversation_free(&c->conversation);
  lm_buf_free(&c->stop);
  lm_sample_free(&c->last);
  lm_free(c);
}

// The tokens of the prompt, without as many of the first messages as it takes to leave room for the
// answer.
static lm_status prompt_encode(lm_chatter *c, lm_tokens *out, int64_t *out_marked,
                               int *out_dropped) {
  json_t *all = c->conversation.messages;
  lm_conversation view = c->conversation;
  int64_t most = c->o.context - c->o.tokens;
  bool system =
      json_array_size(all) &&
      !strcmp(json_string_value(json_object_get(json_array_get(all, 0), "role")), "system");
  lm_status s = NULL;
  *out_dropped = 0;
  view.messages = json_copy(all);
  for (;;) {
    s = prompt_take(&c->chat, &view, out, out_marked);
    size_t left = json_array_size(view.messages) - system;
    if (s || (int64_t)out->n <= most || left < 3)
      break;
    json_array_remove(view.messages, system); // a question and its answer
    json_array_remove(view.messages, system);
    *out_dropped += 2;
  }
  json_decref(view.messages);
  if (!s && (int64_t)out->n > most)
    s = lm_fail(LM_USER, "a prompt of %zu tokens leaves no room for %lld more in a context of %lld",
                out->n, (long long)c->o.tokens, (long long)c->o.context);
  return s;
}

static lm_status answer(lm_chatter *c, int *out_dropped) {
  lm_tokens prompt = {0};
  const char *stop = c->stop.p;
  while (stop && *stop == ' ') // the model may leave out a space
    stop++;
  lm_sample_options o = {.sampler = c->o.sampler,
                         .n = c->o.tokens,
                         .write = c->o.write,
                         .user = c->o.user,
                         .end_id = c->stop_id,
                         .has_end = c->stop_id >= 0,
                         .stops = &stop,
                         .n_stops = c->stop_id < 0 && stop && *stop};
  lm_status s = prompt_encode(c, &prompt, &o.n_marked, out_dropped);
  if (!s) {
    o.prompt = prompt.ids;
    o.n_prompt = (int64_t)prompt.n;
    lm_sample_free(&c->last);
    s = lm_sample_make(c->s, &o, &c->last);
  }
  if (!s) {
    const char *text = c->last.text.p ? c->last.text.p : "";
    message_add(c->conversation.messages, "assistant", text, lm_utf8_valid(text, c->last.text.n));
    c->said = true;
  }
  lm_tokens_free(&prompt);
  return s;
}

lm_status lm_chatter_say(lm_chatter *c, const char *text, size_t n, int *out_dropped) {
  json_t *messages = c->conversation.messages;
  message_add(messages, "user", text, n);
  lm_status s = answer(c, out_dropped);
  if (s)
    json_array_remove(messages, json_array_size(messages) - 1);
  return s;
}

lm_status lm_chatter_again(lm_chatter *c, int *out_dropped) {
  json_t *messages = c->conversation.messages;
  *out_dropped = 0;
  if (!c->said)
    return lm_fail(LM_USER, "there is no answer yet");
  json_t *former = json_incref(json_array_get(messages, json_array_size(messages) - 1));
  json_array_remove(messages, json_array_size(messages) - 1);
  lm_status s = answer(c, out_dropped);
  if (s)
    json_array_append(messages, former);
  json_decref(former);
  return s;
}

const json_t *lm_chatter_messages(const lm_chatter *c) {
  return c->conversation.messages;
}
