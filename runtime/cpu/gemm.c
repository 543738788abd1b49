// gemm.c - runs a GEMM of a plan as calls on tiles; see gemm.h.
//
// A GEMM is split into tasks: one point of the batch axes that are not summed, and one tile of C. A
// task visits the points of the summed batch axes in order. Its first call stores (or adds, if the
// GEMM accumulates), the others add. If C is not f32 with rows of unit stride, the tile is summed
// in the thread's workspace first.
#include "runtime/cpu/gemm.h"

#include <string.h>

#include "runtime/cpu/detect.h"
#include "runtime/cpu/gemm_loop.h"
#include "runtime/cpu/gemm_problem.h"
#include "runtime/cpu/matmul.h"
#include "runtime/cpu/onednn.h"

enum {
  ALIGN = 64
};
typedef lm_gemm_problem problem;

struct lm_cpu_gemms {
  int threads;
  lm_team *team;     // NULL until GEMMs run
  lm_team *own_team; // `team` if it was made here
  uint32_t primitives;
  const lm_gemm_tilings *tilings; // NULL: none
  bool code;                      // the plan's kernels are allowed
  uint32_t code_default;          // set of 1 << lm_dtype: operands for which they are the default
  lm_kernel_fn *const *kernels;   // as the plan's
  lm_matmuls *matmuls;            // NULL until a GEMM needs one
  char *memory, *workspace;       // workspaces of all threads: as allocated, and aligned
  int64_t per_thread;             // bytes of a thread's workspace: `call_bytes` + `other_bytes`
  int64_t call_bytes;             // a lm_gemm_workspace, if a GEMM needs one
  int64_t other_bytes;            // for primitives and kernels
};

static problem problem_of(const lm_cpu_gemms *all, const lm_plan_gemm *g, const int64_t *var) {
  return lm_gemm_problem_make(g, var, all->tilings, all->code);
}

// ---- the implementation of a tile

typedef enum {
  LOOP,
  CALL,
  MATMUL,
  CODE
} implementation;
typedef struct strategy {
  implementation implementation;
  bool staged; // summed in the workspace, in rows of f32
} strategy;

// The shape of the calls: C is the workspace if `staged`.
static lm_gemm_shape summed(const lm_gemm_shape *s, bool staged) {
  lm_gemm_shape t = *s;
  if (staged) {
    t.cc = LM_F32;
    t.c_m = s->n;
    t.c_n = 1;
  }
  return t;
}

// True if C can hold partial sums without rounding them.
static bool holds_sums(const problem *p) {
  bool once = p->n_sums == 1 && !p->accumulate;
  return lm_gemm_layouts_find(&p->s).c.trans == 'N' && (p->s.cc == LM_F32 || once);
}

// The calls of a tile, one that overwrites and those that add, for every size of tile. make:
// creates their primitives. Returns true if all primitives exist.
static bool matmuls_visit(lm_cpu_gemms *all, const problem *p, bool staged, bool make) {
  bool every = true;
  for (int edge = 0; edge < 4; edge++) {
    lm_gemm_shape s = p->s;
    s.m = edge & 1 ? p->s.m % p->tile_m : p->tile_m;
    s.n = edge & 2 ? p->s.n % p->tile_n : p->tile_n;
    if (!s.m || !s.n)
      continue;
    s = summed(&s, staged);
    for (int add = 0; add <= (p->n_sums > 1 || p->accumulate); add++) {
      if (make)
        lm_matmuls_add(all->matmuls, &s, add);
      every &= lm_matmuls_find(all->matmuls, &s, add) != NULL;
    }
  }
  return every;
}

// Chooses matmul primitives, if the library has all that are needed.
static bool matmul_choose(lm_cpu_gemms *all, problem *p, strategy *out, bool make) {
  bool staged = !holds_sums(p);
  if (p->groups || !all->matmuls || !(all->primitives >> p->s.ab & 1))
    return false;
  lm_gemm_tiles_choose(p, staged ? LM_GEMM_TILE : INT64_MAX);
  *out = (strategy){MATMUL, staged};
  return matmuls_visit(all, p, staged, make);
}

