// shape.c - the form of a kernel: whether teams of threads share a point, the size of a team, and
// the loops that use vectors.
#include <math.h>
#include <string.h>
#include "codegen/cuda/emit.h"
#include "compiler/ir/dot.h"

enum {
  // Threads that keep a device busy.
  THREADS_ENOUGH = 1 << 16,
  // Threads that all multiprocessors of a large device can hold.
  THREADS_RESIDENT = 1 << 18
};

// ---- passes

static bool reduces(const lm_root *r) {
  return r->v->def && !r->copy && lm_op_is_reduction(r->v->def);
}

// True if op is a reduction that keeps axes; it gets a separate pass.
static bool is_partial(const lm_schedule *s, const lm_root *r) {
  return reduces(r) && lm_kernel_inner(s->kernel, r->v->type).rank > 0;
}

static void pass_add(lm_schedule *s, lm_type space, int depth, lm_root r) {
  lm_sched_pass p = {
      .space = space,
      .depth = depth,
  };
  LM_PUSH(s->arena, p.roots, p.n_roots, p.cap_roots) = r;
  LM_PUSH(s->arena, s->passes, s->n_passes, s->cap_passes) = p;
}

static void roots_number(lm_schedule *s) {
  for (uint32_t i = 0; i < s->n_passes; i++)
    for (uint32_t j = 0; j < s->passes[i].n_roots; j++) {
      lm_root r = s->passes[i].roots[j];
      if (r.v->def && !r.copy)
        s->nodes[r.v->def->mark].pass = (int)i;
    }
}

// Moves sums that keep axes to a separate pass at a separate depth, since other threads then read
// the results of the rest of the pass.
static void partial_split(lm_schedule *s) {
  lm_sched_pass *old = s->passes;
  uint32_t n = s->n_passes;
  s->passes = NULL;
  s->n_passes = s->cap_passes = 0;
  for (uint32_t i = 0; i < n; i++) {
    lm_sched_pass plain = {
        .space = old[i].space,
        .depth = 2 * old[i].depth,
    };
    for (uint32_t j = 0; j < old[i].n_roots; j++)
      if (!is_partial(s, &old[i].roots[j]))
        LM_PUSH(s->arena, plain.roots, plain.n_roots, plain.cap_roots) = old[i].roots[j];
    if (plain.n_roots)
      LM_PUSH(s->arena, s->passes, s->n_passes, s->cap_passes) = plain;
    for (uint32_t j = 0; j < old[i].n_roots; j++)
      if (is_partial(s, &old[i].roots[j]))
        pass_add(s, old[i].space, 2 * old[i].depth + 1, old[i].roots[j]);
  }
  roots_number(s);
}

// Without reductions results are independent: one pass for all results that have the same axes.
static void flat_passes(lm_schedule *s) {
  const lm_op *yield = lm_kernel_yield(s->kernel);
  s->passes = NULL;
  s->n_passes = s->cap_passes = 0;
  for (uint32_t i = 0; i < yield->n_in; i++) {
    lm_root r = {yield->in[i], false};
    bool duplicate = false;
    uint32_t at = 0;
    for (uint32_t j = 0; j < i; j++)
      duplicate |= yield->in[j] == yield->in[i];
    while (at < s->n_passes && !lm_type_same_axes(s->passes[at].space, r.v->type))
      at++;
    if (duplicate)
      continue;
    if (at == s->n_passes)
      pass_add(s, r.v->type, 0, r);
    else
      LM_PUSH(s->arena, s->passes[at].roots, s->passes[at].n_roots, s->passes[at].cap_roots) = r;
  }
  roots_number(s);
}

static bool has_reductions(const lm_op *kernel) {
  for (const lm_op *op = kernel->body->first; op; op = op->next)
    if (lm_op_is_reduction(op))
      return true;
  return false;
}

