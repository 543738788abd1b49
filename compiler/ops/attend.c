// attend.c - softmax attention: shape rules and derivative. compiler/passes/attend.c defines both
// operations.
#include <string.h>
#include "compiler/ir/attend.h"
#include "compiler/ops/ops.h"

enum {
  FIXED = 4,
  MAX_TERMS = 64
};

// ---- shapes

static bool region_op_fits(const lm_op *op) {
  switch (op->code) {
  case LM_OP_DOT:
  case LM_OP_SUM:
  case LM_OP_PERMUTE:
  case LM_OP_RNG:
  case LM_OP_YIELD: return true;
  default: return lm_op_info_of(op)->traits & LM_T_ELEMENTWISE;
  }
}

static bool region_fits(const lm_module *m, const lm_op *op, lm_buf *why) {
  const lm_region *r = op->body;
  uint32_t lead = op->code == LM_OP_ATTEND_VJP;
  if (r->n_args != op->n_in + lead)
    return lm_why(why, "the region has %u arguments for %u operands", r->n_args, op->n_in);
  for (uint32_t i = 0; i < op->n_in; i++)
    if (!lm_type_equal(op->in[i]->type, r->args[i + lead]->type))
      return lm_why(why, "argument %u is not of its operand's type", i);
  for (const lm_op *o = r->first; o; o = o->next)
    if (!region_op_fits(o))
      return lm_why(why, "%s stands in the region", lm_op_info_of(o)->name);
  if (!r->last || r->last->code != LM_OP_YIELD || r->last->n_in < LM_ATTEND_COTANGENTS)
    return lm_why(why, "the region does not yield score, mask and factor");
  return !lead || lm_type_equal(r->args[0]->type, lm_attend_space(op)) ||
         lm_why(why, "the cotangent is not of the score's type");
}

static bool yields_fit(const lm_module *m, const lm_op *op, lm_buf *why) {
  lm_type score = lm_attend_space(op);
  lm_type mask = lm_attend_yield(op, LM_ATTEND_MASK)->type;
  lm_type factor = lm_attend_yield(op, LM_ATTEND_FACTOR)->type;
  if (!lm_dtype_is_float(score.dtype) || !lm_attend_tiled(op, score))
    return lm_why_type(why, m, "the score is ", score, "");
  if (mask.dtype != LM_BOOL || !lm_type_subset(mask, score))
    return lm_why_type(why, m, "the mask is ", mask, "");
  if (!lm_dtype_is_float(factor.dtype) || !lm_type_subset(factor, score))
    return lm_why_type(why, m, "the factor is ", factor, "");
  return true;
}

static int64_t tiles(const lm_module *m, lm_axis a, int64_t tile) {
  return (lm_axis_size(m, a) + tile - 1) / tile;
}

// The map's last axes are the tiles along t and s.
static bool map_fits(const lm_module *m, const lm_op *op, lm_buf *why) {
  if (!op->attr.n_imm)
    return true;
  if (op->attr.n_imm != 2 || op->attr.imm[0] < 1 || op->attr.imm[1] < 1)
    return lm_why(why, "needs the sizes of two tiles");
  lm_type map = op->in[lm_attend_map(op)]->type,
          rows = {.rank = map.rank < 2 ? 0 : (uint8_t)(map.rank - 2)};
  bool ok = map.dtype == LM_INT && map.rank >= 2;
  for (int k = 0; ok && k < 2; k++)
    ok = lm_axis_size(m, map.axis[map.rank - 2 + k]) == tiles(m, op->attr.axes[k], op->attr.imm[k]);
  memcpy(rows.axis, map.axis, rows.rank * sizeof *rows.axis);
  return (ok && lm_type_subset(rows, lm_attend_space(op))) ||
         lm_why_type(why, m, "the map is ", map, "");
}

static bool attends(const lm_module *m, const lm_op *op, lm_buf *why) {
  const lm_attr *a = &op->attr;
  if (a->n_axes != 2 || a->axes[0] == a->axes[1])
    return lm_why(why, "is over two axes, t and s");
  if (op->n_in < lm_attend_rest(op))
    return lm_why(why, "has too few operands");
  if (!region_fits(m, op, why) || !yields_fit(m, op, why) || !map_fits(m, op, why))
    return false;
  lm_type v = op->in[LM_ATTEND_V]->type;
  bool ok = lm_dtype_is_float(v.dtype) && lm_type_find(v, a->axes[1]) >= 0 &&
            lm_type_find(v, a->axes[0]) < 0;
  return ok || lm_why_type(why, m, "the values are ", v, "");
}