// The GEMM of a group of about average size, for the choice of tiles, which depends on shapes
// alone.
static problem of_group(const problem *p) {
  problem one = *p;
  int64_t *rows = p->group_sums ? &one.s.k : p->flipped ? &one.s.n : &one.s.m;
  *rows = lm_gemm_min(*rows, 2 * lm_gemm_pieces(*rows, p->groups));
  one.n_batches *= p->groups;
  return one;
}

static strategy code_choose(const lm_cpu_gemms *all, problem *p) {
  strategy w = {
      CODE,
      p->s.cc != LM_F32,
  };
  lm_gemm_tiles_of_code(p, all->threads, w.staged ? LM_GEMM_TILE : INT64_MAX);
  return w;
}

// Only generated code reads panels, and only its bits do not depend on the number of rows. Other
// GEMMs use it if the tiling says so, by default if it is faster.
static bool takes_code(const lm_cpu_gemms *all, const problem *p) {
  if (p->panel && !p->code)
    LM_BUG("a GEMM with B in panels, but without a kernel");
  return p->code && (p->panel || p->any_rows || p->groups ||
                     (p->tiling ? p->tiling->tile.code : all->code_default >> p->s.ab & 1));
}

static strategy strategy_of_one(lm_cpu_gemms *all, problem *p) {
  strategy w = {
      LOOP,
      false,
  };
  if (takes_code(all, p))
    return code_choose(all, p);
  if (matmul_choose(all, p, &w, false))
    return w;
  if (p->s.ab != LM_F64 && p->s.cc != LM_F64) {
    lm_gemm_shape s = summed(&p->s, true);
    bool staged = p->s.cc != LM_F32 || !lm_gemm_layouts_find(&p->s).c.trans;
    lm_gemm_tiles_choose(p, staged || lm_gemm_packs(&s) ? LM_GEMM_TILE : INT64_MAX);
    return (strategy){CALL, staged};
  }
  lm_gemm_tiles_choose(p, INT64_MAX);
  return (strategy){LOOP, false};
}

static strategy strategy_choose(lm_cpu_gemms *all, problem *p) {
  problem one = p->groups ? of_group(p) : *p;
  strategy w = strategy_of_one(all, &one);
  p->tile_m = one.tile_m;
  p->tile_n = one.tile_n;
  return w;
}

// ---- tasks

typedef struct run {
  lm_cpu_gemms *all;
  problem p;
  strategy w;
  const char *a;
  const char *b;
  char *c;
} run;

// result: the tile in C itself, if the sums are in the workspace and are complete after this call;
// else NULL.
static void multiply(const run *r, const lm_gemm_shape *s, const char *a, const char *b, char *c,
                     bool add, char *result, int thread) {
  char *workspace = r->all->workspace + thread * r->all->per_thread;
  if (r->w.implementation == LOOP) {
    lm_gemm_loop(s, a, b, c, add);
  } else if (r->w.implementation == CALL) {
    lm_gemm_call(s, a, b, (float *)c, add, (lm_gemm_workspace *)workspace);
  } else if (r->w.implementation == CODE) {
    char *buf[] = {(char *)(uintptr_t)a, (char *)(uintptr_t)b, c, workspace + r->all->call_bytes,
                   result};
    int64_t result_row = r->p.s.m > 1 ? r->p.s.c_m : r->p.s.n; // of one row any, but not 0
    int64_t var[] = {
        s->n,
        s->c_m,
        add,
        result ? result_row : 0,
        s->k,
        s->a_m,
        s->a_k,
        s->b_n,
        s->b_k,
        r->p.panel != 0,
        r->p.run_time_k ? LM_GEMM_KERNEL_LONG_K : s->k,
    };
    r->all->kernels[r->p.code - 1](buf, var, 0, s->m);
  } else {
    lm_matmul *x = lm_matmuls_find(r->all->matmuls, s, add);
    LM_ASSERT(x);
    lm_matmul_run(r->all->matmuls, x, thread, a, b, c, workspace + r->all->call_bytes);
  }
}

// Stores zeros: the sums of a group without rows, or rows without a group.
static void tile_clear(const lm_gemm_shape *s, char *c) {
  int64_t size = lm_dtype_bytes((lm_dtype)s->cc);
  for (int64_t i = 0; i < s->m; i++)
    for (int64_t j = 0; j < s->n; j++)
      memset(c + (i * s->c_m + j * s->c_n) * size, 0, (size_t)size);
}

