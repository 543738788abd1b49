// data.h - the tokenizer and the data of a session.
#ifndef LM_DRIVER_DATA_H
#define LM_DRIVER_DATA_H
#include "driver/session.h"

lm_status lm_session_sources(lm_session *s); // opens the data, after the tokenizer
// Warns of files of the sources and of the tokenizer that are missing.
void lm_session_look_for_files(const lm_session *s);
// Opens the tokenizer, if its files are there, and checks `start` of sources with targets. LM_USER:
// a run could not use them; reported.
lm_status lm_session_check_tokenizer(lm_session *s);
// Reports further parameters of `loss` that the texts of the recipe do not have.
lm_status lm_session_check_columns(const lm_session *s);
// Writes the files that the tokenizer was made from, none for bytes, and their companions.
lm_status lm_session_tokenizer_write(const lm_session *s, const char *dir);
#endif
