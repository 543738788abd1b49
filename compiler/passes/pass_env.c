// pass_env.c - which passes the environment of a compilation disables or forces.
#include <string.h>
#include "compiler/passes/pass.h"

bool lm_pass_among(const char *const *names, int n, const char *name) {
  for (int i = 0; i < n; i++)
    if (!strcmp(names[i], name))
      return true;
  return false;
}

bool lm_pass_is_off(const lm_pass_env *env, const char *name) {
  return lm_pass_among(env->disabled, env->n_disabled, name);
}

bool lm_pass_is_forced(const lm_pass_env *env, const char *name) {
  return lm_pass_among(env->forced, env->n_forced, name);
}
