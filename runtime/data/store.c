// store.c - see store.h.
#define _GNU_SOURCE
#include "runtime/data/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/parallel.h"

enum { BLOCK = 1 << 20, CHECKED_AT_ONCE = 512 << 20 };
static const char MAGIC[8] = "lmdata1";

typedef struct { char magic[8]; uint64_t payload, tail, blocks, root, self; } footer;   // self: hash of the fields before

struct lm_store_writer {
  int fd;
  char *path, *temp;                   // NULL: in memory
  char *block; size_t n;               // what is not yet written
  uint64_t size;
  uint64_t *hashes; size_t n_hashes, cap_hashes;
};

// ---- writing

static lm_status temp_lock(lm_store_writer *w) {
  struct stat mine, named;
  for (;;) {
    w->fd = open(w->temp, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (w->fd < 0) return lm_fail_errno("cannot create %s", w->temp);
    while (flock(w->fd, LOCK_EX))
      if (errno != EINTR) return lm_fail_errno("cannot lock %s", w->temp);
    // whoever held the lock may have renamed or removed the file
    if (!fstat(w->fd, &mine) && !stat(w->temp, &named) && mine.st_ino == named.st_ino && mine.st_dev == named.st_dev) break;
    close(w->fd);
  }
  return ftruncate(w->fd, 0) ? lm_fail_errno("cannot write %s", w->temp) : NULL;
}

lm_status lm_store_writer_create(const char *path, lm_store_writer **out) {
  lm_store_writer *w = lm_alloc(sizeof *w);
  lm_status s = NULL;
  w->block = lm_alloc(BLOCK);
  if (path) {
    lm_buf temp = {0};
    lm_buf_printf(&temp, "%s.tmp", path);
    w->path = lm_strdup(path);
    w->temp = temp.p;
    s = temp_lock(w);
  } else {
    w->fd = memfd_create("lmc-data", MFD_CLOEXEC);
    if (w->fd < 0) s = lm_fail_errno("cannot make a file in memory");
  }
  if (s) lm_store_abort(w);
  *out = s ? NULL : w;
  return s;
}

static void writer_free(lm_store_writer *w) {
  if (w->fd >= 0) close(w->fd);        // gives up the lock
  lm_free(w->path);
  lm_free(w->temp);
  lm_free(w->block);
  lm_free(w->hashes);
  lm_free(w);
}

void lm_store_abort(lm_store_writer *w) {
  if (!w) return;
  if (w->temp && w->fd >= 0) unlink(w->temp);
  writer_free(w);
}

static lm_status write_all(lm_store_writer *w, const void *p, size_t n) {
  return lm_fd_write(w->fd, w->temp ? w->temp : "to memory", p, n);
}

static lm_status block_write(lm_store_writer *w) {
  if (!w->n) return NULL;
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
  for (const char *p = from; n; ) {
    size_t some = BLOCK - w->n < n ? BLOCK - w->n : n;
    memcpy(w->block + w->n, p, some);
    w->n += some, w->size += some;
    p += some, n -= some;
    if (w->n == BLOCK) LM_TRY(block_write(w));
  }
  return NULL;
}

uint64_t lm_store_size(const lm_store_writer *w) { return w->size; }

static uint64_t root_hash(const void *tail, uint64_t n_tail, const uint64_t *hashes, uint64_t blocks) {
  return lm_hash(hashes, blocks * sizeof *hashes, lm_hash(tail, n_tail, blocks));
}

// The tail is padded, so that the hashes behind it are aligned.
static lm_status seal(lm_store_writer *w, const void *tail, size_t n_tail) {
  static const char zeros[16];
  LM_TRY(block_write(w));
  LM_TRY(write_all(w, zeros, -w->size % 8));
  LM_TRY(write_all(w, tail, n_tail));
  LM_TRY(write_all(w, zeros, -n_tail % 8));
  LM_TRY(write_all(w, w->hashes, w->n_hashes * sizeof *w->hashes));
  footer f = {.payload = w->size, .tail = n_tail, .blocks = w->n_hashes, .root = root_hash(tail, n_tail, w->hashes, w->n_hashes)};
  memcpy(f.magic, MAGIC, sizeof MAGIC);
  f.self = lm_hash(&f, offsetof(footer, self), 0);
  return write_all(w, &f, sizeof f);
}

static lm_status name_give(lm_store_writer *w) {
  if (!w->path) return NULL;
  if (fsync(w->fd)) return lm_fail_errno("cannot write %s", w->temp);
  if (rename(w->temp, w->path)) return lm_fail_errno("cannot rename %s to %s", w->temp, w->path);
  lm_arena *a = lm_arena_create();
  lm_status s = lm_dir_sync(lm_path_dir(a, w->path));
  lm_arena_destroy(a);
  return s;
}

// ---- reading

static size_t padded(uint64_t n) { return (size_t)((n + 7) / 8 * 8); }

// False: the file is no whole store.
static bool layout_read(lm_store *s) {
  footer f;
  if (s->n_map < sizeof f) return false;
  memcpy(&f, (char *)s->map + s->n_map - sizeof f, sizeof f);
  if (memcmp(f.magic, MAGIC, sizeof MAGIC) || f.self != lm_hash(&f, offsetof(footer, self), 0)) return false;
  if (f.payload > s->n_map || f.tail > s->n_map || f.blocks != (f.payload + BLOCK - 1) / BLOCK) return false;
  if (padded(f.payload) + padded(f.tail) + f.blocks * sizeof *s->hashes + sizeof f != s->n_map) return false;
  s->payload = s->map;
  s->n = f.payload;
  s->tail = s->payload + padded(f.payload);
  s->n_tail = f.tail;
  s->hashes = (const uint64_t *)(s->tail + padded(f.tail));
  s->n_blocks = f.blocks;
  s->root = f.root;
  return f.root == root_hash(s->tail, f.tail, s->hashes, f.blocks);
}

static size_t block_size(const lm_store *s, uint64_t b) { return b + 1 < s->n_blocks ? BLOCK : (size_t)(s->n - b * BLOCK); }

// Its pages need not stay in the process: of a shared mapping of a file nothing is lost.
static bool block_is_good(const lm_store *s, uint64_t b) {
  char *p = (char *)s->payload + b * BLOCK;
  size_t n = block_size(s, b);
  if (s->path) madvise(p, n, MADV_WILLNEED);   // all of it at once
  bool good = lm_hash(p, n, b) == s->hashes[b];
  if (s->path) madvise(p, n, MADV_DONTNEED);
  return good;
}

static void block_check(void *user, int64_t b, int worker) {
  lm_store *s = user;
  s->checked[b] = block_is_good(s, (uint64_t)b);
}

static bool all_good(lm_store *s, int threads) {
  if (s->n > CHECKED_AT_ONCE) return true;
  lm_parallel(threads, (int64_t)s->n_blocks, block_check, s);
  for (uint64_t b = 0; b < s->n_blocks; b++)
    if (!s->checked[b]) return false;
  return true;
}

// Maps the file, and takes fd; *out = NULL if it is no whole store.
static lm_status store_map(int fd, const char *path, lm_store **out) {
  struct stat st;
  *out = NULL;
  lm_store *s = lm_alloc(sizeof *s);
  s->fd = fd;
  if (fstat(fd, &st) || st.st_size < (off_t)sizeof(footer)) {
    lm_store_close(s);
    return NULL;
  }
  s->path = path ? lm_strdup(path) : NULL;
  s->n_map = (size_t)st.st_size;
  s->map = mmap(NULL, s->n_map, PROT_READ, MAP_SHARED, fd, 0);
  if (s->map == MAP_FAILED) {
    s->map = NULL;
    lm_store_close(s);
    return lm_fail_errno("cannot map %s", path ? path : "memory");
  }
  if (!layout_read(s)) {
    lm_store_close(s);
    return NULL;
  }
  s->checked = lm_alloc(s->n_blocks);
  if (s->n > CHECKED_AT_ONCE) posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);   // rows come by chance: neighbours are not worth reading
  *out = s;
  return NULL;
}