static void task_run(const run *r, int64_t task, int thread) {
  const problem *p = &r->p;
  int64_t across = lm_gemm_pieces(p->s.n, p->tile_n);
  int64_t down = lm_gemm_pieces(p->s.m, p->tile_m);
  int64_t i = task / across % down * p->tile_m;
  int64_t j = task % across * p->tile_n;
  lm_plan_batch o = lm_plan_batch_at(p->batch, p->n_batch, task / across / down);
  lm_gemm_shape tile = p->s;
  tile.m = lm_gemm_min(p->tile_m, p->s.m - i);
  tile.n = lm_gemm_min(p->tile_n, p->s.n - j);
  lm_gemm_shape s = summed(&tile, r->w.staged);
  int64_t size = lm_dtype_bytes((lm_dtype)s.ab);
  char *c = r->c + (o.c + i * p->s.c_m + j * p->s.c_n) * lm_dtype_bytes((lm_dtype)p->s.cc);
  char *to = c;
  float *sums = r->w.staged
                    ? ((lm_gemm_workspace *)(r->all->workspace + thread * r->all->per_thread))->c
                    : NULL;
  if (!p->s.k) {
    if (!p->accumulate)
      tile_clear(&tile, c);
    return;
  }
  if (r->w.staged)
    to = (char *)sums;
  if (r->w.staged && p->accumulate)
    lm_gemm_tile_load(&tile, c, sums);
  for (int64_t k = 0; k < p->n_sums; k++) {
    lm_plan_batch q = lm_plan_batch_at(p->sum, p->n_sum, k);
    multiply(r, &s, r->a + (o.a + q.a + i * s.a_m) * size, r->b + (o.b + q.b + j * s.b_n) * size,
             to, p->accumulate || k > 0, r->w.staged && k + 1 == p->n_sums ? c : NULL, thread);
  }
  if (r->w.staged && r->w.implementation != CODE)
    lm_gemm_tile_store(&tile, sums, c); // generated code has stored them already
}

static int64_t tasks_of(const problem *p) {
  return p->n_batches * lm_gemm_pieces(p->s.m, p->tile_m) * lm_gemm_pieces(p->s.n, p->tile_n);
}

// ---- groups

// The GEMM of a group, whose rows begin at `first`.
static run group_run(const run *r, int group, int64_t first, int64_t rows) {
  run one = *r;
  problem *p = &one.p;
  int64_t size = lm_dtype_bytes((lm_dtype)p->s.ab);
  bool swapped = p->flipped; // a is the operand B
  int64_t a = p->group_sums ? p->s.a_k : swapped ? 0 : p->s.a_m;
  int64_t b = p->group_sums ? p->s.b_k : swapped ? p->s.b_n : 0;
  int64_t c = p->group_sums ? 0 : swapped ? p->s.c_n : p->s.c_m;
  *(p->group_sums ? &p->s.k : swapped ? &p->s.n : &p->s.m) = rows;
  one.a += (first * a + (swapped ? group * p->group_b : 0)) * size;
  one.b += (first * b + (swapped ? 0 : group * p->group_b)) * size;
  one.c += (first * c + group * p->group_c) * lm_dtype_bytes((lm_dtype)p->s.cc);
  return one;
}

static int64_t rows_of(const problem *p) {
  return p->group_sums ? p->s.k : p->flipped ? p->s.n : p->s.m;
}

// A walk over the groups.
typedef struct group_walk {
  run one;              // the GEMM of the group
  int group;            // its number
  int64_t first, tasks; // its first row, and the number of its tasks
  int64_t before;       // tasks of the groups before it
} group_walk;

// The groups of a walk: behind the last one, the rows of no group.
static int groups_of(const problem *p) {
  return p->groups + !p->group_sums;
}

// Goes to group `g`, whose first row and tasks before are set. Rows that the GEMM does not have are
// left out.
static void group_enter(const run *r, const int32_t *counts, int g, group_walk *w) {
  int64_t left = rows_of(&r->p) - w->first;
  bool none = g == r->p.groups;
  int64_t rows = none ? left : counts[g] < 0 ? 0 : lm_gemm_min(counts[g], left);
  w->one = group_run(r, none ? 0 : g, w->first, rows);
  w->group = g;
  if (none)
    w->one.p.s.k = 0;
  w->tasks = w->one.p.s.m && w->one.p.s.n ? tasks_of(&w->one.p) : 0;
}

