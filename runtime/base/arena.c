// arena.c - memory that is released all at once: a list of chunks, each twice as large as the last
// up to a limit. An allocation larger than a chunk gets its own.
#include <stdio.h>
#include <string.h>

#include "runtime/base/base.h"

enum {
  ALIGN = 16,
  CHUNK_MIN = 16 << 10,
  CHUNK_MAX = 1 << 20
};

typedef struct chunk {
  struct chunk *next;
  size_t used;
  size_t size;
  _Alignas(ALIGN) unsigned char bytes[];
} chunk;

struct lm_arena {
  chunk *chunks;
  size_t next_size;
}; // the head chunk is the one being filled

lm_arena *lm_arena_create(void) {
  lm_arena *a = lm_alloc(sizeof *a);
  a->next_size = CHUNK_MIN;
  return a;
}

void lm_arena_destroy(lm_arena *a) {
  if (!a)
    return;
  for (chunk *c = a->chunks, *next; c; c = next) {
    next = c->next;
    lm_free(c);
  }
  lm_free(a);
}

static chunk *chunk_add(lm_arena *a, size_t bytes) {
  bool oversized = bytes > a->next_size / 4;
  size_t size = oversized ? bytes : a->next_size;
  chunk *c = lm_alloc(sizeof *c + size);
  c->size = size;
  if (oversized && a->chunks) { // behind the head, which still has room
    c->next = a->chunks->next;
    a->chunks->next = c;
  } else {
    c->next = a->chunks;
    a->chunks = c;
  }
  if (!oversized && a->next_size < CHUNK_MAX)
    a->next_size *= 2;
  return c;
}

void *lm_arena_alloc(lm_arena *a, size_t bytes) {
  size_t rounded = bytes > SIZE_MAX / 2 ? SIZE_MAX / 2 : (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
  chunk *c = a->chunks;
  if (!c || c->size - c->used < rounded)
    c = chunk_add(a, rounded);
  void *p = c->bytes + c->used;
  c->used += rounded;
  return p;
}

char *lm_arena_strndup(lm_arena *a, const char *s, size_t n) {
  char *p = lm_arena_alloc(a, n + 1);
  if (n)
    memcpy(p, s, n);
  return p;
}

char *lm_arena_printf(lm_arena *a, const char *fmt, ...) {
  char text[256]; // most texts are shorter, and are formatted once
  va_list ap, again;
  va_start(ap, fmt);
  va_copy(again, ap);
  int n = vsnprintf(text, sizeof text, fmt, ap);
  LM_ASSERT(n >= 0);
  char *p = lm_arena_alloc(a, (size_t)n + 1);
  if ((size_t)n < sizeof text)
    memcpy(p, text, (size_t)n + 1);
  else
    vsnprintf(p, (size_t)n + 1, fmt, again);
  va_end(again);
  va_end(ap);
  return p;
}

void *lm_grow(lm_arena *a, void *items, uint32_t n, uint32_t *cap, size_t size) {
  if (n < *cap)
    return items;
  uint32_t more = *cap < 8 ? 8 : *cap * 2;
  size_t bytes;
  if (more <= *cap || __builtin_mul_overflow((size_t)more, size, &bytes))
    bytes = SIZE_MAX / 2;
  void *p = lm_arena_alloc(a, bytes);
  if (n)
    memcpy(p, items, n * size);
  *cap = more;
  return p;
}
