// hf_keys.h - what the keys of a config.json mean for the numbers that a model computes.
#ifndef LM_IO_HF_KEYS_H
#define LM_IO_HF_KEYS_H
#include "runtime/io/json.h"

typedef enum lm_hf_meaning {
  LM_HF_UNKNOWN, // not in the table
  LM_HF_IGNORED, // no influence on the numbers: token ids, dropout, defaults of generation
  LM_HF_SHAPE,   // a size that the shapes of the tensors tell
  LM_HF_NUMBERS, // changes what is computed: to be declared unless it is neutral
} lm_hf_meaning;

typedef struct lm_hf_key {
  lm_hf_meaning meaning;
  const char *what;    // of NUMBERS: for people
  const char *neutral; // of NUMBERS, as JSON: the value that changes nothing; NULL: none
} lm_hf_key;

// key: as in the canonical form below, "table.key" for a key in a table.
lm_hf_key lm_hf_key_find(const char *key);

// The canonical form of a config.json, a new object: transformers 4 and 5 write the same facts in
// different ways, and leave out what is the default of the model type. In the canonical form
//   rope_parameters is rope_theta, partial_rotary_factor (as the type calls them) and
//     rope_scaling, whose key `type` is rope_type;
//   rope_scaling is null where the type is "default";
//   sliding_window is null where use_sliding_window is false, and layer_types is left out where
//     it says what the model type says;
//   keys that are absent have the model type's defaults, for the types of the table in hf_keys.c.
json_t *lm_hf_config_canonical(const json_t *config);

// Calls `each` for every key; those of the tables rope_scaling and rope_parameters one by one as
// "table.key".
typedef void lm_hf_each(void *user, const char *key, const json_t *value);
void lm_hf_config_each(const json_t *config, lm_hf_each *each, void *user);
// By such a key; NULL if it is not there.
json_t *lm_hf_config_at(const json_t *config, const char *key);
// Sets by such a key, making the table; takes the reference to value.
void lm_hf_config_set(json_t *config, const char *key, json_t *value);
#endif