static void groups_begin(const run *r, const int32_t *counts, group_walk *w) {
  *w = (group_walk){.first = 0};
  group_enter(r, counts, 0, w);
}

static void group_leave(const run *r, const int32_t *counts, group_walk *w) {
  w->before += w->tasks;
  w->first += rows_of(&w->one.p);
  group_enter(r, counts, w->group + 1, w);
}

// The tasks of all groups, of which this thread takes some: in order, except that it begins again
// when it takes those that are left of another thread's range.
static void groups_share(const run *r, const int32_t *counts, lm_share *share) {
  group_walk w;
  groups_begin(r, counts, &w);
  while (w.group + 1 < groups_of(&r->p))
    group_leave(r, counts, &w);
  int64_t all = w.before + w.tasks;
  groups_begin(r, counts, &w);
  for (int64_t t; (t = lm_share_take(share, all)) >= 0;) {
    if (t < w.before)
      groups_begin(r, counts, &w);
    while (t >= w.before + w.tasks)
      group_leave(r, counts, &w);
    task_run(&w.one, t - w.before, share->me);
  }
}

void lm_cpu_gemm_share(lm_cpu_gemms *all, const lm_plan_gemm *g, bool overwrites,
                       const int64_t *var, const char *a, const char *b, const int32_t *counts,
                       char *c, lm_share *share) {
  run r = {
      .all = all,
      .p = problem_of(all, g, var),
      .a = a,
      .b = b,
      .c = c,
  };
  problem *p = &r.p;
  if (p->n_batches == 0 || p->s.m == 0 || p->s.n == 0)
    return;
  if (p->flipped) {
    r.a = b;
    r.b = a;
  }
  r.w = strategy_choose(all, p);
  p->accumulate &= !overwrites; // the strategy and the tiles are chosen as for the GEMM that adds
  if (p->groups) {
    groups_share(&r, counts, share);
    return;
  }
  int64_t tasks = tasks_of(p);
  for (int64_t t; (t = lm_share_take(share, tasks)) >= 0;)
    task_run(&r, t, share->me);
}

typedef struct team_call {
  lm_cpu_gemms *all;
  const lm_plan_gemm *g;
  const int64_t *var;
  const char *a;
  const char *b;
  char *c;
  lm_tickets *tickets;
} team_call;

static void team_call_share(void *user, int me) {
  team_call *p = user;
  lm_share share = {.tickets = p->tickets, .me = me, .all = lm_team_size(p->all->team)};
  lm_cpu_gemm_share(p->all, p->g, false, p->var, p->a, p->b, NULL, p->c, &share);
}

void lm_cpu_gemm(lm_cpu_gemms *all, const lm_plan_gemm *g, const int64_t *var, const char *a,
                 const char *b, char *c) {
  team_call p = {all, g, var, a, b, c, lm_calloc((size_t)all->threads, sizeof(lm_tickets))};
  lm_team_run(all->team, team_call_share, &p);
  lm_free(p.tickets);
}

// ---- shared state

static int64_t bytes_of(const lm_cpu_gemms *all, int64_t per_thread) {
  return per_thread ? all->threads * per_thread + ALIGN : 0;
}

// Not cleared: pages that no GEMM uses are never touched.
static void workspaces_make(lm_cpu_gemms *all) {
  int64_t per_thread = all->call_bytes + all->other_bytes;
  if (per_thread == all->per_thread)
    return;
  lm_free(all->memory);
  all->per_thread = per_thread;
  all->memory = lm_realloc(NULL, (size_t)bytes_of(all, per_thread));
  all->workspace = all->memory + (ALIGN - (uintptr_t)all->memory % ALIGN);
}

static uint32_t code_default_find(void) {
  lm_cpu_info cpu;
  lm_cpu_detect(&cpu);
  return (uint32_t)lm_cpu_prefers_code(&cpu, LM_F32) << LM_F32 |
         (uint32_t)lm_cpu_prefers_code(&cpu, LM_BF16) << LM_BF16;
}

