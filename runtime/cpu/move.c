// move.c - see move.h. Work is split over the outermost dim that has more than one place; every element is written once,
// so how it is split changes nothing.
#include "runtime/cpu/move.h"

#include <string.h>

enum { PIECE = 1 << 18 };      // bytes below which a thread of one's own is not worth its start

typedef struct dim { int64_t size, from, to; } dim;
typedef struct nest { dim dim[12]; int rank, element; bool add; } nest;

static void add_row(const dim *d, const char *from, char *to) {
  if (d->from == sizeof(float) && d->to == sizeof(float)) {
    const float *x = (const float *)from;
    float *y = (float *)to;
    for (int64_t i = 0; i < d->size; i++) y[i] += x[i];
    return;
  }
  for (int64_t i = 0; i < d->size; i++) *(float *)(to + i * d->to) += *(const float *)(from + i * d->from);
}

#define COPY_ROW(T) for (int64_t i = 0; i < d->size; i++) *(T *)(to + i * d->to) = *(const T *)(from + i * d->from)

static void copy_row(const dim *d, int element, const char *from, char *to) {
  if (d->from == element && d->to == element) {
    memmove(to, from, (size_t)(d->size * element));
    return;
  }
  switch (element) {
  case 1: COPY_ROW(uint8_t); break;
  case 2: COPY_ROW(uint16_t); break;
  case 4: COPY_ROW(uint32_t); break;
  case 8: COPY_ROW(uint64_t); break;
  default: LM_BUG("move of elements of %d bytes", element);
  }
}

static void move_nest(const nest *n, int level, const char *from, char *to) {
  const dim *d = &n->dim[level];
  if (level < n->rank - 1) {
    for (int64_t i = 0; i < d->size; i++) move_nest(n, level + 1, from + i * d->from, to + i * d->to);
  } else if (n->add) {
    add_row(d, from, to);
  } else {
    copy_row(d, n->element, from, to);
  }
}

static nest nest_make(const lm_plan_move *m, const int64_t *var, bool add) {
  nest n = {.rank = m->rank, .element = m->element, .add = add};
  for (int i = 0; i < m->rank; i++)
    n.dim[i] = (dim){lm_plan_extent_value(&m->dim[i].size, var), m->dim[i].from, m->dim[i].to};
  if (!n.rank) n.dim[n.rank++] = (dim){1, m->element, m->element};
  return n;
}

void lm_cpu_move(const lm_plan_move *m, const int64_t *var, const char *from, char *to, int64_t at, bool add,
                 int threads) {
  nest n = nest_make(m, var, add);
  if (m->at_dim >= 0) to += at * m->dim[m->at_dim].to;
  int64_t bytes = n.element;
  for (int i = 0; i < n.rank; i++) bytes *= n.dim[i].size;
  int split = 0;
  while (split < n.rank - 1 && n.dim[split].size == 1) split++;
  dim whole = n.dim[split];
  int64_t pieces = bytes / PIECE < threads ? bytes / PIECE : threads;
  if (pieces > whole.size) pieces = whole.size;
  if (pieces <= 1) {
    move_nest(&n, split, from, to);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t p = 0; p < pieces; p++) {
    int64_t lo = whole.size * p / pieces, hi = whole.size * (p + 1) / pieces;
    nest part = n;
    part.dim[split].size = hi - lo;
    move_nest(&part, split, from + lo * whole.from, to + lo * whole.to);
  }
}

static void fill_range(char *to, int64_t bytes, uint64_t pattern, int element) {
  if (!pattern) {
    memset(to, 0, (size_t)bytes);
    return;
  }
  for (int64_t i = 0; i < bytes; i += element) memcpy(to + i, &pattern, (size_t)element);   // little-endian
}

void lm_cpu_fill(char *to, int64_t bytes, uint64_t pattern, int element, int threads) {
  int64_t pieces = bytes / PIECE < threads ? bytes / PIECE : threads;
  if (pieces <= 1) {
    fill_range(to, bytes, pattern, element);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t p = 0; p < pieces; p++) {
    int64_t lo = bytes / element * p / pieces * element, hi = bytes / element * (p + 1) / pieces * element;
    fill_range(to + lo, hi - lo, pattern, element);
  }
}