void cuda_shape_begin(cuda_emit *e, const lm_target *t, const lm_module *m, const lm_op *kernel,
                      lm_arena *arena) {
  bool teams = e->scan || kernel->attr.n_to || (has_reductions(kernel) && !lm_kernel_dot(kernel));
  teams = teams && !e->gemm;
  e->form = teams ? CUDA_TEAM : CUDA_FLAT;
  e->flat = *kernel;
  if (e->form == CUDA_FLAT)
    e->flat.attr.n_axes = 0;
  const lm_op *inner = e->form == CUDA_FLAT ? &e->flat : kernel;
  lm_schedule *s = lm_schedule_make(m, inner, false, arena);
  if (e->form == CUDA_FLAT)
    flat_passes(s);
  else
    partial_split(s);
  lm_gen_init(&e->g, cuda_gen_target(t, m, kernel), m, inner, s, arena);
  e->width = LM_NEW_N(arena, int, s->n_passes + 1);
  for (uint32_t i = 0; i < s->n_passes; i++)
    e->width[i] = 1;
  e->tile = LM_NEW_N(arena, int, s->n_passes + 1);
  e->group = LM_NEW_N(arena, int, s->n_passes + 1);
  e->transposed = LM_NEW_N(arena, bool, kernel->n_out + 1);
  e->sum_width = LM_NEW_N(arena, int, kernel->n_out + 1);
  e->team = e->teams = 1;
  e->fastest = kernel->attr.n_axes - 1;
}

// ---- vectors

static double times(const lm_gen_domain *d) {
  double n = 1;
  for (int i = 0; i < d->n; i++)
    n *= (double)d->loop[i].size;
  return n;
}

static bool contiguous(const cuda_emit *e, int pass, uint16_t var) {
  for (uint32_t i = 0; i < e->g.n_accesses; i++) {
    const lm_gen_access *a = &e->g.accesses[i];
    if (a->pass == pass && a->memory && lm_ix_coef(&a->ix, var) == 1)
      return true;
  }
  return false;
}

// Bytes of an element of memory that is read or written in vectors.
static int element_bytes(lm_type t) {
  return t.dtype == LM_BOOL ? 4 : lm_dtype_bytes((lm_dtype)t.dtype);
}

static int widest(const cuda_emit *e) {
  const lm_op *kernel = e->g.kernel;
  int width = 4;
  for (uint32_t i = 0; i < kernel->n_in; i++)
    if (kernel->in[i]->type.rank && element_bytes(kernel->in[i]->type) < 4)
      width = 8;
  for (uint32_t i = 0; i < kernel->n_out; i++)
    if (element_bytes(kernel->out[i]->type) < 4)
      width = 8;
  return e->wish.width && e->wish.width < width ? e->wish.width : width;
}

// True if vectors of that width end where the loop does, and at each bound that partitions it.
static bool width_fits(const lm_gen_loop *a, int width) {
  bool fits = a->size % width == 0;
  for (int i = 0; i < a->n_partitions; i++)
    fits = fits && a->partition[i] % width == 0;
  return fits;
}

// Splits the innermost loop into a loop over vectors, which keeps its partitions, and one within.
static void vector_split(cuda_emit *e, lm_gen_domain *d, int width) {
  lm_gen_loop whole = d->loop[d->n - 1];
  lm_gen_loop_split(&e->g, d, d->n - 1, width);
  lm_gen_loop *high = &d->loop[d->n - 2];
  high->n_partitions = whole.n_partitions;
  for (int i = 0; i < whole.n_partitions; i++)
    high->partition[i] = whole.partition[i] / width;
}

static void vector_choose(cuda_emit *e, int pass) {
  lm_gen_domain *d = &e->g.domains[pass];
  const lm_sched_pass *p = &e->g.s->passes[pass];
  if (!d->n || is_partial(e->g.s, &p->roots[0]))
    return;
  const lm_gen_loop *last = &d->loop[d->n - 1];
  if (last->dyn || d->n == LM_GEN_LOOPS || !contiguous(e, pass, last->var))
    return;
  int width = widest(e);
  while (!width_fits(last, width))
    width /= 2;
  e->width[pass] = width;
}

// ---- thread groups within a team

// Accesses of a pass to memory that are contiguous along a loop.
static int contiguous_accesses(const cuda_emit *e, int pass, int loop) {
  const lm_gen_domain *d = &e->g.domains[pass];
  int n = 0;
  for (uint32_t i = 0; i < e->g.n_accesses; i++) {
    const lm_gen_access *a = &e->g.accesses[i];
    n += a->pass == pass && a->memory && lm_ix_coef(&a->ix, d->loop[loop].var) == 1;
  }
  return n;
}

// The summed loop along which most accesses are contiguous, more than along any kept one; -1: none.
static int summed_contiguous(const cuda_emit *e, int pass) {
  const lm_gen_domain *d = &e->g.domains[pass];
  lm_type kept = e->g.s->passes[pass].roots[0].v->type;
  int most = 0;
  int best = -1;
  for (int i = 0; i < d->n; i++) {
    int n = contiguous_accesses(e, pass, i);
    if (n <= most)
      continue;
    most = n;
    best = lm_type_find(kept, d->loop[i].axis) < 0 ? i : -1;
  }
  return best;
}

