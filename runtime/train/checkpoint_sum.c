// checkpoint_sum.c - see checkpoint_sum.h.
#include "runtime/train/checkpoint_sum.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/file.h"

enum {
  TEXT_MAX = 1 << 20
};

// Reads one complete piece; *out_n < LM_SUM_PIECE at the end of the file.
static bool piece_read(int fd, char *piece, size_t *out_n) {
  for (*out_n = 0; *out_n < LM_SUM_PIECE;) {
    ssize_t n = read(fd, piece + *out_n, LM_SUM_PIECE - *out_n);
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      return false;
    if (!n)
      break;
    *out_n += (size_t)n;
  }
  return true;
}

// On failure errno is set. The file is read, not mapped, so that a bad block is an error.
static bool file_sum(const char *path, lm_sum *out) {
  int fd;
  lm_status closed = lm_open_regular(path, &fd);
  lm_status_free(closed);
  if (closed)
    return false;
  char *piece = lm_alloc(LM_SUM_PIECE);
  bool good;
  size_t n;
  *out = (lm_sum){0};
  do {
    good = piece_read(fd, piece, &n);
    lm_sum_add(out, piece, n);
  } while (good && n == LM_SUM_PIECE);
  int why = errno;
  lm_free(piece);
  close(fd);
  errno = why;
  return good;
}

lm_status lm_checkpoint_sums_write(lm_arena *a, const char *folder, const char *const *files,
                                   const lm_sum *sums, int n) {
  lm_buf b = {0};
  for (int i = 0; i < n; i++)
    lm_buf_printf(&b, "%" PRIu64 " %016" PRIx64 " %s\n", sums[i].bytes, sums[i].hash, files[i]);
  lm_buf_printf(&b, "%016" PRIx64 "\n", lm_hash(b.p, b.n, 0));
  lm_status s = lm_file_write_atomic(lm_path_join(a, folder, LM_CHECKPOINT_SUMS), b.p, b.n);
  lm_buf_free(&b);
  return s;
}

// ---- checking

// A file that is missing, is not a regular file, or has bad blocks is damaged. Other errors that
// prevent reading it are reported as a status.
static lm_status unreadable(lm_arena *a, const char *path, const char **out_damage) {
  static const int of_damage[] = {ENOENT, EIO, EISDIR, ENOTDIR, ELOOP, ENXIO, EINVAL};
  const char *why = errno == ENOENT   ? " is missing"
                    : errno == EINVAL ? " is not a regular file"
                                      : NULL;
  bool damaged = false;
  for (size_t i = 0; i < LM_COUNT(of_damage); i++)
    damaged |= errno == of_damage[i];
  if (!damaged)
    return lm_fail_errno("cannot read %s", path);
  *out_damage = why ? lm_arena_printf(a, "%s%s", path, why)
                    : lm_arena_printf(a, "%s: %s", path, strerror(errno));
  return NULL;
}

// The size of the text before the last line if that line is its hash, else 0.
static size_t sealed_bytes(const lm_buf *b) {
  enum {
    SEAL = 17
  };
  char seal[SEAL + 1];
  if (b->n <= SEAL || b->p[b->n - SEAL - 1] != '\n')
    return 0;
  snprintf(seal, sizeof seal, "%016" PRIx64 "\n", lm_hash(b->p, b->n - SEAL, 0));
  return memcmp(seal, b->p + b->n - SEAL, SEAL) ? 0 : b->n - SEAL;
}

// A line of checksums.txt.
typedef struct entry {
  const char *name;
  size_t n; // bytes of the name
  lm_sum sum;
} entry;

// Sets *out to the entry of the line at *at, and *at to the next line; false: there is none.
static bool entry_next(const char **at, entry *out) {
  const char *line = *at;
  char *end;
  if (!*line)
    return false;
  out->sum.bytes = strtoull(line, &end, 10);
  out->sum.hash = strtoull(end, &end, 16);
  out->name = end + (*end == ' ');
  out->n = strcspn(out->name, "\n");
  *at = out->name + out->n;
  *at += **at == '\n';
  return true;
}

static bool sum_find(const char *text, const char *file, lm_sum *out) {
  for (entry e; entry_next(&text, &e);)
    if (e.n == strlen(file) && !memcmp(e.name, file, e.n)) {
      *out = e.sum;
      return true;
    }
  return false;
}

static lm_status file_check(lm_arena *a, const char *folder, const char *file, lm_sum was,
                            const char **out_damage) {
  char *path = lm_path_join(a, folder, file);
  lm_sum is;
  if (!file_sum(path, &is))
    return unreadable(a, path, out_damage);
  if (is.bytes != was.bytes)
    *out_damage = lm_arena_printf(a, "%s has %" PRIu64 " bytes, expected %" PRIu64, path, is.bytes,
                                  was.bytes);
  else if (is.hash != was.hash)
    *out_damage = lm_arena_printf(a, "%s: the checksum is %016" PRIx64 ", expected %016" PRIx64,
                                  path, is.hash, was.hash);
  return NULL;
}

// True if this is the name of one of the files of `set`: model-00001-of-00002.safetensors or
// model.safetensors.index.json of model.safetensors.
static bool is_part(const char *name, const char *set) {
  size_t n = strlen(set);
  size_t stem = strcspn(set, ".");
  bool index = !strncmp(name, set, n) && !strcmp(name + n, ".index.json");
  return index || (!strncmp(name, set, stem) && name[stem] == '-');
}

// Checks the file, or all of several.
static lm_status files_check(lm_arena *a, const char *folder, const char *text, const char *file,
                             const char **out_damage) {
  lm_sum was;
  if (sum_find(text, file, &was))
    return file_check(a, folder, file, was, out_damage);
  if (!sum_find(text, lm_arena_printf(a, "%s.index.json", file), &was))
    *out_damage = lm_arena_printf(a, "%s has no line for %s",
                                  lm_path_join(a, folder, LM_CHECKPOINT_SUMS), file);
  for (entry e; !*out_damage && entry_next(&text, &e);) {
    const char *name = lm_arena_strndup(a, e.name, e.n);
    if (is_part(name, file))
      LM_TRY(file_check(a, folder, name, e.sum, out_damage));
  }
  return NULL;
}

static lm_status text_check(lm_arena *a, const char *folder, lm_buf *text, const char *const *files,
                            int n, const char **out_damage) {
  size_t lines = sealed_bytes(text);
  if (!lines) {
    *out_damage = lm_arena_printf(a, "%s is damaged", lm_path_join(a, folder, LM_CHECKPOINT_SUMS));
    return NULL;
  }
  text->p[lines] = 0;
  for (int i = 0; i < n && !*out_damage; i++)
    LM_TRY(files_check(a, folder, text->p, files[i], out_damage));
  return NULL;
}

lm_status lm_checkpoint_sums_check(lm_arena *a, const char *folder, const char *const *files, int n,
                                   const char **out_damage) {
  char *path = lm_path_join(a, folder, LM_CHECKPOINT_SUMS);
  lm_buf text = {0};
  *out_damage = NULL;
  if (access(path, R_OK))
    return unreadable(a, path, out_damage);
  lm_status bad = lm_file_read(path, TEXT_MAX, &text);
  lm_status s = NULL;
  if (bad)
    *out_damage = lm_arena_printf(a, "%s", bad->text);
  else
    s = text_check(a, folder, &text, files, n, out_damage);
  lm_status_free(bad);
  lm_buf_free(&text);
  return s;
}
