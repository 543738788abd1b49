// causal_mask.c - proofs about masks for every position, where causal_cells.c knows the positions
// of one row.
//
// A mask is a formula of comparisons of positions and documents. For a reduction over the history,
//   hidden: seg_t != seg_s | pos_s > pos_t & !(prompt_t == 1 & prompt_s == 1)
// has to imply that the operand is 0 at (t, s), or for a maximum that it is a masked score:
//   %m = and %a, %b                       pos_t >= pos_s & seg_t == seg_s
//   %x = select %m, %scores, -1e30        masked if !m
//   %e = exp(%x - %max)                   0 if !m
//   %d = dot %e, %v over(s)               proved: hidden & m has no solution
// Conditions that are no comparison of sums of positions and constants may be true or false. A mask
// without a proof has been checked at the positions of the row.
#include "compiler/passes/causal/causal.h"
#include "compiler/ops/interface.h"
#include "compiler/passes/causal/causal_prover.h"
#include "compiler/passes/rewrite.h"

#include <math.h>

enum {
  MAX_VISITS = 2000, // of operations, for one reduction
};
// Positions are below 2^29, so that no sum of two and a constant wraps around.
static const double LARGEST = 1 << 29;
// Scores up to LEAST_MASK are masked, since unknown values are smaller than LM_LARGE. A maximum of
// visible scores is proved to be above VISIBLE.
static const double LEAST_MASK = -10 * LM_LARGE, VISIBLE = -1000 * LM_LARGE;

// ---- numbers

static bool is_small(const lm_linear *x) {
  bool small = fabs((double)x->c) < LARGEST;
  for (int i = 0; i < LM_TERMS_MAX; i++)
    small &= x->at[i] >= -1 && x->at[i] <= 1;
  return small;
}

static bool is_along(const prover *x, const lm_value *v) {
  for (int i = 0; i < v->type.rank; i++) {
    lm_axis a = v->type.axis[i];
    if ((x->p->is_position[a] && a != x->t) || (x->p->is_history[a] && a != x->s))
      return false;
  }
  return true;
}

bool lm_prover_visit(prover *x, const lm_value *v) {
  return x->visits++ < MAX_VISITS && is_along(x, v);
}

// The column of an argument at position t, or at s of the history.
static bool column_linear(const prover *x, const lm_value *v, bool at_s, lm_linear *out) {
  const lm_func *f = v->region->func;
  if (v->region != f->body || !v->name)
    return false;
  at_s &= !x->itself;
  if (lm_is_prompt(v)) {
    *out = lm_linear_term(at_s ? LM_PROMPT_S : LM_PROMPT_T);
    return true;
  }
  switch (lm_column_find(v->name)) {
  case LM_COLUMN_POS: *out = lm_linear_term(at_s ? LM_POS_S : LM_POS_T); return true;
  case LM_COLUMN_SEG: *out = lm_linear_term(at_s ? LM_SEG_S : LM_SEG_T); return true;
  default: return false;
  }
}

static bool linear(prover *x, const lm_value *v, bool at_s, lm_linear *out);

// Equal quotients are the same term.
static bool quotient_linear(prover *x, const quotient *q, lm_linear *out) {
  int i = 0;
  while (i < x->n_quotients &&
         !(x->quotients[i].code == q->code && lm_linear_equal(&x->quotients[i].x, &q->x) &&
           lm_linear_equal(&x->quotients[i].by, &q->by)))
    i++;
  if (LM_TERMS_BASE + i == LM_TERMS_MAX)
    return false;
  if (i == x->n_quotients)
    x->quotients[x->n_quotients++] = *q;
  *out = lm_linear_term(LM_TERMS_BASE + i);
  return true;
}

static bool binary_linear(prover *x, const lm_op *op, bool at_s, lm_linear *out) {
  lm_linear a;
  lm_linear b;
  if (!linear(x, op->in[0], at_s, &a))
    return false;
  if (!linear(x, op->in[1], at_s, &b))
    return false;
  if (op->code == LM_OP_IDIV || op->code == LM_OP_MOD)
    return quotient_linear(x, &(quotient){op->code, a, b}, out);
  *out = lm_linear_add(&a, &b, op->code == LM_OP_ADD ? 1 : -1);
  return is_small(out);
}

