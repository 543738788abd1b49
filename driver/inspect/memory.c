// memory.c - the values in the memory of a plan, and their lifetimes.
#include "driver/inspect/memory.h"

#include <stdlib.h>
#include <string.h>

int64_t *lm_memory_live(lm_arena *a, const lm_plan_func *f) {
  int64_t *live = LM_NEW_N(a, int64_t, f->n_steps + 1);
  for (int i = 0; i < f->n_live; i++)
    for (int k = f->live[i].first; k <= f->live[i].last && k < f->n_steps; k++)
      live[k] += f->live[i].bytes;
  return live;
}

static int by_bytes(const void *a, const void *b) {
  const lm_memory_item *x = a, *y = b;
  if (x->bytes != y->bytes)
    return x->bytes > y->bytes ? -1 : 1;
  return strcmp(x->label, y->label);
}

static void add_live(lm_memory_breakdown *out, const lm_plan_live *l) {
  for (int i = 0; i < out->n; i++) {
    lm_memory_item *h = &out->v[i];
    if (!h->func || strcmp(h->label, l->label))
      continue;
    h->bytes += l->bytes;
    h->n++;
    if (l->first < h->first)
      h->first = l->first;
    if (l->last > h->last)
      h->last = l->last;
    return;
  }
  out->v[out->n++] = (lm_memory_item){l->label, out->func->name, l->bytes, 1, l->first, l->last};
}

static void find_func(lm_memory_breakdown *out, lm_arena *a, const lm_plan *p) {
  for (int i = 0; i < p->n_funcs; i++)
    if (p->funcs[i].n_live && (!out->func || p->funcs[i].work_bytes > out->func->work_bytes))
      out->func = &p->funcs[i];
  if (!out->func)
    return;
  const int64_t *live = lm_memory_live(a, out->func);
  for (int k = 0; k < out->func->n_steps; k++)
    if (live[k] > live[out->peak])
      out->peak = k;
  out->peak_bytes = live[out->peak];
}

lm_memory_breakdown lm_memory_breakdown_make(lm_arena *a, const lm_plan *p, int64_t workspace,
                                             int64_t saving) {
  lm_memory_breakdown out = {0};
  find_func(&out, a, p);
  out.v = LM_NEW_N(a, lm_memory_item, LM_ARENAS + (out.func ? out.func->n_live : 0) + 3);
  for (int i = 0; i < LM_ARENAS; i++)
    if (i != LM_ARENA_WORK && p->arena_bytes[i] && !p->on_host[i]) // whose values are listed below
      out.v[out.n++] = (lm_memory_item){
          .label = lm_arena_titles[i],
          .bytes = p->arena_bytes[i],
          .n = 1,
      };
  if (workspace)
    out.v[out.n++] = (lm_memory_item){
        .label = "GEMM workspace",
        .bytes = workspace,
        .n = 1,
    };
  if (saving)
    out.v[out.n++] = (lm_memory_item){
        .label = "copy of a checkpoint",
        .bytes = saving,
        .n = 1,
    };
  for (int i = 0; out.func && i < out.func->n_live; i++) {
    const lm_plan_live *l = &out.func->live[i];
    if (l->first <= out.peak && out.peak <= l->last)
      add_live(&out, l);
  }
  qsort(out.v, (size_t)out.n, sizeof *out.v, by_bytes);
  return out;
}

const char *lm_memory_item_when(lm_arena *a, const lm_memory_breakdown *all,
                                const lm_memory_item *h) {
  if (!h->func)
    return "always";
  return lm_arena_printf(a, "steps %d to %d of %d of %s", h->first, h->last, all->func->n_steps,
                         h->func);
}
