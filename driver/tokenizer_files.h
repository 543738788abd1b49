// tokenizer_files.h - the content of a tokenizer's files as parts of a run's fingerprint:
//
//   tokenizer                 a hash of the files that it was made from
//   tokenizer_config.json     a hash of that companion, or "absent"; the same of token_ids.json
//   chat_template.jinja       a hash of the chat template, if the data needs it
//
// A tokenizer without files has no parts, because the recipe determines it.
#ifndef LM_DRIVER_TOKENIZER_FILES_H
#define LM_DRIVER_TOKENIZER_FILES_H
#include "driver/fingerprint.h"

// Adds the parts of a session with its tokenizer.
void lm_tokenizer_files_add(const lm_session *s, lm_fingerprint *f);

typedef struct lm_tokenizer_change {
  const char *file;     // the name of the file that differs; NULL: all are the same
  const char *was, *is; // its parts
  bool template;        // it is the chat template
} lm_tokenizer_change;
// Finds the first file whose content differs from the record of a checkpoint. Checkpoints of
// earlier versions record fewer parts; missing ones are not compared.
lm_tokenizer_change lm_tokenizer_files_compare(const lm_session *s, const lm_fingerprint *saved);
#endif
