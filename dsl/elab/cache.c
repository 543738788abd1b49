// cache.c - caches of the decoding functions: what the calls before this one leave for it.
#include "dsl/elab/elab.h"

bool el_cache_make(lm_elab *e, lm_type of, el_cache *out) {
  lm_axis axes[LM_RANK];
  int rank = 0;
  *out = (el_cache){.n = 0};
  if (e->n_loops + of.rank > LM_RANK)
    return false;
  for (int k = 0; k < e->n_loops; k++) {
    axes[rank++] = e->loops[k].index->region->owner->attr.axes[0];
    out->in[out->n++] = e->loops[k].index;
    out->attr.imm[out->attr.n_imm++] = 0;
    out->attr.imm[out->attr.n_imm++] = 1;
  }
  for (int i = 0; i < of.rank; i++)
    axes[rank++] = of.axis[i];
  lm_type type = lm_type_make((lm_dtype)of.dtype, axes, rank);
  out->attr.sym = LM_SYM(e->c, lm_arena_printf(e->a, "cache.%u", e->n_caches++));
  const lm_global *g = lm_global_find(e->m, out->attr.sym);
  if (!g)
    g = lm_global_add(e->m, LM_GLOBAL_CACHE, out->attr.sym, type, e->n_loops);
  LM_ASSERT(lm_type_equal(g->type, type));
  return true;
}

lm_value *el_cache_recall(lm_elab *e, const el_cache *c, lm_value *init) {
  lm_value *kept = lm_emit(&e->b, LM_OP_RECALL, c->in, c->n, &c->attr, NULL);
  lm_value *zero = lm_emit_const(&e->b, lm_type_make(LM_INT, NULL, 0), 0);
  return lm_emit_select(&e->b, lm_emit2(&e->b, LM_OP_GT, e->at, zero), kept, init);
}

void el_cache_retain(lm_elab *e, el_cache *c, lm_value *v) {
  c->in[c->n] = v;
  lm_emit_op(&e->b, LM_OP_RETAIN, c->in, c->n + 1, &c->attr, NULL);
}
