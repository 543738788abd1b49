// ids.h - token numbers as text.
#ifndef LMC_IDS_H
#define LMC_IDS_H
#include "runtime/tokenizer/tokenizer.h"

// "1,2,3", "1 2 3", "1, 2, 3" on any number of lines: one comma between two numbers or none.
// LM_USER else.
lm_status lm_ids_parse(const char *text, size_t n, lm_tokens *out);
#endif
