// gemm.c - lm_plan_gemm as calls on tiles.
//
// A product is cut into tasks: one index of each batch axis that is not summed, one tile of C. A
// task runs the sum axes in order, the first call storing (or adding, if the product accumulates),
// the others adding. Where C is not f32 in rows, the tile is summed in scratch. Calls are the
// plan's own code's or the library's; only f64 has nothing but a plain loop.
#include "runtime/cpu/gemm.h"

#include <string.h>

#include "runtime/cpu/detect.h"
#include "runtime/cpu/gemm_loop.h"
#include "runtime/cpu/matmul.h"

enum {
  TASKS = 32,           // wanted, if each has at least…
  TASK_FLOPS = 4 << 20, // …so many
  TILE_MIN = 64,
  TILE_STEP = 16,
  CODE_STEP_M = 12,
  CODE_STEP_N = 32,
  CODE_PIECES = 48,
  ALIGN = 64,
};

struct lm_cpu_gemms {
  int threads;
  lm_team *team, *own_team; // NULL until products run; own_team: made here
  uint32_t primitives;
  const lm_gemm_tilings *cuts;  // NULL: none
  bool code;                    // a plan's may be used
  uint32_t usual;               // 1 << lm_dtype: operands for which it is the default
  lm_kernel_fn *const *kernels; // as the plan's
  lm_matmuls *matmuls;          // NULL until a product wants one
  char *memory, *scratch;       // scratch: in memory, aligned
  int64_t per_thread, own,
      more; // of it: own: lm_gemm_workspace, if a product needs that; more: what matmuls or code
            // need
};

// ---- a product

typedef struct problem { // a lm_plan_gemm with its run-time extents filled in
  lm_gemm_shape s;       // of one call before tiling
  lm_plan_batch outer[LM_PLAN_BATCH], sum[LM_PLAN_BATCH];
  int n_outer, n_sum;
  int64_t n_outers, n_sums;
  // flipped: C's transpose is computed, since that has rows of unit stride: A is B, B is A
  bool accumulate, flipped;
  int64_t tile_m, tile_n;
  const lm_gemm_tiling *cut; // NULL: the default
  int code;                  // as lm_plan_gemm; 0 too if code is not used
  int64_t panel; // B is panels, and tiles are multiples of so many columns; 0: it is a matrix
} problem;

static lm_gemm_shape transposed(const lm_gemm_shape *s) {
  return (lm_gemm_shape){.m = s->n,
                         .n = s->m,
                         .k = s->k,
                         .a_m = s->b_n,
                         .a_k = s->b_k,
                         .b_k = s->a_k,
                         .b_n = s->a_m,
                         .c_m = s->c_n,
                         .c_n = s->c_m,
                         .ab = s->ab,
                         .cc = s->cc};
}

static int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static int64_t pieces_of(int64_t size, int64_t tile) {
  return (size - 1) / tile + 1;
} // size > 0

// As a cut says, if there is one that does.
static bool tiles_given(problem *p, int64_t most_m, int64_t most_n) {
  if (!p->cut || !p->cut->tile.m)
    return false;
  int64_t step = p->panel ? p->panel : 1;
  int64_t n = (p->cut->tile.n + step - 1) / step * step;
  p->tile_m = least(p->cut->tile.m, least(p->s.m, most_m));
  p->tile_n = least(n, least(p->s.n, most_n));
  return true;
}

static int64_t tile_size(int64_t size, int64_t pieces) {
  int64_t tile = (size + pieces - 1) / pieces;
  return (tile + TILE_STEP - 1) / TILE_STEP * TILE_STEP;
}

// Halves the longer side until there are enough tasks, or they would be too small to be worth one.
// Of bf16 rows are halved first: whole rows of C, and all of B, are matrices without gaps, for
// which the library has its best kernels.
static void tiles_choose(problem *p, int64_t most) {
  if (tiles_given(p, most, most))
    return;
  double flops = 2.0 * (double)p->s.m * (double)p->s.n * (double)p->s.k * (double)p->n_sums;
  int64_t wanted = TASKS / (p->n_outers < TASKS ? p->n_outers : TASKS), pieces_m = 1, pieces_n = 1;
  bool rows = p->s.ab == LM_BF16;
  for (p->tile_m = p->s.m; p->tile_m > most;)
    p->tile_m = tile_size(p->s.m, pieces_m *= 2);
  for (p->tile_n = p->s.n; p->tile_n > most;)
    p->tile_n = tile_size(p->s.n, pieces_n *= 2);
  while (pieces_m * pieces_n < wanted &&
         flops / (double)(pieces_m * pieces_n) >= 2.0 * TASK_FLOPS) {
    bool longer = p->tile_m >= p->tile_n || (rows && p->tile_m >= 4 * TILE_MIN);
    if (longer && p->tile_m >= 2 * TILE_MIN)
      p->tile_m = tile_size(p->s.m, pieces_m *= 2);
    else if (p->tile_n >= 2 * TILE_MIN)
      p->tile_n = tile_size(p->s.n, pieces_n *= 2);
    else
      break;
  }
}

