// import_check.h - values of a foreign model that no computation can use.
#ifndef LM_DRIVER_IMPORT_CHECK_H
#define LM_DRIVER_IMPORT_CHECK_H
#include <jansson.h>

#include "driver/weights/weights.h"

// LM_USER if a number of config.json is out of its range: a rope_theta that is not positive, a
// negative epsilon. config may be NULL.
lm_status lm_import_numbers_check(const json_t *config, const char *path);
// LM_USER if the value of a key of config.json is a name that no model of examples/zoo computes: a
// RoPE scaling or an activation that std.nn does not have. value may be NULL.
lm_status lm_import_name_check(const char *key, const json_t *value, const char *path);
// LM_USER if the tokenizer has more tokens than config.json's vocab_size.
lm_status lm_import_vocab_check(const json_t *config, const char *dir, int64_t vocab);
// LM_USER if the parameters take more memory than this machine has.
lm_status lm_import_memory_check(lm_arena *a, const lm_plan *plan);
// LM_USER with the names of the parameters that hold NaN or Inf.
lm_status lm_import_finite_check(lm_weights w);
#endif
