// attend.c - recognizes softmax attention (attend_match.c) and makes it one operation.
//
// before: %a = dot %q, %k over(e)   %z = mul %a, 0.125   %y = select %mask, %z, -1e30
//         %x = exp(%y - stop_grad(max %y over(s)))   %p = div %x, (sum %x over(s))
//         %o = dot %p, %v over(s)
// after:  %n = …                           (the tile map: unmasked pairs of each tile)
//         %o, %lse = attend over(t, s) [32, 32] (%v, %n, %q, %k, %i, %j) {
//           %a = dot %q, %k over(e)   %z = mul %a, 0.125   %mask = ge %i, %j
//           yield %z, %mask, %one }
//
// Semantics of attend. For each query t and key s (and each index of the other axes b, g, h) the
// region yields a score, a mask and a factor. The region uses its arguments only, one per operand;
// it contains elementwise operations and dots whose operands do not have both t and s. With `space`
// the axes of the score:
//
//   p   = softmax over s of select(mask, score, -1e30)
//   o   = dot(p * factor, v) over s        : space without s, then the axes that only v has
//   lse = log of the sum over s of e^select(mask, score, -1e30)        : f32[space without s]
//
// A query without visible keys therefore gets the mean of all v, like the original operations.
//
// With an attention sink, %x / (sum %x + exp(%r - c)), where c is the value subtracted from the
// scores, the result is %o * 1 / (1 + e^(%r - %lse)), computed by operations after the attend.
// Other uses of log(sum %x over(s)) + c use %lse instead.
//
// Operands, in order: %v; the tile map, if the operation has two immediates; the values that the
// region reads (compiler/ir/attend.h names them). Axes are not fixed: v and k may lack axes of the
// query (grouped-query attention), the width of v is independent, there may be several dots (the
// MLA of DeepSeek), and t and s may be known at run time only.
//
// attend_vjp over(t, s) %g (%v, %o, %lse, %do, [map,] …)
//   { … yield %score, %mask, %factor, %c1, … } : dv, c1, …
//
// computes the cotangent of v, and the cotangents that its region yields. %g is the score's
// cotangent:
//
//   p = e^(score - lse)   dp = factor * dot(do, v)   g = p * (dp - delta), 0 where masked
//   delta = sum over the axes that only v has of do * o
//   dv = dot(p * factor, do) over the axes that v lacks
//   c1, … : dots or sums of tiles, such as dq = dot(ds, k) over s
//
// The operand %o may be delta itself: if lse has a cotangent, it is subtracted from delta. A
// query without visible keys has lse = -1e30; its p is 1 / (extent of s).
//
// The tile map: int[…, t / tile_t, s / tile_s], one value per tile. 0: all pairs are masked and the
// tile is skipped. The number of pairs of a tile: no pair is masked and the mask is not evaluated.
// Any other number: the mask is evaluated. A negative number: some query of the tile has no visible
// key, so none of its tiles may be skipped. Plain operations outside compute the map, and licm
// hoists them out of the loop over layers. Skipping a tile adds no zeros: results are bit-identical
// except for the signs of zeros.
//
// Declines: weights with other uses, scores with operations that move elements, tensors in memory
// with both t and s, a factor that depends on parameters, a single query (decoding)
// where the target has no kernel for it, targets without attention kernels. Cost: the backward pass
// recomputes the scores; no tensor with both t and s is stored.
#include "compiler/ir/attend.h"
#include <string.h>
#include "compiler/analysis/activity.h"
#include "compiler/passes/attend/attend_match.h"
#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"
#include "compiler/plan/planner.h"

// Side of the tiles of the map if there is no target.
enum {
  TILE = 32
};

// ---- the map

static tile_axes *tiles_of(attend_pass *p, lm_axis a) {
  for (tile_axes *t = p->tiles; t; t = t->next)
    if (t->axis == a)
      return t;
  tile_axes *t = LM_NEW(p->m->arena, tile_axes);
  const lm_axis_info *info = &p->m->axes[a];
  lm_sym tiles = lm_arena_printf(p->m->arena, "%s.tiles", info->name);
  lm_sym inside = lm_arena_printf(p->m->arena, "%s.tile", info->name);
  *t = (tile_axes){
      .axis = a,
      .next = p->tiles,
  };
  t->tiles = lm_axis_add(p->m, LM_SYM(p->m->ctx, tiles),
                         (lm_axis_size(p->m, a) + p->tile - 1) / p->tile, 0);
  t->inside = lm_axis_add(p->m, LM_SYM(p->m->ctx, inside), p->tile, 0);
  return p->tiles = t;
}

