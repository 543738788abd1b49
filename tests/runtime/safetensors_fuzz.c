// libFuzzer target of the safetensors reader: clang -fsanitize=fuzzer,address,undefined with runtime/base, runtime/io.
// What opens must be readable to its last element.
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "runtime/io/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
  char path[64];
  snprintf(path, sizeof path, "/dev/shm/lm-fuzz-%d.safetensors", (int)getpid());
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (fd < 0 || write(fd, bytes, n) != (ssize_t)n) return 0;
  close(fd);
  lm_st *st;
  lm_status s = lm_st_open(path, &st);
  for (size_t i = 0; !s && i < lm_st_count(st); i++) {
    const lm_st_tensor *t = lm_st_at(st, i);
    float x;
    for (int64_t k = 0; k < t->elements && lm_st_dtype_is_float(t->dtype); k++) lm_st_to_f32(t->dtype, t->data, k, 1, &x);
  }
  lm_st_close(st);
  lm_status_free(s);
  unlink(path);
  return 0;
}
