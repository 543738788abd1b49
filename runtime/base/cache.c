// cache.c - see cache.h.
#define _GNU_SOURCE
#include "runtime/base/cache.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum {
  FILE_MAX = 256 << 20
};
static const char TEMP_PREFIX[] = ".lmc-tmp-";
static const char SIZE_FILE[] = ".lmc-size"; // see size_add
// The names of entries: kind, key, type. A cache may be in a folder with other files, so nothing
// else is counted or removed.
static const struct {
  const char *kind;
  const char *type;
} ENTRIES[] = {{"", ".so"},          {"", ".cubin"},     {"failed-", ".c"},
               {"version-", ".txt"}, {"step-", ".json"}, {"tuned-", ".json"}};

// The trailer of an entry, which the loader of shared objects ignores.
typedef struct seal {
  char magic[8];
  uint64_t bytes, hash;
} seal;
static const char MAGIC[8] = "lmc-so1";

static bool has_text(const char *s) {
  return s && *s;
}

// ---- the size limit

// Parses a size in bytes: 500M, 4Gi, 4GiB, 1000000.
static bool size_parse(const char *text, uint64_t *out) {
  static const char units[] = "KMGT";
  char *end;
  errno = 0;
  *out = strtoull(text, &end, 10);
  if (errno || end == text || *text == '-')
    return false;
  const char *unit = isalpha((unsigned char)*end) ? strchr(units, toupper(*end)) : NULL;
  if (unit)
    end++;
  uint64_t step = unit && *end == 'i' ? 1024 : 1000;
  if (step == 1024)
    end++;
  for (const char *u = units; unit && u <= unit; u++)
    if (__builtin_mul_overflow(*out, step, out))
      return false;
  return !*end || !strcmp(end, "B");
}

static lm_status limit_read(uint64_t *out) {
  const char *text = getenv("LMC_CACHE_SIZE");
  *out = UINT64_C(4) << 30;
  if (!has_text(text) || size_parse(text, out))
    return NULL;
  return lm_fail(LM_ENV, "LMC_CACHE_SIZE is '%s'; expected a number of bytes, such as 500M or 4Gi",
                 text);
}

// ---- the folder

static const char *default_dir(lm_arena *a) {
  const char *xdg = getenv("XDG_CACHE_HOME");
  const char *home = getenv("HOME");
  if (has_text(xdg))
    return lm_path_join(a, xdg, "lmc");
  return has_text(home) ? lm_path_join(a, home, ".cache/lmc") : NULL;
}

static const char *absolute(lm_arena *a, const char *path) {
  char *whole = realpath(path, NULL);
  const char *kept = whole ? lm_arena_strndup(a, whole, strlen(whole)) : path;
  free(whole);
  return kept;
}

// fd -1: the folder cannot be used, for the reason why_not.
typedef struct folder {
  const char *path;
  int fd;
  bool writable;
  const char *why_not;
} folder;

static bool is_private(const struct stat *st) {
  return st->st_uid == geteuid() && lm_is_trusted(st);
}
static bool may_write(int fd) {
  return !faccessat(fd, ".", W_OK | X_OK, AT_EACCESS);
}

static void folder_drop(folder *f, const char *why) {
  if (f->fd >= 0)
    close(f->fd);
  f->fd = -1;
  f->writable = false;
  f->why_not = why;
}

