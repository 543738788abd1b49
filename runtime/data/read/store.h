// store.h - a file of the cache: bytes written once from front to back, sealed with hashes, then
// read.
//
//   payload | tail: what the writer says of it | hash of each MiB of the payload | footer: sizes,
//   hash of tail and hashes
//
// A file appears under its name only when it is whole and on disk. Processes may share a folder:
// who writes a file holds a lock on its temporary name, so the others wait and then find it.
#ifndef LM_DATA_STORE_H
#define LM_DATA_STORE_H
#include <sys/stat.h>

#include "runtime/base/base.h"

typedef struct lm_store_writer lm_store_writer;
// path NULL: in memory. The temporary file stays locked until finish or abort.
lm_status lm_store_writer_create(const char *path, lm_store_writer **out);
lm_status lm_store_add(lm_store_writer *w, const void *p, size_t n);
uint64_t lm_store_size(const lm_store_writer *w); // bytes added so far
void lm_store_abort(lm_store_writer *w);          // NULL is fine

typedef struct lm_store {
  uint64_t n; // bytes of the payload
  const char *tail;
  uint64_t n_tail;
  uint64_t root; // hash of everything
  // private
  int fd;
  char *path;         // NULL: in memory
  struct stat opened; // as it was then
  char *rest;         // tail and hashes
  const uint64_t *hashes;
  uint64_t n_blocks;
  unsigned char *checked; // [n_blocks]: compared with its hash
} lm_store;

// Seals the file, gives it its name, and opens it. Frees w, whatever happens.
lm_status lm_store_finish(lm_store_writer *w, const void *tail, size_t n_tail, lm_store **out);
// *out = NULL without an error: there is none, or a damaged one, or one that another user may have
// written, which is removed. Files up to 512 MiB are compared with their hashes at once, larger
// ones when lm_store_check reaches a block.
lm_status lm_store_open(const char *path, int threads, lm_store **out);
void lm_store_close(lm_store *s);             // NULL is fine
const char *lm_store_name(const lm_store *s); // for messages
// Of the payload alone: the tail may say where it came from.
uint64_t lm_store_payload_key(const lm_store *s);
// Compares what has not been compared of a range with its hashes. LM_ENV: it is damaged; the file
// is removed, so the next run makes it anew. Any number of threads.
lm_status lm_store_check(const lm_store *s, uint64_t at, uint64_t n);
// Copies a range, checked. LM_ENV: it is damaged, or the file has become shorter.
lm_status lm_store_read(const lm_store *s, uint64_t at, uint64_t n, void *to);
// LM_ENV: the file was written to since it was opened. NULL is fine.
lm_status lm_store_unchanged(lm_store *s);
#endif
