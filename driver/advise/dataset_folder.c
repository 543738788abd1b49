// dataset_folder.c - the kinds of files in folders.
#define _GNU_SOURCE
#include "driver/advise/dataset_folder.h"

#include <dirent.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/base/utf8.h"
#include "runtime/data/read/input.h"

enum {
  LOOKED_AT = 64 << 10
};                                     // bytes of each file
static const double SHOWN_EVERY = 0.3; // seconds

static bool ends_with(const char *s, const char *end) {
  size_t n = strlen(s);
  size_t m = strlen(end);
  return n > m && !strcasecmp(s + n - m, end);
}

bool lm_is_jsonl(const char *path) {
  static const char *const names[] = {".jsonl",     ".ndjson",     ".json",
                                      ".jsonl.zst", ".ndjson.zst", ".json.zst",
                                      ".jsonl.gz",  ".ndjson.gz",  ".json.gz"};
  for (size_t i = 0; i < LM_COUNT(names); i++)
    if (ends_with(path, names[i]))
      return true;
  return false;
}

// The extension from the last dot on; for a file compressed by zstd or gzip from the dot before, if
// there is one.
static const char *extension_of(const char *name) {
  const char *dot = strrchr(name, '.');
  if (!dot || dot == name)
    return "";
  if (strcasecmp(dot, ".zst") && strcasecmp(dot, ".gz"))
    return dot;
  for (const char *p = dot; p > name + 1;)
    if (*--p == '.')
      return p;
  return dot;
}

// True for well-formed UTF-8 without NUL. The last character may be incomplete.
static bool is_text(const char *p, size_t n, bool whole) {
  uint32_t point;
  for (size_t i = 0; i < n;) {
    int length = lm_utf8_decode(p + i, n - i, &point);
    if (!length && !whole && n - i < 4)
      return true;
    if (!length || !point)
      return false;
    i += (size_t)length;
  }
  return true;
}

static bool begins_with_object(const char *p, size_t n) {
  const char *end = memchr(p, '\n', n);
  json_t *line =
      json_loadb(p, end ? (size_t)(end - p) : n, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
  bool object = json_is_object(line);
  json_decref(line);
  return object;
}

static bool beginning_read(const char *path, char *to, size_t *out_n) {
  lm_input *in;
  size_t got = 0;
  *out_n = 0;
  lm_status s = lm_input_open(path, &in);
  if (!s) {
    do {
      s = lm_input_read(in, to + *out_n, LOOKED_AT - *out_n, &got);
      *out_n += s ? 0 : got;
    } while (!s && got && *out_n < LOOKED_AT);
    lm_input_close(in);
  }
  bool good = !s;
  lm_status_free(s);
  return good;
}

static lm_file_kind *kind_find(lm_arena *a, lm_file_kinds *kinds, const char *extension) {
  for (uint32_t i = 0; i < kinds->n; i++)
    if (!strcmp(kinds->v[i].extension, extension))
      return &kinds->v[i];
  lm_file_kind kind = {.extension = lm_arena_strndup(a, extension, strlen(extension))};
  LM_PUSH(a, kinds->v, kinds->n, kinds->cap) = kind;
  return &kinds->v[kinds->n - 1];
}

bool lm_file_is_text(const char *path) {
  char *room = lm_alloc(LOOKED_AT);
  size_t n;
  bool text = beginning_read(path, room, &n) && is_text(room, n, n < LOOKED_AT);
  lm_free(room);
  return text;
}

static bool file_look(const char *path, uint64_t size, char *room, lm_file_kind *kind) {
  size_t n;
  bool text = beginning_read(path, room, &n) && is_text(room, n, n < LOOKED_AT);
  kind->unusable += !text;
  if (text && n && !kind->bytes)
    kind->lines = begins_with_object(room, n);
  if (text)
    kind->bytes += size;
  kind->files++;
  return text;
}

bool lm_file_kinds_look(lm_arena *a, const char *path, uint64_t size, lm_file_kinds *out) {
  const char *slash = strrchr(path, '/');
  char *room = lm_alloc(LOOKED_AT);
  bool text =
      file_look(path, size, room, kind_find(a, out, extension_of(slash ? slash + 1 : path)));
  lm_free(room);
  return text;
}

bool lm_folder_walk_on(lm_folder_walk *w) {
  double now = lm_now();
  if (!w->shown)
    w->shown = now;
  if (w->progress.show && now - w->shown > SHOWN_EVERY) {
    w->progress.show(w->progress.user, w->files);
    w->shown = now;
  }
  return w->files <= LM_WALK_MOST && w->folders <= LM_WALK_MOST;
}

bool lm_file_kinds_add(lm_arena *a, const char *folder, lm_folder_walk *w, lm_file_kinds *out) {
  DIR *d = opendir(folder);
  if (!d)
    return false;
  char *room = lm_alloc(LOOKED_AT);
  for (struct dirent *e; lm_folder_walk_on(w) && (e = readdir(d));) {
    struct stat st;
    const char *path = lm_path_join(a, folder, e->d_name);
    if (*e->d_name == '.' || stat(path, &st) || !S_ISREG(st.st_mode))
      continue;
    w->files++;
    file_look(path, (uint64_t)st.st_size, room, kind_find(a, out, extension_of(e->d_name)));
  }
  closedir(d);
  lm_free(room);
  return true;
}

static const char *why_not(lm_arena *a, const lm_file_kind *k) {
  static const char *const packed[] = {".bz2", ".xz", ".lz4", ".zip"};
  for (size_t i = 0; i < LM_COUNT(packed); i++)
    if (!strcasecmp(k->extension, packed[i]))
      return "packed; only .zst and .gz are unpacked";
  if (!strcasecmp(k->extension, ".zst") || !strcasecmp(k->extension, ".gz"))
    return "packed files of an unknown kind: name them like a.txt.zst";
  if (!strcmp(k->extension, ".lm"))
    return "programs of lmc; a pattern can name them";
  if (k->unusable == k->files)
    return "not UTF-8 text";
  if (!k->bytes)
    return k->unusable ? "empty or not UTF-8 text" : "empty";
  if (!*k->extension)
    return "without an extension; a pattern such as 'FOLDER/*' names them";
  return lm_is_jsonl(lm_arena_printf(a, "x%s", k->extension)) && !k->lines
             ? "not one JSON object a line"
             : NULL;
}

static int by_extension(const void *a, const void *b) {
  return strcmp(((const lm_file_kind *)a)->extension, ((const lm_file_kind *)b)->extension);
}

void lm_file_kinds_judge(lm_arena *a, lm_file_kinds *kinds) {
  if (kinds->n)
    qsort(kinds->v, kinds->n, sizeof *kinds->v, by_extension);
  for (uint32_t i = 0; i < kinds->n; i++)
    kinds->v[i].why = why_not(a, &kinds->v[i]);
}