// A sum whose terms are contiguous has a thread group for each kept point, so that neighbouring
// threads read neighbouring vectors.
static void group_choose(cuda_emit *e, int pass) {
  lm_gen_domain *d = &e->g.domains[pass];
  const lm_root *r = &e->g.s->passes[pass].roots[0];
  if (!is_partial(e->g.s, r) || r->v->def->code == LM_OP_SCATTER)
    return;
  int at = summed_contiguous(e, pass);
  int width = widest(e);
  int group = 1;
  if (at < 0 || d->n == LM_GEN_LOOPS)
    return;
  if (d->loop[at].dyn || d->loop[at].n_partitions)
    return;
  lm_gen_loop l = d->loop[at];
  for (; at + 1 < d->n; at++)
    d->loop[at] = d->loop[at + 1];
  d->loop[at] = l;
  while (!width_fits(&l, width))
    width /= 2;
  while (group < CUDA_WARP && group * width < l.size)
    group *= 2;
  e->group[pass] = group;
  e->width[pass] = width;
}

// ---- teams

static bool scatters(const cuda_emit *e) {
  for (uint32_t i = 0; i < e->g.s->n_nodes; i++)
    if (e->g.s->nodes[i].op->code == LM_OP_SCATTER)
      return true;
  return false;
}

// The elements that an access has at a point: its index depends on these loops alone, and it is
// outside of the others.
static double elements_of_access(const cuda_emit *e, const lm_gen_access *a) {
  const lm_gen_domain *d = &e->g.domains[a->pass];
  double n = 1;
  for (int i = 0; i < a->ix.n; i++)
    if (e->g.vars.v[a->ix.t[i].var].kind == LM_VAR_TEMP)
      return times(d);
  for (int i = 0; i < d->n; i++)
    n *= lm_ix_coef(&a->ix, d->loop[i].var) ? (double)d->loop[i].size : 1;
  return n;
}

static bool is_contiguous_within(const cuda_emit *e, const lm_gen_access *a) {
  const lm_gen_domain *d = &e->g.domains[a->pass];
  bool within = false;
  for (int i = 0; i < d->n; i++)
    within |= lm_ix_coef(&a->ix, d->loop[i].var) == 1;
  return within;
}

// True if more elements are contiguous from point to point than within a point.
static bool points_contiguous(const cuda_emit *e) {
  if (!e->g.kernel->attr.n_axes)
    return false;
  double inner = 0, parallel = 0;
  for (uint32_t i = 0; i < e->g.n_accesses; i++) {
    const lm_gen_access *a = &e->g.accesses[i];
    if (!a->memory)
      continue;
    if (is_contiguous_within(e, a))
      inner += elements_of_access(e, a);
    if (lm_ix_coef(&a->ix, e->g.parallel[e->fastest]) == 1)
      parallel += elements_of_access(e, a);
  }
  return parallel > inner;
}

// Iterations that each lane of a team computes one after the other: of a pass whose reduction keeps
// axes with enough elements for a warp, and is not by thread groups, those along the axes that are
// reduced.
static double serial_times(const cuda_emit *e, int pass) {
  const lm_gen_domain *d = &e->g.domains[pass];
  const lm_root *r = &e->g.s->passes[pass].roots[0];
  double kept = 1, reduced = 1;
  if (!is_partial(e->g.s, r) || e->group[pass])
    return 1;
  for (int i = 0; i < d->n; i++)
    *(lm_type_find(r->v->type, d->loop[i].axis) < 0 ? &reduced : &kept) *= (double)d->loop[i].size;
  return kept >= CUDA_WARP ? reduced : 1;
}

static int64_t longest(const cuda_emit *e) {
  double max = 1;
  for (uint32_t i = 0; i < e->g.s->n_passes; i++) {
    double n = times(&e->g.domains[i]) / e->width[i] / serial_times(e, (int)i);
    if (n > max && !cuda_online_is(e, (int)i))
      max = n;
  }
  return max < 1e15 ? (int64_t)max : (int64_t)1e15;
}