lm_status lm_store_finish(lm_store_writer *w, const void *tail, size_t n_tail, lm_store **out) {
  lm_status s = seal(w, tail, n_tail);
  if (!s) s = name_give(w);
  if (!s) s = store_map(dup(w->fd), w->path, out);
  if (!s && !*out) s = lm_fail(LM_ENV, "%s is not what was written to it", w->path ? w->path : "memory");
  if (s) {
    *out = NULL;
    lm_store_abort(w);
    return s;
  }
  memset((*out)->checked, 1, (*out)->n_blocks);
  writer_free(w);
  return NULL;
}

lm_status lm_store_open(const char *path, int threads, lm_store **out) {
  *out = NULL;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno == ENOENT ? NULL : lm_fail_errno("cannot open %s", path);
  LM_TRY(store_map(fd, path, out));
  if (*out && all_good(*out, threads)) return NULL;
  lm_store_close(*out);
  *out = NULL;
  unlink(path);
  return NULL;
}

void lm_store_close(lm_store *s) {
  if (!s) return;
  if (s->map) munmap(s->map, s->n_map);
  if (s->fd >= 0) close(s->fd);
  lm_free(s->path);
  lm_free(s->checked);
  lm_free(s);
}

lm_status lm_store_check(const lm_store *s, uint64_t at, uint64_t n) {
  LM_ASSERT(n <= s->n && at <= s->n - n);
  for (uint64_t b = at / BLOCK; n && b <= (at + n - 1) / BLOCK; b++) {
    if (__atomic_load_n(&s->checked[b], __ATOMIC_RELAXED)) continue;
    if (!block_is_good(s, b)) {
      unlink(s->path);
      return lm_fail(LM_ENV, "%s is damaged near byte %llu; it was removed, and the next run makes it anew", s->path,
                     (unsigned long long)(b * BLOCK));
    }
    __atomic_store_n(&s->checked[b], 1, __ATOMIC_RELAXED);
  }
  return NULL;
}

lm_status lm_store_read(const lm_store *s, uint64_t at, uint64_t n, void *to) {
  LM_TRY(lm_store_check(s, at, n));
  for (uint64_t done = 0; done < n; ) {
    ssize_t got = pread(s->fd, (char *)to + done, n - done, (off_t)(at + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return lm_fail_errno("cannot read %s", s->path ? s->path : "memory");
    if (!got) return lm_fail(LM_ENV, "%s has become shorter", s->path ? s->path : "memory");
    done += (uint64_t)got;
  }
  return NULL;
}

uint64_t lm_store_payload_key(const lm_store *s) { return lm_hash(s->hashes, s->n_blocks * sizeof *s->hashes, s->n); }
