// ring.c - pass `ring`: attention over divided positions without whole keys and values.
//
// before: mesh cp = 4 positions ring
//         %ks = rename (all_gather %k over(cp) (t@cp) -> (t)) (t) -> (s)
//         %vs = rename (all_gather %v over(cp) (t@cp) -> (t)) (t) -> (s)
//         %o, %lse = attend over(t@cp, s) (%vs, %q, %ks, …) { … }
// after:  %k0 = rename %k (t@cp) -> (s@cp)   %v0 = rename %v (t@cp) -> (s@cp)
//         %o0, %m0 = attend over(t@cp, s@cp) (%v0, %q, %k0, …) { … }
//         … %acc, %m, %l = loop 3 %i carry(%k0, %v0, %o0, %m0, 1) {
//           %k1 = ring_shift %k over(cp) [1]   %v1 = ring_shift %v over(cp) [1]
//           %oi, %mi = attend over(t@cp, s@cp) (%v1, %q, %k1, …) { … }
//           %n = max(%m, %mi)   %a = exp(%m - %n)   %c = exp(%mi - %n)
//           yield %k1, %v1, %acc * %a + %oi * %c, %n, %l * %a + %c }
//         %o = %acc / %l   %lse = %m + log %l
//
// The ranks pass the blocks of keys and values on, from each to the next; a rank attends to one
// block at a time and merges the results by their log-sum-exp (Liu et al. 2023, Ring Attention).
// attend_vjp has the lse and the delta of all blocks, so each block gives its terms of the
// cotangents. Those of keys and values, which the reduce_scatter of the gather's derivative would
// add, travel with their block, in f32, and arrive at its owner after a whole round.
//
// Operands along s that are not gathered floats (positions, segments, the tile map) are the same on
// every rank, which reads the block of the step from them. A block of which a query sees nothing
// has an lse of -1e30 and the mean of its values, or, where the map skips all its tiles, -inf and
// NaN: MERGE_LEAST bounds the former and masks the latter. A query that sees no key at all gets the
// mean of all values, and its share of their cotangents, as without this pass.
//
// Declines: without a mesh axis `ring`. Attention whose cotangents reach the gathers by operations
// other than sums and movements is an error (E917). Cost: n - 1 messages for each tensor, forwards
// and backwards, and n for each cotangent; two blocks of each in memory instead of n; the sum of
// the blocks' results, in memory.
#include <string.h>

#include "compiler/ir/attend.h"
#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"
#include "runtime/base/diag_code.h"

enum {
  LM_RING_BLOCKS = 24 // operands along s, and results of attend_vjp
};
static const double MERGE_LEAST = -2e30;   // below the lse of a block that is masked
static const double MERGE_UNSEEN = -15e29; // an lse below is that of no tile

typedef struct ring_pass {
  lm_module *m;
  int mesh;           // the axis of the ring, from 1
  uint8_t *is_keys;   // by axis: the s of attention in blocks
  uint32_t n_is_keys; // axes that there were before the pass
  lm_idmap now;       // of replaced results
  lm_idmap parts;     // of cotangents along s: the sum over all ranks of this rank's block
  lm_idmap leads;     // values that are sums and movements of such cotangents
  bool ok, found;
} ring_pass;

// An operand along s.
typedef struct block {
  lm_value *of;  // the operand
  lm_value *now; // travels: the block of this step; else the whole value, divided into blocks
  lm_axis rank;  // the axis of `now` that counts the blocks; 0: travels
} block;

typedef struct ring {
  ring_pass *p;
  lm_op *op;
  lm_builder b;
  lm_axis s, part, t; // t: the whole axis of the queries
  int n;              // ranks
  block blocks[LM_RING_BLOCKS];
  int n_blocks;
  block map;
  bool has_map, draws; // draws: the region has random numbers along s
  lm_value *o, *go;    // attend_vjp: delta, the cotangent of o
} ring;

static lm_value *number(lm_builder *b, double v) {
  return lm_emit_const(b, lm_type_make(LM_INT, NULL, 0), v);
}
static lm_value *real(lm_builder *b, double v) {
  return lm_emit_const(b, lm_type_make(LM_F32, NULL, 0), v);
}

// ---- the divided axes

static lm_axis part_axis(const ring *r, lm_axis a) {
  return a == r->s || a == r->t ? lm_axis_part(r->p->m, a, r->p->mesh) : a;
}

