// input.c - see input.h.
#include "runtime/data/read/input.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>
#ifdef LM_HAS_ZLIB
#include <zlib.h>
#endif

#include "runtime/base/file.h"

enum {
  PACKED = 1 << 17,   // bytes of compressed data that are read at a time
  WINDOW_LOG_MAX = 27 // windows of at most 128 MiB, the default limit of zstd
};

struct lm_input {
  int fd;
  char *path;
  uint64_t consumed, unpacked; // bytes that were read; bytes after decompression
  ZSTD_DStream *zstd;          // of a .zst file, else NULL
  struct z_stream_s *gzip;     // of a .gz file, else NULL
  char *packed;
  size_t n, at;  // packed[at … n - 1] is not decompressed yet
  bool in_frame; // a frame (a gzip member) is incomplete, so the file must not end here
};

static bool ends_in(const char *s, const char *end) {
  size_t n = strlen(s);
  size_t m = strlen(end);
  return n > m && !strcmp(s + n - m, end);
}

static lm_status of_path(lm_status s) {
  if (s && lm_errno_is_path(errno))
    s->kind = LM_USER;
  return s;
}

static lm_status ending_check(const char *path) {
  static const char *const others[] = {".bz2", ".xz", ".lz4", ".zip", ".parquet"};
  for (size_t i = 0; i < LM_COUNT(others); i++)
    if (ends_in(path, others[i]))
      return lm_fail(LM_USER,
                     "%s: files ending in %s are unsupported; use plain files, .gz or .zst", path,
                     others[i]);
  return NULL;
}

lm_status lm_input_look(const char *path, struct stat *out) {
  if (stat(path, out))
    return of_path(lm_fail_errno("cannot open %s", path));
  if (S_ISREG(out->st_mode))
    return NULL;
  if (S_ISDIR(out->st_mode))
    return lm_fail(LM_USER, "%s is a folder: name its files, as in \"%s/*\"", path, path);
  return lm_fail(
      LM_USER,
      "%s is a FIFO, a socket or a device: text is read from regular files; write it to one first",
      path);
}

unsigned lm_input_umask(const struct stat *st) {
  unsigned group = st->st_mode & S_IRGRP ? 0 : S_IRWXG;
  return group | (st->st_mode & S_IROTH ? 0 : S_IRWXO);
}

static lm_status file_read(lm_input *in, char *to, size_t n, size_t *out_n) {
  ssize_t got;
  do
    got = read(in->fd, to, n);
  while (got < 0 && errno == EINTR);
  if (got < 0)
    return lm_fail_errno("cannot read %s", in->path);
  in->consumed += (uint64_t)got;
  *out_n = (size_t)got;
  return NULL;
}

// Protects against decompression bombs, whose ratio is in the ten thousands. Repetitive text has a
// ratio of a few hundred.
static lm_status ratio_check(const lm_input *in) {
  enum {
    RATIO_MAX = 1000,
    ALWAYS_ALLOWED = 256 << 20
  };
  if (in->unpacked <= ALWAYS_ALLOWED || in->unpacked / RATIO_MAX <= in->consumed)
    return NULL;
  return lm_fail(LM_USER,
                 "%s: its first %llu bytes decompress to more than %d times as much (%.0f MB so "
                 "far), as in a decompression bomb; if the file is intended, decompress it "
                 "and use the result",
                 in->path, (unsigned long long)in->consumed, RATIO_MAX, (double)in->unpacked / 1e6);
}

// ---- decompression: each takes a part of the packed bytes and gives at most n unpacked ones

static lm_status zstd_unpack(lm_input *in, char *to, size_t n, size_t *out_n) {
  ZSTD_inBuffer from = {in->packed, in->n, in->at};
  ZSTD_outBuffer into = {to, n, 0};
  size_t rc = ZSTD_decompressStream(in->zstd, &into, &from);
  if (ZSTD_isError(rc))
    return lm_fail(LM_USER, "%s: cannot be decompressed: %s", in->path, ZSTD_getErrorName(rc));
  in->in_frame = rc != 0;
  in->at = from.pos;
  *out_n = into.pos;
  return NULL;
}