static int64_t side_of(int64_t size, int64_t pieces, int64_t step, int64_t most) {
  return least(pieces_of(pieces_of(size, pieces), step) * step, least(size, most));
}

// For generated code, whose bits no cut changes: so few tiles that little is put in panels twice,
// so many that no thread waits long for another. In cycles for a place of k: one for a multiply-add
// of 16 floats, two for an element that is put in a panel, mostly waiting for memory.
static void tiles_of_code(problem *p, int threads, int64_t most) {
  int64_t most_n = least(most, LM_PRODUCT_COLUMNS);
  int64_t first_m = pieces_of(p->s.m, most);
  int64_t first_n = pieces_of(p->s.n, most_n);
  double best = 1e300;
  if (tiles_given(p, most, most_n))
    return;
  for (int64_t i = 0; i <= CODE_PIECES; i += 1 + i / 3)
    for (int64_t j = 0; j <= CODE_PIECES; j += 1 + j / 3) {
      int64_t m = side_of(p->s.m, first_m + i, CODE_STEP_M, most);
      int64_t n = side_of(p->s.n, first_n + j, CODE_STEP_N, most_n);
      int64_t tasks = p->n_outers * pieces_of(p->s.m, m) * pieces_of(p->s.n, n);
      double turns = (double)pieces_of(tasks, threads) + 0.125;
      double cost = turns * ((double)m * (double)n / 16 + 2 * (double)(m + n));
      if (cost >= best)
        continue;
      best = cost;
      p->tile_m = m;
      p->tile_n = n;
    }
}

static lm_gemm_key key_of(const problem *p) {
  const lm_gemm_shape *s = &p->s;
  return (lm_gemm_key){s->m,   s->n,   s->k,        s->a_m,    s->a_k, s->b_k, s->b_n,
                       s->c_m, s->c_n, p->n_outers, p->n_sums, s->ab,  s->cc,  p->accumulate};
}

const lm_gemm_tiling *lm_gemm_tilings_find(const lm_gemm_tilings *cuts, const lm_gemm_key *key) {
  for (uint32_t i = 0; i < cuts->n; i++)
    if (!memcmp(&cuts->v[i].key, key, sizeof *key))
      return &cuts->v[i];
  return NULL;
}

static problem problem_make(const lm_cpu_gemms *all, const lm_plan_gemm *g, const int64_t *var) {
  problem p = {.s = {.m = lm_plan_extent_value(&g->m, var),
                     .n = lm_plan_extent_value(&g->n, var),
                     .k = lm_plan_extent_value(&g->k, var),
                     .a_m = g->a_m,
                     .a_k = g->a_k,
                     .b_k = g->b_k,
                     .b_n = g->b_n,
                     .c_m = g->c_m,
                     .c_n = g->c_n,
                     .ab = g->dtype_ab,
                     .cc = g->dtype_c},
               .n_outers = 1,
               .n_sums = 1,
               .accumulate = g->accumulate,
               .panel = g->b_lines * g->b_group};
  p.flipped = !p.panel && lm_gemm_layouts_find(&p.s).c.trans == 'T';
  if (p.flipped)
    p.s = transposed(&p.s);
  for (int i = 0; i < g->n_batch; i++) {
    lm_plan_batch x = lm_plan_batch_axis(g, i, var);
    if (p.flipped)
      x = (lm_plan_batch){x.size, x.b, x.a, x.c};
    *(g->batch[i].sum ? &p.sum[p.n_sum++] : &p.outer[p.n_outer++]) = x;
    *(g->batch[i].sum ? &p.n_sums : &p.n_outers) *= x.size;
  }
  if (all && all->cuts) {
    lm_gemm_key key = key_of(&p);
    p.cut = lm_gemm_tilings_find(all->cuts, &key);
  }
  if (all && all->code)
    p.code = g->code;
  return p;
}

// ---- how a tile is computed

typedef enum {
  LOOP,
  CALL,
  MATMUL,
  CODE
} method;
typedef struct way {
  method how;
  bool staged; // summed in scratch, as rows of f32
} way;

