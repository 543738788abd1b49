// pages.c - see pages.h.
#define _GNU_SOURCE
#include "runtime/base/pages.h"

#include <malloc.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
  HUGE_PAGE = 2 << 20,
  TAIL = 128 << 10, // the least rest that a huge page is taken for: 32 small ones
  HEAP = 16 << 20,
  HEAP_START = 320 << 10, // more than the first heap of a process
  HEAP_PIECE = 4 << 20,   // each larger allocation is a mapping
  HEAP_KEPT = 64 << 20
};

static char *aligned(const void *p) {
  return (char *)(((uintptr_t)p + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
}

// The bytes that the system may back by huge pages, which are whole ones.
static size_t huge_bytes(size_t bytes) {
  size_t tail = bytes % HUGE_PAGE;
  if (bytes < HUGE_PAGE)
    return 0;
  return tail < TAIL ? bytes - tail : bytes - tail + HUGE_PAGE;
}

bool lm_pages_make(size_t bytes, lm_pages *out) {
  size_t huge = huge_bytes(bytes);
  size_t whole = huge ? bytes + 2 * (size_t)HUGE_PAGE : bytes;
  *out = (lm_pages){0};
  if (!bytes)
    return true;
  if (whole < bytes)
    return false;
  void *p = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED)
    return false;
  *out = (lm_pages){p, p, whole};
  if (huge) {
    out->start = aligned(p);
    madvise(out->start, huge, MADV_HUGEPAGE); // advice: refusal costs only speed
  }
  return true;
}

void lm_pages_free(lm_pages *p) {
  if (p->base)
    munmap(p->base, p->bytes);
  *p = (lm_pages){0};
}

static bool is_limited(int resource) {
  struct rlimit most;
  return !getrlimit(resource, &most) && most.rlim_cur != RLIM_INFINITY;
}

// The heap grows by HEAP at once, as an allocation larger than its rest makes it do. What malloc
// writes then is before the first huge page, of which nothing has been touched when it is asked
// for. Other allocators ignore these settings, and their memory is not before the end of the data
// segment. Where addresses are limited, small allocations would not get the last HEAP of them.
void lm_heap_prepare(void) {
#ifdef __GLIBC__
  if (is_limited(RLIMIT_AS) || is_limited(RLIMIT_DATA))
    return;
  mallopt(M_MMAP_THRESHOLD, HEAP_PIECE);
  mallopt(M_TRIM_THRESHOLD, HEAP_KEPT);
  mallopt(M_TOP_PAD, HEAP);
  char *end = sbrk(0);
  char *first = aligned(end + HEAP_START);
  if (sbrk(first - HEAP_START - end) == (void *)-1)
    return;
  char *volatile p = malloc(HEAP_START / 2);
  end = sbrk(0);
  if (p < first && first < end)
    madvise(first, (size_t)(end - first), MADV_HUGEPAGE);
  free(p);
#endif
}