#ifdef LM_HAS_ZLIB
// A file may be several gzip members, one after the other.
static lm_status gzip_unpack(lm_input *in, char *to, size_t n, size_t *out_n) {
  z_stream *z = in->gzip;
  if (!in->in_frame && inflateReset(z) != Z_OK)
    return lm_fail(LM_BUG_STATUS, "%s: inflateReset failed", in->path);
  z->next_in = (Bytef *)in->packed + in->at;
  z->avail_in = (uInt)(in->n - in->at);
  z->next_out = (Bytef *)to;
  z->avail_out = (uInt)(n < UINT_MAX ? n : UINT_MAX);
  uInt room = z->avail_out;
  int rc = inflate(z, Z_NO_FLUSH);
  if (rc != Z_OK && rc != Z_STREAM_END && rc != Z_BUF_ERROR)
    return lm_fail(LM_USER, "%s: cannot be decompressed: %s", in->path,
                   z->msg ? z->msg : "not a gzip file");
  in->in_frame = rc != Z_STREAM_END;
  in->at = in->n - z->avail_in;
  *out_n = room - z->avail_out;
  return NULL;
}

static lm_status gzip_open(lm_input *in) {
  enum {
    GZIP_ALONE = 16 + MAX_WBITS // a gzip header is required
  };
  in->gzip = lm_calloc(1, sizeof *in->gzip);
  if (inflateInit2(in->gzip, GZIP_ALONE) == Z_OK)
    return NULL;
  lm_free(in->gzip);
  in->gzip = NULL;
  return lm_fail(LM_ENV, "no memory to decompress %s", in->path);
}

static void gzip_close(lm_input *in) {
  if (in->gzip)
    inflateEnd(in->gzip);
  lm_free(in->gzip);
}
#else
static lm_status gzip_unpack(lm_input *in, char *to, size_t n, size_t *out_n) {
  LM_BUG("%s was opened without zlib", in->path);
}

static lm_status gzip_open(lm_input *in) {
  return lm_fail(
      LM_USER,
      "%s: files ending in .gz are unsupported, as lmc was built without zlib; use plain "
      "files or .zst",
      in->path);
}

static void gzip_close(lm_input *in) {}
#endif

static lm_status unpack(lm_input *in, char *to, size_t n, size_t *out_n) {
  for (*out_n = 0; !*out_n;) {
    size_t before = in->at;
    // a frame may produce more output without more input
    if (in->at < in->n || in->in_frame) {
      LM_TRY((in->gzip ? gzip_unpack : zstd_unpack)(in, to, n, out_n));
      in->unpacked += *out_n;
      LM_TRY(ratio_check(in));
      if (*out_n || (in->at < in->n && in->at > before))
        continue;
    }
    LM_TRY(file_read(in, in->packed, PACKED, &in->n));
    in->at = 0;
    if (!in->n)
      return in->in_frame ? lm_fail(LM_USER, "%s: the compressed file is truncated", in->path)
                          : NULL;
  }
  return NULL;
}

static lm_status zstd_open(lm_input *in) {
  in->zstd = ZSTD_createDStream();
  if (!in->zstd)
    return lm_fail(LM_ENV, "no memory to decompress %s", in->path);
  ZSTD_DCtx_setParameter(in->zstd, ZSTD_d_windowLogMax, WINDOW_LOG_MAX);
  return NULL;
}

static lm_status open_file(lm_input *in) {
  struct stat st;
  LM_TRY(lm_input_look(in->path, &st));
  LM_TRY(ending_check(in->path));
  LM_TRY(of_path(lm_open_regular(in->path, &in->fd)));
  if (ends_in(in->path, ".gz"))
    LM_TRY(gzip_open(in));
  else if (ends_in(in->path, ".zst"))
    LM_TRY(zstd_open(in));
  else
    return NULL;
  in->packed = lm_alloc(PACKED);
  return NULL;
}

lm_status lm_input_open(const char *path, lm_input **out) {
  lm_input *in = lm_alloc(sizeof *in);
  in->fd = -1;
  in->path = lm_strdup(path);
  lm_status s = open_file(in);
  if (s)
    lm_input_close(in);
  *out = s ? NULL : in;
  return s;
}

void lm_input_close(lm_input *in) {
  if (!in)
    return;
  if (in->fd >= 0)
    close(in->fd);
  ZSTD_freeDStream(in->zstd);
  gzip_close(in);
  lm_free(in->packed);
  lm_free(in->path);
  lm_free(in);
}

lm_status lm_input_read(lm_input *in, char *to, size_t n, size_t *out_n) {
  return in->zstd || in->gzip ? unpack(in, to, n, out_n) : file_read(in, to, n, out_n);
}

uint64_t lm_input_consumed(const lm_input *in) {
  return in->consumed;
}
