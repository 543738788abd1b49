// fuzz.h - functions that the targets share. Each is one function over any bytes, run by libFuzzer
// (scripts/fuzz) or by driver.c.
#ifndef LM_TESTS_FUZZ_H
#define LM_TESTS_FUZZ_H
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/diag.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static inline char *fuzz_path(void) {
  static char path[96];
  return path;
}

static inline void fuzz_file_remove(void) {
  unlink(fuzz_path());
}

// Makes a file in memory of the bytes; replaces the previous one.
static inline const char *fuzz_file(const char *ending, const uint8_t *data, size_t n) {
  char *path = fuzz_path();
  if (!*path)
    atexit(fuzz_file_remove);
  else
    fuzz_file_remove();
  snprintf(path, sizeof(char[96]), "/dev/shm/lm-fuzz-%d.%s", (int)getpid(), ending);
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0 || write(fd, data, n) != (ssize_t)n)
    abort();
  close(fd);
  return path;
}

// Renders every diagnostic as text and as JSON.
static inline void fuzz_render(const lm_ctx *c) {
  lm_buf out = {0};
  lm_diag_render(c, &out, true);
  lm_diag_render_json(c, &out);
  lm_buf_free(&out);
}
#endif
