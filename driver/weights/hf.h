// hf.h - the files beside the weights in a folder of Hugging Face's: config.json and the
// tokenizer's.
#ifndef LMC_HF_H
#define LMC_HF_H
#include "driver/session.h"
#include "runtime/weights/hf_config.h"
#include "runtime/weights/hf_keys.h"

// What is written of a lowered model: what its tensors tell, its parameters `theta` and `eps`, then
// `config { … }`, which has the last word. The caller owns it. *out_assumed: names of keys that
// nothing told, NULL if none; in the context's arena.
json_t *lm_hf_config_make(const lm_session *s, const char *dtype, const char **out_assumed);
// LM_USER, listing all, if `config`, in its canonical form, has keys that change what is computed
// and that the model's `config { … }` has otherwise or not at all, or keys that nothing is known
// of; not those of `ignored`.
lm_status lm_hf_config_check(const lm_session *s, const json_t *config, const char *path,
                             const char *const *ignored, int n_ignored);
// Whether the list of --ignore-config names the key or its table; or, by "*", all keys.
bool lm_hf_config_names(const char *const *ignored, int n, const char *key);
bool lm_hf_config_ignores(const char *const *ignored, int n, const char *key);

// Writes the tokenizer's files; *out_what names them for people.
lm_status lm_hf_tokenizer_write(const lm_session *s, const char *dir, const char **out_what);
#endif
