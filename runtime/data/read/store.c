// store.c - see store.h.
#define _GNU_SOURCE
#include "runtime/data/read/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/base/parallel.h"

enum {
  BLOCK = 1 << 20,
  CHECKED_AT_ONCE = 512 << 20
};
static const char MAGIC[8] = "lmdata1";

typedef struct {
  char magic[8];
  uint64_t payload, tail, blocks, root, self;
} footer; // self: hash of the other fields

struct lm_store_writer {
  int fd;            // holds the lock while it is open
  char *path, *temp; // NULL: in memory
  char *block;
  size_t n; // bytes of block that are not written yet
  uint64_t size;
  uint64_t *hashes;
  size_t n_hashes;
  size_t cap_hashes;
};

// ---- writing

lm_status lm_store_writer_create(const char *path, lm_store_writer **out) {
  lm_store_writer *w = lm_alloc(sizeof *w);
  lm_status s = NULL;
  w->fd = -1;
  w->block = lm_alloc(BLOCK);
  if (path) {
    lm_buf temp = {0};
    lm_buf_printf(&temp, "%s.tmp", path);
    w->path = lm_strdup(path);
    w->temp = temp.p;
    s = lm_folder_set_aside(w->temp);
    if (!s)
      s = lm_temp_open(w->temp, &w->fd);
    if (!s && fchmod(w->fd, 0600))
      s = lm_fail_errno("cannot change the mode of %s", temp.p);
  } else {
    w->fd = memfd_create("lmc-data", MFD_CLOEXEC);
    if (w->fd < 0)
      s = lm_fail_errno("cannot create a file in memory");
  }
  if (s)
    lm_store_abort(w);
  *out = s ? NULL : w;
  return s;
}

static void writer_free(lm_store_writer *w) {
  if (w->fd >= 0)
    close(w->fd);
  lm_free(w->path);
  lm_free(w->temp);
  lm_free(w->block);
  lm_free(w->hashes);
  lm_free(w);
}

void lm_store_abort(lm_store_writer *w) {
  if (!w)
    return;
  if (w->temp && w->fd >= 0)
    unlink(w->temp);
  writer_free(w);
}

static lm_status write_all(lm_store_writer *w, const void *p, size_t n) {
  return lm_fd_write(w->fd, w->temp ? w->temp : "to memory", p, n);
}

// Compressed text may have any size: leave some free space for other users of the disk.
static lm_status room_check(const lm_store_writer *w) {
  enum {
    EVERY = 64,
    PERCENT = 2
  };
  struct statvfs v;
  if (!w->temp || w->n_hashes % EVERY || fstatvfs(w->fd, &v) || !v.f_blocks)
    return NULL;
  if ((double)v.f_bavail >= (double)v.f_blocks * PERCENT / 100)
    return NULL;
  return lm_fail(LM_ENV,
                 "cannot write %s: No space left on device but the last %d%%, which are not "
                 "filled; %.1f MB were written. LMC_CACHE names a folder "
                 "on another disk",
                 w->temp, PERCENT, (double)w->size / 1e6);
}

static lm_status block_write(lm_store_writer *w) {
  if (!w->n)
    return NULL;
  LM_TRY(room_check(w));
  if (w->n_hashes == w->cap_hashes) {
    w->cap_hashes = w->cap_hashes ? 2 * w->cap_hashes : 64;
    w->hashes = lm_realloc(w->hashes, w->cap_hashes * sizeof *w->hashes);
  }
  w->hashes[w->n_hashes] = lm_hash(w->block, w->n, w->n_hashes);
  w->n_hashes++;
  size_t n = w->n;
  w->n = 0;
  return write_all(w, w->block, n);
}

lm_status lm_store_add(lm_store_writer *w, const void *from, size_t n) {
  for (const char *p = from; n;) {
    size_t some = BLOCK - w->n < n ? BLOCK - w->n : n;
    memcpy(w->block + w->n, p, some);
    w->n += some;
    w->size += some;
    p += some;
    n -= some;
    if (w->n == BLOCK)
      LM_TRY(block_write(w));
  }
  return NULL;
}

uint64_t lm_store_size(const lm_store_writer *w) {
  return w->size;
}

static uint64_t root_hash(const void *tail, uint64_t n_tail, const uint64_t *hashes,
                          uint64_t blocks) {
  return lm_hash(hashes, blocks * sizeof *hashes, lm_hash(tail, n_tail, blocks));
}

