// pages.h - memory in huge pages. Where the system gives them on request, one page fault provides
// 2 MB in the time of about 30 faults of small pages.
#ifndef LM_PAGES_H
#define LM_PAGES_H
#include "runtime/base/base.h"

typedef struct lm_pages {
  char *start; // NULL: no bytes
  void *base;  // of the mapping
  size_t bytes;
} lm_pages;

// Zeros, in huge pages from 2 MB on; returns false if there is no memory. Free with
// lm_pages_free, also after a failure.
bool lm_pages_make(size_t bytes, lm_pages *out);
void lm_pages_free(lm_pages *p);

// Lets malloc take its memory in huge pages, and keep freed memory. Call it first in a process.
void lm_heap_prepare(void);
#endif