// The shape whose C is where the sums are.
static lm_gemm_shape summed(const lm_gemm_shape *s, bool staged) {
  lm_gemm_shape t = *s;
  if (staged) {
    t.cc = LM_F32;
    t.c_m = s->n;
    t.c_n = 1;
  }
  return t;
}

// Sums that C itself can hold between one call and the next.
static bool holds_sums(const problem *p) {
  bool once = p->n_sums == 1 && !p->accumulate;
  return lm_gemm_layouts_find(&p->s).c.trans == 'N' && (p->s.cc == LM_F32 || once);
}

// The calls of a tile: the first, and those that add. Visited for every size of tile there is.
static bool matmuls_visit(lm_cpu_gemms *all, const problem *p, bool staged, bool make) {
  bool every = true;
  for (int edge = 0; edge < 4; edge++) {
    lm_gemm_shape s = p->s;
    s.m = edge & 1 ? p->s.m % p->tile_m : p->tile_m;
    s.n = edge & 2 ? p->s.n % p->tile_n : p->tile_n;
    if (!s.m || !s.n)
      continue;
    s = summed(&s, staged);
    for (int add = p->accumulate; add <= (p->n_sums > 1 || p->accumulate); add++) {
      if (make)
        lm_matmuls_add(all->matmuls, &s, add);
      every &= lm_matmuls_find(all->matmuls, &s, add) != NULL;
    }
  }
  return every;
}

// Tiles of the primitives' own, if the library has all of them.
static bool matmul_choose(lm_cpu_gemms *all, problem *p, way *out, bool make) {
  bool staged = !holds_sums(p);
  if (!all->matmuls || !(all->primitives >> p->s.ab & 1))
    return false;
  tiles_choose(p, staged ? LM_GEMM_TILE : INT64_MAX);
  *out = (way){MATMUL, staged};
  return matmuls_visit(all, p, staged, make);
}

static way code_choose(const lm_cpu_gemms *all, problem *p) {
  way w = {CODE, p->s.cc != LM_F32};
  tiles_of_code(p, all->threads, w.staged ? LM_GEMM_TILE : INT64_MAX);
  return w;
}

// Panels are nothing for the library; else a cut says, or the default.
static bool takes_code(const lm_cpu_gemms *all, const problem *p) {
  if (p->panel && !p->code)
    LM_BUG("a product of panels without code");
  return p->code && (p->panel || (p->cut ? p->cut->tile.code : all->usual >> p->s.ab & 1));
}

static way way_choose(lm_cpu_gemms *all, problem *p) {
  way w = {LOOP, false};
  if (takes_code(all, p))
    return code_choose(all, p);
  if (matmul_choose(all, p, &w, false))
    return w;
  if (p->s.ab != LM_F64 && p->s.cc != LM_F64) {
    lm_gemm_shape s = summed(&p->s, true);
    bool staged = p->s.cc != LM_F32 || !lm_gemm_layouts_find(&p->s).c.trans;
    tiles_choose(p, staged || lm_gemm_packs(&s) ? LM_GEMM_TILE : INT64_MAX);
    return (way){CALL, staged};
  }
  tiles_choose(p, INT64_MAX);
  return (way){LOOP, false};
}

// ---- tasks

typedef struct run {
  lm_cpu_gemms *all;
  problem p;
  way w;
  const char *a, *b;
  char *c;
} run;

// result: the tile's in C's own type where it is summed elsewhere, and this is the last of its
// sums; else NULL.
static void multiply(const run *r, const lm_gemm_shape *s, const char *a, const char *b, char *c,
                     bool add, char *result, int thread) {
  char *scratch = r->all->scratch + thread * r->all->per_thread;
  if (r->w.how == LOOP) {
    lm_gemm_loop(s, a, b, c, add);
  } else if (r->w.how == CALL) {
    lm_gemm_call(s, a, b, (float *)c, add, (lm_gemm_workspace *)scratch);
  } else if (r->w.how == CODE) {
    char *buf[] = {(char *)(uintptr_t)a, (char *)(uintptr_t)b, c, scratch + r->all->own, result};
    int64_t var[] = {s->n,   s->c_m, add,    result ? r->p.s.c_m : 0, s->k, s->a_m,
                     s->a_k, s->b_n, s->b_k, r->p.panel != 0};
    r->all->kernels[r->p.code - 1](buf, var, 0, s->m);
  } else {
    const lm_matmul *x = lm_matmuls_find(r->all->matmuls, s, add);
    LM_ASSERT(x);
    lm_matmul_run(r->all->matmuls, x, thread, a, b, c, scratch + r->all->own);
  }
}