// The tail is padded, so that the hashes after it are aligned.
static lm_status seal(lm_store_writer *w, const void *tail, size_t n_tail) {
  static const char zeros[16];
  LM_TRY(block_write(w));
  LM_TRY(write_all(w, zeros, -w->size % 8));
  LM_TRY(write_all(w, tail, n_tail));
  LM_TRY(write_all(w, zeros, -n_tail % 8));
  LM_TRY(write_all(w, w->hashes, w->n_hashes * sizeof *w->hashes));
  footer f = {.payload = w->size,
              .tail = n_tail,
              .blocks = w->n_hashes,
              .root = root_hash(tail, n_tail, w->hashes, w->n_hashes)};
  memcpy(f.magic, MAGIC, sizeof MAGIC);
  f.self = lm_hash(&f, offsetof(footer, self), 0);
  return write_all(w, &f, sizeof f);
}

static lm_status name_give(lm_store_writer *w) {
  if (!w->path)
    return NULL;
  if (fsync(w->fd))
    return lm_fail_errno("cannot write %s", w->temp);
  LM_TRY(lm_folder_set_aside(w->path));
  if (rename(w->temp, w->path))
    return lm_fail_errno("cannot rename %s to %s", w->temp, w->path);
  lm_arena *a = lm_arena_create();
  lm_status s = lm_dir_sync(lm_path_dir(a, w->path));
  lm_arena_destroy(a);
  flock(w->fd,
        LOCK_UN); // the store keeps the file open, and other processes must not wait for it
  return s;
}

// ---- reading

static size_t padded(uint64_t n) {
  return (size_t)((n + 7) / 8 * 8);
}

const char *lm_store_name(const lm_store *s) {
  return s->path ? s->path : "memory";
}

static lm_status range_read(const lm_store *s, uint64_t at, uint64_t n, void *to) {
  return lm_fd_read_at(s->fd, lm_store_name(s), (int64_t)at, to, n);
}

// false: the file is not a complete store.
static bool footer_fits(const footer *f, uint64_t size) {
  if (memcmp(f->magic, MAGIC, sizeof MAGIC) || f->self != lm_hash(f, offsetof(footer, self), 0))
    return false;
  if (f->payload > size || f->tail > size || f->blocks != (f->payload + BLOCK - 1) / BLOCK)
    return false;
  return padded(f->payload) + padded(f->tail) + f->blocks * sizeof(uint64_t) + sizeof *f == size;
}

static lm_status layout_read(lm_store *s, bool *out_whole) {
  footer f;
  uint64_t size = (uint64_t)s->opened.st_size;
  *out_whole = false;
  if (size < sizeof f)
    return NULL;
  LM_TRY(range_read(s, size - sizeof f, sizeof f, &f));
  if (!footer_fits(&f, size))
    return NULL;
  size_t n_rest = padded(f.tail) + f.blocks * sizeof *s->hashes;
  s->rest = lm_alloc(n_rest + 1);
  LM_TRY(range_read(s, padded(f.payload), n_rest, s->rest));
  s->n = f.payload;
  s->tail = s->rest;
  s->n_tail = f.tail;
  s->hashes = (const uint64_t *)(s->rest + padded(f.tail));
  s->n_blocks = f.blocks;
  s->root = f.root;
  *out_whole = f.root == root_hash(s->tail, f.tail, s->hashes, f.blocks);
  return NULL;
}

static size_t block_size(const lm_store *s, uint64_t b) {
  return b + 1 < s->n_blocks ? BLOCK : (size_t)(s->n - b * BLOCK);
}

static lm_status block_compare(const lm_store *s, uint64_t b, bool *out_good) {
  char *p = lm_alloc(BLOCK);
  size_t n = block_size(s, b);
  lm_status status = range_read(s, b * BLOCK, n, p);
  *out_good = !status && lm_hash(p, n, b) == s->hashes[b];
  lm_free(p);
  return status;
}

static void block_check(void *user, int64_t b, int worker) {
  lm_store *s = user;
  bool good;
  lm_status_free(block_compare(s, (uint64_t)b, &good));
  __atomic_store_n(&s->checked[b], good, __ATOMIC_RELAXED);
}

static bool all_good(lm_store *s, int threads) {
  lm_parallel(threads, (int64_t)s->n_blocks, block_check, s);
  for (uint64_t b = 0; b < s->n_blocks; b++)
    if (!s->checked[b])
      return false;
  return true;
}

