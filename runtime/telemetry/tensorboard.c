// tensorboard.c - event files.
#include "runtime/telemetry/tensorboard.h"

#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/file.h"

struct lm_events {
  int fd;
  char *path;
  uint32_t crc[256];
  lm_buf data;
  lm_buf record;
};

enum {
  HEAD = 12,
  TAIL = 4
}; // bytes of a record before and after its data

// ---- records

// CRC-32C, polynomial 0x1edc6f41, reflected.
static void crc_table(uint32_t table[256]) {
  for (uint32_t i = 0; i < 256; i++) {
    table[i] = i;
    for (int k = 0; k < 8; k++)
      table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0x82f63b78 : 0);
  }
}

static uint32_t checksum(const uint32_t table[256], const char *p, size_t n) {
  uint32_t c = UINT32_MAX;
  for (size_t i = 0; i < n; i++)
    c = c >> 8 ^ table[(c ^ (unsigned char)p[i]) & 255];
  c = ~c;
  return (c >> 15 | c << 17) + 0xa282ead8;
}

static void fixed_add(lm_buf *b, uint64_t x, int bytes) {
  for (int i = 0; i < bytes; i++)
    lm_buf_add(b, &(char){(char)(x >> 8 * i)}, 1);
}

static uint64_t fixed_read(const char *p, int bytes) {
  uint64_t x = 0;
  for (int i = 0; i < bytes; i++)
    x |= (uint64_t)(unsigned char)p[i] << 8 * i;
  return x;
}

static void record_make(lm_events *e) {
  lm_buf *r = &e->record;
  r->n = 0;
  fixed_add(r, e->data.n, 8);
  fixed_add(r, checksum(e->crc, r->p, 8), 4);
  lm_buf_add(r, e->data.p, e->data.n);
  fixed_add(r, checksum(e->crc, e->data.p, e->data.n), 4);
}

static lm_status record_write(lm_events *e) {
  record_make(e);
  return lm_fd_write(e->fd, e->path, e->record.p, e->record.n);
}

// ---- protocol buffers: a field is its number and kind as a varint, then its value

enum {
  VARINT = 0,
  FIXED64 = 1,
  BYTES = 2,
  FIXED32 = 5
};

static void varint_add(lm_buf *b, uint64_t x) {
  for (; x >= 128; x >>= 7)
    lm_buf_add(b, &(char){(char)(x | 128)}, 1);
  lm_buf_add(b, &(char){(char)x}, 1);
}

static void field_add(lm_buf *b, int number, int kind) {
  varint_add(b, (uint64_t)(number << 3 | kind));
}

static void bytes_add(lm_buf *b, int number, const char *p, size_t n) {
  field_add(b, number, BYTES);
  varint_add(b, n);
  lm_buf_add(b, p, n);
}

static void double_add(lm_buf *b, int number, double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  field_add(b, number, FIXED64);
  fixed_add(b, bits, 8);
}

static void float_add(lm_buf *b, int number, float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  field_add(b, number, FIXED32);
  fixed_add(b, bits, 4);
}

static void summary_make(const lm_metric *items, size_t n, lm_buf *out) {
  lm_buf value = {0};
  for (size_t i = 0; i < n; i++) {
    value.n = 0;
    if (!isfinite(items[i].value))
      continue;
    bytes_add(&value, 1, items[i].name, strlen(items[i].name));
    float_add(&value, 2, (float)items[i].value);
    bytes_add(out, 1, value.p, value.n);
  }
  lm_buf_free(&value);
}

static void event_begin(lm_buf *b, double seconds, int64_t step) {
  b->n = 0;
  double_add(b, 1, seconds);
  field_add(b, 2, VARINT);
  varint_add(b, (uint64_t)step);
}

// The step of an event as this file writes them: wall time, then step.
static bool event_step(const char *p, size_t n, int64_t *out) {
  uint64_t x = 0;
  if (n < 11 || p[0] != (1 << 3 | FIXED64) || p[9] != (2 << 3 | VARINT))
    return false;
  for (size_t i = 10, shift = 0; i < n && shift < 63; i++, shift += 7) {
    x |= (uint64_t)(p[i] & 127) << shift;
    if (p[i] & 128)
      continue;
    *out = (int64_t)x;
    return true;
  }
  return false;
}

// ---- the file

// Bytes of the leading whole records whose step is at most `step`.
static size_t kept_bytes(const lm_events *e, const lm_buf *file, int64_t step) {
  size_t at = 0;
  while (file->n - at >= HEAD + TAIL) {
    const char *p = file->p + at;
    uint64_t n = fixed_read(p, 8);
    int64_t its;
    if (fixed_read(p + 8, 4) != checksum(e->crc, p, 8) || n > file->n - at - HEAD - TAIL)
      break;
    if (fixed_read(p + HEAD + n, 4) != checksum(e->crc, p + HEAD, n) ||
        !event_step(p + HEAD, n, &its) || its > step)
      break;
    at += HEAD + n + TAIL;
  }
  return at;
}

static lm_status truncate_to(const lm_events *e, int64_t step, bool *out_empty) {
  lm_buf file = {0};
  size_t kept = 0;
  lm_status s = lm_file_read(e->path, SIZE_MAX, &file);
  if (!s && file.n) {
    kept = kept_bytes(e, &file, step);
    if (ftruncate(e->fd, (off_t)kept))
      s = lm_fail_errno("cannot truncate %s", e->path);
  }
  *out_empty = !kept;
  lm_buf_free(&file);
  return s;
}

static lm_status events_open(lm_events *e, int64_t step) {
  bool empty;
  LM_TRY(lm_open_append(e->path, &e->fd));
  LM_TRY(truncate_to(e, step, &empty));
  if (!empty)
    return NULL;
  static const char version[] = "brain.Event:2";
  event_begin(&e->data, 0, 0);
  bytes_add(&e->data, 3, version, sizeof version - 1);
  return record_write(e);
}

lm_status lm_events_open(const char *path, int64_t step, lm_events **out) {
  lm_events *e = lm_alloc(sizeof *e);
  e->fd = -1;
  e->path = lm_strdup(path);
  crc_table(e->crc);
  lm_status s = events_open(e, step);
  if (s)
    lm_events_close(e);
  *out = s ? NULL : e;
  return s;
}

lm_status lm_events_add(lm_events *e, int64_t step, double seconds, const lm_metric *items,
                        size_t n) {
  lm_buf summary = {0};
  summary_make(items, n, &summary);
  event_begin(&e->data, seconds, step);
  bytes_add(&e->data, 5, summary.p ? summary.p : "", summary.n);
  lm_status s = summary.n ? record_write(e) : NULL;
  lm_buf_free(&summary);
  return s;
}

void lm_events_close(lm_events *e) {
  if (!e)
    return;
  if (e->fd >= 0)
    close(e->fd);
  lm_free(e->path);
  lm_buf_free(&e->data);
  lm_buf_free(&e->record);
  lm_free(e);
}
