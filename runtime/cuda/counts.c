// counts.c - see counts.h.
#include "runtime/cuda/counts.h"

#include <string.h>

void lm_cuda_counts_close(lm_cuda_counts *c, const lm_cuda_driver *d) {
  for (uint32_t i = 0; i < c->made; i++)
    lm_free(c->v[i].rows);
  lm_free(c->v);
  if (c->pinned)
    d->cuMemFreeHost(c->pinned);
}

void lm_cuda_counts_forget(lm_cuda_counts *c) {
  c->n = 0;
}

void lm_cuda_counts_written(lm_cuda_counts *c, lm_cuda_address at, int64_t bytes) {
  lm_cuda_address end = at + (uint64_t)bytes;
  uint64_t own = (uint64_t)c->ranks * sizeof(int32_t);
  for (uint32_t i = 0; i < c->n;) {
    lm_cuda_count x = c->v[i];
    if (x.at >= end || at >= x.at + own) {
      i++;
      continue;
    }
    c->v[i] = c->v[--c->n];
    c->v[c->n] = x; // its memory is used again
  }
}

static const int32_t *known(const lm_cuda_counts *c, lm_cuda_address at) {
  for (uint32_t i = 0; i < c->n; i++)
    if (c->v[i].at == at)
      return c->v[i].rows;
  return NULL;
}

static const int32_t *keep(lm_cuda_counts *c, lm_cuda_address at, const int32_t *rows, int n) {
  if (c->n == c->made) {
    if (c->made == c->cap) {
      c->cap = c->cap ? 2 * c->cap : 16;
      c->v = lm_realloc(c->v, c->cap * sizeof *c->v);
    }
    c->v[c->made++].rows = lm_calloc((size_t)c->ranks, sizeof *rows);
  }
  lm_cuda_count *x = &c->v[c->n++];
  x->at = at;
  return memcpy(x->rows, rows, (size_t)n * sizeof *rows);
}

static lm_status open(lm_cuda_counts *c, lm_comm *ranks, const lm_cuda_driver *d) {
  void *p;
  c->ranks = lm_comm_self_of(ranks).size;
  size_t bytes = 2 * (size_t)c->ranks * sizeof *c->pinned;
  LM_TRY(lm_cuda_check(d, d->cuMemHostAlloc(&p, bytes, 0), "pinned host memory"));
  c->pinned = p;
  return NULL;
}

lm_status lm_cuda_counts_read(lm_cuda_counts *c, lm_comm *ranks, lm_nccl *n,
                              const lm_cuda_builtins *b, lm_coll *x) {
  const lm_cuda_driver *d = b->driver;
  const int32_t **list[] = {&x->send, &x->receive}, *found[2];
  int size = lm_comm_group_size(ranks, x->group), result = 0;
  if (!c->pinned)
    LM_TRY(open(c, ranks, d));
  for (int i = 0; i < 2; i++) {
    lm_cuda_address at = (lm_cuda_address)(uintptr_t)*list[i];
    found[i] = known(c, at);
    if (!found[i])
      LM_TRY(lm_cuda_check(d,
                           d->cuMemcpyDtoHAsync_v2(c->pinned + i * size, at,
                                                   (size_t)size * sizeof(int32_t), b->stream),
                           "%s", x->label));
  }
  if (!found[0] || !found[1]) {
    LM_TRY(lm_nccl_wait(n, NULL, &result));
    LM_TRY(lm_cuda_check(d, result, "%s", x->label));
  }
  for (int i = 0; i < 2; i++) {
    lm_cuda_address at = (lm_cuda_address)(uintptr_t)*list[i];
    *list[i] = found[i] ? found[i] : keep(c, at, c->pinned + i * size, size);
  }
  return NULL;
}
