// expand_attention.c - lowers attention that the target has no kernel for to plain operations.
//
// before: %o, %lse = attend over(t, s) (%v, %q, %k) {
//           %a = dot %q, %k over(e)   yield %a, %mask, %one }
// after:  %a = dot %q, %k over(e)   %x = select %mask, %a, -1e30   %m = max %x over(s)
//         %e = exp(%x - %m)   %z = sum %e over(s)   %lse = %m + log %z
//         %p = div %e, %z     %o = dot %p, %v over(s)
//
// attend_vjp becomes its definition in attend.c, with the weights recomputed the same way:
//
//         dv = dot(p * factor, do)   dp = factor * dot(do, v)
//         g = select(mask, p * (dp - delta), 0)   delta = sum(p * dp), or the given operand
//         the operations of the region, with g
//
// Declines: attention that the target supports; everything if there is no target. Cost: the tensors
// with both t and s that `attend` avoids.
#include <math.h>
#include "compiler/ir/attend.h"
#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"
#include "compiler/plan/planner.h"

#define NEVER (-1e30) // the score of a masked pair

typedef struct expansion {
  lm_rewrite r; // only its builder is used
  const lm_codegen *codegen;
  lm_value **out; // by value id: the replacement of a result of a removed operation
  uint32_t n_out;
  lm_value **map; // by value id: the value outside for a value of the current region
  const lm_op *op;
  lm_type space;
} expansion;

// ---- values of the region

static lm_value *materialize(expansion *u, lm_value *v) {
  if (!u->map[v->id]) {
    for (uint32_t i = 0; i < v->def->n_in; i++)
      materialize(u, v->def->in[i]);
    lm_op_clone(&u->r.b, v->def, u->map);
  }
  return u->map[v->id];
}

static lm_value *yielded(expansion *u, uint32_t i) {
  return materialize(u, lm_attend_yield(u->op, i));
}

static lm_value *broadcast(expansion *u, lm_value *x) {
  lm_type t = u->space;
  t.dtype = x->type.dtype;
  return lm_cast_to(&u->r, x, t);
}

static lm_value *over_s(expansion *u, lm_opcode code, lm_value *x) {
  lm_axis s = lm_attend_s(u->op);
  return lm_emit_reduce(&u->r.b, code, x, &s, 1);
}

static lm_value *hidden(expansion *u, lm_value *x, double instead) {
  lm_value *other =
      lm_emit_const(&u->r.b, lm_type_make((lm_dtype)u->space.dtype, NULL, 0), instead);
  return lm_emit_select(&u->r.b, broadcast(u, yielded(u, LM_ATTEND_MASK)), x, other);
}

// ---- both directions

static lm_value *times(lm_builder *b, lm_value *x, double c) {
  lm_type number = lm_type_make((lm_dtype)x->type.dtype, NULL, 0);
  return lm_emit2(b, LM_OP_MUL, x, lm_emit_const(b, number, c));
}

// The multiple of ln 2 nearest to the maximum, of queries that have visible keys.
static lm_value *to_binade(lm_builder *b, lm_value *maximum) {
  lm_type number = lm_type_make((lm_dtype)maximum->type.dtype, NULL, 0);
  lm_value *whole = lm_emit1(b, LM_OP_ROUND, times(b, maximum, 1 / log(2)));
  lm_value *visible = lm_emit2(b, LM_OP_GT, maximum, lm_emit_const(b, number, NEVER / 10));
  return lm_emit_select(b, visible, times(b, whole, log(2)), maximum);
}

static lm_value *to_e4m3(lm_builder *b, lm_value *e) {
  lm_value *code = lm_emit_cast(b, times(b, lm_emit_cast(b, e, LM_F32), 256), LM_E4M3);
  lm_value *back = times(b, lm_emit_cast(b, code, LM_F32), 1.0 / 256);
  return lm_emit_cast(b, back, (lm_dtype)e->type.dtype);
}

// The softmax over s; sets *out_lse to the log of its denominator.
static lm_value *weights(expansion *u, lm_value **out_lse) {
  lm_builder *b = &u->r.b;
  lm_value *x = hidden(u, yielded(u, LM_ATTEND_SCORE), NEVER);
  lm_value *maximum = over_s(u, LM_OP_MAX, x);
  if (lm_attend_rounds(u->op))
    maximum = to_binade(b, maximum);
  lm_value *e = lm_emit1(b, LM_OP_EXP, lm_emit2(b, LM_OP_SUB, x, maximum));
  lm_value *sum = over_s(u, LM_OP_SUM, e);
  if (lm_attend_rounds(u->op))
    e = to_e4m3(b, e);
  *out_lse = lm_emit_cast(b, lm_emit2(b, LM_OP_ADD, maximum, lm_emit1(b, LM_OP_LOG, sum)), LM_F32);
  return lm_emit2(b, LM_OP_DIV, e, sum);
}

