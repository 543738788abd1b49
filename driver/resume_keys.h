// resume_keys.h - the values of a recipe that must not change when a run is resumed: all but the
// keys that schema.def marks RESUMABLE; and the passes that are disabled.
#ifndef LM_DRIVER_RESUME_KEYS_H
#define LM_DRIVER_RESUME_KEYS_H
#include "driver/session.h"
#include "runtime/train/checkpoint.h"

typedef struct lm_recipe_keys {
  lm_train_key *v;
  uint32_t n, cap;
} lm_recipe_keys;
// The values of an open session, with the passes that its variant disables and enables.
lm_recipe_keys lm_recipe_keys_of(const lm_session *s);

typedef struct lm_recipe_change {
  const char *key, *was, *is;
} lm_recipe_change; // key: "optimizer.lr"
typedef struct lm_recipe_changes {
  lm_recipe_change *v;
  uint32_t n, cap;
} lm_recipe_changes;
// The differences; one for each argument where the same function is called with other arguments.
lm_recipe_changes lm_recipe_keys_compare(const lm_session *s, const lm_train_key *was, int n_was,
                                         const lm_recipe_keys *is);

// True if `path` is the key or a prefix of it: optimizer is a prefix of optimizer.lr.
bool lm_recipe_key_under(const char *key, const char *path);
// LM_USER if `path` names no value of the recipe.
lm_status lm_recipe_key_check(const lm_session *s, const lm_recipe_keys *keys, const char *path);
#endif
