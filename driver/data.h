// text.h - a session's tokenizer and data.
#ifndef LMC_TEXT_H
#define LMC_TEXT_H
#include "driver/session.h"

lm_status lm_session_sources(lm_session *s); // opens the data; the tokenizer must be there
// The files a tokenizer was made from, into a run's folder; nothing for bytes.
lm_status lm_session_tokenizer_write(const lm_session *s, const char *dir);
#endif