static lm_type part_type(const ring *r, lm_type t) {
  for (int i = 0; i < t.rank; i++)
    t.axis[i] = part_axis(r, t.axis[i]);
  return t;
}

static lm_attr part_attr(const ring *r, lm_attr a) {
  for (int i = 0; i < a.n_axes; i++)
    a.axes[i] = part_axis(r, a.axes[i]);
  for (int i = 0; i < a.n_to; i++)
    a.to[i] = part_axis(r, a.to[i]);
  return a;
}

// Repeats a movement or sum of whole operands on parts.
static lm_value *on_parts(const ring *r, lm_builder *b, const lm_op *op, lm_value *const *in) {
  lm_attr a = part_attr(r, op->attr);
  lm_type t = part_type(r, op->out[0]->type);
  return lm_emit(b, op->code, in, op->n_in, &a, &t);
}

// ---- operands

// The rank's own part of v, where v is gathered along the ring; NULL otherwise.
static lm_value *own_part(ring *r, lm_value *v) {
  const lm_op *d = v->def;
  if (!d || !lm_dtype_is_float(v->type.dtype))
    return NULL;
  bool gathers = d->code == LM_OP_ALL_GATHER || d->code == LM_OP_COLLECT;
  if (gathers && d->attr.mesh == r->p->mesh && d->attr.to[0] == r->t)
    return d->in[0];
  if (d->code != LM_OP_RENAME && d->code != LM_OP_PERMUTE && d->code != LM_OP_CAST)
    return NULL;
  lm_value *x = own_part(r, d->in[0]);
  return x ? on_parts(r, &r->b, d, &x) : NULL;
}

// Divides axis `along` of v into the blocks of the ranks.
static block divided(ring *r, lm_value *v, lm_axis along, lm_axis part) {
  lm_module *m = r->p->m;
  lm_axis rank = lm_axis_shared(m, LM_SYM(m->ctx, "rank"), r->n, v->type);
  return (block){v, lm_emit_split(&r->b, v, along, rank, part), rank};
}

static block *block_of(ring *r, const lm_value *v) {
  for (int i = 0; i < r->n_blocks; i++)
    if (r->blocks[i].of == v)
      return &r->blocks[i];
  return NULL;
}

static bool blocks_find(ring *r) {
  const lm_op *op = r->op;
  for (uint32_t i = 0; i < op->n_in; i++) {
    lm_value *v = op->in[i];
    if (lm_type_find(v->type, r->s) < 0 || block_of(r, v))
      continue;
    if (r->n_blocks == LM_RING_BLOCKS)
      return false;
    lm_value *own = own_part(r, v);
    r->blocks[r->n_blocks++] = own ? (block){v, own, 0} : divided(r, v, r->s, r->part);
  }
  return true;
}

// The map's blocks are whole tiles, or there is no map.
static void map_find(ring *r) {
  lm_module *m = r->p->m;
  if (!lm_attend_has_map(r->op))
    return;
  lm_value *map = r->op->in[lm_attend_map(r->op)];
  lm_axis tiles = map->type.axis[map->type.rank - 1];
  int64_t count = lm_axis_size(m, tiles);
  r->has_map = lm_axis_size(m, r->part) % r->op->attr.imm[1] == 0 && count % r->n == 0;
  if (r->has_map)
    r->map = divided(r, map, tiles, lm_axis_add(m, m->axes[tiles].name, count / r->n, 0));
}

static void note_draws(lm_op *op, void *user) {
  ring *r = user;
  lm_type t = op->n_out ? op->out[0]->type : (lm_type){0};
  r->draws |= op->code == LM_OP_RNG && t.rank && t.axis[t.rank - 1] == r->s;
}

static bool ring_make(ring_pass *p, lm_op *op, ring *r) {
  lm_module *m = p->m;
  lm_axis t = lm_attend_t(op), s = lm_attend_s(op);
  while (m->axes[t].mesh && m->axes[t].mesh != p->mesh)
    t = m->axes[t].whole;
  *r = (ring){
      .p = p,
      .op = op,
      .b = {m, op->parent, op, op->loc, op->remat},
      .s = s,
      .t = m->axes[t].whole,
      .n = m->mesh.axis[p->mesh - 1].size,
  };
  if (lm_axis_size(m, s) % r->n)
    return false;
  r->part = lm_axis_part(m, s, p->mesh);
  lm_region_walk(op->body, note_draws, r);
  map_find(r);
  return blocks_find(r);
}

