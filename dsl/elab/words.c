// words.c - help for words of other libraries and languages (words.def).
#include <string.h>
#include "dsl/elab/elab.h"

static const struct {
  const char *word, *help;
} words[] = {
#define WORD(NAME, HELP) {NAME, HELP},
#include "dsl/elab/words.def"
#undef WORD
};

const char *el_word_help(const char *word) {
  for (size_t i = 0; word && i < LM_COUNT(words); i++)
    if (!strcmp(words[i].word, word))
      return words[i].help;
  return NULL;
}

bool el_help_word(lm_elab *e, lm_diag *d, const char *word) {
  const char *help = el_word_help(word);
  if (help)
    lm_diag_help(e->c, d, "%s", help);
  return help != NULL;
}