static lm_cpu_gemms *gemms_new(const lm_cpu_gemm_options *o) {
  lm_cpu_gemms *all = lm_alloc(sizeof *all);
  lm_onednn_begin();
  *all = (lm_cpu_gemms){.threads = o->threads,
                        .team = o->team,
                        .primitives = o->primitives ? o->primitives : 1u << LM_BF16,
                        .tilings = o->tilings,
                        .code = o->code,
                        .kernels = o->kernels};
  if (o->code)
    all->code_default = code_default_find();
  return all;
}

static void thread_begin(void *user, int me) {
  lm_gemm_call_thread_begin();
}

// For GEMMs that will run, as opposed to those whose workspace is only computed.
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
  bool fixed = !g->m.n_dyn && !g->n.n_dyn && !g->k.n_dyn && !g->groups.count;
  for (int i = 0; i < g->n_batch; i++)
    fixed &= !g->batch[i].size.n_dyn;
  return fixed;
}

bool lm_gemm_key_find(const lm_plan_gemm *g, lm_gemm_key *out) {
  if (!is_fixed(g))
    return false;
  problem p = lm_gemm_problem_make(g, NULL, NULL, false);
  *out = lm_gemm_problem_key(&p);
  return true;
}

lm_tile lm_cpu_gemm_tile(lm_cpu_gemms *all, const lm_plan_gemm *g) {
  problem p = problem_of(all, g, NULL);
  strategy w = strategy_choose(all, &p);
  return (lm_tile){p.tile_m, p.tile_n, w.implementation == CODE};
}

static void other_bytes_take(lm_cpu_gemms *all, int64_t bytes) {
  if (bytes > all->other_bytes)
    all->other_bytes = bytes;
}

// Makes the primitives of a GEMM. Returns true if it needs a lm_gemm_workspace.
static bool needs_call(lm_cpu_gemms *all, const lm_plan_gemm *g) {
  if (!is_fixed(g) && all->code && g->code)
    other_bytes_take(all, LM_GEMM_KERNEL_WORKSPACE);
  if (!is_fixed(g))
    return true;
  problem p = problem_of(all, g, NULL);
  strategy w;
  if (!p.n_batches || !p.s.m || !p.s.n)
    return false;
  bool primitives = (all->primitives >> g->dtype_ab & 1) && p.s.k && !takes_code(all, &p);
  if (primitives && !all->matmuls)
    all->matmuls = lm_matmuls_create(all->threads);
  if (primitives)
    matmul_choose(all, &p, &w, true);
  w = strategy_choose(all, &p);
  int64_t other_bytes = w.implementation == CODE ? LM_GEMM_KERNEL_WORKSPACE
                        : all->matmuls           ? lm_matmuls_workspace(all->matmuls)
                                                 : 0;
  other_bytes_take(all, other_bytes);
  lm_gemm_shape s = summed(&p.s, w.staged);
  return w.staged || (w.implementation == CALL && lm_gemm_packs(&s));
}

static void gemm_prepare(lm_cpu_gemms *all, const lm_plan_gemm *g) {
  if (needs_call(all, g))
    all->call_bytes = (int64_t)(sizeof(lm_gemm_workspace) + ALIGN - 1) / ALIGN * ALIGN;
}

void lm_cpu_gemm_prepare(lm_cpu_gemms *all, const lm_plan_gemm *g) {
  gemm_prepare(all, g);
  workspaces_make(all);
}

// ---- all GEMMs of a plan

static bool has_gemm(const lm_plan *plan) {
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
        gemm_prepare(all, plan->funcs[i].steps[j].gemm);
  return all;
}

lm_cpu_gemms *lm_cpu_gemms_of_plan(const lm_plan *plan, const lm_cpu_gemm_options *o) {
  lm_cpu_gemms *all = has_gemm(plan) ? plan_prepare(plan, lm_cpu_gemms_create(o)) : NULL;
  if (all)
    workspaces_make(all);
  return all;
}

int64_t lm_cpu_gemms_of_plan_bytes(const lm_plan *plan, const lm_cpu_gemm_options *o) {
  lm_cpu_gemms *all = has_gemm(plan) ? plan_prepare(plan, gemms_new(o)) : NULL;
  int64_t bytes = all ? bytes_of(all, all->call_bytes + all->other_bytes) : 0;
  lm_cpu_gemms_destroy(all);
  return bytes;
}
