// chat.h - conversations with a session's model.
#ifndef LM_DRIVER_CHAT_H
#define LM_DRIVER_CHAT_H
#include "driver/generate.h"
#include "runtime/chat/chat.h"

// The tokens of the prompt for an answer to one message of a user. *out_end: the special token that
// ends answers; -1: there is none, and the text *out_stop, which may be empty, ends them. LM_USER:
// no chat template, or it refuses the message.
lm_status lm_session_question(lm_session *s, const char *text, lm_tokens *out, lm_buf *out_stop,
                              int32_t *out_end);

typedef struct lm_chatter lm_chatter;
typedef struct lm_chatter_options {
  const char *system; // the system's message; NULL: none
  int64_t tokens;     // of an answer, at most; 0: 256, or half of a smaller context
  int64_t context;    // of prompt and answer together; 0: 2048, or the model's positions
  lm_sampler sampler;
  void (*write)(void *user, const char *p,
                size_t n); // called for each token of the answer; optional
  void *user;
} lm_chatter_options;

// Compiles a session that lm_trained_open has opened, loads its weights, and begins a conversation.
// LM_USER: it has no chat template, or fewer positions than the context.
lm_status lm_chatter_create(lm_session *s, const char *weights, const lm_chatter_options *o,
                            lm_chatter **out);
void lm_chatter_destroy(lm_chatter *c); // c may be NULL
// Adds a user's message and the model's answer. *out_dropped: messages at the beginning that the
// model no longer sees, as the context has no room for them.
lm_status lm_chatter_say(lm_chatter *c, const char *text, size_t n, int *out_dropped);
lm_status lm_chatter_again(lm_chatter *c, int *out_dropped); // another answer to the last message
void lm_chatter_reset(lm_chatter *c, const char *system);    // forgets everything; system as above
const json_t *lm_chatter_messages(const lm_chatter *c);
#endif