// The score's axes without s, then the axes that only v has.
static bool result_types(const lm_module *m, const lm_op *op, lm_type *out_o, lm_type *out_lse,
                         lm_buf *why) {
  lm_type space = lm_attend_space(op);
  lm_type v = op->in[LM_ATTEND_V]->type;
  *out_lse = (lm_type){.dtype = LM_F32};
  for (int i = 0; i < space.rank; i++)
    if (space.axis[i] != lm_attend_s(op))
      out_lse->axis[out_lse->rank++] = space.axis[i];
  *out_o = *out_lse;
  out_o->dtype = v.dtype;
  for (int i = 0; i < v.rank; i++) {
    if (lm_type_find(space, v.axis[i]) >= 0)
      continue;
    if (out_o->rank == LM_RANK)
      return lm_why(why, "the result has more than %d axes", LM_RANK);
    out_o->axis[out_o->rank++] = v.axis[i];
  }
  return true;
}

bool shape_attend(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  return attends(m, op, why) && result_types(m, op, &out[0], &out[1], why);
}

bool shape_attend_vjp(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  lm_type o, lse;
  if (!attends(m, op, why) || !result_types(m, op, &o, &lse, why))
    return false;
  bool ok = lm_type_equal(op->in[LM_ATTEND_O]->type, lm_attend_has_mean(op) ? lse : o) &&
            lm_type_equal(op->in[LM_ATTEND_DO]->type, o) &&
            lm_type_equal(op->in[LM_ATTEND_LSE]->type, lse);
  if (!ok)
    return lm_why(why, "o, lse and the cotangent of o are not of the attend's types");
  out[0] = op->in[LM_ATTEND_V]->type;
  for (uint32_t i = LM_ATTEND_COTANGENTS; i < op->body->last->n_in; i++) {
    out[i - LM_ATTEND_COTANGENTS + 1] = lm_attend_yield(op, i)->type;
    if (lm_attend_tiled(op, lm_attend_yield(op, i)->type))
      return lm_why(why, "a cotangent has both t and s");
  }
  return true;
}

// ---- derivative

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

// The mean: the sum of do * o over the axes that only v has, minus the cotangent of lse. It is
// subtracted in the cotangent of the score.
static lm_value *mean_make(lm_grad *g, const lm_op *op, lm_value *o, lm_value *go,
                           lm_value *g_lse) {
  lm_builder *b = g->b;
  lm_type lse = op->out[1]->type;
  lm_axis own[LM_RANK];
  int n = 0;
  for (int i = 0; i < o->type.rank; i++)
    if (lm_type_find(lse, o->type.axis[i]) < 0)
      own[n++] = o->type.axis[i];
  lm_value *both = lm_emit2(b, LM_OP_MUL, lm_emit_cast(b, o, LM_F32), lm_emit_cast(b, go, LM_F32));
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
    in[LM_ATTEND_O] = mean_make(g, op, in[LM_ATTEND_O], in[LM_ATTEND_DO], g_lse);
  for (uint32_t i = 1; i < op->n_in; i++)
    in[i + more] = lm_grad_value(g, op->in[i]);
  return lm_attend_begin(g->b, &op->attr, in, op->n_in + more, &score);
}

// Differentiates the region; terms[k] is a part of the cotangent of operand of[k].
static uint32_t region_back(lm_grad *g, const lm_op *op, const lm_op *vjp, lm_value *score,
                            lm_value **terms, uint32_t *of) {
  lm_arena *a = g->b->m->arena;
  uint32_t n = 0, n_terms = 0, *which = LM_NEW_N(a, uint32_t, op->n_in + 1);
  lm_value **wrt = LM_NEW_N(a, lm_value *, op->n_in + 1),
           **out = LM_NEW_N(a, lm_value *, op->n_in + 1);
  for (uint32_t i = lm_attend_rest(op); i < op->n_in; i++) {
    if (!lm_grad_needs(g, op->in[i]))
      continue;
    which[n] = i;
    wrt[n++] = lm_attend_arg(vjp, i + FIXED - 1);
  }
  lm_grad_region(g, vjp->body, score, vjp->body->args[0], wrt, n, out);
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