// ---- one step

static lm_value *at_step(const block *x, lm_builder *b, lm_value *index) {
  lm_attr over = {
      .axes = {x->rank},
      .n_axes = 1,
  };
  return x->rank ? lm_emit(b, LM_OP_GATHER, (lm_value *[]){x->now, index}, 2, &over, NULL) : x->now;
}

static lm_value *operand(ring *r, lm_builder *b, uint32_t i, lm_value *index) {
  bool back = r->op->code == LM_OP_ATTEND_VJP;
  if (r->has_map && i == lm_attend_map(r->op))
    return at_step(&r->map, b, index);
  if (back && (i == LM_ATTEND_O || i == LM_ATTEND_DO))
    return i == LM_ATTEND_O ? r->o : r->go;
  const block *x = block_of(r, r->op->in[i]);
  return x ? at_step(x, b, index) : r->op->in[i];
}

// Copies the region for a block of s. `first`: the index of the block's first key, or NULL.
static void region_copy(const ring *r, lm_builder *b, lm_value **map, lm_value *first) {
  for (const lm_op *o = r->op->body->first; o != r->op->body->last; o = o->next) {
    bool draws = o->code == LM_OP_RNG && lm_type_find(o->out[0]->type, r->s) >= 0;
    lm_value *column = draws && first ? lm_emit2(b, LM_OP_ADD, map[o->in[2]->id], first) : NULL;
    lm_op *copy = lm_op_clone(b, o, map);
    copy->attr = part_attr(r, copy->attr);
    if (column)
      copy->in[2] = column;
    for (uint32_t i = 0; i < copy->n_out; i++)
      copy->out[i]->type = part_type(r, copy->out[i]->type);
  }
}

// The operation for the block of the rank `index`.
static lm_op *step_emit(ring *r, lm_builder *b, lm_value *index) {
  lm_module *m = r->p->m;
  const lm_op *op = r->op;
  bool back = op->code == LM_OP_ATTEND_VJP;
  lm_value **in = LM_NEW_N(m->arena, lm_value *, op->n_in + 1);
  uint32_t *from = LM_NEW_N(m->arena, uint32_t, op->n_in + 1);
  lm_attr a = part_attr(r, op->attr);
  uint32_t n = 0;
  for (uint32_t i = 0; i < op->n_in; i++) {
    if (!r->has_map && lm_attend_has_map(op) && i == lm_attend_map(op))
      continue;
    from[n] = i;
    in[n++] = operand(r, b, i, index);
  }
  if (r->draws)
    in[n++] = lm_emit2(b, LM_OP_MUL, index, number(b, (double)lm_axis_size(m, r->part)));
  if (!r->has_map)
    a.imm[0] = a.imm[1] = 0;
  if (!r->has_map && !lm_attend_rounds(op))
    a.n_imm = 0;
  lm_type score = part_type(r, lm_attend_space(op));
  lm_op *out = lm_attend_begin(b, &a, in, n, back ? &score : NULL);
  lm_value **map = lm_calloc((size_t)m->n_values + 1, sizeof *map);
  if (back)
    map[op->body->args[0]->id] = out->body->args[0];
  for (uint32_t i = 0; i < n - r->draws; i++)
    map[lm_attend_arg(op, from[i])->id] = lm_attend_arg(out, i);
  region_copy(r, b, map, r->draws ? lm_attend_arg(out, n - 1) : NULL);
  lm_op *yield = op->body->last;
  lm_value **yields = LM_NEW_N(m->arena, lm_value *, yield->n_in);
  for (uint32_t i = 0; i < yield->n_in; i++)
    yields[i] = map[yield->in[i]->id];
  lm_attend_end(b, out, yields, yield->n_in);
  lm_free(map);
  return out;
}

static lm_value *rank_of(const ring *r, lm_builder *b) {
  return lm_emit(b, LM_OP_RANK, NULL, 0, &(lm_attr){.mesh = (uint8_t)r->p->mesh}, NULL);
}

