// checkpoint_folder.c - the folders of a run.
#define _GNU_SOURCE
#include "runtime/train/checkpoint_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *step_name(lm_arena *a, int64_t step) { return lm_arena_printf(a, "step-%06lld", (long long)step); }

char *lm_checkpoint_path(lm_arena *a, const char *dir, int64_t step) { return lm_path_join(a, dir, step_name(a, step)); }

// The step of "step-000400", -1 for other names.
static int64_t step_of(const char *name) {
  if (strncmp(name, "step-", 5) || !name[5] || strspn(name + 5, "0123456789") != strlen(name + 5)) return -1;
  errno = 0;
  long long step = strtoll(name + 5, NULL, 10);
  return errno ? -1 : step;
}

static int falling(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return x < y ? 1 : x > y ? -1 : 0;
}

lm_status lm_checkpoint_steps_list(lm_arena *a, const char *dir, lm_checkpoint_steps *out) {
  DIR *d = opendir(dir);
  *out = (lm_checkpoint_steps){0};
  if (!d && errno == ENOENT) return NULL;
  if (!d) return lm_fail_errno("cannot open folder %s", dir);
  for (struct dirent *e; (e = readdir(d)); )
    if (step_of(e->d_name) >= 0) LM_PUSH(a, out->v, out->n, out->cap) = step_of(e->d_name);
  closedir(d);
  if (out->n) qsort(out->v, out->n, sizeof *out->v, falling);
  return NULL;
}

lm_status lm_checkpoint_folder_remove(lm_arena *a, const char *path) {
  DIR *d = opendir(path);
  if (!d && errno == ENOTDIR) return unlink(path) ? lm_fail_errno("cannot remove %s", path) : NULL;
  if (!d) return errno == ENOENT ? NULL : lm_fail_errno("cannot open folder %s", path);
  lm_status s = NULL;
  for (struct dirent *e; !s && (e = readdir(d)); ) {
    if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
    char *file = lm_path_join(a, path, e->d_name);
    if (unlink(file)) s = lm_fail_errno("cannot remove %s", file);
  }
  closedir(d);
  if (!s && rmdir(path)) s = lm_fail_errno("cannot remove folder %s", path);
  return s;
}

// Removed under a hidden name, so that what is left of it after a kill is no checkpoint.
static lm_status step_remove(lm_arena *a, const char *dir, int64_t step) {
  char *path = lm_checkpoint_path(a, dir, step), *hidden = lm_path_join(a, dir, ".removing");
  LM_TRY(lm_checkpoint_folder_remove(a, hidden));
  if (rename(path, hidden)) return lm_fail_errno("cannot rename %s", path);
  return lm_checkpoint_folder_remove(a, hidden);
}

lm_status lm_checkpoint_steps_prune(lm_arena *a, const char *dir, int64_t newest, int keep, int64_t also) {
  lm_checkpoint_steps all;
  LM_TRY(lm_checkpoint_steps_list(a, dir, &all));
  int kept = 0;
  for (uint32_t i = 0; i < all.n; i++) {
    int64_t step = all.v[i];
    if (step <= newest && (!keep || kept < keep)) kept++;
    else if (step != also) LM_TRY(step_remove(a, dir, step));
  }
  return NULL;
}

lm_status lm_checkpoint_folder_publish(lm_arena *a, const char *written, const char *path) {
  if (!rename(written, path)) return NULL;
  if (errno != EEXIST && errno != ENOTEMPTY && errno != ENOTDIR) return lm_fail_errno("cannot rename %s to %s", written, path);
  if (renameat2(AT_FDCWD, written, AT_FDCWD, path, RENAME_EXCHANGE)) {
    LM_TRY(lm_checkpoint_folder_remove(a, path));    // a file system without exchange
    if (rename(written, path)) return lm_fail_errno("cannot rename %s to %s", written, path);
  }
  return lm_checkpoint_folder_remove(a, written);
}
