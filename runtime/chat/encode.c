// encode.c - which text of a rendered conversation is trained, and its tokens.
#include <string.h>

#include "runtime/chat/chat.h"

// A rendered conversation. own: bytes of the template's own text.
typedef struct {
  lm_rendered r;
  unsigned char *own, *trained; // [n]
} marked;

static void marked_free(marked *m) {
  lm_rendered_free(&m->r);
  lm_free(m->own);
  lm_free(m->trained);
}

static lm_status render(const lm_chat *chat, const lm_conversation *c, size_t n, bool prompt,
                        marked *out) {
  lm_template_input in = {.messages = c->messages,
                          .n_messages = n,
                          .given = c->given,
                          .bos = chat->bos,
                          .eos = chat->eos,
                          .prompt = prompt,
                          .texts = true,
                          .now = chat->now};
  *out = (marked){0};
  LM_TRY(lm_template_render(chat->template, &in, &out->r));
  out->own = lm_alloc(out->r.n + 1);
  out->trained = lm_alloc(out->r.n + 1);
  for (size_t i = 0; i < out->r.n; i++)
    out->own[i] = out->r.from[i] == LM_ORIGIN_TEMPLATE;
  return NULL;
}

// ---- spans

// True if byte i is text of a message, and not its role.
static bool is_said(const lm_rendered *r, size_t i, int64_t message) {
  return lm_origin_message(r->from[i]) == message && lm_origin_field(r->from[i]) != LM_FIELD_ROLE;
}

// Behind the last byte that messages before `message` say; 0: they say nothing.
static size_t said_before(const lm_rendered *r, int64_t message) {
  size_t end = 0;
  for (size_t i = 0; i < r->n; i++) {
    int64_t m = lm_origin_message(r->from[i]);
    if (m >= 0 && m < message && lm_origin_field(r->from[i]) != LM_FIELD_ROLE)
      end = i + 1;
  }
  return end;
}

// True if a message says anything; *out_first … *out_end is its range.
static bool said_range(const lm_rendered *r, int64_t message, size_t *out_first, size_t *out_end) {
  bool any = false;
  for (size_t i = 0; i < r->n; i++) {
    if (!is_said(r, i, message))
      continue;
    *out_first = any ? *out_first : i;
    *out_end = i + 1;
    any = true;
  }
  return any;
}

// True if the template renders the prompt for a message, and the text behind earlier messages in m
// begins with the text behind them in the prompt; *out is where the prompt ends in m.
static bool prompt_end(const lm_chat *chat, const lm_conversation *c, const marked *m,
                       size_t message, size_t *out) {
  marked p;
  lm_status s = render(chat, c, message, true, &p);
  bool found = false;
  if (!s) {
    size_t here = said_before(&m->r, (int64_t)message);
    size_t there = said_before(&p.r, (int64_t)message);
    size_t n = p.r.n - there;
    found = n <= m->r.n - here && !memcmp(m->r.text + here, p.r.text + there, n);
    *out = here + n;
  }
  lm_status_free(s);
  marked_free(&p);
  return found;
}

// The end of the template's text behind a message that is trained: `from`, or behind it.
// *out_special: it is the end of a special token.
static lm_status tail_end(const lm_chat *chat, const marked *m, size_t from, size_t *out,
                          bool *out_special) {
  size_t end = from;
  size_t n;
  while (end < m->r.n && m->own[end])
    end++;
  LM_TRY(lm_tokenizer_special_find(chat->tokenizer, m->r.text + from, end - from, m->own + from, &n,
                                   out_special));
  const char *line = memchr(m->r.text + from, '\n', end - from);
  *out = *out_special ? from + n : line ? (size_t)(line - m->r.text) + 1 : end;
  return NULL;
}

static lm_chat_role role_at(const lm_conversation *c, size_t i) {
  static const char *const names[LM_CHAT_ROLES][3] = {
      [LM_CHAT_SYSTEM] = {"system", "developer"},
      [LM_CHAT_USER] = {"user", "human"},
      [LM_CHAT_ASSISTANT] = {"assistant", "model"},
      [LM_CHAT_TOOL] = {"tool", "function", "ipython"}};
  const char *role = json_string_value(json_object_get(json_array_get(c->messages, i), "role"));
  for (int k = 0; role && k < LM_CHAT_ROLES; k++)
    for (size_t j = 0; j < LM_COUNT(names[k]) && names[k][j]; j++)
      if (!strcmp(names[k][j], role))
        return (lm_chat_role)k;
  return LM_CHAT_ROLES;
}

