// attend.c - attend and attend_vjp, evaluated with whole tensors.
#include <math.h>
#include "compiler/eval/internal.h"
#include "compiler/ir/attend.h"
#include "compiler/ir/internal.h"

static const double NEVER = -1e30; // the score of a masked pair

typedef struct work {
  lm_eval *e;
  lm_tensor made[32];
  int n;
} work; // tensors that are freed at the end

// The result of an operation on tensors that are not values of the program.
static lm_tensor apply(work *w, lm_opcode code, const lm_attr *attr, const lm_tensor *in,
                       uint32_t n_in, const lm_type *type) {
  lm_value values[4] = {0};
  lm_value result = {0};
  lm_value *at[4];
  lm_value *out = &result;
  for (uint32_t i = 0; i < n_in; i++) {
    values[i].type = in[i].type;
    at[i] = &values[i];
  }
  lm_op op = {
      .code = code,
      .in = at,
      .n_in = n_in,
      .out = &out,
      .n_out = 1,
  };
  if (attr)
    op.attr = *attr;
  result.type = type ? *type : (lm_type){.dtype = LM_DTYPES};
  lm_buf why = {0};
  if (!lm_op_infer(w->e->m, &op, &result.type, &why))
    LM_BUG("attend: %s", why.p);
  lm_tensor *t = &w->made[w->n++];
  *t = lm_eval_tensor(w->e, result.type);
  lm_eval_math(w->e, &op, in, t);
  return *t;
}

static lm_tensor apply2(work *w, lm_opcode code, lm_tensor x, lm_tensor y) {
  return apply(w, code, NULL, (lm_tensor[]){x, y}, 2, NULL);
}
static lm_tensor over(work *w, lm_opcode code, lm_tensor x, lm_axis a) {
  return apply(w, code, &(lm_attr){.axes = {a}, .n_axes = 1}, &x, 1, NULL);
}

static lm_tensor dot(work *w, lm_tensor x, lm_tensor y, lm_type summed) {
  lm_attr a = {.n_axes = summed.rank};
  for (int i = 0; i < summed.rank; i++)
    a.axes[i] = summed.axis[i];
  return apply(w, LM_OP_DOT, &a, (lm_tensor[]){x, y}, 2, NULL);
}

static lm_tensor in_order(work *w, lm_tensor x, lm_type t) {
  return apply(w, LM_OP_PERMUTE, NULL, &x, 1, &t);
}

static lm_tensor scalar(work *w, lm_dtype t, double v) {
  lm_type type = lm_type_make(t, NULL, 0);
  return apply(w, LM_OP_CONST, &(lm_attr){.num = v}, NULL, 0, &type);
}

static lm_tensor of_value(lm_eval *e, const lm_value *v) {
  return e->env[v->id];
}

static void give(lm_eval *e, const lm_value *v, lm_tensor t) {
  lm_tensor *to = &e->env[v->id];
  *to = lm_eval_tensor(e, v->type);
  for (int64_t i = 0; i < t.n; i++)
    to->v[i] = t.v[i];
}

void lm_eval_attend_bind(lm_eval *e, const lm_op *op, const lm_tensor *cotangent) {
  for (uint32_t i = 0; i < op->n_in; i++)
    give(e, lm_attend_arg(op, i), of_value(e, op->in[i]));
  if (op->code == LM_OP_ATTEND)
    return;
  const lm_value *score_cotangent = op->body->args[0];
  if (cotangent)
    give(e, score_cotangent, *cotangent);
  else
    e->env[score_cotangent->id] = lm_eval_tensor(e, score_cotangent->type);
}

static void work_free(work *w) {
  while (w->n)
    lm_tensor_free(&w->made[--w->n]);
}

// The multiples of ln 2 nearest to the maxima of queries that have visible keys.
static void to_binades(lm_tensor most) {
  for (int64_t i = 0; i < most.n; i++)
    if (most.v[i] > NEVER / 10)
      most.v[i] = rint(most.v[i] / log(2)) * log(2);
}

static void to_e4m3(lm_tensor p) {
  for (int64_t i = 0; i < p.n; i++)
    p.v[i] = lm_dtype_round(LM_E4M3, p.v[i] * 256) / 256;
}

