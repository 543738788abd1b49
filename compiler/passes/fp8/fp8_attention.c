// fp8_attention.c - pass `fp8_attention`: softmax attention that multiplies 8-bit floats (e4m3) in
// both of its GEMMs, in training.
//
// before: %o, %lse = attend over(t, s) [32, 32] (%v, %n, %q, %k) {
//           %a = dot %q, %k over(e)   yield %a, %mask, %one }
// after:  %q1 = straight (rounded %q), %q      also %k1, %v1
//         %o, %lse = attend over(t, s) [32, 32, 1] (%v1, %n, %q1, %k1) { … }
//
// Rounding is that of compiler/ops/fp8.h, with a scale for each head of each row: for each index of
// the axes of an operand that the scores have, but t and s. The third immediate of attend says that
// its weights are rounded too. With x the scores, and M the multiple of ln 2 that is nearest to
// their maximum over s,
//
//   w = e^(x - M)   o = sum(code(2^8 w) / 2^8 v) / sum w
//
// (Shah et al. 2024, "FlashAttention-3", section 3.3, rounds e^(x - max x) so.) As e^M is a power
// of 2, the rounded weights do not depend on the tile whose maximum was subtracted, except where
// they are subnormal. Sums are f32. The derivative is that of attention with the rounded operands
// and with weights that are not rounded, in the type of the computation; that of rounding is 1.
//
// Declines: unless the recipe has attend = fp8; losses that are only evaluated. Attention of other
// forms is an error. Cost: a pass over each operand for its scales.
#include "compiler/ir/attend.h"
#include "compiler/ops/fp8.h"
#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"
#include "runtime/base/diag_code.h"

typedef struct attention {
  lm_builder b;
  lm_loc loc; // of the setting
  int found;
  bool ok;
} attention;

static bool refuse(attention *a, const lm_op *op, const char *why) {
  lm_diag *d = LM_REPORT(a->b.m->ctx, a->loc, E2F8, why);
  if (op->loc.line)
    lm_diag_note(a->b.m->ctx, d, op->loc, "this attention");
  a->ok = false;
  return false;
}

// The operand that a value of the region is, possibly cast or with its axes in another order; 0:
// none.
static uint32_t operand_of(const lm_op *op, const lm_value *v) {
  while (v->def && (v->def->code == LM_OP_CAST || v->def->code == LM_OP_PERMUTE))
    v = v->def->in[0];
  for (uint32_t i = lm_attend_rest(op); i < op->n_in; i++)
    if (lm_attend_arg(op, i) == v)
      return i;
  return 0;
}

// Marks the operands of the region's dots.
static bool operands_find(attention *a, const lm_op *op, bool *rounds) {
  bool dots = false;
  for (const lm_op *o = op->body->first; o; o = o->next)
    for (uint32_t i = 0; o->code == LM_OP_DOT && i < o->n_in; i++) {
      uint32_t k = operand_of(op, o->in[i]);
      if (!k)
        return refuse(a, op, "scores of values that are computed for each pair of positions");
      rounds[k] = dots = true;
    }
  rounds[LM_ATTEND_V] = true;
  return dots || refuse(a, op, "scores without a GEMM of queries and keys");
}

static bool factor_is_one(const lm_op *op) {
  double c;
  return lm_const_of(lm_attend_yield(op, LM_ATTEND_FACTOR), &c) && c == 1;
}

// The magnitudes of the heads of x: over its positions and channels, on all ranks that have parts.
static lm_value *magnitudes(lm_builder *b, const lm_op *op, lm_value *x) {
  lm_type space = lm_attend_space(op), t = x->type;
  lm_type reduced = {0};
  for (int i = 0; i < t.rank; i++)
    if (lm_type_find(space, t.axis[i]) < 0 || t.axis[i] == lm_attend_t(op) ||
        t.axis[i] == lm_attend_s(op))
      reduced.axis[reduced.rank++] = t.axis[i];
  lm_value *most = lm_emit_reduce(b, LM_OP_MAX, lm_emit_absolute(b, x), reduced.axis, reduced.rank);
  return lm_emit_all_max(b, most, lm_type_divided_by(b->m, reduced));
}

static lm_value *rounded(lm_builder *b, const lm_op *op, lm_value *x) {
  lm_value *scale = lm_emit_fp8_scale(b, magnitudes(b, op, x), LM_E4M3);
  return lm_emit2(b, LM_OP_STRAIGHT, lm_emit_fp8(b, x, scale, LM_E4M3), x);
}

static void visit(lm_op *op, void *user) {
  attention *a = user;
  lm_module *m = a->b.m;
  if (op->code != LM_OP_ATTEND || !a->ok)
    return;
  bool *rounds = LM_NEW_N(m->arena, bool, op->n_in);
  a->found++;
  if (!factor_is_one(op)) {
    refuse(a, op, "weights with a factor, such as that of dropout");
    return;
  }
  if (!operands_find(a, op, rounds))
    return;
  a->b = (lm_builder){m, op->parent, op, op->loc, op->remat};
  for (uint32_t i = 0; i < op->n_in; i++)
    if (rounds[i])
      op->in[i] = rounded(&a->b, op, op->in[i]);
  lm_attend_round(op);
}

bool lm_pass_fp8_attention(lm_module *m, const lm_pass_env *env) {
  attention a = {
      .b = {.m = m},
      .ok = true,
  };
  if (!env->fp8_attention)
    return true;
  a.loc = *env->fp8_attention;
  for (lm_func *f = m->funcs; f; f = f->next)
    if (f->key.id == LM_FUNC_LOSS)
      lm_region_walk(f->body, visit, &a);
  if (!a.found)
    LM_REPORT(m->ctx, a.loc, E2F9);
  return a.ok && a.found;
}
