// conversation.c - reads the messages of one line of JSON.
#include <string.h>

#include "runtime/chat/chat.h"

void lm_conversation_free(lm_conversation *c) {
  json_decref(c->root);
  json_decref(c->messages);
  json_decref(c->given);
  *c = (lm_conversation){0};
}

// ---- weights

// OpenAI's weight of a message: 0 or 1; not for all messages.
static lm_status weight_check(const json_t *x, size_t i) {
  const json_t *weight = json_object_get(x, "weight");
  double w = json_number_value(weight);
  if (!weight || json_is_null(weight))
    return NULL;
  if (json_is_number(weight) && w == 0)
    return NULL;
  if (json_is_number(weight) && w == 1)
    return NULL;
  return lm_fail(LM_USER, "message %zu has a \"weight\" that is neither 0 nor 1", i);
}

bool lm_chat_is_weighted(const json_t *message) {
  const json_t *weight = json_object_get(message, "weight");
  return !json_is_number(weight) || json_number_value(weight) != 0;
}

// ---- ShareGPT

static const char *role_of(const char *from) {
  static const char *const names[][2] = {{"human", "user"},        {"user", "user"},
                                         {"gpt", "assistant"},     {"assistant", "assistant"},
                                         {"chatgpt", "assistant"}, {"bot", "assistant"},
                                         {"model", "assistant"},   {"system", "system"},
                                         {"tool", "tool"},         {"observation", "tool"}};
  for (size_t i = 0; from && i < LM_COUNT(names); i++)
    if (!strcmp(names[i][0], from))
      return names[i][1];
  return NULL;
}

static lm_status sharegpt_add(json_t *messages, const json_t *x, size_t i) {
  const char *from = json_string_value(json_object_get(x, "from"));
  json_t *value = json_object_get(x, "value");
  const char *role = role_of(from);
  if (!from || !json_is_string(value))
    return lm_fail(LM_USER, "message %zu needs \"from\" and \"value\"", i);
  if (!role)
    return lm_fail(LM_USER, "message %zu is from \"%.40s\", expected human, gpt, system or tool", i,
                   from);
  LM_TRY(weight_check(x, i));
  json_t *message = json_pack("{s:s, s:O}", "role", role, "content", value);
  json_object_set(message, "weight", json_object_get(x, "weight"));
  json_array_append_new(messages, message);
  return NULL;
}

// ---- OpenAI

// The value of a text of JSON, to be released; NULL: it is no such text.
static json_t *text_parse(const json_t *x) {
  return json_is_string(x) ? json_loadb(json_string_value(x), json_string_length(x), 0, NULL)
                           : NULL;
}

// OpenAI has the arguments of a call as a text of JSON; templates expect the object.
static void arguments_parse(json_t *message) {
  size_t i;
  json_t *call;
  json_array_foreach(json_object_get(message, "tool_calls"), i, call) {
    json_t *f = json_object_get(call, "function");
    json_t *holder = json_is_object(f) ? f : call;
    json_t *parsed = text_parse(json_object_get(holder, "arguments"));
    if (json_is_object(parsed))
      json_object_set(holder, "arguments", parsed);
    json_decref(parsed);
  }
}

static bool is_empty(const json_t *x) {
  bool text = json_is_string(x) && !json_string_length(x);
  bool list = json_is_array(x) && !json_array_size(x);
  return text || list || json_is_null(x);
}

// True if a message has a member, such as `tool_calls`, that may be all that it says.
static bool says_otherwise(json_t *x) {
  static const char *const others[] = {"role", "content", "name", "weight", "id"};
  const char *key;
  json_t *value;
  json_object_foreach(x, key, value) {
    bool says = !is_empty(value);
    for (size_t i = 0; i < LM_COUNT(others); i++)
      says &= strcmp(key, others[i]) != 0;
    if (says)
      return true;
  }
  return false;
}

static lm_status openai_add(json_t *messages, json_t *x, size_t i) {
  json_t *content = json_object_get(x, "content");
  if (!json_is_string(json_object_get(x, "role")))
    return lm_fail(LM_USER, "message %zu has no \"role\"", i);
  if (content && !json_is_string(content) && !json_is_null(content) && !json_is_array(content))
    return lm_fail(LM_USER, "message %zu has a \"content\" that is neither text nor a list", i);
  if ((!content || json_is_null(content)) && !says_otherwise(x))
    return lm_fail(LM_USER, "message %zu has no \"content\"", i);
  LM_TRY(weight_check(x, i));
  arguments_parse(x);
  json_array_append(messages, x);
  return NULL;
}

static lm_status messages_read(const json_t *list, json_t *out) {
  for (size_t i = 0; i < json_array_size(list); i++) {
    json_t *x = json_array_get(list, i);
    if (!json_is_object(x))
      return lm_fail(LM_USER, "message %zu is not a JSON object", i);
    LM_TRY(json_object_get(x, "from") ? sharegpt_add(out, x, i) : openai_add(out, x, i));
  }
  return NULL;
}

// ---- the line

// Tools and documents may be a text of JSON.
static lm_status list_give(json_t *given, const json_t *root, const char *key) {
  json_t *x = json_object_get(root, key);
  if (!x || json_is_null(x))
    return NULL;
  json_t *parsed = text_parse(x);
  if (!json_is_array(parsed ? parsed : x)) {
    json_decref(parsed);
    return lm_fail(LM_USER, "\"%s\" is not a list", key);
  }
  json_object_set(given, key, parsed ? parsed : x);
  json_decref(parsed);
  return NULL;
}