// Iterations of the lanes of a team of that size in a pass, idle ones included: each range of a
// partitioned loop ends with a round of all lanes.
static double lane_iterations(const cuda_emit *e, int pass, int team) {
  const lm_gen_domain *d = &e->g.domains[pass];
  double n = times(d) / e->width[pass], all = 0;
  const lm_gen_loop *split = NULL;
  for (int i = 0; i < d->n; i++)
    if (d->loop[i].n_partitions)
      split = &d->loop[i];
  if (!split) {
    double serial = serial_times(e, pass);
    return ceil(n / serial / team) * team * serial;
  }
  for (int i = 0; i <= split->n_partitions; i++) {
    int64_t from = i ? split->partition[i - 1] : 0;
    int64_t to = i < split->n_partitions ? split->partition[i] : split->size;
    all += ceil(n / (double)split->size * (double)(to - from) / team) * team;
  }
  return all;
}

static double all_lane_iterations(const cuda_emit *e, int team) {
  double n = 0;
  for (uint32_t i = 0; i < e->g.s->n_passes; i++)
    if (e->g.domains[i].n && !cuda_online_is(e, (int)i))
      n += lane_iterations(e, (int)i, team);
  return n;
}

// A smaller team if it leaves fewer lanes idle, as in a rotary embedding, whose loops cover halves
// of a row; the lanes still access 32 neighbouring elements and fill the device.
static void team_narrow(cuda_emit *e) {
  int width = 1, best = e->team;
  for (uint32_t i = 0; i < e->g.s->n_passes; i++)
    width = e->width[i] > width ? e->width[i] : width;
  for (int team = e->team / 2; team * width >= 32; team /= 2)
    if (cuda_points(e) * team >= THREADS_RESIDENT &&
        all_lane_iterations(e, team) < all_lane_iterations(e, best))
      best = team;
  e->team = best;
}

// Each team has a set of the sums in shared memory. If it has no room for all sets, the team is the
// whole block: with fewer teams a block would have too few threads to issue all the time.
static void teams_fit(cuda_emit *e) {
  if (e->teams == 1 || cuda_sums_fit(e, e->teams))
    return;
  e->team = CUDA_THREADS;
  e->teams = 1;
}

// True if no element depends on another one of its point.
static bool elementwise(const cuda_emit *e) {
  bool alone = e->g.s->n_passes == 1 && !cuda_holds_rows(e);
  for (uint32_t i = 0; i < e->g.s->n_nodes; i++)
    alone = alone && !lm_op_is_reduction(e->g.s->nodes[i].op);
  return alone;
}

// If a block only computes elements and their sums over points, its threads need not meet at each
// point. A thread for each vector, or for every second or third one, then has its sums in
// registers, where a warp has too many: a block needs one set of sums in shared memory instead of
// several, and more of its threads are resident. n: vectors of a point.
static bool rows_team(cuda_emit *e, int64_t n) {
  int64_t sums = 0;
  for (uint32_t i = 0; i < e->g.kernel->n_out; i++)
    sums += lm_kernel_result_summed(e->g.kernel, i) ? e->width[0] : 0;
  if (!elementwise(e) || sums * n <= CUDA_SUM_REGISTERS * CUDA_WARP || !cuda_sums_fit(e, 1))
    return false;
  for (int64_t share = 1; share * sums <= CUDA_SUM_REGISTERS; share++) {
    int64_t threads = n / share;
    if (n % share || threads % CUDA_WARP || threads < CUDA_THREADS || threads > CUDA_ROWS_THREADS)
      continue;
    e->team = (int)threads;
    e->teams = 1;
    return true;
  }
  return false;
}

static void team_choose(cuda_emit *e) {
  if (e->wish.threads) {
    e->team = e->wish.threads;
    e->teams = 1;
    return;
  }
  int64_t n = longest(e);
  int64_t points =
      e->g.kernel->attr.n_to ? lm_axis_size(e->g.m, e->g.kernel->attr.to[0]) : cuda_points(e);
  e->team = 1;
  while (e->team < CUDA_WARP && e->team < n)
    e->team *= 2;
  team_narrow(e);
  while (e->team >= CUDA_WARP && e->team < CUDA_MAX_THREADS &&
         (n > 8 * e->team || (points * e->team < THREADS_ENOUGH && n > e->team)))
    e->team *= 2;
  if (e->g.kernel->attr.n_to && e->team > CUDA_WARP && n <= 32 * CUDA_WARP)
    // More points at a time instead of larger teams.
    e->team = CUDA_WARP;
  e->teams = e->team > CUDA_WARP ? 1 : CUDA_THREADS / e->team;
  while (!e->g.kernel->attr.n_to && e->teams > 1 && e->teams / 2 >= points &&
         e->team * e->teams > CUDA_WARP)
    e->teams /= 2;
  if (e->g.kernel->attr.n_to && !rows_team(e, n))
    teams_fit(e);
}

