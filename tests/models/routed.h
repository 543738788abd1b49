// routed.h - the models of tests/models whose positions are routed to experts, which some targets
// and passes do not support yet.
#ifndef LM_TESTS_ROUTED_H
#define LM_TESTS_ROUTED_H
#include <stdbool.h>
#include <string.h>

// path: of a model's folder or of a file in it
static inline bool model_is_routed(const char *path) {
  return strstr(path, "mixtral") || strstr(path, "deepseekv3") || strstr(path, "qwen3moe") ||
         strstr(path, "capacity");
}

#endif
