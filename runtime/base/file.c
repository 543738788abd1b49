// file.c - see file.h.
#define _GNU_SOURCE
#include "runtime/base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

// ---- regular files

static const char *kind_name(mode_t mode) {
  if (S_ISDIR(mode))
    return "a folder";
  if (S_ISFIFO(mode))
    return "a FIFO";
  if (S_ISSOCK(mode))
    return "a socket";
  return "a device";
}

static lm_status regular_check(int fd, const char *path) {
  struct stat st;
  if (fstat(fd, &st))
    return lm_fail_errno("cannot read %s", path);
  if (S_ISREG(st.st_mode))
    return NULL;
  lm_status s = lm_fail(LM_ENV, "%s is %s, not a regular file", path, kind_name(st.st_mode));
  errno = S_ISDIR(st.st_mode) ? EISDIR : EINVAL;
  return s;
}

static lm_status regular_open(int dir, const char *name, const char *path, int flags, int *out_fd) {
  *out_fd = -1;
  int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | flags);
  if (fd < 0)
    return lm_fail_errno("cannot open %s", path);
  lm_status s = regular_check(fd, path);
  int why = errno;
  if (s)
    close(fd);
  else
    *out_fd = fd;
  errno = why;
  return s;
}

lm_status lm_open_regular(const char *path, int *out_fd) {
  return regular_open(AT_FDCWD, path, path, 0, out_fd);
}

bool lm_errno_is_path(int error) {
  static const int of_path[] = {ENOENT, ENOTDIR,      EISDIR, EACCES, EPERM,
                                ELOOP,  ENAMETOOLONG, EINVAL, ENXIO};
  for (size_t i = 0; i < LM_COUNT(of_path); i++)
    if (error == of_path[i])
      return true;
  return false;
}

bool lm_is_trusted(const struct stat *st) {
  bool own = st->st_uid == geteuid() || st->st_uid == 0;
  return own && !(st->st_mode & (S_IWGRP | S_IWOTH));
}

lm_status lm_open_trusted_at(int dir, const char *name, const char *path, int *out_fd) {
  struct stat st;
  LM_TRY(regular_open(dir, name, path, O_NOFOLLOW, out_fd));
  if (!fstat(*out_fd, &st) && lm_is_trusted(&st))
    return NULL;
  close(*out_fd);
  *out_fd = -1;
  lm_status s = lm_fail(LM_ENV, "%s belongs to another user, or others may write to it", path);
  errno = EPERM;
  return s;
}

static bool is_same_time(const struct timespec *a, const struct timespec *b) {
  return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

bool lm_file_is_same(const struct stat *before, const struct stat *now) {
  bool same = before->st_size == now->st_size;
  return same && is_same_time(&before->st_mtim, &now->st_mtim) &&
         is_same_time(&before->st_ctim, &now->st_ctim);
}

// ---- locks. On a file system without locks nothing is waited for.

static bool lock_take(int fd, int how) {
  while (flock(fd, how))
    if (errno != EINTR)
      return false;
  return true;
}

static bool is_named(int fd, const char *path) {
  struct stat open_one, named;
  return !fstat(fd, &open_one) && !lstat(path, &named) && open_one.st_ino == named.st_ino &&
         open_one.st_dev == named.st_dev;
}

// ---- temporary files

// A file with further hard links could be a trap of another user: writing would change the file
// under its other names too.
static bool is_own_file(int fd) {
  struct stat st;
  return !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_uid == geteuid() && st.st_nlink <= 1;
}

lm_status lm_folder_set_aside(const char *path) {
  struct stat st;
  if (lstat(path, &st) || !S_ISDIR(st.st_mode) || !rmdir(path))
    return NULL;
  const char *name = strrchr(path, '/') + 1;
  lm_buf aside = {0};
  lm_buf_printf(&aside, "%.*sforeign-%s", (int)(name - path), path, name);
  bool gone = !rename(path, aside.p);
  lm_buf_free(&aside);
  return gone ? NULL
              : lm_fail_errno("cannot remove the folder %s, which has the name of a file", path);
}

typedef enum {
  TAKEN,
  GONE,
  FOREIGN
} temp_state;

// GONE: the process that held the lock has renamed or removed the file in the meantime.
static temp_state temp_take(int fd, const char *path) {
  if (!is_own_file(fd))
    return is_named(fd, path) ? FOREIGN : GONE;
  lock_take(fd, LOCK_EX);
  return is_named(fd, path) ? TAKEN : GONE;
}

// Removes a file that could not be opened for writing. `failed`: the errno of opening it, else 0.
static lm_status temp_unlink(const char *path, int failed) {
  if (!unlink(path) || (errno == ENOENT && !failed))
    return NULL;
  if (errno == ENOENT)
    errno = failed;
  return lm_fail_errno("cannot create %s", path);
}

lm_status lm_open_append(const char *path, int *out_fd) {
  struct stat st;
  int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
  if (fd < 0 && errno != ELOOP && errno != ENXIO && errno != EISDIR)
    return lm_fail_errno("cannot open %s", path);
  if (fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode)) {
    *out_fd = fd;
    return NULL;
  }
  if (fd >= 0)
    close(fd);
  return lm_fail(LM_ENV, "%s exists and is not a regular file", path);
}

