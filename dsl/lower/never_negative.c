// never_negative.c - see moments.h.
#include "dsl/lower/moments.h"

enum {
  DEPTH = 100, // of the operations that are followed
  FACTORS = 16 // of a multiplication
};

typedef struct proof {
  lm_value *const *old;
  uint32_t n;
  const bool *is;
} proof;

// The operand of an operation that only moves elements.
static const lm_value *moved(const lm_value *v) {
  while (v->def && lm_op_info_of(v->def)->traits & LM_T_MOVE)
    v = v->def->in[0];
  return v;
}

// The operand of a broadcast. Two values that are equal here have equal elements where they meet,
// unlike a value and its transpose.
static const lm_value *narrow(const lm_value *v) {
  while (v->def && v->def->code == LM_OP_EXPAND)
    v = v->def->in[0];
  return v;
}

static bool same(const lm_value *x, const lm_value *y) {
  return narrow(x) == narrow(y);
}

static bool holds(const proof *p, const lm_value *v, int depth);

// ---- multiplications

typedef struct factors {
  const lm_value *v[FACTORS];
  int n;
} factors;

// Two equal factors are a square.
static bool factors_add(factors *f, const lm_value *v) {
  v = narrow(v);
  if (v->def && (v->def->code == LM_OP_MUL || v->def->code == LM_OP_DIV))
    return factors_add(f, v->def->in[0]) && factors_add(f, v->def->in[1]);
  for (int i = 0; i < f->n; i++)
    if (f->v[i] == v) {
      f->v[i] = f->v[--f->n];
      return true;
    }
  if (f->n == FACTORS)
    return false;
  f->v[f->n++] = v;
  return true;
}

static bool factors_hold(const proof *p, const lm_value *v, int depth) {
  factors f = {0};
  if (!factors_add(&f, v))
    return false;
  for (int i = 0; i < f.n; i++)
    if (!holds(p, f.v[i], depth))
      return false;
  return true;
}

// ---- choices

// The operands of a comparison, the greater one first if it has the result `yes`; false: it is no
// comparison of an order.
static bool order_of(const lm_value *c, bool yes, const lm_value **out_great,
                     const lm_value **out_small) {
  if (!c->def)
    return false;
  bool greater = c->def->code == LM_OP_GT || c->def->code == LM_OP_GE;
  bool less = c->def->code == LM_OP_LT || c->def->code == LM_OP_LE;
  bool first = greater == yes;
  *out_great = greater || less ? c->def->in[first ? 0 : 1] : NULL;
  *out_small = greater || less ? c->def->in[first ? 1 : 0] : NULL;
  return greater || less;
}

static bool is_at_most_zero(const lm_value *v) {
  v = moved(v);
  return v->def && v->def->code == LM_OP_CONST && v->def->attr.num <= 0;
}

// The value of a select where its condition is `yes`.
static bool choice_holds(const proof *p, const lm_op *select, bool yes, int depth) {
  const lm_value *v = narrow(select->in[yes ? 1 : 2]), *great, *small;
  if (holds(p, v, depth))
    return true;
  if (!order_of(narrow(select->in[0]), yes, &great, &small))
    return false;
  if (same(v, great) && holds(p, small, depth))
    return true;
  bool negated = v->def && v->def->code == LM_OP_NEG && same(v->def->in[0], small);
  return negated && is_at_most_zero(great);
}

static bool op_holds(const proof *p, const lm_value *v, int depth) {
  const lm_op *op = v->def;
  switch (op->code) {
  case LM_OP_CONST: return op->attr.num >= 0;
  case LM_OP_EXP:
  case LM_OP_SQRT:
  case LM_OP_RSQRT:
  case LM_OP_LOGISTIC: return true;
  case LM_OP_CAST: return op->in[0]->type.dtype == LM_BOOL || holds(p, op->in[0], depth);
  case LM_OP_FLOOR:
  case LM_OP_ROUND:
  case LM_OP_SUM:
  case LM_OP_MAX:
  case LM_OP_POW: return holds(p, op->in[0], depth);
  case LM_OP_ADD: return holds(p, op->in[0], depth) && holds(p, op->in[1], depth);
  case LM_OP_MUL:
  case LM_OP_DIV: return factors_hold(p, v, depth);
  case LM_OP_SELECT: return choice_holds(p, op, true, depth) && choice_holds(p, op, false, depth);
  default: return false;
  }
}

// True if v is not negative, or not a number.
static bool holds(const proof *p, const lm_value *v, int depth) {
  v = moved(v);
  for (uint32_t i = 0; i < p->n; i++)
    if (v == moved(p->old[i]))
      return p->is[i];
  return v->def && depth < DEPTH && op_holds(p, v, depth + 1);
}

void lm_never_negative(lm_value *const *old, lm_value *const *new, uint32_t n, bool *is) {
  proof p = {old, n, is};
  for (bool changed = true; changed;) {
    changed = false;
    for (uint32_t i = 0; i < n; i++) {
      bool still = !is[i] || holds(&p, new[i], 0);
      is[i] &= still;
      changed |= !still;
    }
  }
}
