// hf.h - the files beside the weights in a folder of Hugging Face's: config.json and the tokenizer's.
#ifndef LMC_HF_H
#define LMC_HF_H
#include "lmc/session.h"
#include "runtime/io/hf_config.h"

// What is written of a lowered model: what its tensors tell, its parameters `theta` and `eps`, then `config { … }`, which
// has the last word. The caller owns it. *out_assumed: names of keys that nothing told, NULL if none; in the context's arena.
json_t *lm_hf_config_make(const lm_session *s, const char *dtype, const char **out_assumed);
// LM_USER, listing all, if `config` says otherwise of a key that the model's `config { … }` has.
lm_status lm_hf_config_check(const lm_session *s, const json_t *config, const char *path);

// Writes the tokenizer's files; *out_what names them for people.
lm_status lm_hf_tokenizer_write(const lm_session *s, const char *dir, const char **out_what);
#endif
