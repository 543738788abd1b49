// loops.c - the loops of a pass: the parts of axes that they run over, how they are split and
// partitioned, and their current indices.
#include <string.h>
#include "codegen/common/gen.h"

const char *lm_gen_extent(lm_gen *e, int64_t size, int dyn, int64_t times) {
  if (!dyn)
    return lm_arena_printf(e->arena, "%lld", (long long)(size * times));
  e->extents |= 1u << (dyn - 1);
  return lm_arena_printf(e->arena, times == 1 ? "n%d" : "n%d * %lld", dyn - 1, (long long)times);
}

void lm_gen_domain_init(const lm_gen *e, const lm_sched_pass *p, lm_gen_domain *out) {
  *out = (lm_gen_domain){0};
  for (int i = 0; i < p->space.rank; i++) {
    const lm_axis_info *a = &e->m->axes[p->space.axis[i]];
    if (a->size == 1 && !a->dyn)
      continue;
    out->loop[out->n++] = (lm_gen_loop){
        .axis = p->space.axis[i], .name = a->name, .size = a->size, .stride = 1, .dyn = a->dyn};
  }
}

lm_ix lm_gen_axis_index(const lm_gen *e, lm_axis a) {
  for (int i = 0; i < e->kernel->attr.n_axes; i++)
    if (e->kernel->attr.axes[i] == a)
      return lm_ix_var(&e->vars, e->parallel[i]);
  lm_ix at = lm_ix_const(0);
  const lm_gen_domain *d = &e->domains[e->pass];
  for (int i = 0; i < d->n; i++)
    if (d->loop[i].axis == a)
      at = lm_ix_add(at, lm_ix_scale(lm_ix_var(&e->vars, d->loop[i].var), d->loop[i].stride));
  return at;
}

void lm_gen_loop_indices(const lm_gen *e, lm_type t, lm_ix *out) {
  for (int i = 0; i < t.rank; i++)
    out[i] = lm_gen_axis_index(e, t.axis[i]);
}

void lm_gen_forget(lm_gen *e, int scope) {
  lm_gen_memo **at = &e->memo;
  while (*at) {
    if ((*at)->scope >= scope)
      *at = (*at)->next;
    else
      at = &(*at)->next;
  }
}

// ---- requested changes

static void loop_insert(lm_gen_domain *d, int at, lm_gen_loop a) {
  if (d->n == LM_GEN_LOOPS)
    LM_BUG("a pass of more than %d loops", LM_GEN_LOOPS);
  memmove(d->loop + at + 1, d->loop + at, (size_t)(d->n++ - at) * sizeof *d->loop);
  d->loop[at] = a;
}

// Replaces loop i by (high, low) with i = high * by + low.
void lm_gen_loop_split(lm_gen *e, lm_gen_domain *d, int at, int64_t by) {
  lm_gen_loop high = d->loop[at], low = high;
  high.n_partitions = low.n_partitions = 0;
  high.size /= by;
  high.stride *= by;
  low.size = by;
  high.name = lm_arena_printf(e->arena, "%s_h", high.name);
  low.name = lm_arena_printf(e->arena, "%s_l", low.name);
  d->loop[at] = low;
  loop_insert(d, at, high);
}

static bool loop_partition(lm_gen_loop *a, int64_t at) {
  int i = a->n_partitions;
  if (i == LM_GEN_PARTITIONS)
    return false;
  for (; i > 0 && a->partition[i - 1] > at; i--)
    a->partition[i] = a->partition[i - 1];
  a->partition[i] = at;
  a->n_partitions++;
  return true;
}

bool lm_gen_request_apply(lm_gen *e) {
  if (e->request.kind == LM_GEN_REQUEST_NONE)
    return false;
  lm_gen_domain *d = &e->domains[e->request.pass];
  if (e->request.kind == LM_GEN_REQUEST_PARTITION)
    return loop_partition(&d->loop[e->request.loop], e->request.at);
  if (d->n == LM_GEN_LOOPS)
    return false;
  lm_gen_loop_split(e, d, e->request.loop, e->request.at);
  return true;
}

// ---- merging

bool lm_gen_one_loop(const lm_gen *e, uint16_t u, uint16_t v, int64_t size, int pass) {
  for (uint32_t i = 0; i < e->n_accesses; i++) {
    const lm_gen_access *a = &e->accesses[i];
    if (pass >= 0 && a->pass != pass)
      continue;
    if (lm_ix_coef(&a->ix, u) != lm_ix_coef(&a->ix, v) * size)
      return false;
  }
  return true;
}

bool lm_gen_reduced_together(const lm_gen *e, int pass, lm_axis a, lm_axis b) {
  const lm_sched_pass *p = &e->s->passes[pass];
  for (uint32_t i = 0; i < p->n_roots; i++) {
    lm_type t = p->roots[i].v->type;
    if ((lm_type_find(t, a) < 0) != (lm_type_find(t, b) < 0))
      return false;
  }
  return true;
}
