// shape.c - the shape of a kernel's loops, chosen from the indices that a first attempt printed.
//
// Adjacent loops become one where every index treats them as one (c1 = c2 * size2): f32[b, t, d] read and written in order
// is one run of b * t * d elements. Outer axes become lanes where memory is contiguous along them and no inner loop is.
#include <string.h>
#include "codegen/cpu/emit.h"

enum { PLACE_ELEMENTS = 2048, ROW_LANES = 64, ROW_ELEMENTS = 32768 };

// ---- what the generator wished for

static void atom_insert(cpu_domain *d, int at, cpu_atom a) {
  if (d->n == CPU_ATOMS) LM_BUG("a pass of more than %d loops", CPU_ATOMS);
  memmove(d->atom + at + 1, d->atom + at, (size_t)(d->n++ - at) * sizeof *d->atom);
  d->atom[at] = a;
}

// i -> (high, low) with i = high * by + low
static void atom_split(cpu_emit *e, cpu_domain *d, int at, int64_t by) {
  cpu_atom high = d->atom[at], low = high;
  high.n_cuts = low.n_cuts = 0;
  high.size /= by;
  high.stride *= by;
  low.size = by;
  high.name = lm_arena_printf(e->arena, "%s$h", high.name);
  low.name = lm_arena_printf(e->arena, "%s$l", low.name);
  d->atom[at] = low;
  atom_insert(d, at, high);
}

static bool atom_cut(cpu_atom *a, int64_t at) {
  int i = a->n_cuts;
  if (i == CPU_CUTS) return false;
  for (; i > 0 && a->cut[i - 1] > at; i--) a->cut[i] = a->cut[i - 1];
  a->cut[i] = at;
  a->n_cuts++;
  return true;
}

bool cpu_ask_apply(cpu_emit *e) {
  if (e->ask.kind == CPU_ASK_NOTHING) return false;
  cpu_domain *d = &e->domains[e->ask.pass];
  if (e->ask.kind == CPU_ASK_CUT) return atom_cut(&d->atom[e->ask.atom], e->ask.at);
  if (d->n == CPU_ATOMS) return false;
  atom_split(e, d, e->ask.atom, e->ask.at);
  return true;
}

// ---- merging

// Loops over u (outside) and v (inside, of the given size) are one for every index printed in `pass` (-1: in any).
static bool one_loop(const cpu_emit *e, uint16_t u, uint16_t v, int64_t size, int pass) {
  for (uint32_t i = 0; i < e->n_accesses; i++) {
    const cpu_access *a = &e->accesses[i];
    if (pass >= 0 && a->pass != pass) continue;
    if (lm_ix_coef(&a->ix, u) != lm_ix_coef(&a->ix, v) * size) return false;
  }
  return true;
}

// Both axes are kept, or both reduced, by every reduction of the pass.
static bool alike(const cpu_emit *e, int pass, lm_axis a, lm_axis b) {
  const lm_sched_pass *p = &e->s->passes[pass];
  for (uint32_t i = 0; i < p->n_roots; i++) {
    lm_type t = p->roots[i].v->type;
    if ((lm_type_find(t, a) < 0) != (lm_type_find(t, b) < 0)) return false;
  }
  return true;
}

static void merge_inner(cpu_emit *e, int pass) {
  cpu_domain *d = &e->domains[pass];
  for (int i = 0; i + 1 < d->n; i++) {
    cpu_atom *a = &d->atom[i], *b = &d->atom[i + 1];
    bool plain = !a->n_cuts && !b->n_cuts && !b->dyn && alike(e, pass, a->axis, b->axis);
    a->merge = plain && one_loop(e, a->var, b->var, b->size, pass);
  }
}

static int64_t outer_size(const cpu_emit *e, int i) { return lm_axis_size(e->m, e->kernel->attr.axes[i]); }
static int outer_dyn(const cpu_emit *e, int i) { return e->m->axes[e->kernel->attr.axes[i]].dyn; }

void cpu_groups_reset(cpu_emit *e) {
  e->n_groups = e->n_lane_groups = 0;
  e->block = 0;
  for (int i = 0; i < e->kernel->attr.n_axes; i++)
    if (outer_size(e, i) > 1 || outer_dyn(e, i)) e->groups[e->n_groups++] = (cpu_group){i, i, outer_size(e, i), outer_dyn(e, i)};
}

static void merge_outer(cpu_emit *e) {
  int n = 0;
  for (int g = 0; g < e->n_groups; g++) {
    cpu_group next = e->groups[g], *last = n ? &e->groups[n - 1] : NULL;
    bool one = last && !next.dyn && one_loop(e, e->outer[last->last], e->outer[next.last], next.size, -1);
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
  for (uint32_t i = 0; i < e->s->n_passes; i++)
    if (e->domains[i].n) return true;
  return false;
}

// An elementwise kernel: enough of the last outer axes for a place worth having.
static void lanes_elementwise(cpu_emit *e) {
  int64_t n = 1;
  while (e->n_lane_groups < e->n_groups && n < PLACE_ELEMENTS / 2) n *= e->groups[e->n_groups - ++e->n_lane_groups].size;
  if (!e->n_lane_groups) return;
  int64_t rest = n / e->groups[e->n_groups - e->n_lane_groups].size;
  if (n > 2 * PLACE_ELEMENTS) e->block = PLACE_ELEMENTS / rest;
}

// Accesses that are contiguous along the innermost loops, and along the last outer axes, weighted by how often they run.
static bool lanes_win(const cpu_emit *e) {
  uint16_t lane = cpu_group_var(e, e->n_groups - 1);
  double inner = 0, lanes = 0;
  for (uint32_t i = 0; i < e->n_accesses; i++) {
    const cpu_access *a = &e->accesses[i];
    const cpu_domain *d = &e->domains[a->pass];
    double times = 1;
    if (!a->memory) continue;
    for (int j = 0; j < d->n; j++) times *= (double)d->atom[j].size;
    if (d->n && lm_ix_coef(&a->ix, d->atom[d->n - 1].var) == 1) inner += times;
    if (lm_ix_coef(&a->ix, lane) == 1) lanes += times;
  }
  return lanes > inner;
}

static void lanes_row(cpu_emit *e) {
  int64_t row = 1, size = e->groups[e->n_groups - 1].size;
  for (uint32_t i = 0; i < e->s->n_nodes; i++)
    if (cpu_held_in_row(e, &e->s->nodes[i]) && cpu_row_elements(e, &e->s->nodes[i]) > row) row = cpu_row_elements(e, &e->s->nodes[i]);
  int64_t block = row * ROW_LANES <= ROW_ELEMENTS ? ROW_LANES : ROW_ELEMENTS / row;
  if (block < 8) return;
  e->n_lane_groups = 1;
  e->block = size > block + block / 2 || e->groups[e->n_groups - 1].dyn ? block : 0;
}

void cpu_shape_choose(cpu_emit *e) {
  for (uint32_t i = 0; i < e->s->n_passes; i++) merge_inner(e, (int)i);
  merge_outer(e);
  if (e->kernel->attr.n_to || !e->n_groups) return;
  if (!has_loops(e)) lanes_elementwise(e);
  else if (lanes_win(e)) lanes_row(e);
}
