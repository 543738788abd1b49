// pad_gemms.c - pads the rows of a GEMM's result, such as the logits of 50,257 tokens, so that they
// begin at multiples of 16 bytes, which the fast GEMMs of a GPU's library need.
//
// before: %z = dot %x, %w over(d) : bf16[row, vocab]
//         %m = max %z over(vocab)   %e = exp (sub %z, %m)   %s = sum %e over(vocab)
//         %l = gather %z, %next over(vocab)   %r = relu %z
// after:  %wp = pad %w (vocab) -> (padded) [0, 1] : bf16[padded, d]
//         %zp = dot %x, %wp over(d) : bf16[row, padded]
//         %zl = select %inside, %zp, -inf
//         %m = max %zl over(padded)   %e = exp (sub %zl, %m)   %s = sum %e over(padded)
//         %l = gather %zp, %next over(padded)   %z = slice %zp (padded) -> (vocab) [0, 1]   …
//
// The weight's memory ends with rows of zeros (lm_global_stored_rows), so that its pad costs
// nothing, and the GEMM of its gradient writes zeros behind the gradient: the cotangent of the
// padding is 0, because every operation below ignores the padding or reads it through a select.
// Consumers that would not are given the slice. Parameters keep their shapes, and no result has
// padding.
//
// Declines: targets that read any row equally fast; weights whose memory has no padding, or that
// are used through views; results of dynamic extent; functions that neither train nor evaluate.
// Cost: the GEMMs grow by at most 63 columns, and kernels compare an index for each element.
#include <math.h>

#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"
#include "compiler/plan/planner.h"

// The elements of the padding: zeros that sums must not count, because their derivative is not
// zero; exponentials of -inf, whose derivative is zero; -inf.
typedef enum {
  FILL_ZERO,
  FILL_EXP,
  FILL_LOWEST
} fill_kind;

// A padded value, by the slice that replaces it elsewhere.
typedef struct padded {
  lm_value *v;
  fill_kind fill;
  lm_axis from, to;
} padded;

typedef struct padder {
  lm_idmap by_slice; // padded *
} padder;

static padded *padded_of(const padder *p, const lm_value *v) {
  return lm_idmap_get(&p->by_slice, v);
}

static lm_type retyped(lm_type t, const padded *x) {
  int at = lm_type_find(t, x->from);
  if (at >= 0)
    t.axis[at] = x->to;
  return t;
}

// The replacement of a value that is now computed with padding.
static lm_value *sliced(lm_rewrite *r, lm_value *v, fill_kind fill, lm_axis from, lm_axis to) {
  padder *p = r->user;
  padded *x = LM_NEW(r->b.m->arena, padded);
  lm_attr a = {
      .axes = {to},
      .n_axes = 1,
      .to = {from},
      .n_to = 1,
      .imm = {0, 1},
      .n_imm = 2,
  };
  lm_value *slice = lm_emit(&r->b, LM_OP_SLICE, &v, 1, &a, NULL);
  *x = (padded){v, fill, from, to};
  lm_idmap_set(&p->by_slice, slice, x);
  return slice;
}

// ---- the GEMM

static const lm_op *param_of(const lm_value *w) {
  while (lm_op_is(w, LM_OP_CAST))
    w = w->def->in[0];
  return lm_op_is(w, LM_OP_PARAM) ? w->def : NULL;
}

// The rows of the weight with their padding; 0 if it has none, or if they are not the columns of
// the result.
static int64_t padded_rows(const lm_module *m, const lm_op *dot) {
  const lm_op *param = param_of(dot->in[1]);
  lm_type z = dot->out[0]->type;
  const lm_global *g = param ? lm_global_find((lm_module *)m, param->attr.sym) : NULL;
  if (!g || !z.rank || lm_type_dynamic(m, z) || z.axis[z.rank - 1] != g->type.axis[g->n_stack])
    return 0;
  int64_t rows = lm_global_stored_rows(m, g);
  return rows > lm_axis_size(m, z.axis[z.rank - 1]) ? rows : 0;
}

static lm_value *dot_pad(lm_rewrite *r, lm_op *dot) {
  lm_type z = dot->out[0]->type;
  int64_t rows = padded_rows(r->b.m, dot);
  if (!rows)
    return NULL;
  lm_axis from = z.axis[z.rank - 1];
  lm_axis to = lm_axis_shared(r->b.m, LM_SYM(r->b.m->ctx, "padded"), rows, z);
  lm_attr a = {
      .axes = {from},
      .n_axes = 1,
      .to = {to},
      .n_to = 1,
      .imm = {0, 1},
      .n_imm = 2,
  };
  lm_value *w = lm_emit(&r->b, LM_OP_PAD, &dot->in[1], 1, &a, NULL);
  lm_value *zp = lm_emit_dot(&r->b, dot->in[0], w, dot->attr.axes, dot->attr.n_axes);
  return sliced(r, zp, FILL_ZERO, from, to);
}

// ---- its consumers

