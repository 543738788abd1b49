// chunk_decay.c - the decays of pass chunk_scan.
//
// They are computed by multiplication, without logarithms and divisions: none is larger than the
// factors of the recurrence, and a = 0 at the first position of a document is exact. A scan over
// the positions of a chunk computes them, h = a * h. The decay from j to i is 1 at the position j.
//
// Where reads round the state, a = exp(z), or 0 at some positions, has decays
//   exp(sum of z from j + 1 to i), or 0 if one of these positions has a = 0
// of two running sums, over z and over the positions with a = 0. The decays from j to i are then
// computed where they are used and are never stored. Each addition rounds a running sum by 2^-24 of
// it, about 1e-5 in all where a chunk decays to e^-8: less than the rounding of GEMMs, but not less
// than that of f32. Of z below -110, such as the -1e30 or -inf of a mask, exp(z) = 0 in f32. It
// counts as -110, so that the differences behind it remain.
#include "compiler/passes/chunk/chunk.h"
#include "compiler/passes/rewrite.h"

static bool is_read(const lm_chunk *c, bool inclusive) {
  for (int i = 0; i < c->n_reads; i++)
    if (c->read[i].inclusive == inclusive)
      return true;
  return false;
}

// ---- by multiplication

// A scan over the positions of a chunk, h = a * h, which begins with 1. With `from_j`, h has axis
// j, begins with 0, and becomes 1 at the position j: the decay from j to each later position.
static void decay(lm_chunked *x, lm_value *a, bool from_j, lm_value **now, lm_value **before,
                  lm_value **last) {
  lm_builder b = *x->b;
  lm_value *index = lm_chunk_positions(x, x->i);
  lm_type t = lm_type_make(LM_F32, a->type.axis + 1, a->type.rank - 1);
  if (from_j)
    t.axis[t.rank++] = x->j;
  lm_value *start = lm_emit_const(&b, t, !from_j);
  lm_op *scan = lm_scan_begin(&b, x->i, false, &start, 1);
  lm_value *factor = lm_scan_slice(b.m, scan, a);
  lm_value *position = from_j ? lm_scan_slice(b.m, scan, index) : NULL;
  lm_value *h = scan->body->args[0];
  lm_value *next = lm_emit2(&b, LM_OP_MUL, h, factor);
  if (from_j)
    next = lm_emit2(&b, LM_OP_ADD, next, lm_chunk_unit(&b, x->j, position));
  bool inclusive = is_read(x->of, true);
  lm_value *stacked[] = {inclusive ? next : h, h};
  lm_scan_end(&b, scan, &next, stacked, 1 + (inclusive && is_read(x->of, false)));
  *last = scan->out[0];
  *now = scan->out[1];
  *before = scan->out[scan->n_out - 1];
}

// The decay behind each position to the end of the chunk, at j.
static lm_value *decay_rest(lm_chunked *x, lm_value *a) {
  lm_builder b = *x->b;
  lm_value *start = lm_emit_const(&b, lm_type_make(LM_F32, a->type.axis + 1, a->type.rank - 1), 1);
  lm_op *scan = lm_scan_begin(&b, x->i, true, &start, 1);
  lm_value *h = scan->body->args[0];
  lm_value *next = lm_emit2(&b, LM_OP_MUL, h, lm_scan_slice(b.m, scan, a));
  lm_scan_end(&b, scan, &next, &h, 1);
  return lm_chunk_at_j(x, scan->out[1]);
}

// ---- by exponentials of sums

enum {
  LEAST = -110
};
static void put(lm_chunked *x, lm_opcode code, lm_value **to, lm_value *v) {
  *to = *to ? lm_chunk_emit2(x->b, code, *to, v) : v;
}

static bool exponent_of(lm_chunked *x, const lm_value *v, int depth, lm_chunk_exponent *e) {
  const lm_op *op = v->def;
  double c;
  if (lm_const_of(v, &c))
    return c == 1;
  if (!op || !depth)
    return false;
  switch (op->code) {
  case LM_OP_EXP: put(x, LM_OP_ADD, &e->z, op->in[0]); return true;
  case LM_OP_MUL:
    return exponent_of(x, op->in[0], depth - 1, e) && exponent_of(x, op->in[1], depth - 1, e);
  case LM_OP_EXPAND:
  case LM_OP_PERMUTE: return exponent_of(x, op->in[0], depth - 1, e);
  case LM_OP_SELECT:
    put(x, LM_OP_AND, &e->kept, op->in[0]);
    return lm_const_of(op->in[2], &c) && c == 0 && exponent_of(x, op->in[1], depth - 1, e);
  default: return false;
  }
}

bool lm_chunk_exponent_of(lm_chunked *x, const lm_value *a, lm_chunk_exponent *out) {
  return exponent_of(x, a, LM_CHUNK_DEPTH, out) && out->z;
}

