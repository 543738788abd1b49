// faulty.c - the difference between `lmc` and `lmc_faulty`: a linker that wraps the functions below
// puts them in front of libc's in every object of ours, so that any allocation and any change of
// the disk can be made to fail.
//
//   LM_FAULT=write=N         the N-th change of the disk fails as on a full one
//   LM_FAULT=file=TEXT       the first file with TEXT in its path is not created, as on a full disk
//   LM_FAULT=slow=TEXT       the first file with TEXT in its path is created only when a test has
//                            removed PATH.waits, which appears instead, at most a minute later
//   LM_FAULT=allocation=N    the N-th allocation fails
//   LM_FAULT=allocations=N   forks at every N-th allocation: it fails in the child, which must exit
//                            with status 2 and a message about memory; the parent continues and
//                            reports the number of allocations at the end
//   LM_FAULT=count           only reports these numbers
//
// A forked child has only the forking thread. That suffices for allocations, since the program
// exits when one fails. After a failed write it cleans up, which needs all threads, so each such
// case is a new process.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct {
  long write, allocation, every; // 0: none
  bool count;
  char file[64], slow[64]; // "": none
  _Atomic bool filed;
  _Atomic long writes, allocations, forked, wrong;
} fault;

static void totals_print(void) {
  if (fault.count)
    fprintf(stderr, "faults: %ld allocations, %ld writes\n", fault.allocations, fault.writes);
  if (fault.every)
    fprintf(stderr, "faults: %ld of %ld allocations failed, %ld not as they should\n", fault.forked,
            fault.allocations, fault.wrong);
}

__attribute__((constructor)) static void options_read(void) {
  const char *o = getenv("LM_FAULT");
  if (!o)
    return;
  fault.count = !strcmp(o, "count");
  sscanf(o, "write=%ld", &fault.write);
  sscanf(o, "file=%63s", fault.file);
  sscanf(o, "slow=%63s", fault.slow);
  sscanf(o, "allocation=%ld", &fault.allocation);
  sscanf(o, "allocations=%ld", &fault.every);
  atexit(totals_print);
}

// ---- allocation

static bool ended_well(pid_t child, int from) {
  char text[4096];
  size_t n = 0;
  for (ssize_t got; n < sizeof text - 1 && (got = read(from, text + n, sizeof text - 1 - n)) > 0;)
    n += (size_t)got;
  text[n] = 0;
  close(from);
  int status;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  bool well = WIFEXITED(status) && WEXITSTATUS(status) == 2 && strstr(text, "out of memory");
  if (!well)
    fprintf(stderr, "faults: without allocation %ld: status %x, \"%s\"\n", fault.allocations,
            status, text);
  return well;
}

// True in the child.
static bool fails_in_child(void) {
  int ends[2];
  if (pipe(ends))
    abort();
  pid_t child = fork();
  if (child < 0)
    abort();
  if (!child) {
    dup2(ends[1], 2);
    close(ends[0]);
    close(ends[1]);
    return true;
  }
  close(ends[1]);
  fault.forked++;
  fault.wrong += !ended_well(child, ends[0]);
  return false;
}

static bool allocation_fails(void) {
  long n = ++fault.allocations;
  return n == fault.allocation || (fault.every && n % fault.every == 0 && fails_in_child());
}

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n) {
  return allocation_fails() ? NULL : __real_malloc(n);
}
void *__wrap_calloc(size_t n, size_t size) {
  return allocation_fails() ? NULL : __real_calloc(n, size);
}
void *__wrap_realloc(void *p, size_t n) {
  return allocation_fails() ? NULL : __real_realloc(p, n);
}

// ---- the disk

static bool write_fails(void) {
  if (++fault.writes != fault.write)
    return false;
  errno = ENOSPC;
  return true;
}

// True for the first file whose path has the text.
static bool is_first(const char *path, const char *text) {
  return *text && strstr(path, text) && !atomic_exchange(&fault.filed, true);
}

static void removal_wait(const char *path) {
  char mark[4096];
  snprintf(mark, sizeof mark, "%s.waits", path);
  FILE *f = fopen(mark, "w");
  if (f)
    fclose(f);
  for (int i = 0; i < 600 && !access(mark, F_OK); i++)
    usleep(100000);
}

static bool file_fails(const char *path) {
  if (is_first(path, fault.slow))
    removal_wait(path);
  if (!is_first(path, fault.file))
    return write_fails();
  errno = ENOSPC;
  return true;
}

// Half of it still fits.
ssize_t __real_write(int fd, const void *p, size_t n);
ssize_t __wrap_write(int fd, const void *p, size_t n) {
  if (!write_fails())
    return __real_write(fd, p, n);
  if (n > 1)
    (void)!__real_write(fd, p, n / 2);
  errno = ENOSPC;
  return -1;
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...) {
  va_list ap;
  va_start(ap, flags);
  int mode = flags & O_CREAT ? va_arg(ap, int) : 0;
  va_end(ap);
  return flags & O_CREAT && file_fails(path) ? -1 : __real_open(path, flags, mode);
}

int __real_openat(int dir, const char *path, int flags, ...);
int __wrap_openat(int dir, const char *path, int flags, ...) {
  va_list ap;
  va_start(ap, flags);
  int mode = flags & O_CREAT ? va_arg(ap, int) : 0;
  va_end(ap);
  return flags & O_CREAT && file_fails(path) ? -1 : __real_openat(dir, path, flags, mode);
}

char *__real_mkdtemp(char *path);
char *__wrap_mkdtemp(char *path) {
  return write_fails() ? NULL : __real_mkdtemp(path);
}

FILE *__real_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode) {
  return *mode != 'r' && write_fails() ? NULL : __real_fopen(path, mode);
}

size_t __real_fwrite(const void *p, size_t size, size_t n, FILE *f);
size_t __wrap_fwrite(const void *p, size_t size, size_t n, FILE *f) {
  return f != stdout && f != stderr && write_fails() ? 0 : __real_fwrite(p, size, n, f);
}

#define WRAP(name, parameters, ...)                                                                \
  int __real_##name parameters;                                                                    \
  int __wrap_##name parameters {                                                                   \
    return write_fails() ? -1 : __real_##name(__VA_ARGS__);                                        \
  }

WRAP(fsync, (int fd), fd)
WRAP(ftruncate, (int fd, off_t n), fd, n)
WRAP(truncate, (const char *path, off_t n), path, n)
WRAP(rename, (const char *from, const char *to), from, to)
WRAP(renameat2, (int a, const char *from, int b, const char *to, unsigned flags), a, from, b, to,
     flags)
WRAP(renameat, (int a, const char *from, int b, const char *to), a, from, b, to)
WRAP(linkat, (int a, const char *from, int b, const char *to, int flags), a, from, b, to, flags)
WRAP(mkdir, (const char *path, mode_t mode), path, mode)
WRAP(mkdirat, (int dir, const char *path, mode_t mode), dir, path, mode)
WRAP(memfd_create, (const char *name, unsigned flags), name, flags)
