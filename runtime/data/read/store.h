// store.h - a file of the cache: written once from front to back, sealed with hashes, then read.
//
//   payload | tail: metadata of the writer | hash of each MiB of the payload | footer: sizes, hash
//   of the tail and of the hashes
//
// A file gets its final name only when it is complete and synced. Processes may share a folder: the
// writer of a file locks its temporary name, so other processes wait and then find the file.
#ifndef LM_DATA_READ_STORE_H
#define LM_DATA_READ_STORE_H
#include <sys/stat.h>

#include "runtime/base/base.h"

typedef struct lm_store_writer lm_store_writer;
// path NULL: in memory. The temporary file stays locked until finish or abort.
lm_status lm_store_writer_create(const char *path, lm_store_writer **out);
lm_status lm_store_add(lm_store_writer *w, const void *p, size_t n);
uint64_t lm_store_size(const lm_store_writer *w); // bytes added so far
void lm_store_abort(lm_store_writer *w);          // w may be NULL

typedef struct lm_store {
  uint64_t n; // bytes of the payload
  const char *tail;
  uint64_t n_tail;
  uint64_t root; // hash of payload and tail
  // private
  int fd;
  char *path;         // NULL: in memory
  struct stat opened; // the result of stat when the file was opened
  char *rest;         // tail and hashes
  const uint64_t *hashes;
  uint64_t n_blocks;
  unsigned char *checked; // [n_blocks]: whether the block was compared with its hash
} lm_store;

// Seals the file, renames it to its final name and opens it. Frees w, also on failure.
lm_status lm_store_finish(lm_store_writer *w, const void *tail, size_t n_tail, lm_store **out);
// *out = NULL without an error if there is no file, or a damaged one, or one that another user may
// have written; the latter two are removed. Files up to 512 MiB are compared with their hashes at
// once, larger ones block by block in lm_store_check.
lm_status lm_store_open(const char *path, int threads, lm_store **out);
void lm_store_close(lm_store *s);             // s may be NULL
const char *lm_store_name(const lm_store *s); // for messages
// A hash of the payload without the tail, which may depend on the origin of the payload.
uint64_t lm_store_payload_key(const lm_store *s);
// Compares the unchecked blocks of a range with their hashes. LM_ENV: the file is damaged; it is
// removed, so that the next run rebuilds it. Thread-safe.
lm_status lm_store_check(const lm_store *s, uint64_t at, uint64_t n);
// Checks and copies a range. LM_ENV: the file is damaged or was truncated.
lm_status lm_store_read(const lm_store *s, uint64_t at, uint64_t n, void *to);
// LM_ENV: the file was written to since it was opened. s may be NULL.
lm_status lm_store_unchanged(lm_store *s);
#endif
