// files.c - see files.h.
#define _GNU_SOURCE
#include "runtime/data/read/files.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/data/read/input.h"
#include "runtime/data/read/match.h"

static void key_add(lm_file_list *l, const void *p, size_t n) {
  lm_hash_key(l->key, p, n);
}

static void key_add_text(lm_file_list *l, const char *s) {
  key_add(l, s ? s : "", s ? strlen(s) + 1 : 0);
}

static lm_status file_add(lm_file_list *l, int source, const char *path) {
  struct stat st;
  LM_TRY(lm_input_look(path, &st));
  if (l->n == l->cap) {
    l->cap = l->cap ? 2 * l->cap : 16;
    l->files = lm_realloc(l->files, l->cap * sizeof *l->files);
  }
  l->files[l->n++] = (lm_file_entry){lm_strdup(path),
                                     source,
                                     (uint64_t)st.st_size,
                                     {st.st_mtim.tv_sec, st.st_mtim.tv_nsec},
                                     {st.st_dev, st.st_ino}};
  l->bytes += (uint64_t)st.st_size;
  l->umask |= lm_input_umask(&st);
  int64_t facts[] = {source,
                     st.st_size,
                     st.st_mtim.tv_sec,
                     st.st_mtim.tv_nsec,
                     st.st_ctim.tv_sec,
                     st.st_ctim.tv_nsec};
  key_add_text(l, path);
  key_add(l, facts, sizeof facts);
  return NULL;
}

// ---- files that several paths of one source reach through links

static int by_id(const void *a, const void *b) {
  const lm_file_entry *x = *(lm_file_entry *const *)a;
  const lm_file_entry *y = *(lm_file_entry *const *)b;
  int order = memcmp(x->id, y->id, sizeof x->id);
  return order ? order : x < y ? -1 : x > y;
}

// Keeps the first path of each file.
static void repeated_remove(lm_file_list *l, uint32_t first) {
  uint32_t n = l->n - first;
  uint32_t kept = first;
  lm_file_entry **order = lm_calloc(n + 1, sizeof *order);
  for (uint32_t i = 0; i < n; i++)
    order[i] = &l->files[first + i];
  qsort(order, n, sizeof *order, by_id);
  for (uint32_t i = n; i-- > 1;) {
    if (memcmp(order[i]->id, order[i - 1]->id, sizeof order[i]->id))
      continue;
    l->bytes -= order[i]->size;
    lm_free(order[i]->path);
    order[i]->path = NULL;
  }
  for (uint32_t i = first; i < l->n; i++)
    if (l->files[i].path)
      l->files[kept++] = l->files[i];
  l->n = kept;
  lm_free(order);
}

// Counts what a pattern matches besides files: links that lead nowhere, folders, FIFOs, devices.
static bool is_skipped(lm_file_list *l, const char *path) {
  struct stat st;
  if (stat(path, &st))
    st.st_mode = errno == ENOENT || errno == ELOOP ? 0 : S_IFREG; // file_add reports the others
  bool skipped = !S_ISREG(st.st_mode);
  l->skipped += skipped;
  l->skipped_folders += S_ISDIR(st.st_mode);
  return skipped;
}

// If none of the matches is a file, the error says what the first one is.
static lm_status files_of_matches_add(lm_file_list *l, int index, const glob_t *found) {
  uint32_t first = l->n;
  for (size_t i = 0; i < found->gl_pathc; i++)
    if (!is_skipped(l, found->gl_pathv[i]))
      LM_TRY(file_add(l, index, found->gl_pathv[i]));
  return l->n > first ? NULL : file_add(l, index, found->gl_pathv[0]);
}

static lm_status matches_add(lm_file_list *l, int index) {
  const char *path = l->sources[index].path;
  glob_t found;
  if (!access(path, F_OK))
    return file_add(l, index, path);
  LM_TRY(lm_match(path, &found));
  lm_status s = files_of_matches_add(l, index, &found);
  globfree(&found);
  return s;
}

static lm_status source_add(lm_file_list *l, int index) {
  const lm_data_source *x = &l->sources[index];
  int kind = x->kind;
  uint32_t first = l->n;
  key_add(l, &kind, sizeof kind);
  key_add_text(l, x->split);
  key_add_text(l, x->field);
  if (x->chat)
    key_add(l, x->chat->key, sizeof x->chat->key);
  LM_TRY(matches_add(l, index));
  repeated_remove(l, first);
  return NULL;
}

lm_status lm_source_status(lm_status s, const lm_data_source *source) {
  return lm_status_about(lm_annotate(s, "source %s", source->name), source);
}

lm_status lm_file_list_make(const lm_data_source *sources, int n, lm_file_list *out) {
  *out = (lm_file_list){
      .sources = sources,
      .n_sources = n,
  };
  lm_status s = NULL;
  for (int i = 0; i < n && !s; i++)
    s = lm_source_status(source_add(out, i), &sources[i]);
  if (s)
    lm_file_list_free(out);
  return s;
}

void lm_file_list_free(lm_file_list *l) {
  for (uint32_t i = 0; i < l->n; i++)
    lm_free(l->files[i].path);
  lm_free(l->files);
  *l = (lm_file_list){0};
}
