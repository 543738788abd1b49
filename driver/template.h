// template.h - the chat template of a session.
#ifndef LM_DRIVER_TEMPLATE_H
#define LM_DRIVER_TEMPLATE_H
#include "driver/session.h"
#include "runtime/chat/chat.h"

// True if a source of the data needs a template: one of messages, or one that names a template.
bool lm_session_has_messages(const lm_session *s);

// Opens the template of a session with a tokenizer: of a run folder the file that it keeps; else
// the one that the sources name, or the one that comes with the tokenizer. Its text becomes a
// companion of the tokenizer. A diagnostic if there is none, or it cannot be used.
lm_status lm_session_template(lm_session *s);
// The one token of `start` of a source with targets. Anything else is reported.
int32_t lm_session_source_start(const lm_session *s, const lm_recipe_source *x);
// How a source's conversations become tokens; in the session's arena.
const lm_chat *lm_session_source_chat(const lm_session *s, const lm_recipe_source *x);
// Sets the tokenizer, the template (NULL unless with_template), bos, eos and the key.
void lm_session_chat_fill(const lm_session *s, bool with_template, lm_chat *c);
#endif