// An int as a sum of terms. at_s: behind a `history`.
static bool linear(prover *x, const lm_value *v, bool at_s, lm_linear *out) {
  const lm_op *op = v->def;
  if (!lm_prover_visit(x, v) || v->type.dtype != LM_INT)
    return false;
  if (!op)
    return column_linear(x, v, at_s, out);
  switch (op->code) {
  case LM_OP_CONST: *out = (lm_linear){.c = (int64_t)op->attr.num}; return is_small(out);
  case LM_OP_EXPAND:
  case LM_OP_PERMUTE: return linear(x, op->in[0], at_s, out);
  case LM_OP_HISTORY: return !at_s && linear(x, op->in[0], true, out);
  case LM_OP_APPEND: return !at_s && linear(x, op->in[op->n_in - 1], true, out);
  case LM_OP_ADD:
  case LM_OP_SUB:
  case LM_OP_IDIV:
  case LM_OP_MOD: return binary_linear(x, op, at_s, out);
  default: return false;
  }
}

// ---- conditions

// The quotient that is the only term of x; NULL: there is none.
static const quotient *quotient_of(const prover *x, const lm_linear *l) {
  for (int i = 0; i < x->n_quotients; i++) {
    lm_linear term = lm_linear_term(LM_TERMS_BASE + i);
    if (x->quotients[i].code == LM_OP_IDIV && lm_linear_equal(&term, l))
      return &x->quotients[i];
  }
  return NULL;
}

// A consequence of l == r: idiv(y, c) == idiv(z, c) implies -c < y - z < c.
static const lm_formula *implied(const prover *x, const lm_linear *l, const lm_linear *r) {
  const quotient *a = quotient_of(x, l);
  const quotient *b = quotient_of(x, r);
  lm_linear by = {.c = a ? a->by.c : 0};
  lm_linear less = {.c = by.c - 1};
  if (!a || !b || by.c < 1)
    return lm_formula_constant(true);
  if (!lm_linear_equal(&a->by, &by) || !lm_linear_equal(&b->by, &by))
    return lm_formula_constant(true);
  lm_linear up = lm_linear_add(&less, &b->x, 1);
  lm_linear down = lm_linear_add(&less, &a->x, 1);
  up = lm_linear_add(&up, &a->x, -1);
  down = lm_linear_add(&down, &b->x, -1);
  lm_arena *arena = x->p->a;
  const lm_formula *above = lm_formula_atom(arena, &up);
  return lm_formula_and(arena, above, lm_formula_atom(arena, &down));
}

// `unknown` replaces conditions of which nothing is known, and their negations.
static const lm_formula *condition(prover *x, const lm_value *v, bool negated, bool unknown);

static const lm_formula *comparison(prover *x, const lm_op *op, bool negated, bool unknown) {
  lm_arena *a = x->p->a;
  lm_linear l;
  lm_linear r;
  if (!linear(x, op->in[0], false, &l))
    return lm_formula_constant(unknown);
  if (!linear(x, op->in[1], false, &r))
    return lm_formula_constant(unknown);
  lm_linear least = {.c = op->code == LM_OP_LT || op->code == LM_OP_GT};
  bool swapped = op->code == LM_OP_LE || op->code == LM_OP_LT;
  lm_linear x0 = swapped ? lm_linear_add(&r, &l, -1) : lm_linear_add(&l, &r, -1);
  x0 = lm_linear_add(&x0, &least, -1);
  bool equality = op->code == LM_OP_EQ || op->code == LM_OP_NE;
  const lm_formula *f = equality ? lm_formula_and(a, lm_formula_zero(a, &x0), implied(x, &l, &r))
                                 : lm_formula_atom(a, &x0);
  return negated != (op->code == LM_OP_NE) ? lm_formula_not(a, f) : f;
}

// c ? y : z
static const lm_formula *chosen(prover *x, const lm_value *c, bool unknown, const lm_formula *y,
                                const lm_formula *z) {
  lm_arena *a = x->p->a;
  const lm_formula *yes = lm_formula_and(a, condition(x, c, false, unknown), y);
  return lm_formula_or(a, yes, lm_formula_and(a, condition(x, c, true, unknown), z));
}