// The rank whose block this one has in iteration `i`, after i + 1 shifts.
static lm_value *owner_of(const ring *r, lm_builder *b, lm_value *i) {
  lm_value *back = lm_emit2(b, LM_OP_ADD, i, number(b, 1));
  lm_value *owner = lm_emit2(b, LM_OP_SUB, rank_of(r, b), back);
  lm_value *again = lm_emit2(b, LM_OP_ADD, owner, number(b, r->n));
  return lm_emit_select(b, lm_emit2(b, LM_OP_LT, owner, number(b, 0)), again, owner);
}

static lm_value *shifted(const ring *r, lm_builder *b, lm_value *x) {
  lm_attr by_one = {
      .mesh = (uint8_t)r->p->mesh,
      .imm = {1},
      .n_imm = 1,
  };
  return lm_emit(b, LM_OP_RING_SHIFT, &x, 1, &by_one, NULL);
}

// ---- the loop over the other ranks' blocks

typedef struct carries {
  lm_value *v[LM_RING_BLOCKS * 2 + 4];
  uint32_t n;
} carries;

static void carry(carries *c, lm_value *v) {
  c->v[c->n++] = v;
}

static void blocks_carry(const ring *r, carries *c) {
  for (int i = 0; i < r->n_blocks; i++)
    if (!r->blocks[i].rank)
      carry(c, r->blocks[i].now);
}

// Begins the loop; the blocks that travel are those of the previous rank.
static lm_op *loop_begin(ring *r, const carries *c, carries *next) {
  lm_op *loop = lm_loop_begin(&r->b, r->n - 1, 0, c->v, c->n);
  uint32_t n = 1;
  for (int i = 0; i < r->n_blocks; i++)
    if (!r->blocks[i].rank)
      r->blocks[i].now = shifted(r, &r->b, loop->body->args[n++]);
  *next = (carries){0};
  blocks_carry(r, next);
  return loop;
}

// The results of the steps merged so far: o times l, the maximum of the lse, and the sum of e^(lse
// - m).
typedef struct merge {
  lm_value *o, *m, *l;
} merge;

static merge step_result(lm_builder *b, const lm_op *attend) {
  lm_value *o = lm_emit_cast(b, attend->out[0], LM_F32);
  lm_value *lse = attend->out[1];
  lm_value *least = real(b, MERGE_LEAST);
  lm_value *seen = lm_emit2(b, LM_OP_GT, lse, real(b, MERGE_UNSEEN));
  merge x;
  x.o = lm_emit_select(b, seen, o, real(b, 0));
  x.m = lm_emit_select(b, lm_emit2(b, LM_OP_GT, lse, least), lse, least);
  x.l = lm_emit_const(b, lse->type, 1);
  return x;
}

static merge merged(lm_builder *b, merge x, merge y) {
  lm_value *m = lm_emit_select(b, lm_emit2(b, LM_OP_GT, y.m, x.m), y.m, x.m);
  lm_value *a = lm_emit1(b, LM_OP_EXP, lm_emit2(b, LM_OP_SUB, x.m, m));
  lm_value *c = lm_emit1(b, LM_OP_EXP, lm_emit2(b, LM_OP_SUB, y.m, m));
  lm_value *o = lm_emit2(b, LM_OP_MUL, x.o, a);
  o = lm_emit2(b, LM_OP_ADD, o, lm_emit2(b, LM_OP_MUL, y.o, c));
  lm_value *l = lm_emit2(b, LM_OP_ADD, lm_emit2(b, LM_OP_MUL, x.l, a), c);
  return (merge){
      .o = o,
      .m = m,
      .l = l,
  };
}

static void forward(ring *r) {
  lm_builder *b = &r->b;
  carries c = {0}, next;
  merge x = step_result(b, step_emit(r, b, rank_of(r, b)));
  blocks_carry(r, &c);
  uint32_t k = c.n;
  carry(&c, x.o);
  carry(&c, x.m);
  carry(&c, x.l);
  lm_op *loop = loop_begin(r, &c, &next);
  lm_value **args = loop->body->args + 1 + k;
  lm_value *owner = owner_of(r, b, loop->body->args[0]);
  x = merged(b, (merge){args[0], args[1], args[2]}, step_result(b, step_emit(r, b, owner)));
  carry(&next, x.o);
  carry(&next, x.m);
  carry(&next, x.l);
  lm_loop_end(b, loop, next.v, next.n, NULL, 0);
  lm_value *o = lm_emit2(b, LM_OP_DIV, loop->out[k], loop->out[k + 2]);
  lm_value *log = lm_emit1(b, LM_OP_LOG, loop->out[k + 2]);
  lm_value *lse = lm_emit2(b, LM_OP_ADD, loop->out[k + 1], log);
  lm_idmap_set(&r->p->now, r->op->out[0], lm_emit_cast(b, o, r->op->out[0]->type.dtype));
  lm_idmap_set(&r->p->now, r->op->out[1], lse);
}

