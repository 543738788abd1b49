// os.c - the operating system: the clock, whole files, folders, paths. Failures are LM_ENV; a
// caller whose path comes from the user's text changes the kind.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/file.h"

double lm_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// A limit of the control group, a number or "max". 0 if there is none or it cannot be read.
static int64_t group_limit(const char *path) {
  lm_buf text = {0};
  lm_status s = lm_file_read(path, 64, &text);
  int64_t n = s ? 0 : strtoll(text.p, NULL, 10);
  lm_status_free(s);
  lm_buf_free(&text);
  return n;
}

int64_t lm_memory_of_machine(void) {
  static const char *const limits[] = {"/sys/fs/cgroup/memory.max",
                                       "/sys/fs/cgroup/memory/memory.limit_in_bytes"};
  int64_t min = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGE_SIZE);
  for (size_t i = 0; i < LM_COUNT(limits); i++) {
    int64_t n = group_limit(limits[i]);
    if (n > 0 && n < min)
      min = n;
  }
  return min;
}

// Reads in bounded pieces and does not trust the size of the file, so devices and growing files are
// safe.
static lm_status read_all(int fd, const char *path, size_t max_bytes, lm_buf *out) {
  char piece[1 << 16];
  size_t start = out->n;
  for (;;) {
    ssize_t n = read(fd, piece, sizeof piece);
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      return lm_fail_errno("cannot read %s", path);
    if (n == 0)
      break;
    if ((size_t)n > max_bytes - (out->n - start))
      return lm_fail(LM_ENV, "%s: larger than %zu bytes", path, max_bytes);
    lm_buf_add(out, piece, (size_t)n);
  }
  lm_buf_add(out, "", 0); // NUL-terminates an empty file too
  return NULL;
}

lm_status lm_fd_read(int fd, const char *path, size_t max_bytes, lm_buf *out) {
  return read_all(fd, path, max_bytes, out);
}

// /dev/stdin and /dev/fd/N: opening an open descriptor again never blocks, whatever its type.
static bool names_descriptor(const char *path) {
  return !strcmp(path, "/dev/stdin") || !strncmp(path, "/dev/fd/", strlen("/dev/fd/"));
}

static lm_status descriptor_open(const char *path, int *out_fd) {
  *out_fd = open(path, O_RDONLY | O_CLOEXEC);
  return *out_fd < 0 ? lm_fail_errno("cannot open %s", path) : NULL;
}

lm_status lm_file_read(const char *path, size_t max_bytes, lm_buf *out) {
  int fd;
  LM_TRY(names_descriptor(path) ? descriptor_open(path, &fd) : lm_open_regular(path, &fd));
  lm_status s = read_all(fd, path, max_bytes, out);
  close(fd);
  return s;
}

lm_status lm_fd_write(int fd, const char *path, const void *from, size_t n) {
  for (const char *p = from; n;) {
    ssize_t done = write(fd, p, n);
    if (done < 0 && errno == EINTR)
      continue;
    if (done < 0)
      return lm_fail_errno("cannot write %s", path);
    p += done;
    n -= (size_t)done;
  }
  return NULL;
}

static lm_status write_synced(int fd, const char *path, const void *p, size_t n) {
  LM_TRY(lm_fd_write(fd, path, p, n));
  if (fsync(fd))
    return lm_fail_errno("cannot write %s", path);
  return NULL;
}

// The length of the folder part of a path; 0 if there is none.
static size_t dir_length(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? (slash == path ? 1 : (size_t)(slash - path)) : 0;
}

static lm_status replace_file(const char *temp, const char *path, const void *p, size_t n) {
  int fd;
  LM_TRY(lm_temp_open(temp, &fd));
  lm_status s = write_synced(fd, temp, p, n);
  if (!s && rename(temp, path))
    s = lm_fail_errno("cannot rename %s to %s", temp, path);
  if (s)
    unlink(temp); // before unlocking, since the next process creates its own
  close(fd);
  return s;
}

lm_status lm_file_write_atomic(const char *path, const void *p, size_t n) {
  lm_buf temp = {0}, dir = {0};
  lm_buf_printf(&temp, "%s.tmp", path);
  lm_buf_add(&dir, path, dir_length(path));
  lm_status s = replace_file(temp.p, path, p, n);
  if (!s)
    s = lm_dir_sync(dir.n ? dir.p : ".");
  lm_buf_free(&temp);
  lm_buf_free(&dir);
  return s;
}

