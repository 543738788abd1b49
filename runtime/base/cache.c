// cache.c - see cache.h.
#include "runtime/base/cache.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_MAX = 256 << 20 };

// The end of a file in the cache; loaders of shared objects ignore it.
typedef struct seal { char magic[8]; uint64_t bytes, hash; } seal;
static const char MAGIC[8] = "lmc-so1";

static bool has_text(const char *s) { return s && *s; }

static lm_status dir_choose(lm_arena *arena, const char **out) {
  const char *own = getenv("LMC_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  if (has_text(own)) *out = lm_arena_printf(arena, "%s", own);
  else if (has_text(xdg)) *out = lm_path_join(arena, xdg, "lmc");
  else if (has_text(home)) *out = lm_path_join(arena, home, ".cache/lmc");
  else return lm_fail(LM_ENV, "no folder for compiled kernels: set LMC_CACHE or HOME");
  return NULL;
}

lm_status lm_cache_open(lm_arena *arena, const char **out_dir) {
  LM_TRY(dir_choose(arena, out_dir));
  LM_TRY(lm_annotate(lm_dir_make(*out_dir), "folder of compiled kernels (LMC_CACHE chooses another)"));
  if (access(*out_dir, W_OK | X_OK))
    return lm_fail_errno("cannot write to %s, the folder of compiled kernels (LMC_CACHE chooses another)", *out_dir);
  return NULL;
}

lm_cache_key lm_cache_key_make(const char *const *parts, int n) {
  uint64_t low = 0, high = 1;
  for (int i = 0; i < n; i++) {
    low = lm_hash(parts[i], strlen(parts[i]) + 1, low);
    high = lm_hash(parts[i], strlen(parts[i]) + 1, high);
  }
  lm_cache_key key;
  snprintf(key.text, sizeof key.text, "%016llx%016llx", (unsigned long long)high, (unsigned long long)low);
  return key;
}

static bool seal_holds(const lm_buf *file) {
  seal end;
  if (file->n < sizeof end) return false;
  memcpy(&end, file->p + file->n - sizeof end, sizeof end);
  return !memcmp(end.magic, MAGIC, sizeof MAGIC) && end.bytes == file->n - sizeof end &&
         end.hash == lm_hash(file->p, end.bytes, 0);
}

bool lm_cache_has(const char *path) {
  if (access(path, R_OK)) return false;
  lm_buf file = {0};
  lm_status s = lm_file_read(path, FILE_MAX, &file);
  bool good = !s && seal_holds(&file);
  if (!good) unlink(path);
  lm_status_free(s);
  lm_buf_free(&file);
  return good;
}

static lm_status seal_add(const char *path, lm_buf *file) {
  LM_TRY(lm_file_read(path, FILE_MAX, file));
  seal end = {.bytes = file->n, .hash = lm_hash(file->p, file->n, 0)};
  memcpy(end.magic, MAGIC, sizeof MAGIC);
  lm_buf_add(file, &end, sizeof end);
  FILE *f = fopen(path, "ab");
  if (!f) return lm_fail_errno("cannot write %s", path);
  bool written = fwrite(&end, sizeof end, 1, f) == 1;
  return fclose(f) || !written ? lm_fail_errno("cannot write %s", path) : NULL;
}

// Another process may be naming the same kernel: the last wins, both files are good.
static lm_status name_add(const char *made, const char *path, const lm_buf *file) {
  lm_buf temp = {0};
  lm_status s = NULL;
  lm_buf_printf(&temp, "%s.%ld", path, (long)getpid());
  unlink(temp.p);
  if (link(made, temp.p)) s = lm_file_write_atomic(path, file->p, file->n);   // no hard links here
  else if (rename(temp.p, path)) s = lm_fail_errno("cannot rename %s", temp.p);
  unlink(temp.p);
  lm_buf_free(&temp);
  return s;
}

lm_status lm_cache_add(const char *made, const char *const *paths, int n) {
  lm_buf file = {0};
  lm_status s = seal_add(made, &file);
  for (int i = 0; i < n && !s; i++) s = name_add(made, paths[i], &file);
  unlink(made);
  lm_buf_free(&file);
  return s;
}
