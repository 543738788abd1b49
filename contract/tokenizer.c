// tokenizer.c - see tokenizer.h.
#include "contract/tokenizer.h"

#include <string.h>

const char *const lm_tokenizer_names[LM_TOKENIZERS] = {
#define TOKENIZER(ID, NAME) NAME,
#include "contract/tokenizers.def"
};

lm_tokenizer_kind lm_tokenizer_kind_find(const char *name) {
  int kind = 0;
  while (kind < LM_TOKENIZERS && strcmp(name, lm_tokenizer_names[kind]))
    kind++;
  return (lm_tokenizer_kind)kind;
}
