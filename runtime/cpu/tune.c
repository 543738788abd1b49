// tune.c - see tune.h.
#include "runtime/cpu/tune.h"

#include <stdlib.h>
#include <string.h>

enum {
  ROUNDS = 3,       // runs of each of two tiles that are compared
  FINALS = 4,       // further comparisons that the best candidate has to win
  ROUNDS_FINAL = 7, // runs in each of them
  CANDIDATES = 11,
  STEP = 16, // tile sides are multiples of it, or the whole side
  MIN_SIDE = 64,
};
static const double FLOPS_MIN = 1e6; // smaller GEMMs run on one thread
static const double MARGIN = 0.97;   // maximum time of another tile relative to the default's

// A distinct GEMM.
typedef struct job {
  const lm_plan_gemm *g;
  lm_gemm_key key;
  double flops; // of one execution
  double work;  // FLOPs of all equal ones in one run of every function
} job;

typedef struct tuner {
  lm_arena *arena;
  const lm_tune_options *o;
  job *jobs;
  uint32_t n_jobs;
  uint32_t cap_jobs;
  double began;
} tuner;

// A GEMM that is being measured.
typedef struct bench {
  const tuner *t;
  const job *job;
  lm_gemm_tiling tiling; // the only element of `tilings`
  lm_gemm_tilings tilings;
  lm_cpu_gemms *all;
  char *a;
  char *b;
  char *c;
} bench;

static double elapsed(const tuner *t) {
  return (t->o->now ? t->o->now(t->o->user) : lm_now()) - t->began;
}
static bool is_over(const tuner *t) {
  return elapsed(t) >= t->o->budget;
}

// ---- the distinct GEMMs of a plan

static void job_add(tuner *t, const lm_plan_gemm *g, double times) {
  lm_gemm_key k;
  if (g->dtype_ab == LM_F64 || g->dtype_c == LM_F64 || !lm_gemm_key_find(g, &k))
    return;
  double flops = 2.0 * (double)k.m * (double)k.n * (double)k.k * (double)k.batches * (double)k.sums;
  if (flops < FLOPS_MIN)
    return;
  for (uint32_t i = 0; i < t->n_jobs; i++) {
    if (memcmp(&t->jobs[i].key, &k, sizeof k))
      continue;
    t->jobs[i].work += flops * times;
    return;
  }
  LM_PUSH(t->arena, t->jobs, t->n_jobs, t->cap_jobs) = (job){g, k, flops, flops * times};
}

static void jobs_collect(tuner *t, const lm_plan_func *f) {
  for (int i = 0; i < f->n_steps; i++)
    if (f->steps[i].kind == LM_STEP_GEMM)
      job_add(t, f->steps[i].gemm, (double)lm_plan_step_times(f, i));
}

// Most expensive first; ties are broken by key.
static int by_work(const void *x, const void *y) {
  const job *a = x, *b = y;
  if (a->work != b->work)
    return a->work < b->work ? 1 : -1;
  return memcmp(&a->key, &b->key, sizeof a->key);
}

// ---- one GEMM

typedef enum {
  A,
  B,
  C
} operand;

// Elements of an operand's memory, from the first to the last that a GEMM accesses.
static int64_t elements(const lm_plan_gemm *g, operand x) {
  int64_t rows = x == B ? g->k.fixed : g->m.fixed;
  int64_t cols = x == A ? g->k.fixed : g->n.fixed;
  int64_t row = x == A ? g->a_m : x == B ? g->b_k : g->c_m;
  int64_t col = x == A ? g->a_k : x == B ? g->b_n : g->c_n;
  int64_t last = (rows - 1) * row + (cols - 1) * col;
  for (int i = 0; i < g->n_batch; i++)
    last += (g->batch[i].size.fixed - 1) * (x == A   ? g->batch[i].a
                                            : x == B ? g->batch[i].b
                                                     : g->batch[i].c);
  return last + 1;
}

static lm_cpu_gemms *gemms_make(const tuner *t, const lm_gemm_tilings *tilings) {
  return lm_cpu_gemms_create(&(lm_cpu_gemm_options){
      .threads = t->o->threads, .tilings = tilings, .code = true, .kernels = t->o->kernels});
}