static lm_value *factored(expansion *u, lm_value *x) {
  return lm_emit2(&u->r.b, LM_OP_MUL, x,
                  lm_emit_cast(&u->r.b, yielded(u, LM_ATTEND_FACTOR), (lm_dtype)u->space.dtype));
}

// The dot of x and y over the axes of `summed` that `kept` lacks, in the axis order of `to`.
static lm_value *dot_emit(expansion *u, lm_value *x, lm_value *y, lm_type summed, lm_type kept,
                          lm_type to) {
  lm_axis over[LM_RANK];
  int n = 0;
  for (int i = 0; i < summed.rank; i++)
    if (lm_type_find(kept, summed.axis[i]) < 0)
      over[n++] = summed.axis[i];
  return lm_emit_permute(&u->r.b, lm_emit_dot(&u->r.b, x, y, over, n), to.axis, to.rank);
}

// The cotangent of the score, 0 where masked.
static lm_value *score_cotangent(expansion *u, lm_value *p) {
  lm_builder *b = &u->r.b;
  lm_value *v = u->op->in[LM_ATTEND_V];
  lm_value *go = u->op->in[LM_ATTEND_DO];
  lm_value *raw = dot_emit(u, go, v, v->type, u->space, u->space);
  lm_value *dp = factored(u, lm_emit_cast(b, raw, (lm_dtype)u->space.dtype));
  lm_value *delta = over_s(u, LM_OP_SUM, lm_emit2(b, LM_OP_MUL, p, dp));
  if (lm_attend_has_delta(u->op))
    delta = lm_emit_cast(b, u->op->in[LM_ATTEND_O], (lm_dtype)u->space.dtype);
  return hidden(u, lm_emit2(b, LM_OP_MUL, p, lm_emit2(b, LM_OP_SUB, dp, delta)), 0);
}

static void expand(expansion *u) {
  const lm_op *op = u->op;
  lm_type v = op->in[LM_ATTEND_V]->type;
  lm_type s = lm_type_make(v.dtype, &op->attr.axes[1], 1);
  lm_type none = lm_type_make(v.dtype, NULL, 0);
  for (uint32_t i = 0; i < op->n_in; i++)
    u->map[lm_attend_arg(op, i)->id] = op->in[i];
  lm_value *lse;
  lm_value *p = weights(u, &lse);
  lm_value *scaled = lm_emit_cast(&u->r.b, factored(u, p), (lm_dtype)v.dtype);
  if (op->code == LM_OP_ATTEND) {
    u->out[op->out[0]->id] = dot_emit(u, scaled, op->in[LM_ATTEND_V], s, none, op->out[0]->type);
    u->out[op->out[1]->id] = lse;
    return;
  }
  u->out[op->out[0]->id] = dot_emit(u, scaled, op->in[LM_ATTEND_DO], u->space, v, v);
  u->map[op->body->args[0]->id] = score_cotangent(u, p);
  for (uint32_t i = 1; i < op->n_out; i++)
    u->out[op->out[i]->id] = yielded(u, i - 1 + LM_ATTEND_COTANGENTS);
}

static void expand_attention_visit(lm_op *op, void *user) {
  expansion *u = user;
  if (!lm_op_attends(op) || u->codegen->attends(u->r.b.m, op))
    return;
  u->op = op;
  u->space = lm_attend_space(op);
  u->r.b = (lm_builder){
      .m = u->r.b.m, .at = op->parent, .before = op, .loc = op->loc, .remat = op->remat};
  u->map = lm_calloc(u->r.b.m->n_values, sizeof *u->map);
  expand(u);
  lm_free(u->map);
}

static void sweep(lm_op *op, void *user) {
  const expansion *u = user;
  if (lm_op_attends(op) && op->out[0]->id < u->n_out && u->out[op->out[0]->id])
    lm_op_remove(op);
}

bool lm_pass_expand_attention(lm_module *m, const lm_pass_env *env) {
  expansion u = {
      .codegen = env->codegen,
      .r.b.m = m,
  };
  if (!u.codegen || !u.codegen->attends)
    return true;
  for (lm_func *f = m->funcs; f; f = f->next) {
    u.n_out = m->n_values;
    u.out = lm_calloc(u.n_out, sizeof *u.out);
    lm_region_walk(f->body, expand_attention_visit, &u);
    lm_func_substitute(f, u.out, u.n_out);
    lm_region_walk(f->body, sweep, &u);
    lm_free(u.out);
  }
  return true;
}
