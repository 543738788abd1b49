// move.c - see move.h. The outermost dim whose size is not 1 is divided among the threads. Every
// element is written once, so the division does not change the result.
#include "runtime/cpu/move.h"

#include <string.h>

typedef struct dim {
  int64_t size;
  int64_t from;
  int64_t to;
} dim;
typedef struct nest {
  dim dim[12];
  int rank;
  int element;
  bool add;
} nest;

static void add_row(const dim *d, const char *from, char *to) {
  if (d->from == sizeof(float) && d->to == sizeof(float)) {
    const float *x = (const float *)from;
    float *y = (float *)to;
    for (int64_t i = 0; i < d->size; i++)
      y[i] += x[i];
    return;
  }
  for (int64_t i = 0; i < d->size; i++)
    *(float *)(to + i * d->to) += *(const float *)(from + i * d->from);
}

#define COPY_ROW(T)                                                                                \
  for (int64_t i = 0; i < d->size; i++)                                                            \
  *(T *)(to + i * d->to) = *(const T *)(from + i * d->from)

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
    for (int64_t i = 0; i < d->size; i++)
      move_nest(n, level + 1, from + i * d->from, to + i * d->to);
  } else if (n->add) {
    add_row(d, from, to);
  } else {
    copy_row(d, n->element, from, to);
  }
}

static nest nest_make(const lm_plan_move *m, const int64_t *var, bool add) {
  nest n = {
      .rank = m->rank,
      .element = m->element,
      .add = add,
  };
  for (int i = 0; i < m->rank; i++)
    n.dim[i] = (dim){lm_plan_extent_value(&m->dim[i].size, var), m->dim[i].from, m->dim[i].to};
  if (!n.rank)
    n.dim[n.rank++] = (dim){1, m->element, m->element};
  return n;
}

void lm_cpu_move(const lm_plan_move *m, const int64_t *var, const char *from, char *to, int64_t at,
                 bool add, const lm_share *share) {
  nest n = nest_make(m, var, add);
  if (m->at_dim >= 0)
    to += at * m->dim[m->at_dim].to;
  int split = 0;
  while (split < n.rank - 1 && n.dim[split].size == 1)
    split++;
  dim *d = &n.dim[split];
  int64_t lo = lm_share_first(share, d->size);
  int64_t hi = lm_share_last(share, d->size);
  d->size = hi - lo;
  if (lo < hi)
    move_nest(&n, split, from + lo * d->from, to + lo * d->to);
}

void lm_cpu_fill(char *to, int64_t bytes, uint64_t pattern, int element, const lm_share *share) {
  int64_t lo = lm_share_first(share, bytes / element) * element;
  int64_t hi = lm_share_last(share, bytes / element) * element;
  if (!pattern)
    memset(to + lo, 0, (size_t)(hi - lo));
  else
    for (int64_t i = lo; i < hi; i += element)
      memcpy(to + i, &pattern, (size_t)element); // little-endian
}
