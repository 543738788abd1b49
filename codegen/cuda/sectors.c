// sectors.c - the sectors of memory that a kernel moves beyond those of its operands and results.
//
// Memory and caches move sectors of 32 bytes. A warp whose threads access neighbouring elements
// uses all bytes of each sector; one whose threads write single bytes a row apart moves a sector
// for each byte. The addresses of one warp are computed as its threads do. Loads are those of a
// block, since its warps share a cache; a store passes through that cache.
#include <stdlib.h>

#include "codegen/cuda/emit.h"

enum {
  ELEMENTS = 8, // greatest width of a vector
  KEPT = 4      // sectors of each thread in the cache of a multiprocessor: 256 KiB for 2,048
};

// An access by the threads of a block, in bytes: the address of a thread is the sum over variables
// of coef * value, and of each element of a vector loop of `step` more.
typedef struct terms {
  int64_t coef[LM_GEN_LOOPS + LM_RANK], size[LM_GEN_LOOPS + LM_RANK];
  int n, n_lanes; // the first n_lanes are those of a thread in its team, the last varies fastest
  int64_t step;
  int elements;
} terms;

static void term_add(const cuda_emit *e, terms *x, const lm_ix *at, int bytes, uint16_t var) {
  const lm_var *v = &e->g.vars.v[var];
  x->coef[x->n] = lm_ix_coef(at, var) * bytes;
  x->size[x->n++] = v->hi - v->lo;
}

// The loops of a stage, whose iterations are distributed over lanes. Those of a thread group in a
// team are so many: the others are further rounds.
static void terms_add_stage(const cuda_emit *e, terms *x, const lm_ix *at, int bytes, int k) {
  const lm_gen_domain *d = &e->g.domains[e->g.pass];
  int first = x->n;
  for (int i = 0; i < d->n; i++)
    if (e->stage_of[i] == k)
      term_add(e, x, at, bytes, d->loop[i].var);
  int64_t left = e->stages[k].lanes;
  for (int i = x->n; left && i-- > first;) {
    if (x->size[i] > left)
      x->size[i] = left;
    left /= x->size[i];
    left += !left;
  }
}

static terms terms_of(const cuda_emit *e, const lm_ix *at, int bytes, int level) {
  terms x = {.elements = 1};
  // Behind the loop of a thread group, one of its threads accesses memory.
  int stages = level == 1 && e->stages[0].lanes ? 2 : level;
  for (int k = 0; k < stages && k < e->n_stages; k++)
    if (e->stages[k].strided)
      terms_add_stage(e, &x, at, bytes, k);
  x.n_lanes = x.n;
  int order[LM_RANK], n = cuda_order(e, order);
  for (int i = 0; i < n; i++)
    term_add(e, &x, at, bytes, e->g.parallel[order[i]]);
  if (e->vector && level == e->n_stages) {
    x.step = lm_ix_coef(at, e->vector) * bytes;
    x.elements = e->width[e->g.pass];
  }
  return x;
}

// The part of the address that the variables from..to - 1 give at number q of their points; -1 if
// there are fewer points.
static int64_t decoded(const terms *x, int from, int to, int64_t q) {
  int64_t sum = 0;
  for (int i = to; i-- > from;) {
    sum += x->coef[i] * (q % x->size[i]);
    q /= x->size[i];
  }
  return q ? -1 : sum;
}

static int by_address(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

// The different numbers among n, each divided by `unit`.
static int64_t distinct(int64_t *v, int n, int64_t unit) {
  int64_t count = 0;
  qsort(v, (size_t)n, sizeof *v, by_address);
  for (int i = 0; i < n; i++)
    count += !i || v[i] / unit != v[i - 1] / unit;
  return count;
}

// True if the iterations of loop i are distributed over threads.
static bool is_by_lanes(const cuda_emit *e, int i) {
  const cuda_stage *s = &e->stages[e->stage_of[i]];
  return s->strided && (e->form == CUDA_FLAT || e->team > 1);
}

// Iterations of a thread within one of loop i. Of more than a few, whose sectors are others, the
// cache of a multiprocessor does not keep those of all its threads.
static double inner_iterations(const cuda_emit *e, int i) {
  const lm_gen_domain *d = &e->g.domains[e->g.pass];
  double n = 1;
  for (int k = 0; k < d->n; k++) {
    int further = e->stage_of[k] - e->stage_of[i];
    if (further < 0 || (!further && k <= i))
      continue;
    if (is_by_lanes(e, k) || d->loop[k].var == e->vector)
      continue;
    n *= (double)d->loop[k].size;
  }
  return n;
}

// The iterations of a thread that read from the same sectors.
static double shared_iterations(const cuda_emit *e, const lm_ix *at, int bytes) {
  const lm_gen_domain *d = &e->g.domains[e->g.pass];
  double most = 1;
  for (int i = 0; i < d->n; i++) {
    int64_t step = lm_ix_coef(at, d->loop[i].var) * bytes;
    if (is_by_lanes(e, i) || d->loop[i].var == e->vector)
      continue;
    if (step <= 0 || inner_iterations(e, i) > KEPT)
      continue;
    double n = (double)CUDA_SECTOR / (double)step;
    n = n < (double)d->loop[i].size ? n : (double)d->loop[i].size;
    most = n > most ? n : most;
  }
  return most;
}

// The sectors that n threads access in one iteration, less the fewest that hold the same bytes. A
// sector that several iterations access is divided among them. bytes: of an element.
static double excess(const cuda_emit *e, const terms *x, int threads, int elements, int bytes,
                     double iterations) {
  int64_t v[CUDA_MAX_THREADS * ELEMENTS];
  int n = 0, team = e->form == CUDA_FLAT ? threads : e->team;
  for (int i = 0; i < threads; i++) {
    int64_t lane = decoded(x, 0, x->n_lanes, x->n_lanes ? i % team : 0);
    int64_t point = decoded(x, x->n_lanes, x->n, i / team);
    for (int k = 0; k < elements && lane >= 0 && point >= 0; k++)
      v[n++] = lane + point + k * x->step;
  }
  int64_t dense = (distinct(v, n, 1) * bytes + CUDA_SECTOR - 1) / CUDA_SECTOR;
  double sectors = (double)distinct(v, n, CUDA_SECTOR) / iterations - (double)dense;
  return sectors > 0 ? sectors : 0;
}

void cuda_count_sectors(cuda_emit *e, lm_dtype t, const lm_ix *at, int level, bool stores) {
  if (e->rows || e->gemm)
    return;
  int bytes = lm_dtype_bytes(t);
  int block = e->form == CUDA_FLAT ? CUDA_THREADS : e->team * e->teams;
  int threads = stores && block > CUDA_WARP ? CUDA_WARP : block;
  terms x = terms_of(e, at, bytes, level);
  double n = lm_gen_iterations(&e->g, level) * cuda_lanes(&e->g, level) / threads;
  // Elements of a vector that are not neighbours are stored one after another.
  int elements = stores && x.step != bytes ? 1 : x.elements;
  double iterations = stores ? 1 : shared_iterations(e, at, bytes);
  double sectors = excess(e, &x, threads, elements, bytes, iterations) / elements;
  e->partial += n * sectors * CUDA_SECTOR;
}