static const lm_formula *condition(prover *x, const lm_value *v, bool negated, bool unknown) {
  const lm_op *op = v->def;
  const lm_formula *y;
  const lm_formula *z;
  if (!lm_prover_visit(x, v) || !op)
    return lm_formula_constant(unknown);
  switch (op->code) {
  case LM_OP_CONST: return lm_formula_constant((op->attr.num != 0) != negated);
  case LM_OP_EXPAND:
  case LM_OP_PERMUTE: return condition(x, op->in[0], negated, unknown);
  case LM_OP_NOT: return condition(x, op->in[0], !negated, unknown);
  case LM_OP_AND:
  case LM_OP_OR:
    y = condition(x, op->in[0], negated, unknown);
    z = condition(x, op->in[1], negated, unknown);
    if ((op->code == LM_OP_AND) != negated)
      return lm_formula_and(x->p->a, y, z);
    return lm_formula_or(x->p->a, y, z);
  case LM_OP_SELECT:
    y = condition(x, op->in[1], negated, unknown);
    z = condition(x, op->in[2], negated, unknown);
    return chosen(x, op->in[0], unknown, y, z);
  case LM_OP_EQ:
  case LM_OP_NE:
  case LM_OP_LT:
  case LM_OP_LE:
  case LM_OP_GT:
  case LM_OP_GE: return comparison(x, op, negated, unknown);
  default: return lm_formula_constant(unknown);
  }
}

// ---- values that a mask determines

static bool is_over_others(const prover *x, const lm_op *op) {
  return !lm_probe_over(op, x->p->is_position) && !lm_probe_over(op, x->p->is_history);
}

static bool is_float(const lm_value *v) {
  return lm_dtype_is_float((lm_dtype)v->type.dtype);
}

bool lm_prover_keeps(const prover *x, const lm_op *op) {
  switch (op->code) {
  case LM_OP_EXPAND:
  case LM_OP_PERMUTE:
  case LM_OP_STOP: return true;
  case LM_OP_CAST: return is_float(op->in[0]) && is_float(op->out[0]);
  case LM_OP_RENAME:
  case LM_OP_VIEW:
  case LM_OP_SLICE: return is_over_others(x, op);
  default: return false;
  }
}

// A bound of the absolute value at every position. An unknown value is smaller than LM_LARGE, but
// constants are added to it, or selected instead of it.
static double bound(prover *x, const lm_value *v) {
  const lm_op *op = v->def;
  const sketch *known = &x->p->sketches[v->id];
  double unknown = known->unknown ? LM_LARGE : INFINITY;
  if (v->type.dtype == LM_BOOL)
    return 1;
  if (v->type.dtype == LM_INT)
    return -(double)INT32_MIN;
  if (known->most < INFINITY)
    return known->most;
  if (!lm_prover_visit(x, v) || !op)
    return unknown;
  if (lm_prover_keeps(x, op) || op->code == LM_OP_CAST || op->code == LM_OP_NEG)
    return bound(x, op->in[0]);
  switch (op->code) {
  case LM_OP_ADD:
  case LM_OP_SUB: return bound(x, op->in[0]) + bound(x, op->in[1]);
  case LM_OP_SELECT: return fmax(bound(x, op->in[1]), bound(x, op->in[2]));
  case LM_OP_MUL: return known->unknown ? LM_LARGE : bound(x, op->in[0]) * bound(x, op->in[1]);
  default: return unknown;
  }
}

static const lm_formula *masked(prover *x, const lm_value *v, bool at_most);

// The constant that multiplies op->in[which]; 0: it is none.
static double factor_of(const lm_op *op, int which) {
  const lm_value *v = op->in[1 - which];
  while (lm_op_is(v, LM_OP_EXPAND) || lm_op_is(v, LM_OP_CAST))
    v = v->def->in[0];
  if (!lm_op_is(v, LM_OP_CONST) || (op->code == LM_OP_DIV && which == 1))
    return 0;
  return op->code == LM_OP_DIV ? 1 / v->def->attr.num : v->def->attr.num;
}