// Splits axis a of x into tiles, padded with zeros at its end.
static lm_value *split_tiles(attend_pass *p, lm_builder *b, lm_value *x, lm_axis a) {
  tile_axes *t = tiles_of(p, a);
  int64_t size = lm_axis_size(p->m, t->tiles) * p->tile;
  lm_axis whole = a;
  if (size != lm_axis_size(p->m, a)) {
    whole = lm_axis_add(p->m, p->m->axes[a].name, size, 0);
    lm_attr pad = {.axes = {a}, .n_axes = 1, .to = {whole}, .n_to = 1, .imm = {0, 1}, .n_imm = 2};
    x = lm_emit(b, LM_OP_PAD, &x, 1, &pad, NULL);
  }
  return lm_emit_split(b, x, whole, t->tiles, t->inside);
}

static bool map_fits(const attend_match *x) {
  const lm_module *m = x->p->m;
  if (!x->visible || !lm_attend_is_tiled(x, x->visible) || m->axes[x->t].dyn || m->axes[x->s].dyn)
    return false;
  if (lm_axis_size(m, x->t) == 1 ||
      (lm_axis_size(m, x->t) <= x->p->tile && lm_axis_size(m, x->s) <= x->p->tile))
    return false;
  for (int i = 0; i < x->visible->type.rank; i++) {
    lm_axis a = x->visible->type.axis[i];
    if (a != x->t && a != x->s && lm_type_find(x->v->type, a) < 0)
      return false; // differs between the heads of a group
  }
  return true;
}

// The number of visible pairs of each tile. A query without visible keys subtracts more than the
// other queries can add.
static lm_value *map_make(attend_match *x, lm_builder *b) {
  attend_pass *p = x->p;
  tile_axes *t = tiles_of(p, x->t);
  tile_axes *s = tiles_of(p, x->s);
  lm_axis inside[2] = {t->inside, s->inside};
  lm_axis order[LM_RANK];
  lm_type whole = lm_type_make(LM_INT, NULL, 0);
  lm_value *seen = lm_emit_cast(b, x->visible, LM_INT);
  lm_value *row = lm_emit_reduce(b, LM_OP_SUM, seen, &x->s, 1);
  lm_value *blank = lm_emit2(b, LM_OP_EQ, row, lm_emit_const(b, whole, 0));
  lm_value *pairs =
      lm_emit_select(b, blank, lm_emit_const(b, whole, -(double)(p->tile * p->tile)), seen);
  int n = 0;
  for (int i = 0; i < pairs->type.rank; i++)
    if (pairs->type.axis[i] != x->t && pairs->type.axis[i] != x->s)
      order[n++] = pairs->type.axis[i];
  order[n++] = t->tiles;
  order[n++] = s->tiles;
  return lm_emit_permute(b,
                         lm_emit_reduce(b, LM_OP_SUM,
                                        split_tiles(p, b, split_tiles(p, b, pairs, x->t), x->s),
                                        inside, 2),
                         order, n);
}

// ---- building the operation

typedef struct writer {
  lm_rewrite *r;
  lm_value **map; // by value id: the value inside the region
  lm_type space;
} writer;

static lm_value *inside(const writer *w, const lm_value *v) {
  return w->map[v->id];
}

