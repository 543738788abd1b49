// online.c - the maximum and the sum of a softmax in one pass over the row.
//
//   pass p:      m = max x
//   pass p + 1:  s = sum e^(x - m)
//
// become, for each vector of x that a thread reads (Milakov & Gimelshein 2018),
//
//   t = max(m, max x)   s = s e^(m - t) + sum e^(x - t)   m = t
//
// and at the end the threads of a team scale their sums to the common maximum. One term of a sum is
// e^0, and a term e^d has an absolute error of 2^-22 e^d + 2^-24 |d| e^d < 2^-22 e^d + 2^-25. So
// the sum keeps the bound for f32 although its exponentials are those for bf16
// (prelude/approx.cuh).
#include "codegen/cuda/emit.h"

// Registers hold bf16 as f32, so casts between the two compute nothing.
static const lm_value *uncast(const lm_value *v) {
  while (v->def && (v->def->code == LM_OP_EXPAND ||
                    (v->def->code == LM_OP_CAST && v->def->in[0]->type.dtype != LM_F64 &&
                     lm_dtype_is_float(v->def->in[0]->type.dtype) && v->type.dtype != LM_F64)))
    v = v->def->in[0];
  return v;
}

static const lm_op *produced_by(const lm_value *v, lm_opcode code) {
  v = uncast(v);
  return v->def && v->def->code == code ? v->def : NULL;
}

static const lm_value *only_root(const cuda_emit *e, int pass, lm_opcode code) {
  const lm_sched_pass *p = &e->g.s->passes[pass];
  const lm_value *v = p->roots[0].v;
  bool reduces = p->n_roots == 1 && !p->roots[0].copy && v->def && v->def->code == code;
  return reduces && !lm_kernel_inner(e->g.kernel, v->type).rank && v->type.dtype != LM_F64 ? v
                                                                                           : NULL;
}

bool cuda_online_is(const cuda_emit *e, int pass) {
  if (e->form != CUDA_TEAM || pass + 1 >= (int)e->g.s->n_passes)
    return false;
  const lm_value *max = only_root(e, pass, LM_OP_MAX);
  const lm_value *sum = only_root(e, pass + 1, LM_OP_SUM);
  const lm_op *exp = max && sum ? produced_by(sum->def->in[0], LM_OP_EXP) : NULL;
  const lm_op *sub = exp ? produced_by(exp->in[0], LM_OP_SUB) : NULL;
  if (!sub || produced_by(sub->in[1], LM_OP_MAX) != max->def)
    return false;
  const lm_value *x = max->def->in[0];
  return lm_type_subset(x->type, sum->def->in[0]->type) &&
         x->type.rank == sum->def->in[0]->type.rank && uncast(sub->in[0]) == uncast(x);
}

void cuda_online_leaf(cuda_emit *e) {
  const cuda_root *max = &e->roots[0], *sum = &e->roots[1];
  const lm_value *v = max->v->def->in[0];
  const char *z = lm_gen_temp_name(&e->g, "z"), *t = lm_gen_temp_name(&e->g, "t");
  const char *i = e->vector ? e->g.vars.v[e->vector].name : "0";
  int level = e->n_stages, outer = e->vector ? level - 1 : level;
  lm_ix ix[LM_RANK];
  lm_gen_loop_indices(&e->g, v->type, ix);
  lm_gen_text x = lm_gen_pull(&e->g, v, ix);
  lm_gen_statement(&e->g, outer, "float %s[%d], %s = %s;", z, e->width[e->g.pass], t, max->acc);
  lm_gen_statement(&e->g, level, "%s[%s] = %s;", z, i, x.text);
  lm_gen_statement(&e->g, level, "%s = %s > %s ? %s : %s;", t, x.text, t, x.text, t);
  lm_buf *b = e->vector ? &e->g.level[outer].after : &e->g.level[outer].before;
  lm_buf_printf(b, "if (%s > %s) {\n%s *= lm_exp_bf16(%s - %s);\n%s = %s;\n}\n", t, max->acc,
                sum->acc, max->acc, t, max->acc, t);
  // While all elements are -inf, so is the maximum; their exponentials are 0.
  lm_buf_printf(b, "const float from%s = %s > -__builtin_inff() ? %s : 0.0f;\n", t, t, t);
  lm_buf_printf(b,
                "LM_UNROLL\nfor (int32_t i = 0; i < %d; i++) %s += lm_exp_bf16(%s[i] - from%s);\n",
                e->width[e->g.pass], sum->acc, z, t);
}

const char *cuda_online_sum(const cuda_emit *e) {
  const cuda_root *max = &e->roots[0];
  return lm_arena_printf(e->g.arena, "%s * lm_exp_bf16(%s - h%u)", e->roots[1].acc, max->acc,
                         max->v->def->mark);
}