static lm_status message_mark(const lm_chat *chat, const lm_conversation *c, marked *m,
                              size_t message) {
  size_t first = 0;
  size_t end = 0;
  size_t begin;
  bool special;
  bool says = said_range(&m->r, (int64_t)message, &first, &end);
  bool known = prompt_end(chat, c, m, message, &begin);
  if (!says && !known)
    return NULL;
  if (!known || (says && begin > first))
    begin = first;
  LM_TRY(tail_end(chat, m, says ? end : begin, &end, &special));
  for (size_t i = begin; i < end; i++) {
    int64_t from = lm_origin_message(m->r.from[i]);
    m->trained[i] = from < 0 || from == (int64_t)message;
  }
  return NULL;
}

static lm_status mark(const lm_chat *chat, const lm_conversation *c, size_t n, marked *m) {
  if (lm_template_has_generation(chat->template)) {
    for (size_t i = c->first; i < n; i++)
      if (!lm_chat_is_weighted(json_array_get(c->messages, i)))
        return lm_fail(LM_USER,
                       "message %zu has the weight 0, but the template marks the "
                       "trained text by {%% generation %%}",
                       i);
    size_t begin = said_before(&m->r, (int64_t)c->first);
    memcpy(m->trained + begin, m->r.generated + begin, m->r.n - begin);
    return NULL;
  }
  for (size_t i = c->first; i < n; i++) {
    lm_chat_role role = role_at(c, i);
    bool weighted = lm_chat_is_weighted(json_array_get(c->messages, i));
    if (role < LM_CHAT_ROLES && weighted && chat->train_on >> role & 1)
      LM_TRY(message_mark(chat, c, m, i));
  }
  return NULL;
}

// ---- tokens

static void untrained_set(lm_tokens *t, size_t from) {
  for (size_t i = from; i < t->n; i++)
    t->ids[i] |= LM_TOKEN_UNTRAINED;
}

// Tokenizes the maximal runs of trained and of untrained text one by one, so that no token crosses
// a boundary between them.
static lm_status pieces_encode(const lm_chat *chat, const marked *m, lm_tokens *out) {
  size_t first = out->n;
  for (size_t at = 0, end; at < m->r.n; at = end) {
    size_t before = out->n;
    for (end = at + 1; end < m->r.n && m->trained[end] == m->trained[at];)
      end++;
    bool special =
        before > first &&
        lm_tokenizer_is_special(chat->tokenizer, out->ids[before - 1] & ~LM_TOKEN_UNTRAINED);
    int part = (!at       ? LM_TEXT_WHOLE
                : special ? LM_TEXT_BEGUN
                          : LM_TEXT_FOLLOWS) |
               (end < m->r.n ? LM_TEXT_PRECEDES : 0);
    LM_TRY(
        lm_tokenizer_encode_own(chat->tokenizer, m->r.text + at, end - at, m->own + at, part, out));
    if (!m->trained[at])
      untrained_set(out, before);
  }
  return NULL;
}

static bool any_trained(const lm_tokens *t, size_t from) {
  for (size_t i = from + 1; i < t->n; i++) // nothing predicts the first
    if (!(t->ids[i] & LM_TOKEN_UNTRAINED))
      return true;
  return false;
}

// A prompt and its completion as a text document: the tokens that frame a text, the two texts, and
// the end of the document.
static lm_status plain_encode(const lm_chat *chat, const lm_conversation *c, lm_tokens *out) {
  const lm_tokenizer *t = chat->tokenizer;
  size_t before = out->n;
  lm_tokens_add_n(out, t->prefix, (size_t)t->n_prefix);
  for (size_t i = 0; i < 2; i++) {
    const json_t *x = json_object_get(json_array_get(c->messages, i), "content");
    size_t n = json_string_length(x);
    unsigned char *own = lm_alloc(n + 1);
    lm_status s = lm_tokenizer_encode_own(t, json_string_value(x), n, own,
                                          i ? LM_TEXT_FOLLOWS : LM_TEXT_PRECEDES, out);
    lm_free(own);
    LM_TRY(s);
    if (!i)
      untrained_set(out, before);
  }
  lm_tokens_add_n(out, t->suffix, (size_t)t->n_suffix);
  if (t->eos >= 0 && (out->n == before || (out->ids[out->n - 1] & ~LM_TOKEN_UNTRAINED) != t->eos))
    lm_tokens_add(out, t->eos);
  return NULL;
}

