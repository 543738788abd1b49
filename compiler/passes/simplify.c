// simplify.c - algebraic simplification, constant folding, elimination of redundant data movement.
//
// before: %c = const 2 : f32   %d = const 3 : f32   %e = add %c, %d
//         %n = neg %x   %y = sub %a, %n   %z = mul %y, %one
// after:  %e = const 5 : f32   %y = add %a, %x
//
// Rules match an operation and the operations that define its operands, and run to a fixed point
// (at most ROUNDS times). They preserve the bits of finite results except for the sign of zero,
// with these exceptions: a sum over broadcast elements becomes a multiplication, constants fold in
// float64, and a dot may sum its terms in another order. Declines: x * 0 (NaN), x / c if c is not a
// power of two. Cost: a few linear walks. Dead operations are left to dce.
#include "compiler/passes/simplify.h"
#include <math.h>
#include "compiler/eval/eval.h"
#include "compiler/ir/internal.h"
#include "compiler/ops/interface.h"
#include "compiler/passes/pass.h"

enum {
  ROUNDS = 10
};

static bool is_const(const lm_value *v, double x) {
  double c;
  return lm_const_of(v, &c) && c == x;
}

// ---- constants

static lm_value *fold(lm_rewrite *r, lm_op *op) {
  double in[3];
  if (!(lm_op_info_of(op)->traits & LM_T_ELEMENTWISE) || !op->n_in || op->n_in > 3)
    return NULL;
  for (uint32_t i = 0; i < op->n_in; i++)
    if (!lm_const_of(op->in[i], &in[i]))
      return NULL;
  return lm_emit_const(&r->b, op->out[0]->type, lm_eval_scalar(op, in));
}

// ---- arithmetic

static bool power_of_two(double c) {
  int e;
  return isfinite(c) && fabs(frexp(c, &e)) == 0.5 && e > -100 && e < 100;
}

static lm_value *pow_const(lm_rewrite *r, lm_value *x, double n) {
  if (n == 2)
    return lm_emit2(&r->b, LM_OP_MUL, x, x);
  if (n == 0.5)
    return lm_emit1(&r->b, LM_OP_SQRT, x);
  if (n == -0.5)
    return lm_emit1(&r->b, LM_OP_RSQRT, x);
  return NULL;
}

static lm_value *times(lm_rewrite *r, lm_value *x, double c) {
  return lm_emit2(&r->b, LM_OP_MUL, x,
                  lm_emit_const(&r->b, lm_type_make(x->type.dtype, NULL, 0), c));
}

// Simplifies x op c, where c is the right operand. The result may lack axes of the operation's.
static lm_value *right_const(lm_rewrite *r, lm_op *op, lm_value *x, double c) {
  double c2;
  switch (op->code) {
  case LM_OP_ADD:
  case LM_OP_SUB: return c == 0 ? x : NULL;
  case LM_OP_MUL:
    if (c == -1)
      return lm_emit1(&r->b, LM_OP_NEG, x);
    if (lm_op_is(x, LM_OP_NEG))
      return times(r, x->def->in[0], -c);
    if (lm_op_is(x, LM_OP_MUL) && lm_const_of(x->def->in[1], &c2) &&
        (power_of_two(c) || power_of_two(c2)) && lm_dtype_is_float(x->type.dtype) &&
        lm_type_equal(x->type, x->def->in[0]->type))
      return times(r, x->def->in[0], c * c2);
    return c == 1 ? x : NULL;
  case LM_OP_DIV:
    if (c == 1)
      return x;
    return power_of_two(c) ? times(r, x, 1 / c) : NULL;
  case LM_OP_POW: return c == 1 ? x : pow_const(r, x, c);
  case LM_OP_AND: return c ? x : op->in[1];
  case LM_OP_OR: return c ? op->in[1] : x;
  default: return NULL;
  }
}

// Moves signs outwards, where additions absorb them: -x * y is -(x * y), a + -b is a - b.
static lm_value *signs(lm_rewrite *r, lm_op *op, lm_value *x, lm_value *y) {
  if (op->code == LM_OP_ADD && lm_op_is(y, LM_OP_NEG))
    return lm_emit2(&r->b, LM_OP_SUB, x, y->def->in[0]);
  if (op->code == LM_OP_SUB && lm_op_is(y, LM_OP_NEG))
    return lm_emit2(&r->b, LM_OP_ADD, x, y->def->in[0]);
  if (op->code == LM_OP_SUB && is_const(x, 0))
    return lm_emit1(&r->b, LM_OP_NEG, y);
  if (op->code != LM_OP_MUL && op->code != LM_OP_DIV)
    return NULL;
  if (lm_op_is(x, LM_OP_NEG))
    return lm_emit1(&r->b, LM_OP_NEG, lm_emit2(&r->b, op->code, x->def->in[0], y));
  if (lm_op_is(y, LM_OP_NEG))
    return lm_emit1(&r->b, LM_OP_NEG, lm_emit2(&r->b, op->code, x, y->def->in[0]));
  return NULL;
}