static bool may_cancel(prover *x, const lm_value *v, int sign);

static bool product_may_cancel(prover *x, const lm_op *op, int sign) {
  bool scales = op->code == LM_OP_MUL || op->code == LM_OP_DIV, unknown = false;
  for (uint32_t i = 0; i < op->n_in; i++) {
    double by = scales ? factor_of(op, (int)i) : 0;
    if (by != 0 && fabs(by) <= 1)
      return may_cancel(x, op->in[i], by > 0 ? sign : -sign);
    unknown |= x->p->sketches[op->in[i]->id].unknown;
  }
  return !unknown && bound(x, op->out[0]) >= LM_LARGE;
}

// True if v times `sign` may hold a constant that cancels a masked score, such as 1e30. Unknown
// values are smaller.
static bool may_cancel(prover *x, const lm_value *v, int sign) {
  const lm_op *op = v->def;
  if (!op || !is_float(v))
    return false;
  if (!lm_prover_visit(x, v))
    return true;
  bool any = false;
  switch (op->code) {
  case LM_OP_CONST: return sign * op->attr.num >= LM_LARGE;
  case LM_OP_NEG: return may_cancel(x, op->in[0], -sign);
  case LM_OP_SUB: return may_cancel(x, op->in[0], sign) || may_cancel(x, op->in[1], -sign);
  case LM_OP_ADD:
  case LM_OP_SELECT:
    for (uint32_t i = 0; i < op->n_in; i++)
      any |= may_cancel(x, op->in[i], sign);
    return any;
  case LM_OP_MUL:
  case LM_OP_DIV:
  case LM_OP_EXP:
  case LM_OP_POW: return product_may_cancel(x, op, sign);
  default: return lm_prover_keeps(x, op) && may_cancel(x, op->in[0], sign);
  }
}

// Where the value may be a constant such as 1e30: a score minus such a constant is a masked score.
static const lm_formula *raised(prover *x, const lm_value *v) {
  const lm_op *op = v->def;
  if (!lm_op_is(v, LM_OP_SELECT) || !lm_prover_visit(x, v))
    return lm_formula_constant(may_cancel(x, v, 1));
  return chosen(x, op->in[0], true, raised(x, op->in[1]), raised(x, op->in[2]));
}

// The same as `masked` of a term of a sum, whose other term is `other` times `sign`.
static const lm_formula *masked_term(prover *x, const lm_value *v, const lm_value *other, int sign,
                                     bool at_most) {
  bool none = !at_most && may_cancel(x, other, sign);
  return none ? lm_formula_constant(false) : masked(x, v, at_most);
}

// A score times a positive constant.
static const lm_formula *scaled(prover *x, const lm_op *op, bool at_most) {
  double never = x->never;
  for (int i = 0; i < 2; i++) {
    double by = factor_of(op, i);
    if (!(by > 0 && never / by <= LEAST_MASK))
      continue;
    x->never = 1.001 * never / by; // cells are rounded
    const lm_formula *f = masked(x, op->in[i], at_most);
    x->never = never;
    return f;
  }
  return lm_formula_constant(at_most && bound(x, op->out[0]) >= -never);
}

static bool is_fill(prover *x, double c) {
  if (x->fill == 0 && c <= x->never)
    x->fill = c;
  return c <= x->never && (!x->exact || c == x->fill);
}

// False if the operation may change a constant.
static bool is_exact(const lm_op *op) {
  switch (op->code) {
  case LM_OP_CONST:
  case LM_OP_SELECT:
  case LM_OP_EXPAND:
  case LM_OP_STOP: return true;
  default: return lm_op_has(op, LM_T_MOVE);
  }
}

