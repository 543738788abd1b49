// st_read.c - the safetensors reader. Every length, shape and offset is checked against the file's
// size before it is used, so a malformed file cannot cause a large allocation.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/io/json.h"
#include "runtime/weights/safetensors.h"

enum {
  HEADER_MAX = 100 << 20, // the reference implementation's limit
  LENGTH_BYTES = 8,       // of the header's length, at the start of the file
  PIECE = 1 << 16         // elements that are converted at a time
};

// `data` is the offset of the data, `n_data` its size.
typedef struct {
  const char *path;
  int fd;
  int64_t size;
  int64_t data;
  int64_t n_data;
} st_file;

struct lm_st {
  lm_arena *arena;
  st_file *files;
  uint32_t n_files;
  uint32_t cap_files;
  lm_st_tensor *tensors;
  uint32_t n_tensors, cap_tensors; // sorted by name once open
};

static lm_status regular_open(const char *path, int *out_fd) {
  lm_status s = lm_open_regular(path, out_fd);
  if (s && errno == EINVAL)
    s->kind = LM_USER; // there is something, and it is no file
  return s;
}

static lm_status descriptor_open(lm_st *st, const char *path, st_file **out) {
  int fd;
  LM_TRY(regular_open(path, &fd));
  st_file *f = &LM_PUSH(st->arena, st->files, st->n_files, st->cap_files);
  *f = (st_file){
      .path = lm_arena_strndup(st->arena, path, strlen(path)),
      .fd = fd,
  };
  struct stat info;
  if (fstat(fd, &info))
    return lm_fail_errno("cannot read %s", path);
  f->size = info.st_size;
  if (f->size < LENGTH_BYTES)
    return lm_fail(LM_USER, "%s: %lld bytes are no safetensors file", path, (long long)f->size);
  *out = f;
  return NULL;
}

static bool dtype_find(const char *name, lm_st_dtype *out) {
  for (int t = 0; t < LM_ST_DTYPES; t++)
    if (!strcmp(name, lm_st_dtype_name(t))) {
      *out = t;
      return true;
    }
  return false;
}

static bool is_size(const json_t *j) {
  return json_is_integer(j) && json_integer_value(j) >= 0;
}

// shape -> rank, shape, elements; false if it is no list of sizes whose product in bytes fits.
static bool shape_parse(const json_t *list, lm_st_tensor *t) {
  if (!json_is_array(list) || json_array_size(list) > LM_ST_RANK)
    return false;
  t->rank = (int)json_array_size(list);
  t->elements = 1;
  bool empty = false;
  bool fits = true;
  for (int i = 0; i < t->rank; i++) {
    const json_t *n = json_array_get(list, (size_t)i);
    if (!is_size(n))
      return false;
    t->shape[i] = json_integer_value(n);
    empty |= t->shape[i] == 0;
    fits &= !__builtin_mul_overflow(t->elements, t->shape[i], &t->elements);
  }
  if (empty)
    t->elements = 0;
  int64_t bytes;
  return empty || (fits && !__builtin_mul_overflow(t->elements,
                                                   (int64_t)lm_st_dtype_bytes(t->dtype), &bytes));
}

// One entry of the header.
static lm_status tensor_parse(lm_st *st, const st_file *f, const char *name, const json_t *entry) {
  lm_st_tensor t = {
      .name = lm_arena_strndup(st->arena, name, strlen(name)), .file = f->path, .fd = f->fd};
  const json_t *dtype = json_object_get(entry, "dtype");
  const json_t *offsets = json_object_get(entry, "data_offsets");
  if (!json_is_string(dtype))
    return lm_fail(LM_USER, "%s: tensor %s has no dtype", f->path, name);
  if (!dtype_find(json_string_value(dtype), &t.dtype))
    return lm_fail(LM_USER, "%s: tensor %s: dtype %s is not supported", f->path, name,
                   json_string_value(dtype));
  if (!shape_parse(json_object_get(entry, "shape"), &t))
    return lm_fail(LM_USER, "%s: tensor %s: shape is not a list of at most %d sizes that fit",
                   f->path, name, LM_ST_RANK);
  const json_t *begin = json_array_get(offsets, 0);
  const json_t *end = json_array_get(offsets, 1);
  if (json_array_size(offsets) != 2 || !is_size(begin) || !is_size(end))
    return lm_fail(LM_USER, "%s: tensor %s: data_offsets is not [begin, end]", f->path, name);
  int64_t from = json_integer_value(begin);
  int64_t to = json_integer_value(end);
  if (from > to || to > f->n_data)
    return lm_fail(
        LM_USER,
        "%s: tensor %s: data_offsets [%lld, %lld] lie outside the file's %lld bytes of data",
        f->path, name, (long long)from, (long long)to, (long long)f->n_data);
  if (to - from != t.elements * lm_st_dtype_bytes(t.dtype))
    return lm_fail(
        LM_USER, "%s: tensor %s: data_offsets span %lld bytes, dtype and shape need %lld", f->path,
        name, (long long)(to - from), (long long)(t.elements * lm_st_dtype_bytes(t.dtype)));
  t.offset = f->data + from;
  LM_PUSH(st->arena, st->tensors, st->n_tensors, st->cap_tensors) = t;
  return NULL;
}

