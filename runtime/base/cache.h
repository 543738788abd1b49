// cache.h - an on-disk cache of compiled kernels, addressed by content.
//
// The name of an entry has a hash of everything that its code depends on. An entry is written to a
// temporary file and renamed, so processes may share the folder. It ends with a hash of its
// contents; an entry whose hash does not match is treated as absent.
//
// The cache never loads code that another user could have written. The folder is $LMC_CACHE, or if
// that is not set $XDG_CACHE_HOME/lmc, or else ~/.cache/lmc. It is created with mode 0700. If it
// exists:
//   - A folder that belongs to this user and that only this user may write to is used.
//   - In a folder that others may write to, or that belongs to another user but is writable, a
//     subfolder user-UID of mode 0700 is used.
//   - A folder that this user may not write to is used for reading if it belongs to this user or
//     root and no other user may write to it. New entries go to the default folder, or if that is
//     unusable to a temporary folder that is removed when the process ends.
// Every entry is opened without following links; its owner and mode are checked on the open
// descriptor. Files that are not named like entries are neither counted nor removed. A folder with
// the name of an entry is renamed to foreign-NAME.
#ifndef LM_BASE_CACHE_H
#define LM_BASE_CACHE_H
#include "runtime/base/file.h"

// 128 bits in hexadecimal.
typedef struct lm_cache_key {
  char text[33];
} lm_cache_key;

typedef struct lm_cache {
  const char *dir; // the folder to which entries are added
  int fd;
  const char *shared;        // a read-only folder that is searched too; NULL if there is none
  int shared_fd;             // -1 if there is none
  const char *why_temporary; // the reason why `dir` is temporary; NULL if it is not
  uint64_t limit; // maximum bytes of the unused entries in `dir`; $LMC_CACHE_SIZE, default 4 GiB
} lm_cache;

// Texts are in `arena`. Prints the reason for a temporary folder to standard error, once a process.
lm_status lm_cache_open(lm_arena *arena, lm_cache *out);
void lm_cache_close(lm_cache *c);
// The path of the folder alone, for other files that are kept there.
lm_status lm_cache_dir(lm_arena *arena, const char **out_dir);
// Total bytes of the entries in `dir`.
uint64_t lm_cache_bytes(const lm_cache *c);

// Hashes a list of strings. Parts are delimited, so {"ab", "c"} and {"a", "bc"} differ.
lm_cache_key lm_cache_key_make(const char *const *parts, int n);

typedef struct lm_cache_entry {
  int fd;
  uint64_t id[2]; // file system and inode
} lm_cache_entry;
// Opens the entry of that name; false if there is none that can be trusted. Does not verify the
// hash.
bool lm_cache_find(const lm_cache *c, const char *name, lm_cache_entry *out);
// Reads an entry, without the trailing hash, and updates its time of use. False if the entry is
// damaged; it is then removed if possible.
bool lm_cache_read(const lm_cache *c, const char *name, const lm_cache_entry *e, lm_buf *out);

// Appends the hash to the file `made` in the temporary folder `from` and renames it to all the
// names, as hard links of one file if the file system supports them. Then removes the least
// recently used entries until the size is within the limit.
lm_status lm_cache_add(const lm_cache *c, const lm_temp_dir *from, const char *made,
                       const char *const *names, int n);
// Writes another file of the cache, whatever its path names now.
lm_status lm_cache_file_write(const char *path, const void *p, size_t n);
// Reads it. LM_ENV: there is none, or one that cannot be trusted.
lm_status lm_cache_file_read(const char *path, size_t max_bytes, lm_buf *out);
// Creates a temporary folder in the cache.
lm_status lm_cache_temp_dir(const lm_cache *c, lm_temp_dir *out);
// Creates a file in it, which must not exist.
lm_status lm_cache_temp_write(const lm_temp_dir *d, const char *name, const char *p, size_t n);
#endif