static void bench_open(bench *b, const tuner *t, const job *j) {
  *b = (bench){
      .t = t,
      .job = j,
      .tiling = {.key = j->key},
  };
  b->tilings = (lm_gemm_tilings){&b->tiling, 0, 1};
  b->all = gemms_make(t, &b->tilings);
  if (t->o->run)
    return;
  b->a = lm_cpu_matrix_make(elements(j->g, A), j->g->dtype_ab);
  b->b = lm_cpu_matrix_make(elements(j->g, B), j->g->dtype_ab);
  b->c = lm_cpu_matrix_make(elements(j->g, C), j->g->dtype_c);
}

static void bench_close(bench *b) {
  lm_cpu_gemms_destroy(b->all);
  lm_free(b->a);
  lm_free(b->b);
  lm_free(b->c);
}

// Sets a tile and returns the tile that gemm.c makes of it within its limits. Its primitives exist
// after this.
static lm_tile tile_set(bench *b, lm_tile t) {
  b->tiling.tile = t;
  b->tilings.n = 1;
  lm_cpu_gemm_prepare(b->all, b->job->g);
  return lm_cpu_gemm_tile(b->all, b->job->g);
}

static double run_once(bench *b, lm_tile tile) {
  const lm_tune_options *o = b->t->o;
  b->tiling.tile = tile;
  if (o->run)
    return o->run(o->user, b->job->g, tile);
  double start = lm_now();
  lm_cpu_gemm(b->all, b->job->g, NULL, b->a, b->b, b->c);
  return lm_now() - start;
}

// Ratio of the minimum times of x and y, in alternating runs; 1 if the budget ends before.
static double compare(bench *b, lm_tile x, lm_tile y, int rounds) {
  double best_x = 1e30;
  double best_y = 1e30;
  for (int i = 0; i < rounds; i++) {
    double took_x = run_once(b, x);
    double took_y = run_once(b, y);
    if (took_x < best_x)
      best_x = took_x;
    if (took_y < best_y)
      best_y = took_y;
    if (is_over(b->t))
      return 1;
  }
  return best_x / best_y;
}

// A side of `tile` * factor / 2, rounded and limited to the side's size.
static int64_t side(int64_t tile, int64_t size, int factor) {
  int64_t wanted = (tile * factor / 2 + STEP - 1) / STEP * STEP;
  if (wanted < MIN_SIDE)
    wanted = MIN_SIDE;
  return wanted < size ? wanted : size;
}

static bool tiles_equal(lm_tile x, lm_tile y) {
  return x.m == y.m && x.n == y.n && x.code == y.code;
}

// C after a run with the given tile, starting from zeros. The caller frees it.
static char *result_of(bench *b, lm_tile t, size_t bytes) {
  memset(b->c, 0, bytes);
  run_once(b, t);
  char *copy = lm_calloc(bytes, 1);
  memcpy(copy, b->c, bytes);
  return copy;
}

// True if the results agree up to rounding. This guards against a generated kernel that is wrong on
// a kind of processor on which it was never tested.
static bool agree(bench *b, lm_tile x, lm_tile y) {
  const lm_plan_gemm *g = b->job->g;
  if (b->t->o->run)
    return true;
  lm_dtype t = (lm_dtype)g->dtype_c;
  bool half = lm_dtype_is_half(t);
  size_t n = (size_t)elements(g, C);
  size_t bytes = n * (size_t)lm_dtype_bytes(g->dtype_c);
  char *of_x = result_of(b, x, bytes);
  char *of_y = result_of(b, y, bytes);
  double off = 0;
  double norm = 0;
  double limit = half ? 1e-2 : 1e-3;
  for (size_t i = 0; i < n; i++) {
    double u = half ? lm_dtype_value(t, ((uint16_t *)of_x)[i]) : ((float *)of_x)[i];
    double v = half ? lm_dtype_value(t, ((uint16_t *)of_y)[i]) : ((float *)of_y)[i];
    off += (u - v) * (u - v);
    norm += v * v;
  }
  lm_free(of_x);
  lm_free(of_y);
  return off <= limit * limit * norm; // false if there is a NaN
}