static int64_t tensor_end(const lm_st_tensor *t) {
  return t->offset + t->elements * lm_st_dtype_bytes(t->dtype);
}

static int by_offset(const void *a, const void *b) {
  const lm_st_tensor *x = a, *y = b;
  if (x->offset != y->offset)
    return x->offset < y->offset ? -1 : 1;
  int64_t p = tensor_end(x);
  int64_t q = tensor_end(y);
  return p < q ? -1 : p > q;
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const lm_st_tensor *)a)->name, ((const lm_st_tensor *)b)->name);
}

// The tensors from index `from` on belong to the file. They cover its data without overlap or
// gap.
static lm_status offsets_check(lm_st *st, const st_file *f, uint32_t from) {
  uint32_t n = st->n_tensors - from;
  if (n)
    qsort(st->tensors + from, n, sizeof *st->tensors, by_offset);
  int64_t at = f->data;
  for (uint32_t i = from; i < st->n_tensors; at = tensor_end(&st->tensors[i++]))
    if (st->tensors[i].offset != at)
      return lm_fail(LM_USER, "%s: tensor %s: its data %s", f->path, st->tensors[i].name,
                     st->tensors[i].offset < at ? "overlaps another's"
                                                : "follows bytes that belong to no tensor");
  if (at != f->size)
    return lm_fail(LM_USER, "%s: bytes after the last tensor", f->path);
  return NULL;
}

static lm_status header_parse(lm_st *st, const st_file *f, json_t *header) {
  if (!json_is_object(header))
    return lm_fail(LM_USER, "%s: the header is not a JSON object", f->path);
  uint32_t from = st->n_tensors;
  const char *name;
  json_t *entry;
  json_object_foreach(header, name, entry) {
    if (strcmp(name, "__metadata__"))
      LM_TRY(tensor_parse(st, f, name, entry));
  }
  return offsets_check(st, f, from);
}

static lm_status header_read(const st_file *f, size_t n, json_t **out) {
  char *text = lm_alloc(n + 1);
  lm_status s = lm_fd_read_at(f->fd, f->path, LENGTH_BYTES, text, n);
  if (!s)
    s = lm_json_parse(text, n, f->path, out);
  lm_free(text);
  return s;
}

static lm_status file_open(lm_st *st, const char *path) {
  st_file *f = NULL;
  unsigned char length[LENGTH_BYTES];
  LM_TRY(descriptor_open(st, path, &f));
  LM_TRY(lm_fd_read_at(f->fd, path, 0, length, sizeof length));
  uint64_t n = 0;
  for (int i = 0; i < LENGTH_BYTES; i++)
    n |= (uint64_t)length[i] << (8 * i);
  if (n > HEADER_MAX || n > (uint64_t)f->size - LENGTH_BYTES)
    return lm_fail(LM_USER, "%s: not a safetensors file: a header of %llu bytes in a file of %lld",
                   path, (unsigned long long)n, (long long)f->size);
  f->data = LENGTH_BYTES + (int64_t)n;
  f->n_data = f->size - f->data;
  json_t *header;
  LM_TRY(header_read(f, (size_t)n, &header));
  lm_status s = header_parse(st, f, header);
  json_decref(header);
  return s;
}

