// sum_chain.c - see sum_chain.h.
#include "compiler/passes/sum_chain.h"

#include "compiler/ops/interface.h"
#include "compiler/passes/pass.h"
#include "contract/collective.h"

static bool chain_from(const uint32_t *uses, lm_op *accum, lm_sum_chain *out) {
  *out = (lm_sum_chain){.v = {accum}, .n = 1};
  for (lm_value *v = accum->in [accum->n_in - 1];;) {
    lm_op *op = v->def;
    if (!op || op->parent != accum->parent || op->n_out != 1 || uses[v->id] != 1)
      return false;
    out->collective = op;
    if (lm_op_has(op, LM_T_COLLECTIVE))
      return true;
    bool passes = op->n_in == 1 && (op->code == LM_OP_KERNEL || lm_op_has(op, LM_T_VIEW));
    if (!passes || out->n == LM_SUM_CHAIN)
      return false;
    out->v[out->n++] = op;
    v = op->in[0];
  }
}

static bool adds_alone(lm_module *m, lm_func *f, const lm_op *accum) {
  const lm_global *g = lm_global_find(m, accum->attr.sym);
  int n = lm_region_count(f->body, LM_OP_ACCUM, accum->attr.sym) +
          lm_region_count(f->body, LM_OP_GRADIENT, accum->attr.sym);
  int64_t first;
  return n == 1 && !g->n_members && !lm_global_pack(m, g, &first);
}

bool lm_sum_chain_find(lm_module *m, lm_func *f, const uint32_t *uses, lm_op *op,
                       lm_sum_chain *out) {
  return op->code == LM_OP_ACCUM && chain_from(uses, op, out) && adds_alone(m, f, op);
}

void lm_sum_chain_move(const lm_sum_chain *c, lm_op *before) {
  for (int i = c->n - 1; i >= 0; i--) {
    lm_op_remove(c->v[i]);
    lm_op_insert_before(before, c->v[i]);
  }
}

void lm_region_number(lm_region *r) {
  uint32_t n = 0;
  for (lm_op *op = r->first; op; op = op->next)
    op->mark = n++;
}

// ---- buckets

bool lm_sum_may_bucket(const lm_module *m, const lm_op *sum) {
  return sum->code == LM_OP_REDUCE_SCATTER &&
         lm_mesh_axis_buckets(&m->mesh.axis[sum->attr.mesh - 1]) &&
         lm_type_traffic(m, sum->in[0]->type) <= LM_COLL_BUCKET_BYTES;
}

static bool fits(const lm_module *m, const lm_op *sum, const lm_op *other) {
  if (!other || !lm_sum_may_bucket(m, sum) || !lm_sum_may_bucket(m, other))
    return false;
  return sum->attr.mesh == other->attr.mesh && sum->in[0]->type.dtype == other->in[0]->type.dtype;
}

bool lm_sum_in_bucket(const lm_module *m, const lm_op *sum) {
  return fits(m, sum, sum->prev) || fits(m, sum, sum->next);
}

lm_op *lm_bucket_first(const lm_module *m, lm_op *sum) {
  while (fits(m, sum, sum->prev))
    sum = sum->prev;
  return sum;
}
