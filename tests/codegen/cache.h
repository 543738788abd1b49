// cache.h - a kernel cache that lasts as long as the test, unless LMC_CACHE names another. Included
// first.
#ifndef LM_TESTS_CODEGEN_CACHE_H
#define LM_TESTS_CODEGEN_CACHE_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE // nftw
#endif
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>

static inline int cache_entry_remove(const char *path, const struct stat *s, int kind,
                                     struct FTW *at) {
  return remove(path);
}

static inline void cache_remove(void) {
  nftw(getenv("LMC_CACHE"), cache_entry_remove, 16, FTW_DEPTH | FTW_PHYS);
}

static inline void cache_begin(void) {
  char dir[] = "/tmp/lmc-test-XXXXXX";
  if (getenv("LMC_CACHE") || !mkdtemp(dir))
    return;
  setenv("LMC_CACHE", dir, 1);
  atexit(cache_remove);
}
#endif