// The factor of the weights between the softmax and `v`; NULL for 1.
static lm_value *factor_of(const attend_match *x, const writer *w, lm_value *v) {
  if (v == x->weights)
    return NULL;
  const lm_op *op = v->def;
  lm_builder *b = &w->r->b;
  if (op->code == LM_OP_CAST)
    return factor_of(x, w, op->in[0]);
  uint32_t chain = lm_attend_chain_operand(op);
  lm_value *below = factor_of(x, w, op->in[chain]);
  lm_dtype f = (lm_dtype)w->space.dtype;
  if (op->code == LM_OP_MUL) {
    lm_value *other = lm_emit_cast(b, inside(w, op->in[1 - chain]), f);
    return below ? lm_emit2(b, LM_OP_MUL, below, other) : other;
  }
  lm_type scalar = lm_type_make(f, NULL, 0);
  if (!below)
    below = lm_emit_const(b, scalar, 1);
  return lm_emit_select(b, inside(w, op->in[0]), below, lm_emit_const(b, scalar, 0));
}

// Scales o by the share that an attention sink leaves: 1 / (1 + e^(r - lse)), as a tanh, which does
// not overflow.
static lm_value *scale_by_sink(const attend_match *x, lm_rewrite *r, const lm_op *attend) {
  lm_builder *b = &r->b;
  lm_value *o = attend->out[0];
  lm_value *lse = attend->out[1];
  lm_value *half = lm_emit_const(b, lm_type_make(LM_F32, NULL, 0), 0.5);
  lm_value *lead =
      lm_emit2(b, LM_OP_SUB, lse, lm_cast_to(r, lm_emit_cast(b, x->sink, LM_F32), lse->type));
  lm_value *bounded = lm_emit1(b, LM_OP_TANH, lm_emit2(b, LM_OP_MUL, lead, half));
  lm_value *share = lm_emit2(b, LM_OP_ADD, lm_emit2(b, LM_OP_MUL, bounded, half), half);
  return lm_emit2(b, LM_OP_MUL, o, lm_emit_cast(b, share, (lm_dtype)o->type.dtype));
}

static lm_value *build_attend(attend_match *x, lm_rewrite *r) {
  lm_module *m = x->p->m;
  lm_builder *b = &r->b;
  lm_attr a = {.axes = {x->t, x->s}, .n_axes = 2};
  lm_value **in = LM_NEW_N(m->arena, lm_value *, x->n_leaves + 2);
  uint32_t n = 0;
  in[n++] = x->v;
  if (map_fits(x)) {
    in[n++] = map_make(x, b);
    a.imm[0] = a.imm[1] = x->p->tile;
    a.n_imm = 2;
  }
  for (uint32_t i = 0; i < x->n_leaves; i++)
    in[n++] = x->leaves[i];
  writer w = {r, lm_calloc((size_t)m->n_values + 1, sizeof *w.map), x->scores->type};
  lm_op *attend = lm_attend_begin(b, &a, in, n, NULL);
  for (uint32_t i = 0; i < x->n_leaves; i++)
    w.map[x->leaves[i]->id] = lm_attend_arg(attend, lm_attend_rest(attend) + i);
  for (uint32_t i = 0; i < x->n_ops; i++)
    lm_op_clone(b, x->ops[i], w.map);
  lm_value *factor = factor_of(x, &w, x->weighted);
  lm_value *yields[LM_ATTEND_COTANGENTS];
  yields[LM_ATTEND_SCORE] = lm_cast_to(r, inside(&w, x->score), w.space);
  yields[LM_ATTEND_MASK] =
      x->mask ? inside(&w, x->mask) : lm_emit_const(b, lm_type_make(LM_BOOL, NULL, 0), 1);
  yields[LM_ATTEND_FACTOR] =
      factor ? factor : lm_emit_const(b, lm_type_make((lm_dtype)w.space.dtype, NULL, 0), 1);
  lm_attend_end(b, attend, yields, LM_ATTEND_COTANGENTS);
  lm_free(w.map);
  lm_type want = x->dot->out[0]->type;
  known_lse *known = LM_NEW(m->arena, known_lse);
  *known = (known_lse){x->sum, x->centre, attend->out[1], x->p->known};
  if (lm_attend_lse_fits(x))
    x->p->known = known;
  return lm_emit_permute(b, x->sink ? scale_by_sink(x, r, attend) : attend->out[0], want.axis,
                         want.rank);
}

// ---- uses of the log of the sum