// ---- backwards

static bool is_of_keys(const ring *r, const lm_value *result) {
  return lm_type_find(result->type, r->s) >= 0;
}

// A query that sees no key has the weight 1 / size of a block instead of 1 / n of that.
static lm_value *cotangent(ring *r, lm_value *go, lm_value *lse) {
  lm_builder *b = &r->b;
  lm_value *blank = lm_emit2(b, LM_OP_LT, lse, real(b, -1e29));
  lm_value *one = real(b, 1);
  lm_value *share = lm_emit_select(b, blank, real(b, 1.0 / r->n), one);
  lm_value *scaled = lm_emit2(b, LM_OP_MUL, lm_emit_cast(b, go, LM_F32), share);
  return lm_emit_cast(b, scaled, go->type.dtype);
}

static bool backward(ring *r) {
  lm_builder *b = &r->b;
  const lm_op *op = r->op;
  carries c = {0}, next;
  if (op->n_out > LM_RING_BLOCKS)
    return false;
  r->o = lm_attend_has_delta(op) ? op->in[LM_ATTEND_O] : lm_attend_delta(b, op);
  r->go = cotangent(r, op->in[LM_ATTEND_DO], op->in[LM_ATTEND_LSE]);
  const lm_op *first = step_emit(r, b, rank_of(r, b));
  blocks_carry(r, &c);
  uint32_t k = c.n;
  for (uint32_t i = 0; i < op->n_out; i++)
    carry(&c, lm_emit_cast(b, first->out[i], LM_F32));
  lm_op *loop = loop_begin(r, &c, &next);
  lm_value **args = loop->body->args + 1 + k;
  for (uint32_t i = 0; i < op->n_out; i++)
    carry(&next, is_of_keys(r, op->out[i]) ? shifted(r, b, args[i]) : args[i]);
  const lm_op *step = step_emit(r, b, owner_of(r, b, loop->body->args[0]));
  for (uint32_t i = 0; i < op->n_out; i++) {
    lm_value *term = lm_emit_cast(b, step->out[i], LM_F32);
    next.v[k + i] = lm_emit2(b, LM_OP_ADD, next.v[k + i], term);
  }
  lm_loop_end(b, loop, next.v, next.n, NULL, 0);
  for (uint32_t i = 0; i < op->n_out; i++) {
    bool keys = is_of_keys(r, op->out[i]);
    lm_value *sum = keys ? shifted(r, b, loop->out[k + i]) : loop->out[k + i];
    sum = lm_emit_cast(b, sum, op->out[i]->type.dtype);
    lm_idmap_set(keys ? &r->p->parts : &r->p->now, op->out[i], sum);
    if (keys)
      lm_idmap_set(&r->p->leads, op->out[i], sum);
  }
  return true;
}

// ---- the sums of cotangents that the gathers' derivatives scatter

static bool leads(const ring_pass *p, const lm_value *v) {
  return lm_idmap_get(&p->leads, v);
}

static bool is_followed(const lm_op *op) {
  return op->code == LM_OP_RENAME || op->code == LM_OP_PERMUTE || op->code == LM_OP_CAST ||
         op->code == LM_OP_SUM || op->code == LM_OP_ADD;
}

// The rank's part of the sum over the ranks of x.
static lm_value *scattered(const ring *r, lm_builder *b, lm_value *x, const lm_op *scatter) {
  lm_value *in[2], *part = lm_idmap_get(&r->p->parts, x);
  if (part)
    return part;
  if (leads(r->p, x)) {
    for (uint32_t i = 0; i < x->def->n_in; i++)
      in[i] = scattered(r, b, x->def->in[i], scatter);
    return on_parts(r, b, x->def, in);
  }
  lm_axis along = lm_type_find(x->type, r->t) >= 0 ? r->t : r->s;
  lm_attr a = scatter->attr;
  a.axes[0] = along;
  a.to[0] = part_axis(r, along);
  return lm_emit(b, LM_OP_REDUCE_SCATTER, &x, 1, &a, NULL);
}