static lm_status given_read(lm_conversation *c) {
  const char *key;
  json_t *value;
  LM_TRY(list_give(c->given, c->root, "tools"));
  LM_TRY(list_give(c->given, c->root, "documents"));
  json_object_foreach(json_object_get(c->root, "chat_template_kwargs"), key, value)
      json_object_set(c->given, key, value);
  return NULL;
}

static lm_status no_text(const json_t *root, const char *field) {
  const char *key;
  json_t *value;
  lm_buf b = {0};
  json_object_foreach((json_t *)root, key, value)
      lm_buf_printf(&b, "%s\"%.100s\"", b.n ? ", " : "; the fields are ", key);
  lm_status s = lm_fail(LM_USER, "no text in the field \"%.100s\"%.400s", field, b.p ? b.p : "");
  lm_buf_free(&b);
  return s;
}

static lm_status pair_read(const lm_chat *chat, lm_conversation *c) {
  const char *fields[] = {chat->prompt, chat->completion};
  static const char *const roles[] = {"user", "assistant"};
  for (int i = 0; i < 2; i++) {
    json_t *x = json_object_get(c->root, fields[i]);
    if (!json_is_string(x))
      return no_text(c->root, fields[i]);
    json_array_append_new(c->messages, json_pack("{s:s, s:O}", "role", roles[i], "content", x));
  }
  return NULL;
}

static lm_status list_find(const lm_chat *chat, const json_t *root, json_t **out) {
  static const char *const usual[] = {"messages", "conversations", "conversation"};
  *out = chat->field ? json_object_get(root, chat->field) : NULL;
  for (size_t i = 0; !chat->field && !*out && i < LM_COUNT(usual); i++)
    *out = json_object_get(root, usual[i]);
  if (!*out && chat->field)
    return lm_fail(LM_USER, "no field \"%.100s\"", chat->field);
  if (!*out)
    return lm_fail(LM_USER, "no field \"messages\" or \"conversations\"");
  return json_is_array(*out) ? NULL : lm_fail(LM_USER, "the messages are not a list");
}

static lm_conversation empty(json_t *root) {
  return (lm_conversation){
      .root = json_incref(root), .messages = json_array(), .given = json_object()};
}

// *out: an object, to be released.
static lm_status object_read(const char *line, size_t n, json_t **out) {
  json_error_t e;
  *out = json_loadb(line, n, JSON_REJECT_DUPLICATES, &e);
  if (!*out && json_error_code(&e) == json_error_null_character)
    return lm_fail(LM_USER,
                   "contains the character NUL (U+0000), which no text may contain (column %d)",
                   e.column);
  if (!*out)
    return lm_fail(LM_USER, "not JSON: %s (column %d)", e.text, e.column);
  return json_is_object(*out) ? NULL : lm_fail(LM_USER, "not a JSON object");
}

// ---- preference pairs

static void text_add(lm_conversation *c, const char *role, json_t *text) {
  json_array_append_new(c->messages, json_pack("{s:s, s:O}", "role", role, "content", text));
}

static lm_status answer_read(const lm_chat *chat, json_t *prompt, const char *field,
                             lm_conversation *out) {
  json_t *x = json_object_get(out->root, field);
  if (json_is_string(x)) {
    if (!json_is_string(prompt))
      return no_text(out->root, chat->prompt);
    text_add(out, "user", prompt);
    out->first = 1;
    text_add(out, "assistant", x);
    return NULL;
  }
  if (!json_is_array(x) || !json_array_size(x))
    return lm_fail(LM_USER, "neither text nor messages in the field \"%.100s\"", field);
  if (!chat->template)
    return lm_fail(LM_USER, "the messages in the field \"%.100s\" need a template", field);
  if (json_is_string(prompt))
    text_add(out, "user", prompt);
  else
    LM_TRY(messages_read(prompt, out->messages));
  out->first = json_array_size(out->messages);
  LM_TRY(messages_read(x, out->messages));
  return given_read(out);
}

// Without a prompt: the messages that both answers begin with.
static void prompt_find(lm_conversation c[2]) {
  size_t n = json_array_size(c[0].messages);
  size_t other = json_array_size(c[1].messages);
  size_t most = (n < other ? n : other) - 1;
  size_t i = 0;
  while (i < most && json_equal(json_array_get(c[0].messages, i), json_array_get(c[1].messages, i)))
    i++;
  c[0].first = c[1].first = i;
}

lm_status lm_pair_read(const lm_chat *chat, const char *line, size_t n, lm_conversation out[2]) {
  json_t *root;
  lm_status s = object_read(line, n, &root);
  out[0] = empty(root);
  out[1] = empty(root);
  json_decref(root);
  json_t *prompt = s ? NULL : json_object_get(root, chat->prompt);
  if (!s)
    s = answer_read(chat, prompt, chat->chosen, &out[0]);
  if (!s)
    s = answer_read(chat, prompt, chat->rejected, &out[1]);
  if (!s && !prompt)
    prompt_find(out);
  return s;
}

lm_status lm_conversation_read(const lm_chat *chat, const char *line, size_t n,
                               lm_conversation *out) {
  json_t *list, *root;
  lm_status s = object_read(line, n, &root);
  *out = empty(root);
  json_decref(root);
  LM_TRY(s);
  if (chat->prompt)
    return pair_read(chat, out);
  LM_TRY(list_find(chat, out->root, &list));
  LM_TRY(messages_read(list, out->messages));
  if (!json_array_size(out->messages))
    return lm_fail(LM_USER, "a conversation without messages");
  return given_read(out);
}
