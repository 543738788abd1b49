// cache.h - compiled kernels on disk, by content.
//
// A kernel's file is named by everything its code depends on. Files are written under another name and renamed, so
// processes may share a folder; each ends with a hash of itself, and one that does not match is as good as absent.
#ifndef LM_BASE_CACHE_H
#define LM_BASE_CACHE_H
#include "runtime/base/base.h"

typedef struct lm_cache_key { char text[33]; } lm_cache_key;   // 128 bits in hex

// The folder, made if need be, in `arena`.
lm_status lm_cache_open(lm_arena *arena, const char **out_dir);
// Parts are separated, so {"ab", "c"} and {"a", "bc"} differ.
lm_cache_key lm_cache_key_make(const char *const *parts, int n);
// Whether a whole file is there. A damaged one is removed.
bool lm_cache_has(const char *path);
// Appends the hash to the file `made` and gives it all the `paths`, as one file of many names where the file system can.
lm_status lm_cache_add(const char *made, const char *const *paths, int n);
#endif