static void task_run(const run *r, int64_t task, int thread) {
  const problem *p = &r->p;
  int64_t across = pieces_of(p->s.n, p->tile_n);
  int64_t down = pieces_of(p->s.m, p->tile_m);
  int64_t i = task / across % down * p->tile_m;
  int64_t j = task % across * p->tile_n;
  lm_plan_batch o = lm_plan_batch_place(p->outer, p->n_outer, task / across / down);
  lm_gemm_shape tile = p->s;
  tile.m = least(p->tile_m, p->s.m - i);
  tile.n = least(p->tile_n, p->s.n - j);
  lm_gemm_shape s = summed(&tile, r->w.staged);
  int64_t size = lm_dtype_bytes((lm_dtype)s.ab);
  char *c = r->c + (o.c + i * p->s.c_m + j * p->s.c_n) * lm_dtype_bytes((lm_dtype)p->s.cc), *to = c;
  float *sums = r->w.staged
                    ? ((lm_gemm_workspace *)(r->all->scratch + thread * r->all->per_thread))->c
                    : NULL;
  if (r->w.staged)
    to = (char *)sums;
  if (r->w.staged && p->accumulate)
    lm_gemm_tile_load(&tile, c, sums);
  for (int64_t k = 0; k < p->n_sums; k++) {
    lm_plan_batch q = lm_plan_batch_place(p->sum, p->n_sum, k);
    multiply(r, &s, r->a + (o.a + q.a + i * s.a_m) * size, r->b + (o.b + q.b + j * s.b_n) * size,
             to, p->accumulate || k > 0, r->w.staged && k + 1 == p->n_sums ? c : NULL, thread);
  }
  if (r->w.staged && r->w.how != CODE)
    lm_gemm_tile_store(&tile, sums, c); // code has rounded them
}

void lm_cpu_gemm_share(lm_cpu_gemms *all, const lm_plan_gemm *g, const int64_t *var, const char *a,
                       const char *b, char *c, lm_share *share) {
  run r = {.all = all, .p = problem_make(all, g, var), .a = a, .b = b, .c = c};
  problem *p = &r.p;
  if (p->n_outers == 0 || p->s.m == 0 || p->s.n == 0)
    return;
  if (p->flipped) {
    r.a = b;
    r.b = a;
  }
  r.w = way_choose(all, p);
  int64_t tasks = p->n_outers * pieces_of(p->s.m, p->tile_m) * pieces_of(p->s.n, p->tile_n);
  for (int64_t t; (t = lm_share_take(share, tasks)) >= 0;)
    task_run(&r, t, share->me);
}

typedef struct product {
  lm_cpu_gemms *all;
  const lm_plan_gemm *g;
  const int64_t *var;
  const char *a, *b;
  char *c;
  lm_tickets tickets;
} product;

static void product_share(void *user, int me) {
  product *p = user;
  lm_share share = {&p->tickets, me, lm_team_size(p->all->team), 0};
  lm_cpu_gemm_share(p->all, p->g, p->var, p->a, p->b, p->c, &share);
}

void lm_cpu_gemm(lm_cpu_gemms *all, const lm_plan_gemm *g, const int64_t *var, const char *a,
                 const char *b, char *c) {
  product p = {all, g, var, a, b, c, .tickets = {0}};
  lm_team_run(all->team, product_share, &p);
}

// ---- what they share

int64_t lm_cpu_gemms_bytes(const lm_cpu_gemms *all) {
  return all->per_thread ? all->threads * all->per_thread + ALIGN : 0;
}

static void scratch_make(lm_cpu_gemms *all) {
  int64_t per_thread = all->own + all->more;
  if (per_thread == all->per_thread)
    return;
  lm_free(all->memory);
  all->per_thread = per_thread;
  all->memory = lm_alloc((size_t)lm_cpu_gemms_bytes(all));
  all->scratch = all->memory + (ALIGN - (uintptr_t)all->memory % ALIGN);
}

static uint32_t usual_find(void) {
  lm_cpu_info cpu;
  lm_cpu_detect(&cpu);
  return (uint32_t)lm_cpu_prefers_code(&cpu, LM_F32) << LM_F32 |
         (uint32_t)lm_cpu_prefers_code(&cpu, LM_BF16) << LM_BF16;
}

static lm_cpu_gemms *gemms_new(const lm_cpu_gemm_options *o) {
  lm_cpu_gemms *all = lm_alloc(sizeof *all);
  lm_gemm_call_one_thread();
  *all = (lm_cpu_gemms){.threads = o->threads,
                        .team = o->team,
                        .primitives = o->primitives ? o->primitives : 1u << LM_BF16,
                        .cuts = o->cuts,
                        .code = o->code,
                        .kernels = o->kernels};
  if (o->code)
    all->usual = usual_find();
  return all;
}

