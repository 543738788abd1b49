// shape.c - the loop structure of a kernel, chosen from the indices that a first attempt printed.
//
// Adjacent loops are merged if every index allows it (c1 = c2 * size2): f32[b, t, d] read and
// written in order is one run of b * t * d elements. Parallel axes become lanes if memory is
// contiguous along them and not along any inner loop.
#include <string.h>
#include "codegen/cpu/emit.h"

enum {
  POINT_ELEMENTS = 2048,
  SCAN_ELEMENTS = 256, // of a point of a scan, whose carries stay in the first-level cache
  ROW_LANES = 64,
  ROW_ELEMENTS = 32768
};

// ---- merging

static void merge_inner(cpu_emit *e, int pass) {
  lm_gen_domain *d = &e->g.domains[pass];
  for (int i = 0; i + 1 < d->n; i++) {
    lm_gen_loop *a = &d->loop[i];
    lm_gen_loop *b = &d->loop[i + 1];
    bool plain = !a->n_partitions && !b->n_partitions && !b->dyn &&
                 lm_gen_reduced_together(&e->g, pass, a->axis, b->axis);
    a->merge = plain && lm_gen_one_loop(&e->g, a->var, b->var, b->size, pass);
  }
}

static int64_t parallel_size(const cpu_emit *e, int i) {
  return lm_axis_size(e->g.m, e->g.kernel->attr.axes[i]);
}
static int parallel_dyn(const cpu_emit *e, int i) {
  return e->g.m->axes[e->g.kernel->attr.axes[i]].dyn;
}

void cpu_groups_reset(cpu_emit *e) {
  e->n_groups = e->n_lane_groups = 0;
  e->block = 0;
  for (int i = 0; i < e->g.kernel->attr.n_axes; i++)
    if (parallel_size(e, i) > 1 || parallel_dyn(e, i))
      e->groups[e->n_groups++] = (cpu_group){i, i, parallel_size(e, i), parallel_dyn(e, i)};
}

static void merge_parallel(cpu_emit *e) {
  int n = 0;
  for (int g = 0; g < e->n_groups; g++) {
    cpu_group next = e->groups[g];
    cpu_group *last = n ? &e->groups[n - 1] : NULL;
    bool one =
        last && !next.dyn &&
        lm_gen_one_loop(&e->g, e->g.parallel[last->last], e->g.parallel[next.last], next.size, -1);
    if (one) {
      last->last = next.last;
      last->size *= next.size;
    } else {
      e->groups[n++] = next;
    }
  }
  e->n_groups = n;
}

// ---- lanes

static bool has_loops(const cpu_emit *e) {
  for (uint32_t i = 0; i < e->g.s->n_passes; i++)
    if (e->g.domains[i].n)
      return true;
  return false;
}

// For an elementwise kernel: uses as many of the last parallel axes as lanes as give a point
// enough work.
static void lanes_elementwise(cpu_emit *e) {
  int64_t n = 1, point = e->scan ? SCAN_ELEMENTS : POINT_ELEMENTS;
  while (e->n_lane_groups < e->n_groups && n < point / 2)
    n *= e->groups[e->n_groups - ++e->n_lane_groups].size;
  if (!e->n_lane_groups)
    return;
  int64_t rest = n / e->groups[e->n_groups - e->n_lane_groups].size;
  if (n > 2 * point)
    e->block = point / rest;
}

// True if a vector of elements along `var` takes a load or store for each.
static bool is_strided(const lm_gen_access *a, uint16_t var) {
  int64_t coef = lm_ix_coef(&a->ix, var);
  return coef != 0 && coef != 1;
}

// Compares the accesses that are contiguous along the innermost loops with those that are
// contiguous along the last parallel axis, weighted by trip counts. Of a scan, whose operands are
// in caches, those that are not contiguous are compared.
static bool lanes_win(const cpu_emit *e) {
  uint16_t lane = cpu_group_var(e, e->n_groups - 1);
  double inner = 0;
  double lanes = 0;
  double inner_strided = 0;
  double lanes_strided = 0;
  for (uint32_t i = 0; i < e->g.n_accesses; i++) {
    const lm_gen_access *a = &e->g.accesses[i];
    const lm_gen_domain *d = &e->g.domains[a->pass];
    double times = 1;
    if (!a->memory)
      continue;
    for (int j = 0; j < d->n; j++)
      times *= (double)d->loop[j].size;
    if (d->n && lm_ix_coef(&a->ix, d->loop[d->n - 1].var) == 1)
      inner += times;
    if (lm_ix_coef(&a->ix, lane) == 1)
      lanes += times;
    if (d->n && is_strided(a, d->loop[d->n - 1].var))
      inner_strided += times;
    if (is_strided(a, lane))
      lanes_strided += times;
  }
  if (e->scan && inner_strided != lanes_strided)
    return lanes_strided < inner_strided;
  return lanes > inner;
}

static void lanes_row(cpu_emit *e) {
  int64_t row = 1;
  int64_t size = e->groups[e->n_groups - 1].size;
  for (uint32_t i = 0; i < e->g.s->n_nodes; i++)
    if (cpu_held_in_row(e, &e->g.s->nodes[i]) && cpu_row_elements(e, &e->g.s->nodes[i]) > row)
      row = cpu_row_elements(e, &e->g.s->nodes[i]);
  int64_t block = row * ROW_LANES <= ROW_ELEMENTS ? ROW_LANES : ROW_ELEMENTS / row;
  if (block < 8)
    return;
  e->n_lane_groups = 1;
  e->block = size > block + block / 2 || e->groups[e->n_groups - 1].dyn ? block : 0;
}

void cpu_shape_choose(cpu_emit *e) {
  for (uint32_t i = 0; i < e->g.s->n_passes; i++)
    merge_inner(e, (int)i);
  merge_parallel(e);
  if (e->g.kernel->attr.n_to || !e->n_groups)
    return;
  if (!has_loops(e))
    lanes_elementwise(e);
  else if (lanes_win(e))
    lanes_row(e);
}
