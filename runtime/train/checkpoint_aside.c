// checkpoint_aside.c - moves the checkpoints that a restarted or resumed run supersedes.
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/train/checkpoint_folder.h"

static const char SUPERSEDED[] = "superseded-";

typedef struct names {
  const char **v;
  uint32_t n, cap;
} names;

static lm_status names_list(lm_arena *a, const char *dir, names *out) {
  DIR *d = opendir(dir);
  if (!d)
    return lm_fail_errno("cannot open folder %s", dir);
  for (struct dirent *e; (e = readdir(d));)
    if (*e->d_name != '.')
      LM_PUSH(a, out->v, out->n, out->cap) = lm_arena_strndup(a, e->d_name, strlen(e->d_name));
  closedir(d);
  return NULL;
}

static bool is_of_run(const char *name) {
  return strncmp(name, "step-", 5) && strncmp(name, SUPERSEDED, strlen(SUPERSEDED));
}

// Creates the first superseded-N that does not exist.
static lm_status folder_make(lm_arena *a, const char *dir, const char **out) {
  for (int i = 1;; i++) {
    *out = lm_path_join(a, dir, lm_arena_printf(a, "%s%d", SUPERSEDED, i));
    if (!mkdir(*out, 0777))
      return NULL;
    if (errno != EEXIST)
      return lm_fail_errno("cannot make folder %s", *out);
  }
}

// program-000020 is a program that was replaced at step 20. This run does not need it if the step
// is after `last`.
static bool is_later_program(const char *name, int64_t last) {
  long long step;
  return sscanf(name, "program-%lld", &step) == 1 && step > last;
}

static lm_status entry_move(const char *from, const char *to) {
  return rename(from, to) ? lm_fail_errno("cannot rename %s to %s", from, to) : NULL;
}

static lm_status rest_take(lm_arena *a, const char *dir, int64_t last, const char *to) {
  names all = {0};
  LM_TRY(names_list(a, dir, &all));
  for (uint32_t i = 0; i < all.n; i++) {
    const char *from = lm_path_join(a, dir, all.v[i]);
    const char *there = lm_path_join(a, to, all.v[i]);
    if (!is_of_run(all.v[i]))
      continue;
    LM_TRY(is_later_program(all.v[i], last) ? entry_move(from, there) : lm_path_copy(from, there));
  }
  return NULL;
}

lm_status lm_checkpoint_steps_set_aside(lm_arena *a, const char *dir, int64_t last,
                                        lm_checkpoint_aside *out) {
  lm_checkpoint_steps all;
  *out = (lm_checkpoint_aside){0};
  LM_TRY(lm_checkpoint_steps_list(a, dir, &all));
  for (uint32_t i = 0; i < all.n && all.v[i] > last; i++)
    LM_PUSH(a, out->steps.v, out->steps.n, out->steps.cap) = all.v[i];
  if (!out->steps.n)
    return NULL;
  LM_TRY(folder_make(a, dir, &out->folder));
  LM_TRY(rest_take(a, dir, last, out->folder));
  for (uint32_t i = 0; i < out->steps.n; i++) {
    int64_t step = out->steps.v[i];
    LM_TRY(entry_move(lm_checkpoint_path(a, dir, step), lm_checkpoint_path(a, out->folder, step)));
  }
  LM_TRY(lm_dir_sync(out->folder));
  return lm_dir_sync(dir);
}