lm_status lm_chat_encode(const lm_chat *chat, const lm_conversation *c, bool prompt,
                         lm_tokens *out) {
  size_t before = out->n;
  size_t n = json_array_size(c->messages);
  marked m = {0};
  lm_status s;
  if (chat->template) {
    s = render(chat, c, n, prompt, &m);
    if (!s)
      s = mark(chat, c, n, &m);
    if (!s)
      s = pieces_encode(chat, &m, out);
    marked_free(&m);
  } else {
    s = plain_encode(chat, c, out);
  }
  if (!s && !prompt && !any_trained(out, before))
    s = lm_fail(LM_USER, chat->template
                             ? "nothing to train on: no text of the roles in train_on"
                             : "nothing to train on: an answer that is empty, or one token "
                               "without a prompt, which nothing predicts");
  return s;
}

// ---- a source and its target

static lm_status document_encode(const lm_tokenizer *t, const lm_conversation *c, size_t i,
                                 lm_tokens *out) {
  static const char *const names[] = {"source", "target"};
  json_t *text = json_object_get(json_array_get(c->messages, i), "content");
  size_t before = out->n;
  if (!json_string_length(text))
    return lm_fail(LM_USER, "the %s is empty", names[i]);
  LM_TRY(lm_tokenizer_encode_framed(t, json_string_value(text), json_string_length(text), out));
  if (out->n == before)
    return lm_fail(LM_USER, "the %s has no tokens", names[i]);
  if (t->eos >= 0 && out->ids[out->n - 1] != t->eos)
    lm_tokens_add(out, t->eos);
  return NULL;
}

lm_status lm_chat_encode_target(const lm_chat *chat, const lm_conversation *c, lm_tokens *out,
                                uint32_t *out_second) {
  size_t before = out->n;
  LM_TRY(document_encode(chat->tokenizer, c, 0, out));
  *out_second = (uint32_t)(out->n - before);
  lm_tokens_add(out, chat->start);
  return document_encode(chat->tokenizer, c, 1, out);
}

// ---- the end of an answer

lm_status lm_chat_stop(const lm_chat *chat, lm_buf *out, int32_t *out_id) {
  lm_conversation c = {.messages = json_pack("[{s:s, s:s}, {s:s, s:s}]", "role", "user", "content",
                                             "question", "role", "assistant", "content", "answer"),
                       .given = json_object()};
  size_t first;
  size_t end = 0;
  size_t to;
  lm_tokens ids = {0};
  bool special = false;
  marked m;
  *out_id = -1;
  lm_status s = render(chat, &c, 2, false, &m);
  if (!s && said_range(&m.r, 1, &first, &end))
    s = tail_end(chat, &m, end, &to, &special);
  else if (!s)
    s = lm_fail(LM_USER, "the template does not render an answer");
  if (!s)
    lm_buf_add(out, m.r.text + end, to - end);
  if (!s && special)
    s = lm_tokenizer_encode_own(chat->tokenizer, m.r.text + end, to - end, m.own + end,
                                LM_TEXT_FOLLOWS | LM_TEXT_PRECEDES, &ids);
  if (!s && ids.n)
    *out_id = ids.ids[ids.n - 1];
  lm_tokens_free(&ids);
  marked_free(&m);
  lm_conversation_free(&c);
  return s;
}

void lm_chat_key_set(lm_chat *chat, const char *text, size_t n) {
  const char *names[] = {chat->bos,        chat->eos,    chat->field,   chat->prompt,
                         chat->completion, chat->chosen, chat->rejected};
  uint64_t numbers[] = {3,
                        chat->train_on,
                        (uint64_t)chat->now,
                        n,
                        chat->template != NULL,
                        chat->has_target,
                        (uint64_t)chat->start};
  chat->key[0] = chat->key[1] = 0;
  lm_hash_key(chat->key, numbers, sizeof numbers);
  lm_hash_key(chat->key, text, n);
  for (size_t i = 0; i < LM_COUNT(names); i++) {
    lm_hash_key(chat->key, names[i] ? names[i] : "\x01", names[i] ? strlen(names[i]) : 1);
    lm_hash_key(chat->key, "", 1);
  }
}