// Where the value is a masked score, at most x->never. at_most: it is none where the formula does
// not hold; else it is one where the formula holds.
static const lm_formula *masked(prover *x, const lm_value *v, bool at_most) {
  const lm_op *op = v->def;
  lm_arena *a = x->p->a;
  const lm_formula *y;
  const lm_formula *z;
  if (!lm_prover_visit(x, v) || (op && lm_fact(x->p, v)->large))
    return lm_formula_constant(at_most);
  if (!op || (x->exact && !is_exact(op)))
    return lm_formula_constant(false);
  if (lm_prover_keeps(x, op))
    return masked(x, op->in[0], at_most);
  switch (op->code) {
  case LM_OP_CONST: return lm_formula_constant(is_fill(x, op->attr.num));
  case LM_OP_SELECT:
    y = masked(x, op->in[1], at_most);
    z = masked(x, op->in[2], at_most);
    return chosen(x, op->in[0], at_most, y, z);
  case LM_OP_ADD:
    y = masked_term(x, op->in[0], op->in[1], 1, at_most);
    z = masked_term(x, op->in[1], op->in[0], 1, at_most);
    return lm_formula_or(a, y, z);
  case LM_OP_SUB:
    y = masked_term(x, op->in[0], op->in[1], -1, at_most);
    if (at_most)
      y = lm_formula_or(a, y, raised(x, op->in[1]));
    z = masked(x, op->in[1], !at_most);
    return lm_formula_and(a, y, lm_formula_not(a, z));
  case LM_OP_MUL:
  case LM_OP_DIV: return scaled(x, op, at_most);
  case LM_OP_MAX:
    if (x->p->sketches[v->id].visible && x->never <= VISIBLE)
      return lm_formula_constant(false);
    break;
  default: break;
  }
  return lm_formula_constant(at_most && bound(x, v) >= -x->never);
}

static const lm_formula *zero(prover *x, const lm_value *v);

static const lm_formula *either_zero(prover *x, const lm_op *op) {
  const lm_formula *y = zero(x, op->in[0]);
  return lm_formula_or(x->p->a, y, zero(x, op->in[1]));
}

// True only where the value is 0.
static const lm_formula *zero(prover *x, const lm_value *v) {
  const lm_op *op = v->def;
  lm_arena *a = x->p->a;
  if (!lm_prover_visit(x, v) || !op)
    return lm_formula_constant(false);
  if (lm_prover_keeps(x, op))
    return zero(x, op->in[0]);
  switch (op->code) {
  case LM_OP_CONST: return lm_formula_constant(op->attr.num == 0);
  case LM_OP_CAST: return condition(x, op->in[0], true, false);
  case LM_OP_SELECT: return chosen(x, op->in[0], false, zero(x, op->in[1]), zero(x, op->in[2]));
  case LM_OP_EXP: return masked(x, op->in[0], false);
  case LM_OP_NEG:
  case LM_OP_DIV: return zero(x, op->in[0]);
  case LM_OP_MUL: return either_zero(x, op);
  case LM_OP_ADD:
  case LM_OP_SUB: return lm_formula_and(a, zero(x, op->in[0]), zero(x, op->in[1]));
  case LM_OP_SUM:
    if (is_over_others(x, op))
      return zero(x, op->in[0]);
    break;
  case LM_OP_DOT:
    if (is_over_others(x, op))
      return either_zero(x, op);
    break;
  default: break;
  }
  return lm_formula_constant(false);
}

// ---- reductions over the history

static const lm_formula *is_zero(lm_arena *a, int i) {
  lm_linear term = lm_linear_term(i);
  return lm_formula_zero(a, &term);
}

static const lm_formula *hidden(const prover *x) {
  lm_arena *a = x->p->a;
  const lm_formula *other = lm_formula_or(a, lm_formula_at_least(a, LM_SEG_T, LM_SEG_S, 1),
                                          lm_formula_at_least(a, LM_SEG_S, LM_SEG_T, 1));
  if (x->p->whole)
    return other;
  const lm_formula *later = lm_formula_at_least(a, LM_POS_S, LM_POS_T, 1);
  if (x->p->prompt)
    later = lm_formula_and(a, later,
                           lm_formula_or(a, is_zero(a, LM_PROMPT_T), is_zero(a, LM_PROMPT_S)));
  return lm_formula_or(a, later, other);
}

// True if no pair in the domain satisfies both formulas.
static bool excludes(const prover *x, const lm_formula *f, const lm_formula *g) {
  lm_arena *a = x->p->a;
  const lm_formula *both = lm_formula_and(a, f, g);
  if (x->visits >= MAX_VISITS)
    return false;
  return lm_formula_refuted(lm_formula_and(a, lm_formula_domain(a), both));
}

