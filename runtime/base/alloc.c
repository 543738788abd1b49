// alloc.c - the only allocator. Any thread may allocate.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "runtime/base/base.h"

_Noreturn void lm_out_of_memory(size_t bytes) {
  struct rlimit space;
  fprintf(stderr, "lmc: out of memory (%zu bytes requested", bytes);
  if (!getrlimit(RLIMIT_AS, &space) && space.rlim_cur != RLIM_INFINITY)
    fprintf(stderr, "; the address space is limited to %zu: ulimit -v", (size_t)space.rlim_cur);
  fprintf(stderr, ")\n");
  _Exit(LM_ENV);
}

void lm_memory_expect(size_t bytes) {
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED)
    lm_out_of_memory(bytes);
  munmap(p, bytes);
}

void *lm_alloc(size_t bytes) {
  void *p = calloc(1, bytes ? bytes : 1);
  if (!p)
    lm_out_of_memory(bytes);
  return p;
}

void *lm_calloc(size_t n, size_t size) {
  size_t bytes;
  if (__builtin_mul_overflow(n, size, &bytes))
    lm_out_of_memory(SIZE_MAX);
  return lm_alloc(bytes);
}

void *lm_realloc(void *p, size_t bytes) {
  void *q = realloc(p, bytes ? bytes : 1);
  if (!q)
    lm_out_of_memory(bytes);
  return q;
}

void lm_free(void *p) {
  free(p);
}

char *lm_strdup(const char *s) {
  size_t n = strlen(s) + 1;
  return memcpy(lm_alloc(n), s, n);
}