// Takes ownership of fd; *out = NULL if the file is not a complete store.
static lm_status store_read(int fd, const char *path, lm_store **out) {
  bool whole = false;
  *out = NULL;
  lm_store *s = lm_alloc(sizeof *s);
  s->fd = fd;
  s->path = path ? lm_strdup(path) : NULL;
  lm_status status = fstat(fd, &s->opened) ? lm_fail_errno("cannot read %s", lm_store_name(s))
                                           : layout_read(s, &whole);
  if (status || !whole) {
    lm_store_close(s);
    return status;
  }
  s->checked = lm_alloc(s->n_blocks);
  if (s->n > CHECKED_AT_ONCE)
    posix_fadvise(fd, 0, 0,
                  POSIX_FADV_RANDOM); // rows are read in random order, so reading ahead is useless
  *out = s;
  return NULL;
}

lm_status lm_store_finish(lm_store_writer *w, const void *tail, size_t n_tail, lm_store **out) {
  lm_status s = seal(w, tail, n_tail);
  if (!s)
    s = name_give(w);
  if (!s)
    s = store_read(fcntl(w->fd, F_DUPFD_CLOEXEC, 0), w->path, out);
  if (!s && !*out)
    s = lm_fail(LM_ENV, "%s does not contain the bytes that were written to it",
                w->path ? w->path : "memory");
  if (s) {
    *out = NULL;
    lm_store_abort(w);
    return s;
  }
  memset((*out)->checked, 1, (*out)->n_blocks);
  writer_free(w);
  return NULL;
}

// True if a path that cannot be opened, for the reason `error`, names no file of this cache: a
// link, a FIFO, a device, or a file of another user.
static bool is_foreign(int error) {
  static const int errors[] = {ELOOP, EINVAL, ENXIO, EPERM, EACCES};
  for (size_t i = 0; i < LM_COUNT(errors); i++)
    if (error == errors[i])
      return true;
  return false;
}

// *out_fd = -1: there is no file; a foreign one is removed, and a folder gives way to the new file.
static lm_status trusted_open(const char *path, int *out_fd) {
  lm_status s = lm_open_trusted_at(AT_FDCWD, path, path, out_fd);
  int error = errno;
  if (!s)
    return NULL;
  bool absent = error == ENOENT || error == EISDIR;
  if (!absent && (!is_foreign(error) || unlink(path)))
    return s;
  lm_status_free(s);
  return NULL;
}

lm_status lm_store_open(const char *path, int threads, lm_store **out) {
  int fd;
  *out = NULL;
  LM_TRY(trusted_open(path, &fd));
  if (fd < 0)
    return NULL;
  LM_TRY(store_read(fd, path, out));
  if (*out && ((*out)->n > CHECKED_AT_ONCE || all_good(*out, threads)))
    return NULL;
  lm_store_close(*out);
  *out = NULL;
  unlink(path);
  return NULL;
}

void lm_store_close(lm_store *s) {
  if (!s)
    return;
  if (s->fd >= 0)
    close(s->fd);
  lm_free(s->path);
  lm_free(s->rest);
  lm_free(s->checked);
  lm_free(s);
}

lm_status lm_store_check(const lm_store *s, uint64_t at, uint64_t n) {
  LM_ASSERT(n <= s->n && at <= s->n - n);
  for (uint64_t b = at / BLOCK; n && b <= (at + n - 1) / BLOCK; b++) {
    if (__atomic_load_n(&s->checked[b], __ATOMIC_RELAXED))
      continue;
    bool good;
    LM_TRY(block_compare(s, b, &good));
    if (!good) {
      unlink(s->path);
      return lm_fail(LM_ENV,
                     "%s is damaged near byte %llu; it was removed, and the next run rebuilds it",
                     s->path, (unsigned long long)(b * BLOCK));
    }
    __atomic_store_n(&s->checked[b], 1, __ATOMIC_RELAXED);
  }
  return NULL;
}

lm_status lm_store_read(const lm_store *s, uint64_t at, uint64_t n, void *to) {
  LM_TRY(lm_store_check(s, at, n));
  return range_read(s, at, n, to);
}

// Deleting or renaming an open file does not change its content, so only fstat is compared.
lm_status lm_store_unchanged(lm_store *s) {
  struct stat now;
  if (!s || !s->path)
    return NULL;
  if (fstat(s->fd, &now))
    return lm_fail_errno("cannot read %s", s->path);
  if (lm_file_is_same(&s->opened, &now))
    return NULL;
  // if only the name, the mode or the times changed, the hashes still match
  if (now.st_size != s->opened.st_size || !all_good(s, 0))
    return lm_fail(LM_ENV,
                   "%s was changed while this run used it; steps since the last checkpoint may "
                   "have used other data. Run again: the file is rebuilt, "
                   "and the run resumes from that checkpoint",
                   s->path);
  s->opened = now;
  return NULL;
}

uint64_t lm_store_payload_key(const lm_store *s) {
  return lm_hash(s->hashes, s->n_blocks * sizeof *s->hashes, s->n);
}