// The axis of keys of the cotangents that x is made of.
static lm_axis keys_of(const ring_pass *p, const lm_value *x) {
  for (int i = 0; i < x->type.rank; i++)
    if (x->type.axis[i] < p->n_is_keys && p->is_keys[x->type.axis[i]])
      return x->type.axis[i];
  for (uint32_t i = 0; i < x->def->n_in; i++)
    if (leads(p, x->def->in[i]))
      return keys_of(p, x->def->in[i]);
  LM_BUG("no axis of keys");
}

static void refuse(ring_pass *p, const lm_op *op, const char *what) {
  LM_REPORT(p->m->ctx, op->loc, E917, p->m->mesh.axis[p->mesh - 1].name, what);
  p->ok = false;
}

// An operation on the cotangents of keys and values.
static void follow(ring_pass *p, lm_op *op) {
  bool scatters = op->code == LM_OP_REDUCE_SCATTER && op->attr.mesh == p->mesh;
  if (scatters) {
    ring r = {
        .p = p,
        .s = keys_of(p, op->in[0]),
        .t = op->attr.axes[0],
    };
    lm_builder b = {p->m, op->parent, op, op->loc, op->remat};
    lm_idmap_set(&p->now, op->out[0], scattered(&r, &b, op->in[0], op));
  } else if (is_followed(op)) {
    lm_idmap_set(&p->leads, op->out[0], op);
  } else {
    refuse(p, op, "the keys and values are computed after `history`");
  }
}

// ---- the pass

static void visit(ring_pass *p, lm_op *op) {
  const lm_module *m = p->m;
  for (uint32_t i = 0; i < op->n_in; i++)
    if (leads(p, op->in[i])) {
      follow(p, op);
      return;
    }
  bool divided = lm_op_attends(op) && lm_axis_divided_by(m, lm_attend_t(op)) >> (p->mesh - 1) & 1 &&
                 !(lm_axis_divided_by(m, lm_attend_s(op)) >> (p->mesh - 1) & 1);
  ring r;
  if (!divided)
    return;
  bool made = ring_make(p, op, &r);
  if (made && op->code == LM_OP_ATTEND)
    forward(&r);
  else if (made)
    made = backward(&r);
  if (made)
    p->is_keys[r.s] = p->found = true;
  else
    refuse(p, op, "it has too many operands");
}

static void region_visit(ring_pass *p, lm_region *region) {
  for (lm_op *op = region->first, *next; op && p->ok; op = next) {
    next = op->next;
    for (uint32_t i = 0; i < op->n_in; i++) {
      lm_value *to = lm_idmap_get(&p->now, op->in[i]);
      op->in[i] = to ? to : op->in[i];
    }
    if (op->body && !lm_op_isolated(op))
      region_visit(p, op->body);
    visit(p, op);
  }
}

static bool axis_run(lm_module *m, int mesh) {
  ring_pass p = {
      .m = m,
      .mesh = mesh,
      .n_is_keys = m->n_axes,
      .ok = true,
  };
  p.is_keys = lm_calloc((size_t)m->n_axes + 1, 1);
  for (lm_func *f = m->funcs; f && p.ok; f = f->next)
    region_visit(&p, f->body);
  const lm_func *loss = lm_func_get(m, LM_FUNC_MICRO, 0);
  if (p.ok && loss && !p.found) {
    LM_REPORT(m->ctx, m->mesh.axis[mesh - 1].loc, E918, m->mesh.axis[mesh - 1].name);
    p.ok = false;
  }
  lm_idmap_free(&p.now);
  lm_idmap_free(&p.parts);
  lm_idmap_free(&p.leads);
  lm_free(p.is_keys);
  return p.ok;
}

bool lm_pass_ring(lm_module *m, const lm_pass_env *env) {
  bool ok = true;
  for (int k = 1; k <= m->mesh.n && ok; k++)
    if (m->mesh.axis[k - 1].ring && m->mesh.axis[k - 1].size > 1)
      ok = axis_run(m, k);
  return ok;
}