// Candidates other than the default: the other implementation with its default tile; each side
// halved, kept or doubled; whole rows and whole columns.
static int candidates_list(bench *b, lm_tile base, lm_tile *out) {
  static const struct {
    int m;
    int n;
  } factors[] = {{1, 2}, {2, 1}, {1, 1}, {4, 2}, {2, 4}, {4, 4}, {4, 1}, {1, 4}};
  const lm_gemm_key *k = &b->job->key;
  lm_tile wanted[CANDIDATES];
  int n_wanted = 0;
  int n = 0;
  wanted[n_wanted++] = (lm_tile){.code = !base.code};
  for (size_t i = 0; i < LM_COUNT(factors); i++)
    wanted[n_wanted++] =
        (lm_tile){side(base.m, k->m, factors[i].m), side(base.n, k->n, factors[i].n), base.code};
  wanted[n_wanted++] = (lm_tile){k->m, side(base.n, k->n, 2), base.code};
  wanted[n_wanted++] = (lm_tile){side(base.m, k->m, 2), k->n, base.code};
  for (int i = 0; i < n_wanted; i++) {
    lm_tile t = tile_set(b, tile_set(b, wanted[i]));
    bool new = !tiles_equal(t, base);
    for (int j = 0; j < n; j++)
      new &= !tiles_equal(t, out[j]);
    if (new && (t.code == base.code || agree(b, t, base)))
      out[n++] = t;
  }
  return n;
}

// The minimum of few noisy times is often luck, so the winner has to win repeatedly. Returns the
// ratio of its worst comparison.
static double confirm(bench *b, lm_tile x, lm_tile y) {
  double worst = 0;
  for (int i = 0; i < FINALS && worst < MARGIN; i++) {
    double ratio = compare(b, x, y, ROUNDS_FINAL);
    if (ratio > worst)
      worst = ratio;
  }
  return worst;
}

static lm_gemm_tiling tiling_measure(bench *b) {
  lm_cpu_gemm_prepare(b->all, b->job->g);
  lm_tile base = lm_cpu_gemm_tile(b->all, b->job->g), others[CANDIDATES], best = base;
  double best_ratio = MARGIN;
  int n = candidates_list(b, base, others);
  tile_set(b, base);
  run_once(b, base); // faults in the memory
  for (int i = 0; i < n && !is_over(b->t); i++) {
    double ratio = compare(b, others[i], base, ROUNDS);
    if (ratio >= best_ratio)
      continue;
    best_ratio = ratio;
    best = others[i];
  }
  double ratio = best_ratio < MARGIN ? confirm(b, best, base) : 1;
  bool known = !is_over(b->t);
  bool better = known && ratio < MARGIN;
  return (lm_gemm_tiling){b->job->key, better ? best : base, better ? 1 / ratio : known ? 1 : 0};
}

// The default tiling, unmeasured.
static lm_gemm_tiling tiling_default(const tuner *t, const job *j) {
  lm_cpu_gemms *all = gemms_make(t, NULL);
  lm_cpu_gemm_prepare(all, j->g);
  lm_gemm_tiling tiling = {j->key, lm_cpu_gemm_tile(all, j->g), 0};
  lm_cpu_gemms_destroy(all);
  return tiling;
}

static lm_gemm_tiling tiling_find(const tuner *t, const job *j, const lm_gemm_tilings *known,
                                  int *measured) {
  const lm_gemm_tiling *found = lm_gemm_tilings_find(known, &j->key);
  bench b;
  if (found)
    return *found;
  if (is_over(t))
    return tiling_default(t, j);
  bench_open(&b, t, j);
  lm_gemm_tiling tiling = tiling_measure(&b);
  bench_close(&b);
  *measured += tiling.gain > 0;
  return tiling;
}

// ---- all GEMMs

static void progress(const tuner *t, uint32_t done) {
  double spent = elapsed(t);
  double left = t->o->budget - spent;
  double guess = done ? spent / done * (t->n_jobs - done) : left;
  if (t->o->progress)
    t->o->progress(t->o->user, (int)done, (int)t->n_jobs,
                   guess < left ? guess
                   : left > 0   ? left
                                : 0);
}

void lm_cpu_tune(lm_arena *a, const lm_plan *plan, const lm_tune_options *o,
                 const lm_gemm_tilings *known, lm_gemm_tilings *out, int *out_measured) {
  tuner t = {
      .arena = a,
      .o = o,
  };
  t.began = elapsed(&t);
  for (int i = 0; i < plan->n_funcs; i++)
    jobs_collect(&t, &plan->funcs[i]);
  if (t.n_jobs)
    qsort(t.jobs, t.n_jobs, sizeof *t.jobs, by_work);
  *out_measured = 0;
  for (uint32_t i = 0; i < t.n_jobs; i++) {
    progress(&t, i);
    LM_PUSH(a, out->v, out->n, out->cap) = tiling_find(&t, &t.jobs[i], known, out_measured);
  }
  progress(&t, t.n_jobs);
}
