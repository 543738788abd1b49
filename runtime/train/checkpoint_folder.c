// checkpoint_folder.c - see checkpoint_folder.h.
#define _GNU_SOURCE
#include "runtime/train/checkpoint_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *step_name(lm_arena *a, int64_t step) {
  return lm_arena_printf(a, "step-%06lld", (long long)step);
}

char *lm_checkpoint_path(lm_arena *a, const char *dir, int64_t step) {
  return lm_path_join(a, dir, step_name(a, step));
}

// The step of "step-000400"; -1 for other names, also for other spellings of a step: "step-400".
static int64_t step_of(const char *name) {
  char canonical[64];
  if (strncmp(name, "step-", 5) || !name[5] || strspn(name + 5, "0123456789") != strlen(name + 5))
    return -1;
  errno = 0;
  long long step = strtoll(name + 5, NULL, 10);
  snprintf(canonical, sizeof canonical, "step-%06lld", step);
  return errno || strcmp(name, canonical) ? -1 : step;
}

static int by_step_descending(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a;
  int64_t y = *(const int64_t *)b;
  return x < y ? 1 : x > y ? -1 : 0;
}

lm_status lm_checkpoint_steps_list(lm_arena *a, const char *dir, lm_checkpoint_steps *out) {
  DIR *d = opendir(dir);
  *out = (lm_checkpoint_steps){0};
  if (!d && errno == ENOENT)
    return NULL;
  if (!d && errno == ENOTDIR)
    return lm_fail(LM_USER, "a file is in the way of folder %s; name another folder", dir);
  if (!d)
    return lm_fail_errno("cannot open folder %s", dir);
  for (struct dirent *e; (e = readdir(d));)
    if (step_of(e->d_name) >= 0)
      LM_PUSH(a, out->v, out->n, out->cap) = step_of(e->d_name);
  closedir(d);
  if (out->n)
    qsort(out->v, out->n, sizeof *out->v, by_step_descending);
  return NULL;
}

// Renames the folder to a hidden name first, so that a partly removed folder is never a checkpoint.
static lm_status step_remove(lm_arena *a, const char *dir, int64_t step) {
  char *path = lm_checkpoint_path(a, dir, step);
  char *hidden = lm_path_join(a, dir, ".removing");
  LM_TRY(lm_path_remove(hidden));
  if (rename(path, hidden))
    return lm_fail_errno("cannot rename %s", path);
  return lm_path_remove(hidden);
}

lm_status lm_checkpoint_steps_prune(lm_arena *a, const char *dir, int64_t newest, int keep,
                                    int64_t also) {
  lm_checkpoint_steps all;
  LM_TRY(lm_checkpoint_steps_list(a, dir, &all));
  int kept = 0;
  for (uint32_t i = 0; i < all.n; i++) {
    int64_t step = all.v[i];
    if (step > newest)
      continue;
    if (!keep || kept < keep)
      kept++;
    else if (step != also)
      LM_TRY(step_remove(a, dir, step));
  }
  return NULL;
}

lm_status lm_checkpoint_folder_publish(lm_arena *a, const char *written, const char *path) {
  if (!rename(written, path))
    return NULL;
  if (errno != EEXIST && errno != ENOTEMPTY && errno != ENOTDIR)
    return lm_fail_errno("cannot rename %s to %s", written, path);
  if (renameat2(AT_FDCWD, written, AT_FDCWD, path, RENAME_EXCHANGE)) {
    LM_TRY(lm_path_remove(path)); // the file system cannot exchange names
    if (rename(written, path))
      return lm_fail_errno("cannot rename %s to %s", written, path);
  }
  return lm_path_remove(written);
}