lm_status lm_temp_open(const char *path, int *out_fd) {
  enum {
    ATTEMPTS = 100
  };
  for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
    int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666);
    int failed = fd < 0 ? errno : 0;
    bool in_the_way = failed == ELOOP || failed == EACCES || failed == ENXIO;
    if (failed && !in_the_way)
      return lm_fail_errno("cannot create %s", path);
    temp_state state = failed ? FOREIGN : temp_take(fd, path);
    if (state == TAKEN && !ftruncate(fd, 0)) {
      *out_fd = fd;
      return NULL;
    }
    lm_status s = state == TAKEN     ? lm_fail_errno("cannot write %s", path)
                  : state == FOREIGN ? temp_unlink(path, failed)
                                     : NULL;
    if (fd >= 0)
      close(fd);
    if (s)
      return s;
  }
  return lm_fail(LM_ENV, "cannot create %s: another process keeps replacing it", path);
}

static bool ends_in(const char *s, const char *end) {
  size_t n = strlen(s);
  size_t m = strlen(end);
  return n > m && !strcmp(s + n - m, end);
}

// Only files whose names begin with a hash: a folder may hold temporary files of other programs.
static void temp_clean(const char *path) {
  enum {
    KEY_DIGITS = 16
  };
  const char *name = strrchr(path, '/') + 1;
  if (strspn(name, "0123456789abcdef") < KEY_DIGITS)
    return;
  int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0)
    return;
  if (is_own_file(fd) && lock_take(fd, LOCK_EX | LOCK_NB) && is_named(fd, path))
    unlink(path);
  close(fd);
}

// Calls clean with the path of every entry with the given prefix and suffix.
static void entries_visit(const char *dir, const char *begin, const char *end,
                          void (*clean)(const char *path)) {
  DIR *d = opendir(dir);
  if (!d)
    return;
  lm_arena *a = lm_arena_create();
  for (struct dirent *e; (e = readdir(d));)
    if (!strncmp(e->d_name, begin, strlen(begin)) && ends_in(e->d_name, end))
      clean(lm_path_join(a, dir, e->d_name));
  lm_arena_destroy(a);
  closedir(d);
}

void lm_temps_clean(const char *dir) {
  entries_visit(dir, "", ".tmp", temp_clean);
}

// ---- temporary folders

const char *lm_temp_parent(void) {
  const char *set = getenv("TMPDIR");
  return set && *set ? set : "/tmp";
}

static bool is_own_dir(int fd) {
  struct stat st;
  return !fstat(fd, &st) && st.st_uid == geteuid() && !(st.st_mode & (S_IRWXG | S_IRWXO));
}

static int dir_open(const char *path) {
  return open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

lm_status lm_temp_dir_make(const char *parent, const char *prefix, lm_temp_dir *out) {
  for (;;) {
    lm_buf path = {0};
    lm_buf_printf(&path, "%s/%sXXXXXX", parent, prefix);
    *out = (lm_temp_dir){path.p, -1};
    bool made = mkdtemp(path.p);
    if (made)
      out->fd = dir_open(path.p);
    if (out->fd >= 0)
      lock_take(out->fd, LOCK_EX);
    if (out->fd >= 0 && is_named(out->fd, path.p))
      return NULL;
    // another process may have cleaned up between creation and locking: try again
    bool removed = out->fd >= 0 || (made && errno == ENOENT);
    lm_status s = removed ? NULL : lm_fail_errno("cannot make a temporary folder in %s", parent);
    if (out->fd >= 0)
      close(out->fd);
    else if (made)
      rmdir(path.p);
    lm_free(path.p);
    *out = (lm_temp_dir){NULL, -1};
    if (s)
      return s;
  }
}

void lm_temp_dir_remove(lm_temp_dir *d) {
  if (!d->path)
    return;
  lm_status_free(lm_path_remove(d->path));
  close(d->fd);
  lm_free(d->path);
  *d = (lm_temp_dir){0};
}

static void temp_dir_clean(const char *path) {
  int fd = dir_open(path);
  if (fd < 0)
    return;
  if (is_own_dir(fd) && lock_take(fd, LOCK_EX | LOCK_NB))
    lm_status_free(lm_path_remove(path));
  close(fd);
}

void lm_temp_dirs_clean(const char *parent, const char *prefix) {
  entries_visit(parent, prefix, "", temp_dir_clean);
}