static lm_value *number(lm_chunked *x, double v) {
  return lm_emit_const(x->b, lm_type_make(LM_F32, NULL, 0), v);
}

lm_value *lm_chunk_where(lm_chunked *x, lm_value *condition) {
  lm_value *zero = number(x, 0);
  return lm_emit_select(x->b, condition, number(x, 1), zero);
}

lm_value *lm_chunk_number_of_zeros(lm_chunked *x, lm_value *kept) {
  lm_value *one = number(x, 1);
  return lm_emit_select(x->b, kept, number(x, 0), one);
}

lm_value *lm_chunk_running_sum(lm_chunked *x, lm_value *v) {
  lm_builder b = *x->b;
  v = lm_chunk_rows(x, v);
  lm_value *start = lm_emit_const(&b, lm_type_make(LM_F32, v->type.axis + 1, v->type.rank - 1), 0);
  lm_op *scan = lm_scan_begin(&b, x->i, false, &start, 1);
  lm_value *next = lm_emit2(&b, LM_OP_ADD, scan->body->args[0], lm_scan_slice(b.m, scan, v));
  lm_scan_end(&b, scan, &next, &next, 1);
  return scan->out[1];
}

// v where the condition holds, else a number whose exponential is 0.
static lm_value *where(lm_chunked *x, lm_value *condition, lm_value *v) {
  lm_value *low = number(x, -1e30);
  lm_value *term = lm_emit_select(x->b, condition, number(x, 0), low);
  return lm_chunk_emit2(x->b, LM_OP_ADD, v, term);
}

// Running sums s of v, less those through each j. inclusive: through i, else the one before it.
static lm_value *between(lm_chunked *x, lm_opcode less, lm_value *s, lm_value *v, bool inclusive) {
  lm_value *at_j = lm_chunk_at_j(x, s);
  if (!inclusive)
    s = lm_chunk_emit2(x->b, LM_OP_SUB, s, lm_chunk_rows(x, v));
  return lm_chunk_emit2(x->b, less, s, at_j);
}

static lm_value *bounded(lm_chunked *x, lm_value *z) {
  lm_value *least = number(x, LEAST);
  return lm_emit_select(x->b, lm_emit2(x->b, LM_OP_LT, z, least), least, z);
}

// z, 1 at positions with a = 0 (NULL: there are none), and their sums through each position.
typedef struct running {
  lm_value *z, *zeros;
  lm_value *sum_z, *sum_zeros;
} running;

static void decay_by_sums(lm_chunked *x, const running *s, bool inclusive) {
  lm_value *z = between(x, LM_OP_SUB, s->sum_z, s->z, inclusive);
  lm_value *i = lm_chunk_positions(x, x->i);
  lm_value *j = lm_chunk_positions(x, x->j);
  lm_value *known = lm_chunk_emit2(x->b, inclusive ? LM_OP_GE : LM_OP_GT, i, j);
  if (s->zeros) {
    lm_value *kept = between(x, LM_OP_EQ, s->sum_zeros, s->zeros, inclusive);
    known = lm_chunk_emit2(x->b, LM_OP_AND, kept, known);
  }
  lm_value *decay = lm_emit1(x->b, LM_OP_EXP, where(x, known, z));
  decay = lm_emit1(x->b, LM_OP_STOP, decay);
  *(inclusive ? &x->to_now : &x->to_before) = decay;
  lm_value *one = lm_emit_const(x->b, z->type, 1);
  x->one[inclusive] = lm_emit2(x->b, LM_OP_STRAIGHT, one, z);
}

static void decays_by_sums(lm_chunked *x, const lm_chunk_exponent *e) {
  running s = {0};
  s.z = bounded(x, e->z);
  s.zeros = e->kept ? lm_chunk_number_of_zeros(x, e->kept) : NULL;
  s.sum_z = lm_chunk_running_sum(x, s.z);
  s.sum_zeros = s.zeros ? lm_chunk_running_sum(x, s.zeros) : NULL;
  for (int inclusive = 0; inclusive < 2; inclusive++)
    if (is_read(x->of, inclusive))
      decay_by_sums(x, &s, inclusive);
}

void lm_chunk_decays(lm_chunked *x) {
  lm_chunk_exponent e = {0};
  lm_value *a = lm_chunk_rows(x, x->of->a);
  bool rounds = x->of->dtype != LM_F32 && !x->of->keyed;
  bool sums = rounds && lm_chunk_exponent_of(x, x->of->a, &e);
  if (sums)
    decays_by_sums(x, &e);
  if (sums || x->of->keyed)
    x->rest = decay_rest(x, a);
  else
    decay(x, a, true, &x->to_now, &x->to_before, &x->rest);
  decay(x, a, false, &x->now, &x->before, &x->whole);
}
