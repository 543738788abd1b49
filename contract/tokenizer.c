// tokenizer.c - see tokenizer.h.
#include "contract/tokenizer.h"

const char *const lm_tokenizer_names[LM_TOKENIZERS] = {
#define TOKENIZER(ID, NAME) NAME,
#include "contract/tokenizers.def"
};