// x with `fill` instead of its padding, and no cotangent there.
static lm_value *filled(lm_rewrite *r, const padded *x, double fill) {
  lm_type line = lm_type_make(LM_INT, &x->to, 1);
  lm_value *at = lm_emit(&r->b, LM_OP_IOTA, NULL, 0, NULL, &line);
  lm_value *end =
      lm_emit_const(&r->b, lm_type_make(LM_INT, NULL, 0), (double)lm_axis_size(r->b.m, x->from));
  lm_value *other = lm_emit_const(&r->b, lm_type_make(x->v->type.dtype, NULL, 0), fill);
  return lm_emit_select(&r->b, lm_emit2(&r->b, LM_OP_LT, at, end), x->v, other);
}

static lm_value *lowest(lm_rewrite *r, const padded *x) {
  return x->fill == FILL_LOWEST ? x->v : filled(r, x, -INFINITY);
}

static lm_value *unary(lm_rewrite *r, lm_op *op, const padded *x, lm_value *v, fill_kind fill) {
  lm_type t = retyped(op->out[0]->type, x);
  return sliced(r, lm_emit(&r->b, op->code, &v, 1, &op->attr, &t), fill, x->from, x->to);
}

// An operand that is the same for the whole row, or NULL.
static lm_value *row_value(lm_rewrite *r, const padded *x, lm_value *v) {
  double number;
  if (lm_type_find(v->type, x->from) < 0)
    return v;
  return lm_const_of(v, &number)
             ? lm_emit_const(&r->b, lm_type_make(v->type.dtype, NULL, 0), number)
             : NULL;
}

// op of x, instead of operand i, and of a number per row.
static lm_value *binary(lm_rewrite *r, lm_op *op, uint32_t i, const padded *x, lm_value *v,
                        fill_kind fill) {
  lm_value *in[2];
  in[i] = v;
  in[1 - i] = row_value(r, x, op->in[1 - i]);
  if (!in[1 - i])
    return NULL;
  return sliced(r, lm_emit2(&r->b, op->code, in[0], in[1]), fill, x->from, x->to);
}

static lm_value *reduction(lm_rewrite *r, lm_op *op, const padded *x) {
  lm_axis over[LM_RANK];
  if (!lm_attr_has_axis(&op->attr, x->from))
    return NULL;
  for (int i = 0; i < op->attr.n_axes; i++)
    over[i] = op->attr.axes[i] == x->from ? x->to : op->attr.axes[i];
  lm_value *v = op->code == LM_OP_MAX ? lowest(r, x) : x->fill == FILL_EXP ? x->v : filled(r, x, 0);
  return lm_emit_reduce(&r->b, op->code, v, over, op->attr.n_axes);
}

static lm_value *gathered(lm_rewrite *r, lm_op *op, const padded *x) {
  if (op->attr.axes[0] != x->from || lm_type_find(op->in[1]->type, x->from) >= 0)
    return NULL;
  lm_attr a = {
      .axes = {x->to},
      .n_axes = 1,
  };
  lm_value *at = lm_emit_clamp(&r->b, op->in[1], lm_axis_size(r->b.m, x->from));
  return lm_emit(&r->b, LM_OP_GATHER, (lm_value *[]){x->v, at}, 2, &a, NULL);
}

// op of its padded operand i, x. NULL: it takes the slice.
static lm_value *consumer_pad(lm_rewrite *r, lm_op *op, uint32_t i, const padded *x) {
  bool zero = x->fill == FILL_ZERO;
  switch (op->code) {
  case LM_OP_CAST:
  case LM_OP_STOP: return unary(r, op, x, x->v, x->fill);
  case LM_OP_TANH:
  case LM_OP_NEG: return zero ? unary(r, op, x, x->v, x->fill) : NULL;
  case LM_OP_EXP: return unary(r, op, x, lowest(r, x), FILL_EXP);
  case LM_OP_DIV:
    if (i)
      return NULL;
    // fall through
  case LM_OP_MUL: return x->fill == FILL_LOWEST ? NULL : binary(r, op, i, x, x->v, x->fill);
  case LM_OP_SUB: return i ? NULL : binary(r, op, i, x, lowest(r, x), FILL_LOWEST);
  case LM_OP_ADD: return binary(r, op, i, x, lowest(r, x), FILL_LOWEST);
  case LM_OP_SUM:
  case LM_OP_MAX: return reduction(r, op, x);
  case LM_OP_GATHER: return i ? NULL : gathered(r, op, x);
  default: return NULL;
  }
}

static lm_value *pad_rule(lm_rewrite *r, lm_op *op) {
  if (op->code == LM_OP_DOT)
    return dot_pad(r, op);
  for (uint32_t i = 0; i < op->n_in; i++) {
    const padded *x = padded_of(r->user, op->in[i]);
    if (x)
      return consumer_pad(r, op, i, x);
  }
  return NULL;
}

static bool is_enabled(const lm_pass_env *env) {
  return !env->target || env->target->choices.pads_gemms || lm_pass_is_forced(env, "pad_gemms");
}

bool lm_pass_pad_gemms(lm_module *m, const lm_pass_env *env) {
  padder p = {0};
  for (lm_func *f = m->funcs; f && is_enabled(env); f = f->next)
    if (f->key.id == LM_FUNC_LOSS || f->key.id == LM_FUNC_EVAL)
      lm_rewrite_func(f, pad_rule, &p);
  lm_idmap_free(&p.by_slice);
  return true;
}
