// plan_stage.h - names of the functions that compute a micro-batch of each sequence length: "loss"
// in the graph and "micro" in the plan at the length of the last stage, "loss.64" and "micro.64" at
// another. Lowering, differentiation and the runtime agree on them here.
#ifndef LM_PLAN_STAGE_H
#define LM_PLAN_STAGE_H
#include <string.h>

#include "runtime/base/base.h"

#define LM_FUNC_LOSS "loss"
#define LM_FUNC_MICRO "micro"

// seq: 0 for the length of the last stage. The result is in `a`.
static inline const char *lm_stage_func(lm_arena *a, const char *base, int64_t seq) {
  return seq ? lm_arena_printf(a, "%s.%lld", base, (long long)seq) : base;
}

// The length's part of a name, "" or ".64"; NULL if the name is of no function `base`.
static inline const char *lm_stage_func_suffix(const char *name, const char *base) {
  size_t n = strlen(base);
  return strncmp(name, base, n) || (name[n] && name[n] != '.') ? NULL : name + n;
}
#endif
