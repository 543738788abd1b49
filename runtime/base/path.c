// path.c - folders and paths. Failures are LM_ENV; a caller whose path comes from the user's text
// changes the kind.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/file.h"

// The length of the folder part of a path; 0 if there is none.
static size_t dir_length(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? (slash == path ? 1 : (size_t)(slash - path)) : 0;
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

static bool is_dir(const char *path) {
  struct stat st;
  return !stat(path, &st) && S_ISDIR(st.st_mode);
}

// in_way: the kind of failure if a file has the name of a folder.
static lm_status one_make(const char *path, mode_t mode, lm_kind in_way) {
  if (is_dir(path) || !mkdir(path, mode))
    return NULL;
  if (errno != EEXIST)
    return lm_fail_errno("cannot make folder %s", path);
  if (is_dir(path)) // another process has made it
    return NULL;
  return lm_fail(in_way, "cannot make folder %s: a file of that name is in the way", path);
}

static lm_status dir_make(const char *path, mode_t mode, lm_kind in_way) {
  char *p = lm_strdup(path);
  lm_status s = NULL;
  for (char *at = p; !s && *at;) {
    at += strspn(at, "/");
    at += strcspn(at, "/");
    char end = *at;
    *at = 0;
    if (*p)
      s = one_make(p, mode, in_way);
    *at = end;
  }
  lm_free(p);
  return s;
}

lm_status lm_dir_make(const char *path) {
  return dir_make(path, 0777, LM_USER);
}

lm_status lm_dir_make_private(const char *path) {
  return dir_make(path, 0700, LM_ENV);
}

void lm_umask_add(unsigned mask) {
  mode_t was = umask(0777);
  umask(was | (mode_t)mask);
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
