// cache.h - compiled kernels on disk, by content.
//
// An entry is named by everything its code depends on. It is written under another name and
// renamed, so processes may share the folder; it ends with a hash of itself, and one that does not
// match is as good as absent.
//
// Code is only taken from where no other user can put it. $LMC_CACHE names the folder (else
// $XDG_CACHE_HOME/lmc, else
// ~/.cache/lmc), made with mode 0700:
//   - a folder of this user's that nobody else may write to is used as it is;
//   - in a folder that others may write to, or that belongs to another user, a sub folder user-UID
//   of mode 0700 is used;
//   - a folder that this user may not write to is read, if it belongs to this user or root and
//   nobody else may write to it;
//     what it lacks goes to the default folder, or where that cannot be used to a temporary one
//     that ends with the process.
// Every entry is opened without following links, and its owner and mode are checked on the
// descriptor that is then read.
#ifndef LM_BASE_CACHE_H
#define LM_BASE_CACHE_H
#include "runtime/base/file.h"

typedef struct lm_cache_key {
  char text[33];
} lm_cache_key; // 128 bits in hex

typedef struct lm_cache {
  const char *dir;
  int fd; // where entries are added
  const char *shared;
  int shared_fd;             // where they are only looked for; NULL and -1: nowhere
  const char *why_temporary; // why `dir` ends with the process, NULL: it does not
  uint64_t limit; // bytes of the files in `dir`, but for those in use ($LMC_CACHE_SIZE, else 4 GiB)
} lm_cache;

// Texts are in `arena`. Says on standard error, once a process, why a temporary folder is used.
lm_status lm_cache_open(lm_arena *arena, lm_cache *out);
void lm_cache_close(lm_cache *c);
// The folder alone, for other files that are kept there.
lm_status lm_cache_dir(lm_arena *arena, const char **out_dir);
// Bytes of the files in `dir`.
uint64_t lm_cache_bytes(const lm_cache *c);

// Parts are separated, so {"ab", "c"} and {"a", "bc"} differ.
lm_cache_key lm_cache_key_make(const char *const *parts, int n);

typedef struct lm_cache_entry {
  int fd;
  uint64_t id[2];
} lm_cache_entry; // id: file system and inode
// Whether there is a file of that name that can be trusted; then it is open. It need not be whole.
bool lm_cache_find(const lm_cache *c, const char *name, lm_cache_entry *out);
// Reads it, but for the hash, and notes that it is in use. False: it is damaged; it was removed
// where possible.
bool lm_cache_read(const lm_cache *c, const char *name, const lm_cache_entry *e, lm_buf *out);

// Appends the hash to the file `made` in the temporary folder and gives it all the names, as one
// file of many names where the file system can. Then removes the entries that were used least
// recently as long as there are more bytes than the limit.
lm_status lm_cache_add(const lm_cache *c, const lm_temp_dir *from, const char *made,
                       const char *const *names, int n);
// A temporary folder in the cache.
lm_status lm_cache_temp_dir(const lm_cache *c, lm_temp_dir *out);
#endif