prover lm_prover_of(const probe *p, lm_axis t, lm_axis s, bool itself) {
  double never = itself ? VISIBLE : LM_NEVER;
  return (prover){.p = p, .t = t, .s = s, .itself = itself, .never = never};
}

// True if no score is below the constant that replaces hidden ones.
static bool is_lowest(const probe *p, const lm_value *v, lm_axis t, lm_axis s, double fill) {
  prover x = lm_prover_of(p, t, s, false);
  x.never = nextafter(fill, -INFINITY);
  return excludes(&x, lm_formula_constant(true), masked(&x, v, true));
}

static bool is_neutral(const probe *p, const lm_op *op, const lm_value *v, lm_axis t, lm_axis s) {
  prover x = lm_prover_of(p, t, s, false);
  bool sums = op->code == LM_OP_SUM || op->code == LM_OP_DOT;
  x.exact = op->code == LM_OP_GATHER;
  const lm_formula *neutral = sums ? zero(&x, v) : masked(&x, v, false);
  if (!excludes(&x, hidden(&x), lm_formula_not(p->a, neutral)))
    return false;
  return !x.exact || is_lowest(p, v, t, s, x.fill);
}

// True if each position reads itself, so that no row is masked as a whole.
static bool is_visible(const probe *p, const lm_value *v, lm_axis t, lm_axis s) {
  prover x = lm_prover_of(p, t, s, true);
  return excludes(&x, lm_formula_constant(true), masked(&x, v, true));
}

bool lm_mask_prove(probe *p, const lm_op *op) {
  lm_axis t, s;
  bool least = op->code == LM_OP_MAX || op->code == LM_OP_ARGMAX, proved = false;
  for (uint32_t i = 0; i < op->n_in && !proved; i++) {
    lm_type type = op->in[i]->type;
    if (lm_probe_has(p->is_position, type, &t) && lm_probe_has(p->is_history, type, &s))
      proved = is_neutral(p, op, op->in[i], t, s) && (!least || is_visible(p, op->in[i], t, s));
  }
  p->sketches[op->out[0]->id].visible = proved && op->code == LM_OP_MAX;
  return proved;
}

// ---- how far a reduction of decoding reads back

static const lm_formula *is_far(const prover *x, int64_t back) {
  lm_arena *a = x->p->a;
  const lm_formula *same = lm_formula_and(a, lm_formula_at_least(a, LM_SEG_T, LM_SEG_S, 0),
                                          lm_formula_at_least(a, LM_SEG_S, LM_SEG_T, 0));
  return lm_formula_and(a, same, lm_formula_at_least(a, LM_POS_T, LM_POS_S, back));
}

// The operand v adds nothing to the reduction where it is `back` or more positions before t.
static int64_t back_of(const probe *p, const lm_op *op, const lm_value *v, int64_t most) {
  lm_axis t, s;
  bool sums = op->code == LM_OP_SUM || op->code == LM_OP_DOT;
  if (!lm_probe_has(p->is_position, v->type, &t))
    return 0;
  if (!lm_probe_has(p->is_history, v->type, &s))
    return 0;
  prover x = lm_prover_of(p, t, s, false);
  const lm_formula *neutral = sums ? zero(&x, v) : masked(&x, v, false);
  const lm_formula *reads = lm_formula_not(p->a, neutral);
  if (!excludes(&x, is_far(&x, most), reads))
    return 0;
  if (!sums && !is_visible(p, v, t, s))
    return 0;
  int64_t less = 0;
  while (most - less > 1) {
    int64_t middle = less + (most - less) / 2;
    const lm_formula *far = is_far(&x, middle);
    *(excludes(&x, far, reads) ? &most : &less) = middle;
  }
  return most;
}

int64_t lm_mask_back(probe *p, const lm_op *op, int64_t most) {
  int64_t least = 0;
  for (uint32_t i = 0; i < op->n_in; i++) {
    int64_t back = back_of(p, op, op->in[i], most);
    if (back && (!least || back < least))
      least = back;
  }
  p->sketches[op->out[0]->id].visible = least && op->code == LM_OP_MAX;
  return least;
}