static lm_value *arithmetic(lm_rewrite *r, lm_op *op) {
  double c;
  lm_value *x = op->in[0];
  lm_value *y = op->in[1];
  lm_value *z = NULL;
  if (lm_const_of(y, &c))
    z = right_const(r, op, x, c);
  else if (lm_const_of(x, &c) && lm_op_info_of(op)->traits & LM_T_COMMUTE) {
    op->in[0] = y; // constants to the right, where the type allows it
    op->in[1] = x;
    if (lm_type_equal(y->type, op->out[0]->type))
      z = right_const(r, op, y, c);
    else {
      op->in[0] = x;
      op->in[1] = y;
    }
  } else
    z = signs(r, op, x, y);
  return z && lm_type_subset(z->type, op->out[0]->type) ? lm_cast_to(r, z, op->out[0]->type) : NULL;
}

static lm_value *negation(lm_rewrite *r, lm_op *op) {
  lm_op *def = op->in[0]->def;
  double c;
  if (!def)
    return NULL;
  if (def->code == op->code)
    return def->in[0];
  if (def->code == LM_OP_SUB && op->code == LM_OP_NEG &&
      lm_type_equal(def->in[1]->type, op->out[0]->type))
    return lm_emit2(&r->b, LM_OP_SUB, def->in[1], def->in[0]);
  if (def->code == LM_OP_MUL && op->code == LM_OP_NEG && lm_const_of(def->in[1], &c) &&
      !def->in[1]->type.rank)
    return times(r, def->in[0], -c);
  return NULL;
}

static lm_value *comparison(lm_rewrite *r, lm_op *op) {
  if (op->in[0] != op->in[1] || lm_dtype_is_float(op->in[0]->type.dtype))
    return NULL;
  return lm_emit_const(&r->b, op->out[0]->type,
                       op->code == LM_OP_EQ || op->code == LM_OP_LE || op->code == LM_OP_GE);
}

static lm_value *selection(lm_rewrite *r, lm_op *op) {
  double c;
  lm_value *to = op->in[1] == op->in[2] ? op->in[1] : NULL;
  if (lm_const_of(op->in[0], &c))
    to = op->in[c ? 1 : 2];
  return to ? lm_cast_to(r, to, op->out[0]->type) : NULL;
}

// True if every value of dtype a is a value of dtype b.
static bool embeds(lm_dtype a, lm_dtype b) {
  if (a == b || a == LM_BOOL)
    return true;
  if (lm_dtype_is_half(a) || lm_dtype_is_code(a))
    return b == LM_F32 || b == LM_F64 || (b == LM_INT && (a == LM_I8 || a == LM_U8));
  return b == LM_F64 && (a == LM_F32 || a == LM_INT);
}

// x as an integer of at most 30 bits, if it is a number or an index in f64; else NULL.
static lm_value *as_index(lm_rewrite *r, lm_value *x) {
  double max = 1 << 30, c;
  if (lm_const_of(x, &c))
    return c == floor(c) && fabs(c) <= max ? lm_emit_const(&r->b, lm_type_make(LM_INT, NULL, 0), c)
                                           : NULL;
  if (!lm_op_is(x, LM_OP_CAST) || !lm_op_is(x->def->in[0], LM_OP_IOTA))
    return NULL;
  return (double)lm_type_elements(r->b.m, x->type) <= max ? x->def->in[0] : NULL;
}

// cast (c - cast i : f64) : int = c - i: a sum or difference of indices and whole numbers.
static lm_value *index_arithmetic(lm_rewrite *r, const lm_op *op) {
  const lm_value *x = op->in[0];
  bool adds = lm_op_is(x, LM_OP_ADD) || lm_op_is(x, LM_OP_SUB);
  if (!adds || x->type.dtype != LM_F64 || op->out[0]->type.dtype != LM_INT)
    return NULL;
  lm_value *a = as_index(r, x->def->in[0]);
  lm_value *b = a ? as_index(r, x->def->in[1]) : NULL;
  return b ? lm_emit2(&r->b, x->def->code, a, b) : NULL;
}

static bool reorders(const lm_value *v) {
  return lm_op_is(v, LM_OP_PERMUTE) || lm_op_is(v, LM_OP_VIEW) || lm_op_is(v, LM_OP_RENAME);
}

// v with its elements in dtype t, which they have before a cast; NULL if they have not.
static lm_value *before_cast(lm_rewrite *r, lm_value *v, lm_dtype t) {
  if (lm_op_is(v, LM_OP_CAST))
    return v->def->in[0]->type.dtype == t ? v->def->in[0] : NULL;
  lm_value *x = reorders(v) ? before_cast(r, v->def->in[0], t) : NULL;
  lm_type to = v->type;
  to.dtype = (uint8_t)t;
  return x ? lm_emit(&r->b, v->def->code, &x, 1, &v->def->attr, &to) : NULL;
}

