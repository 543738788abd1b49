// accum_f32.c - computes the terms of a gradient in the gradient's dtype.
//
// before: %g = dot %x, %dy over(b, t) : bf16[d, f]   %h = cast %g : f32[d, f]   accum @w, %h
// after:  %g = dot %x, %dy over(b, t) : f32[d, f]    accum @w, %g
//
// The gradient of an f32 parameter that is used in bf16 or f16, or of a parameter that is stored in
// bf16, arrives through casts. The pass moves each cast up through additions, also over ranks, data
// movement and sums to the operations that compute the terms, so that no partial sum over positions
// is rounded. Rewritten operations keep their order. Declines: a value with more than one use,
// which stays rounded and is cast. Cost: a partial sum that is stored takes the memory of f32
// instead of 16 bits.
//
// Where kernels add to gradients, the sum of a GEMM and a scatter (the two uses of a tied
// embedding) is not computed first: each of them adds to the gradient.
//
// before: %s = add %g, %e   accum @embed, %s
// after:  accum @embed, %g   accum @embed, %e
#include "compiler/ops/interface.h"
#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"
#include "compiler/plan/planner.h"

typedef struct rewriter {
  lm_builder b;
  const uint32_t *uses;
  uint32_t n_uses;
  const lm_region *region;
  bool splits; // sums into accums
} rewriter;

static lm_value *in_f32(rewriter *w, lm_value *v);

static bool moves(const lm_op *op) {
  bool over_ranks = op->code == LM_OP_REDUCE_SCATTER || op->code == LM_OP_PART;
  if (lm_op_has(op, LM_T_ASSEMBLE) || op->code == LM_OP_ADD || over_ranks)
    return true;
  return lm_op_info_of(op)->traits & LM_T_VIEW && op->n_in == 1;
}

// The operation recomputed in f32 at its location; NULL if the operation rounds its result.
static lm_value *recomputed(rewriter *w, lm_op *op) {
  lm_value *in[LM_RANK];
  lm_type t = op->out[0]->type;
  t.dtype = LM_F32;
  if (op->n_in > LM_RANK)
    return NULL;
  for (uint32_t i = 0; i < op->n_in; i++)
    in[i] = op->in[i];
  if (moves(op)) {
    for (uint32_t i = 0; i < op->n_in; i++)
      in[i] = in_f32(w, op->in[i]);
  } else if (op->code == LM_OP_SUM || op->code == LM_OP_SCATTER) {
    in[0] = lm_emit_cast(&w->b, in[0], LM_F32);
  } else if (op->code != LM_OP_DOT && op->code != LM_OP_GROUPED_OUTER) {
    return NULL;
  }
  return lm_emit(&w->b, op->code, in, op->n_in, &op->attr, &t);
}

static lm_value *in_f32(rewriter *w, lm_value *v) {
  lm_op *op = v->def;
  lm_builder saved = w->b;
  lm_value *z = NULL;
  if (op && op->parent == w->region && op->n_out == 1 && v->id < w->n_uses && w->uses[v->id] == 1) {
    w->b = (lm_builder){saved.m, op->parent, op, op->loc};
    z = op->code == LM_OP_CAST ? lm_emit_cast(&w->b, op->in[0], LM_F32) : recomputed(w, op);
    w->b = saved;
  }
  if (z && v->name && !z->name)
    z->name = v->name;
  return z ? z : lm_emit_cast(&w->b, v, LM_F32);
}

// Rewrites the operand of an accum, or the terms of the f32 sum that it is, also over ranks.
static void term(rewriter *w, lm_op *user, lm_value **in) {
  lm_op *op = (*in)->def;
  if (!op || op->parent != w->region || (*in)->id >= w->n_uses || w->uses[(*in)->id] != 1)
    return;
  w->b = (lm_builder){w->b.m, op->parent, user, user->loc};
  if (op->code == LM_OP_CAST && lm_dtype_is_half(op->in[0]->type.dtype))
    *in = in_f32(w, op->in[0]);
  else if (op->code == LM_OP_ADD || op->code == LM_OP_REDUCE_SCATTER)
    for (uint32_t i = 0; i < op->n_in; i++)
      term(w, op, &op->in[i]);
}

static bool is_single(const rewriter *w, const lm_value *v) {
  return v->def && v->def->parent == w->region && (v->id >= w->n_uses || w->uses[v->id] == 1);
}

// True if what computes v, or the terms of v, can add to the gradient instead of writing v.
static bool adds_itself(const rewriter *w, const lm_value *v) {
  if (lm_op_is(v, LM_OP_ADD) && is_single(w, v))
    return adds_itself(w, v->def->in[0]) && adds_itself(w, v->def->in[1]);
  if (lm_op_is(v, LM_OP_SCATTER))
    return is_single(w, v);
  while (is_single(w, v) && (v->def->code == LM_OP_PERMUTE || v->def->code == LM_OP_VIEW))
    v = v->def->in[0];
  return lm_op_is(v, LM_OP_DOT) && is_single(w, v);
}

// Gives each term of the sum an accum.
static void terms_split(rewriter *w, lm_op *accum) {
  lm_value **last = &accum->in[accum->n_in - 1];
  while (lm_op_is(*last, LM_OP_ADD) && (*last)->type.dtype == LM_F32 && adds_itself(w, *last)) {
    lm_op *sum = (*last)->def;
    w->b = (lm_builder){w->b.m, accum->parent, accum, accum->loc};
    *last = sum->in[0];
    lm_op *first = lm_emit_op(&w->b, LM_OP_ACCUM, accum->in, accum->n_in, &accum->attr, NULL);
    terms_split(w, first);
    *last = sum->in[1];
  }
}

static void accum_f32_visit(lm_op *op, void *user) {
  rewriter *w = user;
  w->region = op->parent;
  if (op->code != LM_OP_ACCUM)
    return;
  term(w, op, &op->in[op->n_in - 1]);
  if (w->splits)
    terms_split(w, op);
}

bool lm_pass_accum_f32(lm_module *m, const lm_pass_env *env) {
  for (lm_func *f = m->funcs; f; f = f->next) {
    uint32_t *uses = lm_func_uses(f);
    rewriter w = {.b = {.m = m},
                  .uses = uses,
                  .n_uses = m->n_values,
                  .splits = env->codegen && env->codegen->adds};
    lm_region_walk(f->body, accum_f32_visit, &w);
    lm_free(uses);
  }
  return true;
}