static void thread_begin(void *user, int me) {
  lm_gemm_call_thread_begin();
}

// For products that will run.
static lm_cpu_gemms *threads_begin(lm_cpu_gemms *all) {
  if (!all->team)
    all->team = all->own_team = lm_team_create(all->threads);
  all->threads = lm_team_size(all->team);
  lm_team_run(all->team, thread_begin, NULL);
  return all;
}

lm_cpu_gemms *lm_cpu_gemms_create(const lm_cpu_gemm_options *o) {
  return threads_begin(gemms_new(o));
}

void lm_cpu_gemms_destroy(lm_cpu_gemms *all) {
  if (!all)
    return;
  lm_matmuls_destroy(all->matmuls);
  lm_team_destroy(all->own_team);
  lm_free(all->memory);
  lm_free(all);
}

static bool is_fixed(const lm_plan_gemm *g) {
  bool fixed = !g->m.n_dyn && !g->n.n_dyn && !g->k.n_dyn;
  for (int i = 0; i < g->n_batch; i++)
    fixed &= !g->batch[i].size.n_dyn;
  return fixed;
}

bool lm_gemm_key_find(const lm_plan_gemm *g, lm_gemm_key *out) {
  if (!is_fixed(g))
    return false;
  problem p = problem_make(NULL, g, NULL);
  *out = key_of(&p);
  return true;
}

lm_tile lm_cpu_gemm_tile(lm_cpu_gemms *all, const lm_plan_gemm *g) {
  problem p = problem_make(all, g, NULL);
  way w = way_choose(all, &p);
  return (lm_tile){p.tile_m, p.tile_n, w.how == CODE};
}

// Makes the primitives of a product. Whether it is packed or staged in scratch of ours.
static bool product_make(lm_cpu_gemms *all, const lm_plan_gemm *g) {
  if (!is_fixed(g))
    return true;
  problem p = problem_make(all, g, NULL);
  way w;
  if (!p.n_outers || !p.s.m || !p.s.n)
    return false;
  bool primitives = (all->primitives >> g->dtype_ab & 1) && p.s.k && !takes_code(all, &p);
  if (primitives && !all->matmuls)
    all->matmuls = lm_matmuls_create(all->threads);
  if (primitives)
    matmul_choose(all, &p, &w, true);
  w = way_choose(all, &p);
  int64_t more = w.how == CODE  ? LM_PRODUCT_SCRATCH
                 : all->matmuls ? lm_matmuls_workspace(all->matmuls)
                                : 0;
  if (more > all->more)
    all->more = more;
  lm_gemm_shape s = summed(&p.s, w.staged);
  return w.staged || (w.how == CALL && lm_gemm_packs(&s));
}

void lm_cpu_gemm_prepare(lm_cpu_gemms *all, const lm_plan_gemm *g) {
  if (product_make(all, g))
    all->own = (int64_t)(sizeof(lm_gemm_workspace) + ALIGN - 1) / ALIGN * ALIGN;
  scratch_make(all);
}

// ---- of a plan

static bool has_product(const lm_plan *plan) {
  bool any = false;
  for (int i = 0; i < plan->n_funcs; i++)
    for (int j = 0; j < plan->funcs[i].n_steps; j++)
      any |= plan->funcs[i].steps[j].gemm != NULL;
  return any;
}

static lm_cpu_gemms *plan_prepare(const lm_plan *plan, lm_cpu_gemms *all) {
  for (int i = 0; i < plan->n_funcs; i++)
    for (int j = 0; j < plan->funcs[i].n_steps; j++)
      if (plan->funcs[i].steps[j].gemm)
        lm_cpu_gemm_prepare(all, plan->funcs[i].steps[j].gemm);
  return all;
}

lm_cpu_gemms *lm_cpu_gemms_of_plan(const lm_plan *plan, const lm_cpu_gemm_options *o) {
  return has_product(plan) ? plan_prepare(plan, lm_cpu_gemms_create(o)) : NULL;
}

int64_t lm_cpu_gemms_of_plan_bytes(const lm_plan *plan, const lm_cpu_gemm_options *o) {
  lm_cpu_gemms *all = has_product(plan) ? plan_prepare(plan, gemms_new(o)) : NULL;
  int64_t bytes = all ? lm_cpu_gemms_bytes(all) : 0;
  lm_cpu_gemms_destroy(all);
  return bytes;
}