static lm_value *casting(lm_rewrite *r, lm_op *op) {
  lm_value *x = op->in[0];
  if (lm_type_equal(x->type, op->out[0]->type))
    return x;
  lm_dtype t = (lm_dtype)op->out[0]->type.dtype;
  if (reorders(x) && embeds(t, (lm_dtype)x->type.dtype)) {
    lm_value *same = before_cast(r, x, t);
    if (same)
      return same;
  }
  lm_value *index = index_arithmetic(r, op);
  if (index)
    return index;
  if (!lm_op_is(x, LM_OP_CAST) || !embeds(x->def->in[0]->type.dtype, x->type.dtype))
    return NULL;
  return lm_emit_cast(&r->b, x->def->in[0], op->out[0]->type.dtype);
}

// unrounded x = cast x, if no kernel computes x: then x is only known as rounded.
static lm_value *unrounded(lm_rewrite *r, const lm_op *op) {
  const lm_value *x = op->in[0];
  while (x->def && lm_op_has(x->def, LM_T_MOVE) && x->def->n_in == 1)
    x = x->def->in[0];
  bool computed = x->def && lm_op_recompute_class(x->def) != LM_RECOMPUTE_UNFUSED;
  return computed ? NULL : lm_emit_cast(&r->b, op->in[0], LM_F32);
}

// True if the types are equal except for their dtypes.
static bool shapes_equal(lm_type a, lm_type b) {
  a.dtype = b.dtype;
  return lm_type_equal(a, b);
}

// f(expand x, expand y, number) becomes expand f(x, y, number).
static lm_value *before_expand(lm_rewrite *r, lm_op *op) {
  lm_value *in[3];
  lm_value *first = NULL;
  lm_type t = op->out[0]->type;
  if (op->n_in > 3 || op->code == LM_OP_EXPAND)
    return NULL;
  for (uint32_t i = 0; i < op->n_in; i++) {
    in[i] = op->in[i];
    if (!in[i]->type.rank)
      continue;
    if (!lm_op_is(in[i], LM_OP_EXPAND) || !shapes_equal(in[i]->type, t))
      return NULL;
    in[i] = in[i]->def->in[0];
    if (!first)
      first = in[i];
    if (!shapes_equal(first->type, in[i]->type))
      return NULL;
  }
  if (!first)
    return NULL;
  lm_type narrow = first->type;
  narrow.dtype = t.dtype;
  return lm_emit_expand(&r->b, lm_emit(&r->b, op->code, in, op->n_in, &op->attr, &narrow), t);
}

static lm_value *simplify_rule(lm_rewrite *r, lm_op *op) {
  lm_value *z = fold(r, op);
  if (z)
    return z;
  switch (op->code) {
  case LM_OP_ADD:
  case LM_OP_SUB:
  case LM_OP_MUL:
  case LM_OP_DIV:
  case LM_OP_POW:
  case LM_OP_AND:
  case LM_OP_OR: z = arithmetic(r, op); break;
  case LM_OP_NEG:
  case LM_OP_NOT: z = negation(r, op); break;
  case LM_OP_EQ:
  case LM_OP_NE:
  case LM_OP_LT:
  case LM_OP_LE:
  case LM_OP_GT:
  case LM_OP_GE: z = comparison(r, op); break;
  case LM_OP_SELECT: z = selection(r, op); break;
  case LM_OP_CAST: z = casting(r, op); break;
  case LM_OP_UNROUNDED: z = unrounded(r, op); break;
  case LM_OP_SUM:
  case LM_OP_MAX:
  case LM_OP_DOT: return lm_simplify_reduce(r, op);
  default: z = lm_simplify_move(r, op); break;
  }
  if (!z && lm_op_info_of(op)->traits & LM_T_ELEMENTWISE && op->n_in)
    z = before_expand(r, op);
  if (!z && lm_op_info_of(op)->traits & LM_T_ELEMENTWISE)
    lm_operands_skip(r, op, LM_OP_EXPAND);
  return z;
}

// Marks concatenations that dots read: they are stored, so a slice of one is a view
// (lm_simplify_move).
static void mark_multiplied(lm_op *op, void *user) {
  op->mark = 0;
  for (uint32_t i = 0; op->code == LM_OP_DOT && i < op->n_in; i++)
    if (lm_op_is(op->in[i], LM_OP_CONCAT))
      op->in[i]->def->mark = LM_MULTIPLIED;
}

bool lm_pass_simplify(lm_module *m, const lm_pass_env *env) {
  for (lm_func *f = m->funcs; f; f = f->next) {
    lm_region_walk(f->body, mark_multiplied, NULL);
    for (int i = 0; i < ROUNDS && lm_rewrite_func(f, simplify_rule, NULL); i++)
      continue;
  }
  return true;
}
