// tokenizer.h - the kinds of tokenizers (tokenizers.def).
#ifndef LM_CONTRACT_TOKENIZER_H
#define LM_CONTRACT_TOKENIZER_H

typedef enum {
#define TOKENIZER(ID, NAME) LM_TOKENIZER_##ID,
#include "contract/tokenizers.def"
  LM_TOKENIZERS
} lm_tokenizer_kind;
extern const char *const lm_tokenizer_names[LM_TOKENIZERS];
// LM_TOKENIZERS: there is no kind of that name.
lm_tokenizer_kind lm_tokenizer_kind_find(const char *name);
#endif
