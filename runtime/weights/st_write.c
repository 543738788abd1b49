// st_write.c - the safetensors writer: header first, data streamed behind it, then sync and rename.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/weights/safetensors.h"

enum {
  LENGTH_BYTES = 8,
  ALIGNMENT = 64
};
// Readers for PyTorch require the format "pt".
static const char METADATA[] = "{\"__metadata__\":{\"format\":\"pt\",\"writer\":\"lmc\"}";

struct lm_st_writer {
  char *path;
  char *temp;
  int fd;
  uint64_t left; // bytes of data still to come
  lm_sum sum;    // of the written part of the file
  size_t n;      // bytes in the buffer, which is written when it is full
  char buffer[LM_SUM_PIECE];
};

static lm_status piece_write(lm_st_writer *w, const void *p, size_t n) {
  lm_sum_add(&w->sum, p, n);
  return lm_fd_write(w->fd, w->temp, p, n);
}

static lm_status put(lm_st_writer *w, const void *data, size_t n) {
  for (const char *p = data; n;) {
    bool direct = !w->n && n >= LM_SUM_PIECE;
    size_t some = n < LM_SUM_PIECE - w->n ? n : LM_SUM_PIECE - w->n;
    if (!direct)
      memcpy(w->buffer + w->n, p, some);
    w->n += some;
    if (w->n == LM_SUM_PIECE)
      LM_TRY(piece_write(w, direct ? p : w->buffer, LM_SUM_PIECE));
    w->n %= LM_SUM_PIECE;
    p += some;
    n -= some;
  }
  return NULL;
}

// The header as JSON, padded with spaces so that the data is aligned in the file.
static uint64_t header_make(lm_buf *b, const lm_st_tensor *tensors, size_t n) {
  uint64_t at = 0;
  lm_buf_puts(b, METADATA);
  for (size_t i = 0; i < n; i++) {
    const lm_st_tensor *t = &tensors[i];
    uint64_t elements = 1;
    for (int k = 0; k < t->rank; k++)
      elements *= (uint64_t)t->shape[k];
    uint64_t end = at + elements * (uint64_t)lm_st_dtype_bytes(t->dtype);
    lm_buf_puts(b, ",");
    lm_buf_json(b, t->name);
    lm_buf_printf(b, ":{\"dtype\":\"%s\",\"shape\":", lm_st_dtype_name(t->dtype));
    lm_st_shape_print(b, t->shape, t->rank);
    lm_buf_printf(b, ",\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
                  (unsigned long long)end);
    at = end;
  }
  lm_buf_puts(b, "}");
  while ((LENGTH_BYTES + b->n) % ALIGNMENT)
    lm_buf_puts(b, " ");
  return at;
}

bool lm_st_is_own(const char *path) {
  char begin[LENGTH_BYTES + sizeof METADATA];
  FILE *f = fopen(path, "rb");
  size_t n = f ? fread(begin, 1, sizeof begin, f) : 0;
  if (f)
    fclose(f);
  return n == sizeof begin && !memcmp(begin + LENGTH_BYTES, METADATA, strlen(METADATA));
}

// Closing unlocks the temporary name, so the file has been renamed or removed before.
static void writer_free(lm_st_writer *w) {
  if (w->fd >= 0)
    close(w->fd);
  lm_free(w->path);
  lm_free(w->temp);
  lm_free(w);
}

static lm_status start(lm_st_writer *w, const lm_st_tensor *tensors, size_t n) {
  lm_buf temp = {0};
  lm_buf header = {0};
  lm_buf_printf(&temp, "%s.tmp", w->path);
  w->temp = temp.p;
  LM_TRY(lm_temp_open(w->temp, &w->fd));
  w->left = header_make(&header, tensors, n);
  unsigned char length[8];
  for (int i = 0; i < 8; i++)
    length[i] = (unsigned char)((uint64_t)header.n >> (8 * i));
  lm_status s = put(w, length, sizeof length);
  if (!s)
    s = put(w, header.p, header.n);
  lm_buf_free(&header);
  return s;
}

lm_status lm_st_writer_create(const char *path, const lm_st_tensor *tensors, size_t n,
                              lm_st_writer **out) {
  lm_st_writer *w = lm_alloc(sizeof *w);
  w->fd = -1;
  w->path = lm_strdup(path);
  lm_status s = start(w, tensors, n);
  if (s)
    lm_st_writer_abort(w);
  *out = s ? NULL : w;
  return s;
}

lm_status lm_st_writer_append(lm_st_writer *w, const void *data, size_t bytes) {
  LM_ASSERT(bytes <= w->left);
  w->left -= bytes;
  return put(w, data, bytes);
}

static lm_status finish(lm_st_writer *w) {
  LM_ASSERT(w->left == 0);
  LM_TRY(piece_write(w, w->buffer, w->n));
  if (fsync(w->fd))
    return lm_fail_errno("cannot write %s", w->temp);
  if (rename(w->temp, w->path))
    return lm_fail_errno("cannot rename %s to %s", w->temp, w->path);
  return NULL;
}

static lm_status folder_sync(const char *path) {
  lm_arena *a = lm_arena_create();
  lm_status s = lm_dir_sync(lm_path_dir(a, path));
  lm_arena_destroy(a);
  return s;
}

lm_status lm_st_writer_finish(lm_st_writer *w, lm_sum *out_sum) {
  lm_status s = finish(w);
  if (s) {
    lm_st_writer_abort(w);
    return s;
  }
  *out_sum = w->sum;
  s = folder_sync(w->path);
  writer_free(w);
  return s;
}

void lm_st_writer_abort(lm_st_writer *w) {
  if (!w)
    return;
  if (w->fd >= 0)
    unlink(w->temp);
  writer_free(w);
}

static lm_status append_all(lm_st_writer *w, const lm_st_tensor *tensors, size_t n) {
  for (size_t i = 0; i < n; i++) {
    size_t bytes = (size_t)lm_st_dtype_bytes(tensors[i].dtype);
    for (int k = 0; k < tensors[i].rank; k++)
      bytes *= (size_t)tensors[i].shape[k];
    LM_TRY(lm_st_writer_append(w, tensors[i].data, bytes));
  }
  return NULL;
}

lm_status lm_st_write(const char *path, const lm_st_tensor *tensors, size_t n) {
  lm_st_writer *w;
  LM_TRY(lm_st_writer_create(path, tensors, n, &w));
  lm_status s = append_all(w, tensors, n);
  if (!s)
    return lm_st_writer_finish(w, &(lm_sum){0});
  lm_st_writer_abort(w);
  return s;
}