static void subfolder_enter(lm_arena *a, folder *f) {
  const char *name = lm_arena_printf(a, "user-%lld", (long long)geteuid());
  const char *path = lm_path_join(a, f->path, name);
  struct stat st;
  if (mkdirat(f->fd, name, 0700) && errno != EEXIST) {
    folder_drop(f, lm_arena_printf(a, "cannot create %s: %s", path, strerror(errno)));
    return;
  }
  int fd = openat(f->fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  bool good = fd >= 0 && !fstat(fd, &st) && is_private(&st) && may_write(fd);
  folder_drop(
      f, good ? NULL
              : lm_arena_printf(a, "%s is not a folder that only this user may write to", path));
  if (good)
    *f = (folder){path, fd, true, NULL};
  else if (fd >= 0)
    close(fd);
}

// Applies the rules of cache.h to an open folder.
static void folder_enter(lm_arena *a, folder *f) {
  struct stat st;
  if (fstat(f->fd, &st)) {
    folder_drop(f, lm_arena_printf(a, "%s: %s", f->path, strerror(errno)));
    return;
  }
  f->writable = may_write(f->fd);
  if (is_private(&st) || (lm_is_trusted(&st) && !f->writable))
    return;
  if (f->writable)
    subfolder_enter(a, f);
  else
    folder_drop(
        f, lm_arena_printf(a, "%s belongs to another user, or others may write to it", f->path));
}

static lm_status folder_open(lm_arena *a, const char *path, folder *out) {
  *out = (folder){.fd = -1};
  LM_TRY(lm_dir_make_private(path));
  out->path = absolute(a, path);
  out->fd = open(out->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (out->fd < 0)
    return lm_fail_errno("cannot open %s", path);
  folder_enter(a, out);
  return NULL;
}

// ---- a temporary folder, if no other can be used; one per process, removed when it ends

static struct {
  pthread_mutex_t lock;
  lm_temp_dir dir;
  pid_t owner;
} process = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void process_dir_remove(void) {
  if (process.owner == getpid())
    lm_temp_dir_remove(&process.dir); // a forked child must not remove it
}

static lm_status process_dir_make(const char *why) {
  const char *parent = lm_temp_parent();
  if (process.dir.path)
    return NULL;
  lm_temp_dirs_clean(parent, TEMP_PREFIX);
  LM_TRY(lm_temp_dir_make(parent, TEMP_PREFIX, &process.dir));
  process.owner = getpid();
  atexit(process_dir_remove);
  fprintf(stderr, "lmc: note: compiled kernels are not kept: %s; set LMC_CACHE to another folder\n",
          why);
  return NULL;
}

static lm_status process_dir_open(lm_arena *a, const char *why, folder *out) {
  pthread_mutex_lock(&process.lock);
  lm_status s = process_dir_make(why);
  pthread_mutex_unlock(&process.lock);
  return s ? lm_annotate(s, "%s, and", why) : folder_open(a, process.dir.path, out);
}

// ---- opening

// Opens a second folder for new entries if the first is not writable.
static lm_status second_open(lm_arena *a, const char *named, const folder *first, lm_cache *c) {
  const char *fallback = default_dir(a);
  const char *why =
      first->why_not ? first->why_not : lm_arena_printf(a, "%s cannot be written to", first->path);
  folder second = {.fd = -1};
  if (fallback && strcmp(fallback, named))
    lm_status_free(folder_open(a, fallback, &second));
  if (second.fd >= 0 && !second.writable)
    folder_drop(&second, NULL);
  if (second.fd < 0) {
    c->why_temporary = why;
    LM_TRY(process_dir_open(a, why, &second));
  }
  c->dir = second.path;
  c->fd = second.fd;
  return NULL;
}

lm_status lm_cache_open(lm_arena *a, lm_cache *out) {
  *out = (lm_cache){
      .fd = -1,
      .shared_fd = -1,
  };
  const char *named = has_text(getenv("LMC_CACHE")) ? getenv("LMC_CACHE") : default_dir(a);
  if (!named)
    return lm_fail(LM_ENV, "no cache folder for compiled kernels: set LMC_CACHE or HOME");
  LM_TRY(limit_read(&out->limit));
  folder f;
  LM_TRY(lm_annotate(folder_open(a, named, &f),
                     "cache folder of compiled kernels (set LMC_CACHE to use another)"));
  if (f.writable) {
    out->dir = f.path;
    out->fd = f.fd;
    return NULL;
  }
  if (f.fd >= 0)
    out->shared = f.path;
  out->shared_fd = f.fd;
  lm_status s = second_open(a, named, &f, out);
  if (s)
    lm_cache_close(out);
  return s;
}

void lm_cache_close(lm_cache *c) {
  if (c->fd >= 0)
    close(c->fd);
  if (c->shared_fd >= 0)
    close(c->shared_fd);
  c->fd = c->shared_fd = -1;
}

lm_status lm_cache_dir(lm_arena *a, const char **out_dir) {
  lm_cache c;
  LM_TRY(lm_cache_open(a, &c));
  *out_dir = c.dir;
  lm_cache_close(&c);
  return NULL;
}

lm_status lm_cache_temp_dir(const lm_cache *c, lm_temp_dir *out) {
  lm_temp_dirs_clean(c->dir, TEMP_PREFIX);
  return lm_temp_dir_make(c->dir, TEMP_PREFIX, out);
}

lm_cache_key lm_cache_key_make(const char *const *parts, int n) {
  uint64_t key[2] = {0};
  for (int i = 0; i < n; i++)
    lm_hash_key(key, parts[i], strlen(parts[i]) + 1);
  lm_cache_key text;
  snprintf(text.text, sizeof text.text, "%016llx%016llx", (unsigned long long)key[1],
           (unsigned long long)key[0]);
  return text;
}

// ---- entries

static bool entry_open(int dir, const char *name, lm_cache_entry *out) {
  struct stat st;
  lm_status none = lm_open_trusted_at(dir, name, name, &out->fd);
  bool good = !none && !fstat(out->fd, &st);
  if (!none && !good)
    close(out->fd);
  lm_status_free(none);
  if (good) {
    out->id[0] = st.st_dev;
    out->id[1] = st.st_ino;
  }
  return good;
}

bool lm_cache_find(const lm_cache *c, const char *name, lm_cache_entry *out) {
  return entry_open(c->fd, name, out) || (c->shared_fd >= 0 && entry_open(c->shared_fd, name, out));
}

static bool seal_holds(const lm_buf *file) {
  seal end;
  if (file->n < sizeof end)
    return false;
  memcpy(&end, file->p + file->n - sizeof end, sizeof end);
  return !memcmp(end.magic, MAGIC, sizeof MAGIC) && end.bytes == file->n - sizeof end &&
         end.hash == lm_hash(file->p, end.bytes, 0);
}

bool lm_cache_read(const lm_cache *c, const char *name, const lm_cache_entry *e, lm_buf *out) {
  out->n = 0;
  lm_status s = lm_fd_read(e->fd, name, FILE_MAX, out);
  bool good = !s && seal_holds(out);
  lm_status_free(s);
  if (!good) {
    unlinkat(c->fd, name, 0);
    return false;
  }
  out->n -= sizeof(seal);
  futimens(e->fd, NULL); // records the use; fails in a read-only folder, which does not matter
  flock(e->fd, LOCK_SH | LOCK_NB);
  return true;
}

// ---- adding

static void seal_make(const lm_buf *file, seal *out) {
  *out = (seal){
      .bytes = file->n,
      .hash = lm_hash(file->p, file->n, 0),
  };
  memcpy(out->magic, MAGIC, sizeof MAGIC);
}

// Appends the hash to the file. `out` receives the complete contents.
static lm_status file_seal(const lm_temp_dir *from, const char *made, lm_buf *out) {
  int fd = openat(from->fd, made, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0)
    return lm_fail_errno("cannot open %s/%s", from->path, made);
  lm_status s = lm_fd_read(fd, made, FILE_MAX, out);
  seal end;
  if (!s) {
    seal_make(out, &end);
    lm_buf_add(out, &end, sizeof end);
    s = lm_fd_write(fd, made, &end, sizeof end);
  }
  if (!s && fchmod(fd, 0644))
    s = lm_fail_errno("cannot change the mode of %s/%s", from->path, made);
  close(fd);
  return s;
}

static lm_status temp_write(const lm_temp_dir *d, const char *name, mode_t mode, const char *p,
                            size_t n) {
  int fd = openat(d->fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
  if (fd < 0)
    return lm_fail_errno("cannot create %s/%s", d->path, name);
  lm_status s = lm_fd_write(fd, name, p, n);
  close(fd);
  return lm_annotate(s, "%s", d->path);
}

lm_status lm_cache_temp_write(const lm_temp_dir *d, const char *name, const char *p, size_t n) {
  return temp_write(d, name, 0600, p, n);
}

static lm_status name_free(const lm_cache *c, const char *name) {
  lm_arena *a = lm_arena_create();
  lm_status s = lm_folder_set_aside(lm_path_join(a, c->dir, name));
  lm_arena_destroy(a);
  return s;
}

// If another process adds the same entry, the last one wins; both files are valid. *added: bytes
// that the names take, which are copies on a file system without hard links.
static lm_status name_add(const lm_cache *c, const lm_temp_dir *from, const char *made,
                          const char *name, const lm_buf *file, uint64_t *added) {
  bool linked = !linkat(from->fd, made, from->fd, name, 0);
  if (!linked)
    LM_TRY(temp_write(from, name, 0644, file->p, file->n));
  LM_TRY(name_free(c, name));
  if (renameat(from->fd, name, c->fd, name))
    return lm_fail_errno("cannot rename %s/%s to %s/%s", from->path, name, c->dir, name);
  *added += linked && *added ? 0 : file->n;
  return NULL;
}

lm_status lm_cache_file_write(const char *path, const void *p, size_t n) {
  lm_arena *a = lm_arena_create();
  lm_status s = lm_folder_set_aside(path);
  if (!s)
    s = lm_folder_set_aside(lm_arena_printf(a, "%s.tmp", path));
  if (!s)
    s = lm_file_write_as(path, 0644, p, n);
  lm_arena_destroy(a);
  return s;
}

lm_status lm_cache_file_read(const char *path, size_t max_bytes, lm_buf *out) {
  int fd;
  LM_TRY(lm_open_trusted_at(AT_FDCWD, path, path, &fd));
  lm_status s = lm_fd_read(fd, path, max_bytes, out);
  close(fd);
  return s;
}

// ---- eviction. A file with several names counts once; a process locks the entries that it loaded.

typedef struct old_file {
  const char *name;
  uint64_t bytes, inode;
  struct timespec used;
} old_file;
typedef struct old_files {
  old_file *v;
  uint32_t n;
  uint32_t cap;
  uint64_t bytes;
} old_files;

static bool is_entry(const char *name) {
  enum {
    KEY_DIGITS = sizeof(lm_cache_key) - 1
  };
  for (size_t i = 0; i < LM_COUNT(ENTRIES); i++) {
    size_t n = strlen(ENTRIES[i].kind);
    if (!strncmp(name, ENTRIES[i].kind, n) && strspn(name + n, "0123456789abcdef") == KEY_DIGITS &&
        !strcmp(name + n + KEY_DIGITS, ENTRIES[i].type))
      return true;
  }
  return false;
}

static void file_note(lm_arena *a, int dir, const char *name, old_files *out) {
  struct stat st;
  if (!is_entry(name) || fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode))
    return;
  old_file f = {lm_arena_strndup(a, name, strlen(name)),
                (uint64_t)st.st_size / (uint64_t)st.st_nlink, st.st_ino, st.st_mtim};
  LM_PUSH(a, out->v, out->n, out->cap) = f;
  out->bytes += f.bytes;
}

static old_files files_list(lm_arena *a, const lm_cache *c) {
  old_files all = {0};
  int fd = openat(c->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *d = fd < 0 ? NULL : fdopendir(fd);
  if (!d && fd >= 0)
    close(fd);
  for (struct dirent *e; d && (e = readdir(d));)
    file_note(a, c->fd, e->d_name, &all);
  if (d)
    closedir(d);
  return all;
}

uint64_t lm_cache_bytes(const lm_cache *c) {
  lm_arena *a = lm_arena_create();
  uint64_t bytes = files_list(a, c).bytes;
  lm_arena_destroy(a);
  return bytes;
}

static int by_use(const void *a, const void *b) {
  const old_file *x = a, *y = b;
  if (x->used.tv_sec != y->used.tv_sec)
    return x->used.tv_sec < y->used.tv_sec ? -1 : 1;
  if (x->used.tv_nsec != y->used.tv_nsec)
    return x->used.tv_nsec < y->used.tv_nsec ? -1 : 1;
  return x->inode < y->inode ? -1 : x->inode > y->inode;
}

static bool file_evict(const lm_cache *c, const char *name) {
  int fd = openat(c->fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  bool unused = fd < 0 || !flock(fd, LOCK_EX | LOCK_NB) || errno != EWOULDBLOCK;
  bool gone = unused && !unlinkat(c->fd, name, 0);
  if (fd >= 0)
    close(fd);
  return gone;
}

// Evicts entries until the size is within the limit, and returns the size. Entries used after
// `since` belong to this call.
static uint64_t limit_enforce(const lm_cache *c, const struct timespec *since) {
  lm_arena *a = lm_arena_create();
  old_files all = files_list(a, c);
  if (all.n)
    qsort(all.v, all.n, sizeof *all.v, by_use);
  // The file whose names are being removed: its space is freed only with its last name.
  uint64_t evicting = 0;
  for (uint32_t i = 0; i < all.n && all.v[i].used.tv_sec < since->tv_sec; i++) {
    if (all.bytes <= c->limit && all.v[i].inode != evicting)
      break;
    if (!file_evict(c, all.v[i].name))
      continue;
    evicting = all.v[i].inode;
    all.bytes -= all.v[i].bytes;
  }
  lm_arena_destroy(a);
  return all.bytes;
}

// Adds to the size in the file; false if it has none or the sum exceeds the limit.
static bool size_add(int fd, uint64_t bytes, uint64_t limit) {
  uint64_t size;
  return pread(fd, &size, sizeof size, 0) == sizeof size &&
         !__builtin_add_overflow(size, bytes, &size) && size <= limit &&
         pwrite(fd, &size, sizeof size, 0) == sizeof size;
}

// A file has the size of the entries when the folder was last listed, and of those added since, so
// that not each addition lists the folder. Entries that were removed otherwise are still counted,
// until the sum exceeds the limit and the folder is listed again. Another process that has the lock
// may be stopped, so this one does not wait: it lists the folder, and so does the next without the
// file.
static void limit_apply(const lm_cache *c, const struct timespec *since, uint64_t added) {
  int fd = openat(c->fd, SIZE_FILE, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
  bool locked = fd >= 0 && !flock(fd, LOCK_EX | LOCK_NB);
  if (!locked || !size_add(fd, added, c->limit)) {
    uint64_t size = limit_enforce(c, since);
    if (!locked || pwrite(fd, &size, sizeof size, 0) != sizeof size)
      unlinkat(c->fd, SIZE_FILE, 0);
  }
  if (fd >= 0)
    close(fd);
}

lm_status lm_cache_add(const lm_cache *c, const lm_temp_dir *from, const char *made,
                       const char *const *names, int n) {
  lm_buf file = {0};
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  uint64_t added = 0;
  lm_status s = file_seal(from, made, &file);
  for (int i = 0; i < n && !s; i++)
    s = name_add(c, from, made, names[i], &file, &added);
  unlinkat(from->fd, made, 0);
  if (added)
    limit_apply(c, &now, added);
  lm_buf_free(&file);
  return s;
}