// The softmax over s of select(mask, score, -1e30); lse is the log of its denominator.
static lm_tensor weights(work *w, const lm_op *op, lm_tensor *out_lse) {
  lm_eval *e = w->e;
  lm_axis s = lm_attend_s(op);
  lm_tensor score = of_value(e, lm_attend_yield(op, LM_ATTEND_SCORE));
  lm_tensor mask = of_value(e, lm_attend_yield(op, LM_ATTEND_MASK));
  lm_tensor never = scalar(w, (lm_dtype)score.type.dtype, NEVER);
  lm_tensor x = apply(w, LM_OP_SELECT, NULL, (lm_tensor[]){mask, score, never}, 3, NULL);
  lm_tensor most = over(w, LM_OP_MAX, x, s);
  if (lm_attend_rounds(op))
    to_binades(most);
  lm_tensor centred = apply2(w, LM_OP_SUB, x, most);
  lm_tensor p = apply(w, LM_OP_EXP, NULL, &centred, 1, NULL);
  lm_tensor sum = over(w, LM_OP_SUM, p, s);
  lm_tensor log_sum = apply(w, LM_OP_LOG, NULL, &sum, 1, NULL);
  if (lm_attend_rounds(op))
    to_e4m3(p);
  *out_lse = apply2(w, LM_OP_ADD, most, log_sum);
  return apply2(w, LM_OP_DIV, p, sum);
}

void lm_eval_attend(lm_eval *e, const lm_op *op) {
  work w = {.e = e};
  lm_axis s = lm_attend_s(op);
  lm_tensor lse;
  lm_tensor p = weights(&w, op, &lse);
  lm_tensor factor = of_value(e, lm_attend_yield(op, LM_ATTEND_FACTOR));
  lm_tensor v = of_value(e, op->in[LM_ATTEND_V]);
  lm_tensor scaled = apply2(&w, LM_OP_MUL, p, factor);
  scaled.type.dtype = v.type.dtype;
  give(e, op->out[0], dot(&w, scaled, v, lm_type_make(LM_F32, &s, 1)));
  give(e, op->out[1], lse);
  work_free(&w);
}

// delta, the sum of do * o over the axes that only v has, unless it is given. If attend rounds its
// weights, the sum of p dp over s would be another number.
static lm_tensor delta_of(work *w, const lm_op *op) {
  lm_tensor o = of_value(w->e, op->in[LM_ATTEND_O]);
  if (lm_attend_has_delta(op))
    return o;
  lm_type lse = op->in[LM_ATTEND_LSE]->type;
  lm_tensor go = of_value(w->e, op->in[LM_ATTEND_DO]);
  lm_tensor delta = dot(w, go, o, lm_type_without(o.type, lse));
  delta.type.dtype = lse.dtype;
  return in_order(w, delta, lse);
}

// g = p (dp - delta), 0 where masked; dp = factor * (do . v)
static lm_tensor score_cotangent(work *w, const lm_op *op, lm_tensor p) {
  lm_eval *e = w->e;
  lm_type space = lm_attend_space(op);
  lm_tensor v = of_value(e, op->in[LM_ATTEND_V]);
  lm_tensor go = of_value(e, op->in[LM_ATTEND_DO]);
  lm_tensor raw = dot(w, go, v, lm_type_without(v.type, space));
  raw.type.dtype = space.dtype;
  lm_tensor dp = apply2(w, LM_OP_MUL, in_order(w, raw, space),
                        of_value(e, lm_attend_yield(op, LM_ATTEND_FACTOR)));
  lm_tensor g = apply2(w, LM_OP_MUL, p, apply2(w, LM_OP_SUB, dp, delta_of(w, op)));
  lm_tensor mask = of_value(e, lm_attend_yield(op, LM_ATTEND_MASK));
  return apply(w, LM_OP_SELECT, NULL, (lm_tensor[]){mask, g, scalar(w, (lm_dtype)space.dtype, 0)},
               3, NULL);
}

// The weights by the given lse, which may be that of further keys.
static lm_tensor weights_by_lse(work *w, const lm_op *op) {
  lm_tensor own;
  lm_tensor p = weights(w, op, &own);
  lm_tensor less = apply2(w, LM_OP_SUB, own, of_value(w->e, op->in[LM_ATTEND_LSE]));
  return apply2(w, LM_OP_MUL, p, apply(w, LM_OP_EXP, NULL, &less, 1, NULL));
}

lm_tensor lm_eval_attend_vjp(lm_eval *e, const lm_op *op) {
  work w = {.e = e};
  lm_tensor p = weights_by_lse(&w, op);
  lm_tensor go = of_value(e, op->in[LM_ATTEND_DO]);
  lm_tensor factor = of_value(e, lm_attend_yield(op, LM_ATTEND_FACTOR));
  lm_tensor scaled = apply2(&w, LM_OP_MUL, p, factor);
  lm_tensor g = score_cotangent(&w, op, p);
  scaled.type.dtype = go.type.dtype;
  lm_type v = op->in[LM_ATTEND_V]->type;
  lm_tensor dv = dot(&w, scaled, go, lm_type_without(lm_attend_space(op), v));
  give(e, op->out[0], in_order(&w, dv, v));
  g = lm_tensor_copy(&g);
  work_free(&w);
  return g;
}

void lm_eval_attend_vjp_results(lm_eval *e, const lm_op *op) {
  for (uint32_t i = 1; i < op->n_out; i++)
    give(e, op->out[i], of_value(e, lm_attend_yield(op, i - 1 + LM_ATTEND_COTANGENTS)));
}
