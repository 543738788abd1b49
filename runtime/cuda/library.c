// library.c - see library.h.
#define _GNU_SOURCE // dlinfo
#include "runtime/cuda/library.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// RTLD_NODELETE: the libraries stay loaded after dlclose, since their allocations are referenced
// only by their own variables.
enum {
  OPEN_FLAGS = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE
};

static void *open_in(const char *folder, const char *name) {
  static const char *const parts[] = {"lib64", "lib", "targets/x86_64-linux/lib",
                                      "targets/sbsa-linux/lib"};
  void *found = NULL;
  for (size_t i = 0; folder && *folder && !found && i < LM_COUNT(parts); i++) {
    lm_buf path = {0};
    lm_buf_printf(&path, "%s/%s/%s", folder, parts[i], name);
    found = dlopen(path.p, OPEN_FLAGS);
    lm_buf_free(&path);
  }
  return found;
}

lm_status lm_library_open(const char *what, const char *const *names, void **out) {
  const char *const folders[] = {getenv("CUDA_HOME"), getenv("CUDA_PATH"), "/usr/local/cuda"};
  lm_buf tried = {0};
  *out = NULL;
  for (int i = 0; names[i] && !*out; i++) {
    *out = dlopen(names[i], OPEN_FLAGS);
    for (size_t f = 0; !*out && f < LM_COUNT(folders); f++)
      *out = open_in(folders[f], names[i]);
    lm_buf_printf(&tried, "%s%s", i ? ", " : "", names[i]);
  }
  lm_status s = *out ? NULL : lm_fail(LM_ENV, "%s was not found (tried %s)", what, tried.p);
  lm_buf_free(&tried);
  return s;
}

lm_status lm_toolkit_open(const char *what, const char *stem, int driver, void **out) {
  enum {
    NEWEST = 13,
    OLDEST = 12
  };
  char text[NEWEST - OLDEST + 1][32];
  const char *names[NEWEST - OLDEST + 2] = {NULL};
  int n = 0;
  *out = NULL;
  for (int major = NEWEST; major >= OLDEST; major--) {
    if (driver && driver / 1000 < major)
      continue;
    snprintf(text[n], sizeof text[n], "%s.%d", stem, major);
    names[n] = text[n];
    n++;
  }
  if (!n)
    return lm_fail(LM_ENV, "the NVIDIA driver knows CUDA %d.%d; CUDA %d is the oldest supported",
                   driver / 1000, driver % 1000 / 10, OLDEST);
  return lm_library_open(what, names, out);
}

lm_status lm_library_resolve(void *library, const char *what, const char *const *names, int n,
                             void **functions) {
  for (int i = 0; i < n; i++) {
    functions[i] = dlsym(library, names[i]);
    if (!functions[i])
      return lm_fail(LM_ENV, "%s is too old: it has no %s", what, names[i]);
  }
  return NULL;
}

const char *lm_library_path(lm_arena *a, void *library) {
  struct link_map *map = NULL;
  return !dlinfo(library, RTLD_DI_LINKMAP, &map) && map ? lm_arena_printf(a, "%s", map->l_name)
                                                        : "";
}

void lm_library_preload(void *library, const char *name) {
  lm_arena *a = lm_arena_create();
  const char *path = lm_library_path(a, library);
  const char *slash = strrchr(path, '/');
  if (slash)
    dlopen(lm_arena_printf(a, "%.*s/%s", (int)(slash - path), path, name), OPEN_FLAGS);
  lm_arena_destroy(a);
}

void lm_library_close(void *library) {
  if (library)
    dlclose(library);
}
