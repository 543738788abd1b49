// peft.h - adapters in the files of Hugging Face's PEFT: adapter_config.json and
// adapter_model.safetensors.
//
// `map peft` of an adapter's block gives its tensors and the keys of adapter_config.json that it
// determines; peft_keys.def says what the other keys mean. The model must be lowered with
// LM_LOWER_PEFT.
#ifndef LM_DRIVER_PEFT_H
#define LM_DRIVER_PEFT_H
#include "driver/weights/weights.h"
#include "runtime/io/json.h"

// adapter_config.json of the model's adapters; the caller owns it. LM_USER: they cannot share one;
// reported.
lm_status lm_peft_config(const lm_compiled *c, json_t **out);
// The adapters' tensors by their names in adapter_model.safetensors, for export, or `shared` by the
// parts of a weight. `a` holds memory of *out. The caller destroys *out before w.
lm_status lm_peft_foreign(const lm_compiled *c, lm_arena *a, lm_weights w, bool shared,
                          lm_foreign **out);
// Fills the adapters of w, in the host's memory, from the folder `dir`. LM_USER: it holds adapters
// of another kind, of other weights or of another scale; reported.
lm_status lm_peft_load(const lm_compiled *c, const char *dir, lm_weights w);

// What adapter_config.json says about a key.
typedef enum lm_peft_meaning {
  LM_PEFT_UNKNOWN, // not in the table
  LM_PEFT_PLAIN,   // does not affect the numbers
  LM_PEFT_NUMBERS  // affects them, unless its value is neutral
} lm_peft_meaning;
typedef struct lm_peft_key {
  const char *name;
  lm_peft_meaning meaning;
  const char *neutral; // LM_PEFT_NUMBERS: values without effect, as a JSON array
  const char *table;   // the key with other values for some modules; NULL: there is none
} lm_peft_key;
// Whether the file's configuration names a module. *why: NULL if it does; else a remark about the
// value of *key: one that begins with "with" or "without" is to be completed by the module, others
// are about the value alone. Fails if a pattern is no regular expression.
lm_status lm_peft_target_find(const json_t *config, const char *module, const char **key,
                              const char **why);
// Whether a regular expression matches in the name of a module; *end: the end of the first match.
lm_status lm_peft_pattern_find(const char *pattern, const char *module, size_t *end, bool *out);
lm_peft_key lm_peft_key_find(const char *name);
// True if a file that has this value, NULL for none, computes as one without the key.
bool lm_peft_is_neutral(const lm_peft_key *k, const json_t *value);
// Equality, of numbers by value.
bool lm_peft_same(const json_t *a, const json_t *b);
// The line of a key in a file's text, or 0.
int lm_peft_line(const lm_buf *text, const char *key);
#endif