static bool is_dir(const char *path) {
  struct stat st;
  return !stat(path, &st) && S_ISDIR(st.st_mode);
}

static lm_status dir_make(const char *path, mode_t mode) {
  char *p = lm_strdup(path);
  lm_status s = NULL;
  for (char *at = p; !s && *at;) {
    at += strspn(at, "/");
    at += strcspn(at, "/");
    char end = *at;
    *at = 0;
    if (*p && !is_dir(p) && mkdir(p, mode) && errno != EEXIST)
      s = lm_fail_errno("cannot make folder %s", p);
    *at = end;
  }
  if (!s && *p && !is_dir(p))
    s = lm_fail(LM_ENV, "cannot make folder %s: a file of that name is in the way", p);
  lm_free(p);
  return s;
}

lm_status lm_dir_make(const char *path) {
  return dir_make(path, 0777);
}
lm_status lm_dir_make_private(const char *path) {
  return dir_make(path, 0700);
}

void lm_umask_add(unsigned mask) {
  mode_t was = umask(0777);
  umask(was | (mode_t)mask);
}

static int entry_remove(const char *path, const struct stat *st, int kind, struct FTW *at) {
  return remove(path);
}

lm_status lm_path_remove(const char *path) {
  enum {
    FOLDERS_OPEN = 16
  };
  return !nftw(path, entry_remove, FOLDERS_OPEN, FTW_DEPTH | FTW_PHYS) || errno == ENOENT
             ? NULL
             : lm_fail_errno("cannot remove %s", path);
}

lm_status lm_dir_sync(const char *path) {
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0)
    return lm_fail_errno("cannot open folder %s", path);
  lm_status s = fsync(fd) && errno != EINVAL ? lm_fail_errno("cannot sync folder %s", path)
                                             : NULL; // EINVAL: it has no sync
  close(fd);
  return s;
}

char *lm_path_join(lm_arena *a, const char *dir, const char *path) {
  size_t n = strlen(dir);
  if (*path == '/' || !n || !strcmp(dir, "."))
    return lm_arena_strndup(a, path, strlen(path));
  return lm_arena_printf(a, "%s%s%s", dir, dir[n - 1] == '/' ? "" : "/", path);
}

char *lm_path_dir(lm_arena *a, const char *path) {
  size_t n = dir_length(path);
  return n ? lm_arena_strndup(a, path, n) : lm_arena_strndup(a, ".", 1);
}

static lm_status bytes_copy(FILE *from, FILE *to) {
  char piece[1 << 14];
  size_t n;
  while ((n = fread(piece, 1, sizeof piece, from)) > 0)
    if (fwrite(piece, 1, n, to) != n)
      return lm_fail_errno("cannot write");
  if (ferror(from))
    return lm_fail_errno("cannot read");
  return fflush(to) || fsync(fileno(to)) ? lm_fail_errno("cannot write") : NULL;
}

static lm_status file_copy(const char *from, const char *to) {
  FILE *in = fopen(from, "rb");
  if (!in)
    return lm_fail_errno("cannot open %s", from);
  FILE *out = fopen(to, "wbx");
  lm_status s = out ? bytes_copy(in, out) : lm_fail_errno("cannot create %s", to);
  if (out)
    s = lm_annotate(s, "copying %s to %s", from, to);
  fclose(in);
  if (out && fclose(out) && !s)
    s = lm_fail_errno("cannot write %s", to);
  return s;
}

static lm_status folder_copy(const char *from, const char *to) {
  lm_arena *a = lm_arena_create();
  DIR *d = opendir(from);
  lm_status s = d ? lm_dir_make(to) : lm_fail_errno("cannot open folder %s", from);
  for (struct dirent *e; d && !s && (e = readdir(d));)
    if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
      s = lm_path_copy(lm_path_join(a, from, e->d_name), lm_path_join(a, to, e->d_name));
  if (d)
    closedir(d);
  lm_arena_destroy(a);
  return s;
}

lm_status lm_path_copy(const char *from, const char *to) {
  struct stat st;
  if (lstat(from, &st))
    return lm_fail_errno("cannot read %s", from);
  if (S_ISDIR(st.st_mode))
    return folder_copy(from, to);
  return S_ISREG(st.st_mode) ? file_copy(from, to) : NULL;
}