// Replaces log(sum), or log(sum) + centre if centre was subtracted from the exponents, by lse.
static lm_value *lse_of(const attend_pass *p, lm_rewrite *r, const lm_op *op) {
  lm_type t = op->out[0]->type;
  for (const known_lse *k = t.dtype == LM_F32 ? p->known : NULL; k; k = k->next) {
    bool found = !k->centre && op->code == LM_OP_LOG && op->in[0] == k->sum;
    for (int side = 0; k->centre && op->code == LM_OP_ADD && side < 2; side++)
      found |= lm_op_is(op->in[side], LM_OP_LOG) && op->in[side]->def->in[0] == k->sum &&
               op->in[1 - side] == k->centre;
    if (found && lm_type_subset(t, k->lse->type))
      return lm_emit_permute(&r->b, k->lse, t.axis, t.rank);
  }
  return NULL;
}

// The log of the sum between the sum and the dot. Its users may precede the dot.
static lm_op *log_between(const lm_value *sum, const lm_op *dot) {
  for (lm_op *op = sum->def; op && op != dot; op = op->next)
    if (op->code == LM_OP_LOG && op->in[0] == sum)
      return op;
  return NULL;
}

static bool comes_after(const lm_value *v, const lm_op *op) {
  return v->def && v->region == op->parent && v->def->mark > op->mark;
}

// Moves the dot, and the operations between it and the softmax, before the log if all their
// operands precede it.
static void hoist_dot(const attend_pass *p, lm_op *dot, int side) {
  attend_softmax soft;
  if (!lm_attend_softmax_below(p, dot->in[side], dot->attr.axes[0], &soft) ||
      soft.sum->region != dot->parent)
    return;
  lm_op *at = log_between(soft.sum, dot);
  lm_op *moved[LM_RANK];
  int n = 0;
  uint32_t chain = (uint32_t)side;
  for (lm_op *op = dot; at && op->mark > at->mark;
       op = op->in[chain]->def, chain = lm_attend_chain_operand(op)) {
    if (n == LM_RANK)
      return;
    moved[n++] = op;
    for (uint32_t i = 0; i < op->n_in; i++)
      if ((i != chain || op == soft.weights->def) && comes_after(op->in[i], at))
        return;
    if (op == soft.weights->def)
      break;
  }
  while (n--) {
    lm_op_remove(moved[n]);
    lm_op_insert_before(at, moved[n]);
  }
}

static void hoist_dots(const attend_pass *p, lm_region *r) {
  uint32_t n = 0;
  for (lm_op *op = r->first; op; op = op->next)
    op->mark = ++n;
  for (lm_op *op = r->first, *next; op; op = next) {
    next = op->next;
    if (op->body)
      hoist_dots(p, op->body);
    for (int side = 0; side < 2 && op->code == LM_OP_DOT && op->attr.n_axes == 1; side++)
      hoist_dot(p, op, side);
  }
}

// ---- the pass

static lm_value *attend_rule(lm_rewrite *r, lm_op *op) {
  attend_pass *p = r->user;
  if (op->code == LM_OP_LOG || op->code == LM_OP_ADD)
    return lse_of(p, r, op);
  if (op->code != LM_OP_DOT || op->attr.n_axes != 1 ||
      (op->parent->owner && lm_op_isolated(op->parent->owner)))
    return NULL;
  for (int side = 0; side < 2; side++) {
    attend_match x = {
        .p = p,
        .dot = op,
    };
    if (lm_attend_match(&x, side, &r->b))
      return build_attend(&x, r);
  }
  return NULL;
}

bool lm_pass_attend(lm_module *m, const lm_pass_env *env) {
  const lm_target *target = env->target;
  attend_pass p = {.m = m,
                   .tile = target ? target->choices.attend_tile : TILE,
                   .one = target && target->choices.attends_one};
  if (!p.tile)
    return true;
  for (lm_func *f = m->funcs; f; f = f->next) {
    bool differentiated = f->key.id == LM_FUNC_LOSS;
    p.f = f;
    p.uses = lm_func_uses(f);
    p.active = differentiated ? lm_activity_of_func(f) : NULL;
    p.n_values = m->n_values;
    p.known = NULL;
    hoist_dots(&p, f->body);
    lm_rewrite_func(f, attend_rule, &p);
    lm_free(p.uses);
    lm_free(p.active);
  }
  return true;
}
