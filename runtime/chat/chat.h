// chat.h - conversations as tokens: a template renders the messages, and the provenance of each
// character decides whether it is trained, and whether it may be part of a special token.
//
// Trained are, of each message whose role is in train_on:
//
//   - the template's text behind the prompt for this message. The prompt is what a server sends to
//     the model: the messages before this one, rendered with add_generation_prompt;
//   - the characters of the message, but its role, and the template's text between them;
//   - the template's text behind them up to and with the first special token; without one, up to
//     and with the first line break. That is where the model learns to stop.
//
// `{% generation %}` in a template replaces these rules. No token holds both trained and untrained
// text, because the prompt of a model in use is encoded before the answer exists. A special token
// is made of the template's own text only, so text of a message never becomes one.
#ifndef LM_CHAT_H
#define LM_CHAT_H
#include "runtime/template/template.h"
#include "runtime/tokenizer/tokenizer.h"

typedef enum {
  LM_CHAT_SYSTEM, // also "developer"
  LM_CHAT_USER,
  LM_CHAT_ASSISTANT,
  LM_CHAT_TOOL, // also "function", "ipython"
  LM_CHAT_ROLES // any other role
} lm_chat_role;

enum {
  LM_TOKEN_UNTRAINED = 1 << 30 // added to an id that is not to be predicted
};

// How a source's lines become tokens. The members are borrowed.
typedef struct lm_chat {
  const lm_tokenizer *tokenizer;
  const lm_template *template; // NULL: the text of a prompt and its completion, without a template
  const char *bos, *eos;       // the texts of these tokens; NULL: the template has no such variable
  unsigned train_on;           // 1 << lm_chat_role
  const char *field;           // of the messages; NULL: "messages" or "conversations"
  const char *prompt, *completion; // fields of a prompt source; NULL: conversations
  const char *chosen, *rejected;   // fields of a source of pairs, beside prompt; NULL: no pairs
  bool has_target;                 // prompt and completion are a source and its target,
  int32_t start;                   // which begins with this token
  int64_t now;                     // for strftime_now (template.h); 0: none
  uint64_t key[2];                 // hash of all this but the tokenizer
} lm_chat;

// Sets chat->key from the other members and the text of the template.
void lm_chat_key_set(lm_chat *chat, const char *text, size_t n);

typedef struct lm_conversation {
  json_t *root, *messages, *given; // owned; given: further variables of the template
  size_t first;                    // no message before it is trained
} lm_conversation;
// Reads one JSON object: {"messages": [{"role": …, "content": …}, …], "tools": […]} as in OpenAI's
// API, or {"conversations": [{"from": "human", "value": …}, …]} as in ShareGPT; of a prompt source,
// its two fields. LM_USER: it is none. *out must be freed in any case.
lm_status lm_conversation_read(const lm_chat *chat, const char *line, size_t n,
                               lm_conversation *out);
// Reads one JSON object of a source of pairs: a prompt, and the answer that is preferred (out[0])
// and the other one. All three are texts, or the answers are lists of messages behind those of the
// prompt; without a prompt, the messages that both begin with are the prompt. LM_USER, and freed,
// as above.
lm_status lm_pair_read(const lm_chat *chat, const char *line, size_t n, lm_conversation out[2]);
void lm_conversation_free(lm_conversation *c);
// False if OpenAI's `weight` of the message is 0: it is not trained.
bool lm_chat_is_weighted(const json_t *message);

// Appends the tokens of a conversation; ids that are not trained have LM_TOKEN_UNTRAINED. prompt:
// with the beginning of the answer that the model is to continue. LM_USER: the template refuses the
// conversation, or nothing of it is trained (not with `prompt`).
lm_status lm_chat_encode(const lm_chat *chat, const lm_conversation *c, bool prompt,
                         lm_tokens *out);

// Appends the tokens of a source and, behind *out_second of them, of its target: both as documents,
// with the tokens that frame a text and the end of a document; the target behind chat->start.
// LM_USER: one of the texts is empty.
lm_status lm_chat_encode_target(const lm_chat *chat, const lm_conversation *c, lm_tokens *out,
                                uint32_t *out_second);

// Where an answer ends: the text behind an assistant's message that is trained, appended to *out.
// *out_id: its last token, if that is a special one, else -1. LM_USER: the template cannot render a
// question and an answer.
lm_status lm_chat_stop(const lm_chat *chat, lm_buf *out, int32_t *out_id);

// A template of this program by its name; NULL: there is none.
const char *lm_chat_builtin(const char *name);
extern const char *const lm_chat_builtin_names; // separated by commas
#endif
