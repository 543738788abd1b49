// heap.h - a binary heap: of its elements the one that comes before all others is popped first. A
// file that includes this one has defined
//   HEAP_ELEMENT                the type of an element
//   HEAP_BEFORE(user, a, b)     true if *a comes before *b
#include "runtime/base/base.h"

typedef struct heap {
  HEAP_ELEMENT *v; // owned; free with lm_free
  size_t n, cap;
} heap;

static void heap_push(heap *h, const void *user, HEAP_ELEMENT x) {
  if (h->n == h->cap) {
    h->cap = h->cap ? 2 * h->cap : 64;
    h->v = lm_realloc(h->v, h->cap * sizeof *h->v);
  }
  size_t i = h->n++;
  for (size_t up; i && HEAP_BEFORE(user, &x, &h->v[up = (i - 1) / 2]); i = up)
    h->v[i] = h->v[up];
  h->v[i] = x;
}

// Requires an element.
static HEAP_ELEMENT heap_pop(heap *h, const void *user) {
  HEAP_ELEMENT top = h->v[0];
  HEAP_ELEMENT x = h->v[--h->n];
  size_t i = 0;
  size_t down;
  while ((down = 2 * i + 1) < h->n) {
    if (down + 1 < h->n && HEAP_BEFORE(user, &h->v[down + 1], &h->v[down]))
      down++;
    if (!HEAP_BEFORE(user, &h->v[down], &x))
      break;
    h->v[i] = h->v[down];
    i = down;
  }
  h->v[i] = x;
  return top;
}
