// os.c - the clock, the machine's memory, and whole files read and written. Failures are LM_ENV; a
// caller whose path comes from the user's text changes the kind.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/file.h"

static double clock_read(clockid_t id) {
  struct timespec t;
  clock_gettime(id, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
double lm_now(void) {
  return clock_read(CLOCK_MONOTONIC);
}
double lm_thread_seconds(void) {
  return clock_read(CLOCK_THREAD_CPUTIME_ID);
}
double lm_process_seconds(void) {
  return clock_read(CLOCK_PROCESS_CPUTIME_ID);
}

void lm_pause(int times) {
  if (times < 256)
    sched_yield();
  else
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

#define NEAR 0.02
enum {
  NEAR_RUNS = 5
};

void lm_shortest_add(lm_shortest *s, double seconds) {
  bool first = !s->seconds;
  if (first || seconds < s->seconds * (1 - NEAR))
    s->near = 0;
  else if (seconds <= s->seconds * (1 + NEAR))
    s->near++;
  if (first || seconds < s->seconds)
    s->seconds = seconds;
}

bool lm_shortest_is_confirmed(const lm_shortest *s) {
  return s->near >= NEAR_RUNS;
}

// A limit of the control group, a number or "max". 0 if there is none or it cannot be read.
static int64_t group_limit(const char *path) {
  lm_buf text = {0};
  lm_status s = lm_file_read(path, 64, &text);
  int64_t n = s ? 0 : strtoll(text.p, NULL, 10);
  lm_status_free(s);
  lm_buf_free(&text);
  return n;
}

int64_t lm_memory_of_machine(void) {
  static const char *const limits[] = {"/sys/fs/cgroup/memory.max",
                                       "/sys/fs/cgroup/memory/memory.limit_in_bytes"};
  int64_t min = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGE_SIZE);
  for (size_t i = 0; i < LM_COUNT(limits); i++) {
    int64_t n = group_limit(limits[i]);
    if (n > 0 && n < min)
      min = n;
  }
  return min;
}

// Reads in bounded pieces and does not trust the size of the file, so devices and growing files are
// safe.
static lm_status read_all(int fd, const char *path, size_t max_bytes, lm_buf *out) {
  char piece[1 << 16];
  size_t start = out->n;
  for (;;) {
    ssize_t n = read(fd, piece, sizeof piece);
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      return lm_fail_errno("cannot read %s", path);
    if (n == 0)
      break;
    if ((size_t)n > max_bytes - (out->n - start))
      return lm_fail(LM_ENV, "%s: larger than %zu bytes", path, max_bytes);
    lm_buf_add(out, piece, (size_t)n);
  }
  lm_buf_add(out, "", 0); // NUL-terminates an empty file too
  return NULL;
}

lm_status lm_fd_read(int fd, const char *path, size_t max_bytes, lm_buf *out) {
  return read_all(fd, path, max_bytes, out);
}

// /dev/stdin and /dev/fd/N: opening an open descriptor again never blocks, whatever its type.
static bool names_descriptor(const char *path) {
  return !strcmp(path, "/dev/stdin") || !strncmp(path, "/dev/fd/", strlen("/dev/fd/"));
}

static lm_status descriptor_open(const char *path, int *out_fd) {
  *out_fd = open(path, O_RDONLY | O_CLOEXEC);
  return *out_fd < 0 ? lm_fail_errno("cannot open %s", path) : NULL;
}

lm_status lm_file_read(const char *path, size_t max_bytes, lm_buf *out) {
  int fd;
  LM_TRY(names_descriptor(path) ? descriptor_open(path, &fd) : lm_open_regular(path, &fd));
  lm_status s = read_all(fd, path, max_bytes, out);
  close(fd);
  return s;
}

lm_status lm_fd_read_at(int fd, const char *path, int64_t at, void *to, size_t n) {
  for (size_t done = 0; done < n;) {
    ssize_t got = pread(fd, (char *)to + done, n - done, (off_t)at + (off_t)done);
    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0)
      return lm_fail_errno("cannot read %s", path);
    if (!got)
      return lm_fail(LM_ENV, "%s was truncated while it was in use", path);
    done += (size_t)got;
  }
  return NULL;
}

lm_status lm_fd_write(int fd, const char *path, const void *from, size_t n) {
  for (const char *p = from; n;) {
    ssize_t done = write(fd, p, n);
    if (done < 0 && errno == EINTR)
      continue;
    if (done < 0)
      return lm_fail_errno("cannot write %s", path);
    p += done;
    n -= (size_t)done;
  }
  return NULL;
}

enum {
  UMASK = 1 << 16 // a mode that is no permissions: keep those that open() set by the umask
};

static lm_status write_synced(int fd, const char *path, unsigned mode, const void *p, size_t n) {
  LM_TRY(lm_fd_write(fd, path, p, n));
  if (mode != UMASK && fchmod(fd, mode))
    return lm_fail_errno("cannot change the mode of %s", path);
  if (fsync(fd))
    return lm_fail_errno("cannot write %s", path);
  return NULL;
}

static lm_status replace_file(const char *temp, const char *path, unsigned mode, const void *p,
                              size_t n) {
  int fd;
  LM_TRY(lm_temp_open(temp, &fd));
  lm_status s = write_synced(fd, temp, mode, p, n);
  if (!s && rename(temp, path))
    s = lm_fail_errno("cannot rename %s to %s", temp, path);
  if (s)
    unlink(temp); // before unlocking, since the next process creates its own
  close(fd);
  return s;
}

lm_status lm_file_write_as(const char *path, unsigned mode, const void *p, size_t n) {
  lm_arena *a = lm_arena_create();
  lm_status s = replace_file(lm_arena_printf(a, "%s.tmp", path), path, mode, p, n);
  if (!s)
    s = lm_dir_sync(lm_path_dir(a, path));
  lm_arena_destroy(a);
  return s;
}

lm_status lm_file_write_atomic(const char *path, const void *p, size_t n) {
  return lm_file_write_as(path, UMASK, p, n);
}