// A warp of which most lanes have no vector of a short row takes as long as one whose lanes all
// have a part of one: the vectors of such a pass are narrower.
static void vectors_narrow(cuda_emit *e, int pass) {
  const lm_gen_domain *d = &e->g.domains[pass];
  int lanes = e->team < CUDA_WARP ? e->team : CUDA_WARP;
  int *group = &e->group[pass];
  double n = times(d) / e->width[pass]; // vectors
  for (; !*group && e->width[pass] > 1 && 2 * n <= lanes; n *= 2)
    e->width[pass] /= 2;
  if (!*group || cuda_online_is(e, pass))
    return;
  double kept = times(d) / (double)d->loop[d->n - 1].size;
  while (e->width[pass] > 1 && *group < CUDA_WARP && 2 * *group * kept <= e->team) {
    e->width[pass] /= 2;
    *group *= 2;
  }
}

// Splits the innermost loop of a pass into vectors.
static void vectors_split(cuda_emit *e, int pass) {
  lm_gen_domain *d = &e->g.domains[pass];
  if (e->form == CUDA_TEAM && e->team > 1 && !e->rows)
    vectors_narrow(e, pass);
  int width = e->width[pass];
  if (width > 1 && d->loop[d->n - 1].size > width)
    vector_split(e, d, width);
}

// Moves a loop next to the last one, or to the last one that is not within a vector.
static void loop_move(cuda_emit *e, lm_gen_domain *d, int from) {
  int to = d->n - 2;
  const lm_gen_loop *last = &d->loop[d->n - 1];
  if (e->width[0] > 1 && to > 0 && last->size == e->width[0])
    to--;
  lm_gen_loop l = d->loop[from];
  for (int i = from; i < to; i++)
    d->loop[i] = d->loop[i + 1];
  if (from < to)
    d->loop[to] = l;
}

void cuda_shape_choose(cuda_emit *e) {
  e->team = e->rows && e->form == CUDA_TEAM ? CUDA_THREADS : 1;
  cuda_order_choose(e);
  bool alone = !e->rows && (e->scan || (e->form == CUDA_TEAM && !e->g.kernel->attr.n_to &&
                                        (scatters(e) || points_contiguous(e))));
  if (e->wish.alone) {
    alone = true;
    e->fastest = e->wish.fastest;
  }
  if (alone) {
    e->teams = cuda_points(e) >= THREADS_ENOUGH ? CUDA_THREADS : 2 * CUDA_WARP;
    return;
  }
  for (uint32_t i = 0; i < e->g.s->n_passes; i++) {
    if (!cuda_transpose_choose(e, (int)i))
      vector_choose(e, (int)i);
    if (e->form == CUDA_TEAM && !e->rows)
      group_choose(e, (int)i);
  }
  if (e->form == CUDA_TEAM && !e->rows)
    team_choose(e);
  for (uint32_t i = 0; i < e->g.s->n_passes; i++)
    if (!e->tile[i])
      vectors_split(e, (int)i);
  if (e->wish.next)
    loop_move(e, &e->g.domains[0], e->wish.next - 1);
}

// ---- merging

static bool mergeable(const cuda_emit *e, int pass, int i) {
  const lm_gen_domain *d = &e->g.domains[pass];
  const lm_gen_loop *a = &d->loop[i];
  const lm_gen_loop *b = &d->loop[i + 1];
  bool into_vector = e->width[pass] > 1 && i + 1 == d->n - 1;
  return !into_vector && cuda_transpose_merges(e, pass, i) && !a->n_partitions &&
         !b->n_partitions && !b->dyn && lm_gen_reduced_together(&e->g, pass, a->axis, b->axis) &&
         lm_gen_one_loop(&e->g, a->var, b->var, b->size, pass);
}

void cuda_shape_merge(cuda_emit *e) {
  for (uint32_t p = 0; p < e->g.s->n_passes; p++)
    for (int i = 0; i + 1 < e->g.domains[p].n; i++)
      e->g.domains[p].loop[i].merge = mergeable(e, (int)p, i);
  for (int i = 0; i + 1 < e->g.kernel->attr.n_axes; i++) {
    const lm_axis_info *b = &e->g.m->axes[e->g.kernel->attr.axes[i + 1]];
    e->parallel_merge[i] =
        !b->dyn && lm_gen_one_loop(&e->g, e->g.parallel[i], e->g.parallel[i + 1], b->size, -1);
  }
}
