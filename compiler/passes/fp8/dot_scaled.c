// dot_scaled.c - multiplies codes instead of numbers that were rounded to them, where the target's
// GEMM library does.
//
// before: %q = cast %s : e4m3[b, d]         %f = cast %q : f32[b, d]   %x = mul %f, %u : f32[b, d]
//         %r = cast %v : e4m3[d, f]         %g = cast %r : f32[d, f]   %w = mul %g, %t : f32[d, f]
//         %xh = cast %x : bf16[b, d]        %wh = cast %w : bf16[d, f]
//         %y = dot %xh, %wh over(d) : bf16[b, f]
// after:  %1 = permute %r : e4m3[f, d]      %c = cast %1 : e4m3[f, d]
//         %y = dot_scaled %q, %c, %u, %t over(d) : bf16[b, f]
//
// %u and %t are scalars, powers of 2 (pass fp8), so that the sums are those of before, in another
// order. On targets whose library reads both operands along the axes that are summed alone
// (lm_target.codes_by_k), an operand that has them elsewhere is copied. Such a copy of a weight
// depends on parameters alone, so that pass hoist_params makes it once per update; the copy of an
// activation or of a cotangent is one of one byte per element.
//
// Where the library has scales of blocks (lm_target.codes_mx, codes_blocks), they are operands in
// its layout (block_scales.c).
//
// Declines: operands with other scales of blocks, or of which one is no rounded value; axes that
// both operands have besides those of the sum; sizes that lm_codegen.scales rejects. Cost: the
// copies.
#include "compiler/ir/dot.h"
#include "compiler/passes/fp8/block_scales.h"
#include "compiler/passes/fp8/fp8.h"
#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"
#include "compiler/plan/planner.h"

static bool is_scalar(const lm_value *v) {
  return v->type.rank == 0 && v->type.dtype == LM_F32;
}

static bool coded_find(lm_value *v, lm_coded *out) {
  lm_op *op = lm_uncast(v)->def;
  for (int i = 0; i < 2 && op && op->code == LM_OP_MUL; i++) {
    if (!lm_is_number_of_code(op->in[i]) || !is_scalar(op->in[1 - i]))
      continue;
    *out = (lm_coded){op->in[i]->def->in[0], op->in[1 - i]};
    return true;
  }
  return false;
}

// The other axes of t, then the axes `over` as `like` has them.
static lm_type summed_last(lm_type t, const lm_attr *over, lm_type like) {
  lm_type out = {.dtype = t.dtype};
  for (int i = 0; i < t.rank; i++)
    if (!lm_attr_has_axis(over, t.axis[i]))
      out.axis[out.rank++] = t.axis[i];
  for (int i = 0; i < like.rank; i++)
    if (lm_attr_has_axis(over, like.axis[i]))
      out.axis[out.rank++] = like.axis[i];
  return out;
}

static lm_value *along(lm_builder *b, lm_value *v, lm_type t) {
  if (lm_type_equal(v->type, t))
    return v;
  v = lm_emit(b, LM_OP_PERMUTE, &v, 1, NULL, &t);
  return lm_emit(b, LM_OP_CAST, &v, 1, NULL, &t);
}

// Whether the sums may be in the accumulators of the tensor cores of sm_89 and sm_90a, which are
// narrower than f32: those of y = x w, as in Transformer Engine and torchao. It is known by its
// types: the gradients multiply cotangents, in e5m2.
static bool is_fast(const lm_pass_env *env, const lm_coded *x, const lm_coded *w) {
  bool narrow = x->codes->type.dtype == LM_E4M3 && w->codes->type.dtype == LM_E4M3;
  bool known = env->fp8 && env->fp8->backward == LM_E5M2 && env->target->codes_fast;
  return narrow && known && is_scalar(x->scale);
}

static lm_op *scaled_emit(lm_builder *b, const lm_op *dot, const lm_coded *x, const lm_coded *w,
                          const lm_pass_env *env) {
  lm_attr a = dot->attr;
  const lm_attr *over = &dot->attr;
  bool by_k = env->target->codes_by_k;
  lm_type like = x->codes->type;
  lm_value *in[] = {x->codes, w->codes, x->scale, w->scale};
  for (int i = 0; i < 2 && by_k; i++)
    in[i] = along(b, in[i], summed_last(in[i]->type, over, like));
  if (is_fast(env, x, w)) {
    a.imm[0] = 1;
    a.n_imm = 1;
  }
  return lm_emit_op(b, LM_OP_DOT_SCALED, in, 4, &a, &dot->out[0]->type);
}

static bool shares_axes(const lm_op *dot) {
  lm_type x = dot->in[LM_DOT_X]->type, w = dot->in[LM_DOT_W]->type;
  for (int i = 0; i < x.rank; i++)
    if (!lm_attr_has_axis(&dot->attr, x.axis[i]) && lm_type_find(w, x.axis[i]) >= 0)
      return true;
  return false;
}

// Whether both have the axes that are summed in one order, which that of the scales follows.
static bool sums_in_order(const lm_op *dot) {
  lm_type x = dot->in[LM_DOT_X]->type, w = dot->in[LM_DOT_W]->type;
  for (int i = 0, j = 0; i < x.rank; i++) {
    if (!lm_attr_has_axis(&dot->attr, x.axis[i]))
      continue;
    while (j < w.rank && !lm_attr_has_axis(&dot->attr, w.axis[j]))
      j++;
    if (j == w.rank || w.axis[j++] != x.axis[i])
      return false;
  }
  return true;
}

// The operands, with a scale each, or with scales of blocks.
static bool operands_find(lm_builder *b, const lm_op *dot, const lm_target *target, lm_coded *x,
                          lm_coded *w) {
  lm_value *const *in = dot->in;
  if (coded_find(in[LM_DOT_X], x) && coded_find(in[LM_DOT_W], w))
    return true;
  const lm_attr *over = &dot->attr;
  return (target->codes_mx || target->codes_blocks) && sums_in_order(dot) &&
         lm_coded_in_blocks(b, in[LM_DOT_X], over, x) &&
         lm_coded_in_blocks(b, in[LM_DOT_W], over, w);
}

static lm_value *rule(lm_rewrite *r, lm_op *op) {
  const lm_pass_env *env = r->user;
  lm_coded x, w;
  lm_plan_gemm g;
  if (op->code != LM_OP_DOT || shares_axes(op))
    return NULL;
  if (!operands_find(&r->b, op, env->target, &x, &w))
    return NULL;
  if (x.codes->type.dtype == LM_E5M2 && w.codes->type.dtype == LM_E5M2)
    return NULL;
  if (!lm_scales_fit(lm_scales_of_type(x.scale->type), lm_scales_of_type(w.scale->type)))
    return NULL;
  lm_op *scaled = scaled_emit(&r->b, op, &x, &w, env);
  bool fits = lm_plan_gemm_from_dot(r->b.m, scaled, &g) && env->codegen->scales(env->target, &g);
  return fits ? scaled->out[0] : NULL; // pass dce removes it
}

bool lm_pass_dot_scaled(lm_module *m, const lm_pass_env *env) {
  bool known = env->target && env->codegen && env->codegen->scales;
  if (!known || !env->target->math[LM_E4M3].native)
    return true;
  for (lm_func *f = m->funcs; f; f = f->next)
    lm_rewrite_func(f, rule, (void *)env);
  return true;
}