static int by_text(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool ends_with(const char *s, const char *end) {
  size_t n = strlen(s);
  size_t m = strlen(end);
  return n >= m && !strcmp(s + n - m, end);
}

static lm_status all_open(lm_st *st, const char *folder) {
  DIR *d = opendir(folder);
  if (!d)
    return lm_fail_errno("cannot open folder %s", folder);
  char **names = NULL;
  uint32_t n = 0;
  uint32_t cap = 0;
  for (struct dirent *e; (e = readdir(d));)
    if (ends_with(e->d_name, ".safetensors"))
      LM_PUSH(st->arena, names, n, cap) = lm_arena_strndup(st->arena, e->d_name, strlen(e->d_name));
  closedir(d);
  if (!n)
    return lm_fail(LM_USER, "%s: no .safetensors file in this folder", folder);
  qsort(names, n, sizeof *names, by_text);
  for (uint32_t i = 0; i < n; i++)
    LM_TRY(file_open(st, lm_path_join(st->arena, folder, names[i])));
  return NULL;
}

static bool has_file(const lm_st *st, const char *path) {
  for (uint32_t i = 0; i < st->n_files; i++)
    if (!strcmp(st->files[i].path, path))
      return true;
  return false;
}

static lm_status indexed_open(lm_st *st, const char *folder, const char *index, const json_t *map) {
  if (!json_is_object(map))
    return lm_fail(LM_USER, "%s: no weight_map", index);
  const char *name;
  json_t *file;
  json_object_foreach((json_t *)map, name, file) {
    const char *text = json_string_value(file);
    if (!text || !*text || strchr(text, '/'))
      return lm_fail(LM_USER, "%s: %s: not a file of the same folder", index, name);
    char *path = lm_path_join(st->arena, folder, text);
    if (!has_file(st, path))
      LM_TRY(file_open(st, path));
  }
  return NULL;
}

// The tensors are sorted by name: none twice, and all that the index promises.
static lm_status index_check(const lm_st *st, const char *index, const json_t *map) {
  const char *name;
  json_t *file;
  json_object_foreach((json_t *)map, name, file) {
    const lm_st_tensor *t = lm_st_find(st, name);
    if (!t || !ends_with(t->file, json_string_value(file)))
      return lm_fail(LM_USER, "%s: tensor %s is not in %s", index, name, json_string_value(file));
  }
  return NULL;
}

static lm_status names_sort(lm_st *st) {
  if (st->n_tensors)
    qsort(st->tensors, st->n_tensors, sizeof *st->tensors, by_name);
  for (uint32_t i = 1; i < st->n_tensors; i++)
    if (!by_name(&st->tensors[i - 1], &st->tensors[i]))
      return lm_fail(LM_USER, "tensor %s is in %s and in %s", st->tensors[i].name,
                     st->tensors[i - 1].file, st->tensors[i].file);
  return NULL;
}

// An export into the folder of a checkpoint in several files leaves both there.
static lm_status ambiguity_check(const char *folder, const char *single, const json_t *map) {
  const char *name;
  json_t *file;
  if (access(single, F_OK))
    return NULL;
  json_object_foreach((json_t *)map, name, file) {
    const char *named = json_string_value(file);
    if (named && !strcmp(named, "model.safetensors"))
      return NULL;
  }
  return lm_fail(LM_USER,
                 "%s holds model.safetensors beside a model.safetensors.index.json that names "
                 "other files, so there are two sets of weights; remove one of them",
                 folder);
}

static lm_status index_open(lm_st *st, const char *folder, const char *index, const char *single) {
  json_t *j;
  LM_TRY(lm_json_read(index, HEADER_MAX, &j));
  const json_t *map = json_object_get(j, "weight_map");
  lm_status s = single ? ambiguity_check(folder, single, map) : NULL;
  if (!s)
    s = indexed_open(st, folder, index, map);
  if (!s)
    s = names_sort(st);
  if (!s)
    s = index_check(st, index, map);
  json_decref(j);
  return s;
}

static const char *index_of(const lm_st *st, const char *path) {
  return lm_arena_printf(st->arena, "%s.index.json", path);
}

static lm_status folder_open(lm_st *st, const char *folder) {
  char *single = lm_path_join(st->arena, folder, "model.safetensors");
  const char *index = index_of(st, single);
  if (!access(index, F_OK))
    return index_open(st, folder, index, single);
  LM_TRY(access(single, F_OK) ? all_open(st, folder) : file_open(st, single));
  return names_sort(st);
}

static lm_status any_open(lm_st *st, const char *path) {
  struct stat info;
  const char *index = index_of(st, path);
  bool found = !stat(path, &info);
  if (!found && errno == ENOENT && !access(index, F_OK))
    return index_open(st, lm_path_dir(st->arena, path), index, NULL);
  if (!found)
    return lm_fail_errno("cannot open %s", path);
  if (S_ISDIR(info.st_mode))
    return folder_open(st, path);
  LM_TRY(file_open(st, path));
  return names_sort(st);
}

lm_status lm_st_open(const char *path, lm_st **out) {
  lm_arena *arena = lm_arena_create();
  lm_st *st = LM_NEW(arena, lm_st);
  st->arena = arena;
  lm_status s = any_open(st, path);
  if (s)
    lm_st_close(st);
  *out = s ? NULL : st;
  return s;
}

void lm_st_close(lm_st *st) {
  if (!st)
    return;
  for (uint32_t i = 0; i < st->n_files; i++)
    close(st->files[i].fd);
  lm_arena_destroy(st->arena);
}

size_t lm_st_count(const lm_st *st) {
  return st->n_tensors;
}
const lm_st_tensor *lm_st_at(const lm_st *st, size_t i) {
  return &st->tensors[i];
}

const lm_st_tensor *lm_st_find(const lm_st *st, const char *name) {
  lm_st_tensor key = {.name = name};
  return st->n_tensors ? bsearch(&key, st->tensors, st->n_tensors, sizeof key, by_name) : NULL;
}

lm_status lm_st_read(const lm_st_tensor *t, int64_t from, int64_t n, void *out) {
  int64_t bytes = lm_st_dtype_bytes(t->dtype);
  return lm_fd_read_at(t->fd, t->file, t->offset + from * bytes, out, (size_t)(n * bytes));
}

lm_status lm_st_read_f32(const lm_st_tensor *t, int64_t from, int64_t n, float *out) {
  if (t->dtype == LM_ST_F32)
    return lm_st_read(t, from, n, out);
  void *piece = lm_alloc((size_t)lm_st_dtype_bytes(t->dtype) * PIECE);
  lm_status s = NULL;
  for (int64_t at = 0; at < n && !s; at += PIECE) {
    int64_t some = n - at < PIECE ? n - at : PIECE;
    s = lm_st_read(t, from + at, some, piece);
    if (!s)
      lm_st_to_f32(t->dtype, piece, 0, some, out + at);
  }
  lm_free(piece);
  return s;
}
