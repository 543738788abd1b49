// attend_vjp.c - the derivative of softmax attention: attend_vjp, whose region recomputes the
// scores, and then computes the cotangents of the values that they depend on.
#include "compiler/ir/attend.h"
#include "compiler/ops/ops.h"

enum {
  FIXED = 4,
  MAX_TERMS = 64
};

// Copies the region of `from` into the region of `to`; sets yields to the copies of score, mask and
// factor.
static void region_copy(lm_builder *b, const lm_op *from, const lm_op *to, lm_value **yields) {
  lm_value **map = lm_calloc(b->m->n_values, sizeof *map);
  for (uint32_t i = 0; i < from->n_in; i++) {
    uint32_t k = i < lm_attend_fixed(from) ? i : i + lm_attend_fixed(to) - lm_attend_fixed(from);
    map[from->body->args[i]->id] = lm_attend_arg(to, k);
  }
  for (const lm_op *o = from->body->first; o != from->body->last; o = o->next)
    lm_op_clone(b, o, map);
  for (uint32_t i = 0; i < LM_ATTEND_COTANGENTS; i++)
    yields[i] = map[lm_attend_yield(from, i)->id];
  lm_free(map);
}

// The cotangent of an operand as sums over tiles, each of which becomes a result. They are added,
// and reduced over axes other than s (or t), outside.
static uint32_t terms_split(lm_builder *b, const lm_op *vjp, lm_value *c, lm_value **out,
                            uint32_t n) {
  lm_op *op = c->def;
  if (op && op->code == LM_OP_ADD)
    return terms_split(b, vjp, op->in[1], out, terms_split(b, vjp, op->in[0], out, n));
  bool moved =
      op && op->code == LM_OP_PERMUTE && op->in[0]->def && op->in[0]->def->code != LM_OP_DOT;
  if (moved)
    return terms_split(b, vjp, op->in[0], out, n);
  if (op && op->code == LM_OP_SUM && op->attr.n_axes > 1 && lm_attend_tiled(vjp, op->in[0]->type)) {
    lm_axis over = op->attr.axes[0];
    for (int i = 0; i < op->attr.n_axes; i++)
      if (op->attr.axes[i] == lm_attend_s(vjp) ||
          (op->attr.axes[i] == lm_attend_t(vjp) && over != lm_attend_s(vjp)))
        over = op->attr.axes[i];
    c = lm_emit_reduce(b, LM_OP_SUM, op->in[0], &over, 1);
  }
  if (n == MAX_TERMS)
    LM_BUG("an operand of attend is used more than %d times", MAX_TERMS);
  out[n] = c;
  return n + 1;
}

// Delta: the sum of do * o over the axes that only v has, minus the cotangent of lse. It is
// subtracted in the cotangent of the score.
static lm_value *delta_make(lm_grad *g, const lm_op *op, lm_value *o, lm_value *go,
                            lm_value *g_lse) {
  lm_builder *b = g->b;
  lm_type lse = op->out[1]->type;
  lm_axis own[LM_RANK];
  int n = 0;
  for (int i = 0; i < o->type.rank; i++)
    if (lm_type_find(lse, o->type.axis[i]) < 0)
      own[n++] = o->type.axis[i];
  go = lm_emit_cast(b, go, LM_F32);
  o = lm_emit_cast(b, o, LM_F32);
  lm_value *both = lm_emit2(b, LM_OP_MUL, o, go);
  return lm_emit2(b, LM_OP_SUB, lm_emit_reduce(b, LM_OP_SUM, both, own, n), g_lse);
}

static lm_op *vjp_begin(lm_grad *g, lm_op *op) {
  uint32_t more = FIXED - 1;
  lm_value **in = LM_NEW_N(g->b->m->arena, lm_value *, op->n_in + more);
  lm_type score = lm_attend_space(op);
  in[LM_ATTEND_V] = lm_grad_value(g, op->in[LM_ATTEND_V]);
  in[LM_ATTEND_O] = lm_grad_value(g, op->out[0]);
  in[LM_ATTEND_LSE] = lm_grad_value(g, op->out[1]);
  in[LM_ATTEND_DO] = lm_grad_of(g, op->out[0]);
  lm_value *g_lse = lm_grad_of(g, op->out[1]);
  if (g_lse)
    in[LM_ATTEND_O] = delta_make(g, op, in[LM_ATTEND_O], in[LM_ATTEND_DO], g_lse);
  for (uint32_t i = 1; i < op->n_in; i++)
    in[i + more] = lm_grad_value(g, op->in[i]);
  lm_attr attr = op->attr;
  attr.n_imm = lm_attend_has_map(op) ? 2 : 0;
  return lm_attend_begin(g->b, &attr, in, op->n_in + more, &score);
}

// Differentiates the region; terms[k] is a part of the cotangent of operand of[k].
static uint32_t region_back(lm_grad *g, const lm_op *op, const lm_op *vjp, lm_value *score,
                            lm_value **terms, uint32_t *of) {
  lm_arena *a = g->b->m->arena;
  uint32_t n = 0;
  uint32_t n_terms = 0;
  uint32_t *which = LM_NEW_N(a, uint32_t, op->n_in + 1);
  lm_value **wrt = LM_NEW_N(a, lm_value *, op->n_in + 1);
  lm_value **out = LM_NEW_N(a, lm_value *, op->n_in + 1);
  for (uint32_t i = lm_attend_rest(op); i < op->n_in; i++) {
    if (!lm_grad_needs(g, op->in[i]))
      continue;
    which[n] = i;
    wrt[n++] = lm_attend_arg(vjp, i + FIXED - 1);
  }
  lm_grad_region(g, vjp->body, &score, vjp->body->args, 1, wrt, n, out);
  for (uint32_t i = 0; i < n; i++) {
    uint32_t from = n_terms;
    if (out[i])
      n_terms = terms_split(g->b, vjp, out[i], terms, n_terms);
    while (from < n_terms)
      of[from++] = which[i];
  }
  return n_terms;
}

// attend_vjp computes the cotangents of v and of the score; its region propagates the latter to the
// operands that it reads.
void vjp_attend(lm_grad *g, lm_op *op) {
  lm_value *yields[LM_ATTEND_COTANGENTS + MAX_TERMS];
  uint32_t of[MAX_TERMS];
  lm_op *vjp = vjp_begin(g, op);
  region_copy(g->b, op, vjp, yields);
  uint32_t n = region_back(g, op, vjp, yields[LM_ATTEND_SCORE], yields + LM_ATTEND_COTANGENTS, of);
  lm_attend_end(g->b, vjp, yields, LM_ATTEND_COTANGENTS + n);
  lm_grad_add(g, op->in[LM_ATTEND_V], vjp->out[0]);
  for (uint32_t i = 0; i < n; i++)
    lm_grad_add(g, op->in[of[i]], vjp->out[i + 1]);
}
