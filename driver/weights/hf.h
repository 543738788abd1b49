// hf.h - config.json and the tokenizer's files of a Hugging Face folder.
#ifndef LM_DRIVER_HF_H
#define LM_DRIVER_HF_H
#include "driver/session.h"
#include "runtime/weights/hf_config.h"
#include "runtime/weights/hf_keys.h"

// The keys of config.json that hold ids of special tokens. An import keeps their values in
// token_ids.json (lm_companion), and an export writes them back.
enum {
  LM_HF_TOKEN_ID_KEYS = 3
};
extern const char *const LM_HF_TOKEN_IDS[LM_HF_TOKEN_ID_KEYS];

// The config.json of a lowered model: keys that follow from its tensors and from its parameters
// `theta` and `eps`, overridden by its `config { … }`. The caller owns it. *out_assumed: names of
// keys that were assumed, NULL if none; in the context's arena.
json_t *lm_hf_config_make(const lm_session *s, const char *dtype, const char **out_assumed);
// `config` in its canonical form. One LM_USER status lists the keys that are unknown, and the keys
// that affect the computation and differ from the model's `config { … }` or are missing there;
// `ignored` ones are left out.
lm_status lm_hf_config_check(const lm_session *s, const json_t *config, const char *path,
                             const char *const *ignored, int n_ignored);
// True if `ignored` contains the key or its table; lm_hf_config_ignores: or "*", which is all keys.
bool lm_hf_config_names(const char *const *ignored, int n, const char *key);
bool lm_hf_config_ignores(const char *const *ignored, int n, const char *key);

// Writes the tokenizer's files; *out_what: their names, for people.
lm_status lm_hf_tokenizer_write(const lm_session *s, const char *dir, const char **out_what);
#endif
