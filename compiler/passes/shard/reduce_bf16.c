// reduce_bf16.c - sends the terms of gradients between ranks in bf16.
//
// before: mesh dp = 2 rows zero 2 reduce bf16
//         %s = reduce_scatter %g over(dp) (d) -> (d@dp) : f32[d@dp, f]   accum @w, %s
// after:  %c = cast %g : bf16[d, f]
//         %s = reduce_scatter %c over(dp) (d) -> (d@dp) : bf16[d@dp, f]
//         %t = cast %s : f32[d@dp, f]                                    accum @w, %t
//
// A rank adds the terms that it receives in f32, and rounds their sum to bf16. Micro-batches still
// add f32. The planner does the same in the sums of whole gradients at the end of a step
// (plan/reduce.c). Declines: a sum over ranks that is no term of an accum, as those of activations,
// which are sent in the type that they have; an axis of the mesh without `reduce bf16`. Cost: one
// rounding of each term and one of each sum, by at most 2^-8 of its magnitude.
#include "compiler/ops/interface.h"
#include "compiler/passes/pass.h"

static bool adds_terms(const lm_module *m, const lm_op *op) {
  bool over_ranks = op->code == LM_OP_REDUCE_SCATTER || op->code == LM_OP_ALL_REDUCE;
  return over_ranks && m->mesh.axis[op->attr.mesh - 1].reduce_bf16 &&
         op->in[0]->type.dtype == LM_F32;
}

static bool passes_terms(const lm_op *op) {
  if (op->code == LM_OP_ADD || op->code == LM_OP_CAST)
    return true;
  return lm_op_has(op, LM_T_VIEW);
}

// Rewrites the sums over ranks of which *v consists.
static void terms_cast(lm_module *m, lm_value **v) {
  lm_op *op = (*v)->def;
  if (!op)
    return;
  if (passes_terms(op)) {
    for (uint32_t i = 0; i < op->n_in; i++)
      terms_cast(m, &op->in[i]);
    return;
  }
  if (!adds_terms(m, op))
    return;
  lm_builder b = {
      .m = m,
      .at = op->parent,
      .before = op->next,
      .loc = op->loc,
  };
  lm_value *narrow = lm_emit_cast(&b, op->in[0], LM_BF16);
  lm_value *sum = lm_emit(&b, op->code, &narrow, 1, &op->attr, NULL);
  sum->name = (*v)->name;
  *v = lm_emit_cast(&b, sum, LM_F32);
}

static void accum_visit(lm_op *op, void *user) {
  if (op->code == LM_OP_ACCUM)
    terms_cast(user, &op->in[op->n_in - 1]);
}

bool lm_pass_reduce_bf16(lm_module *m, const lm_pass_env *env) {
  bool any = false;
  for (int k = 0; k < m->mesh.n; k++)
    any |= m->mesh.axis[k].reduce_bf16;
  for (lm_func *f = m->funcs; f && any; f = f->next)
    lm_region_walk(f->body, accum_visit, m);
  return true;
}
