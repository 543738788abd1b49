// guarded.h - memory whose end is the end of a page that no page follows, so that an access behind
// the last element ends the process.
#ifndef LM_TESTS_CODEGEN_GUARDED_H
#define LM_TESTS_CODEGEN_GUARDED_H
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>
#include "tests/runtime/check.h"

// The bytes of whole pages that hold `bytes`.
static inline size_t guarded_pages(int64_t bytes) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  return ((size_t)bytes + page - 1) / page * page;
}

// Zeros. Free with guarded_free.
static inline char *guarded_make(int64_t bytes) {
  size_t pages = guarded_pages(bytes), page = (size_t)sysconf(_SC_PAGESIZE);
  char *p = mmap(NULL, pages + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(p != MAP_FAILED && !mprotect(p + pages, page, PROT_NONE));
  return p + pages - bytes;
}

static inline void guarded_free(char *p, int64_t bytes) {
  size_t pages = guarded_pages(bytes), page = (size_t)sysconf(_SC_PAGESIZE);
  CHECK(!munmap(p + bytes - pages, pages + page));
}
#endif
