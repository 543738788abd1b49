// hf_keys.h - which keys of a Hugging Face config.json affect the numbers that a model computes.
#ifndef LM_WEIGHTS_HF_KEYS_H
#define LM_WEIGHTS_HF_KEYS_H
#include "runtime/io/json.h"

typedef enum lm_hf_meaning {
  LM_HF_UNKNOWN, // not in the table
  LM_HF_IGNORED, // does not affect the numbers: token ids, dropout, generation defaults
  LM_HF_SHAPE,   // a size, which the shapes of the tensors determine
  LM_HF_NUMBERS, // affects the numbers: must be declared unless it has the neutral value
} lm_hf_meaning;

typedef struct lm_hf_key {
  lm_hf_meaning meaning;
  const char *what;    // LM_HF_NUMBERS: a description for messages
  const char *neutral; // LM_HF_NUMBERS: the value without effect, as JSON; NULL: there is none
} lm_hf_key;

// key: a key of the canonical form below; "table.key" for a key in a table.
lm_hf_key lm_hf_key_find(const char *key);
// The key without the table of a tower, "text_config." or "vision_config.".
const char *lm_hf_key_base(const char *key);

// Returns the canonical form of a config.json as a new object. transformers 4 and 5 write the same
// facts in different ways, and omit the defaults of the model type. In the canonical form
//   rope_parameters is split into rope_theta, partial_rotary_factor (under the model type's name
//     for it) and rope_scaling, whose key `type` is renamed to rope_type;
//   rope_scaling is null if its type is "default";
//   sliding_window is null if use_sliding_window is false;
//   layer_types is omitted if it equals the default of the model type;
//   text_config_dict and vision_config_dict of CLIP are merged into text_config and vision_config;
//   absent keys have the defaults of the model type, for the types of the table in hf_keys.c.
json_t *lm_hf_config_canonical(const json_t *config);

// Calls `each` for every key; keys of the tables rope_scaling, rope_parameters, text_config and
// vision_config are passed separately, as "table.key".
typedef void lm_hf_each(void *user, const char *key, const json_t *value);
void lm_hf_config_each(const json_t *config, lm_hf_each *each, void *user);
// The value of a key, which may be "table.key"; NULL if it is absent. Borrowed.
json_t *lm_hf_config_at(const json_t *config, const char *key);
// Sets a key, which may be "table.key", and creates the table if needed; takes the reference to
// value.
void lm_hf_config_set(json_t *config, const char *key, json_t *value);
#endif
