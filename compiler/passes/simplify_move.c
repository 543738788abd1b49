// simplify_move.c - rules of simplify.c for data movement: movements that cancel, compose, or move
// a constant.
#include <string.h>
#include "compiler/passes/simplify.h"
#include "compiler/ops/interface.h"

static bool axes_equal(const lm_axis *a, int n_a, const lm_axis *b, int n_b) {
  return n_a == n_b && !memcmp(a, b, (size_t)n_a * sizeof *a);
}

static lm_value *expansion(lm_rewrite *r, lm_op *op) {
  lm_value *x = op->in[0];
  if (lm_type_equal(x->type, op->out[0]->type))
    return x;
  return lm_op_is(x, LM_OP_EXPAND) ? lm_emit_expand(&r->b, x->def->in[0], op->out[0]->type) : NULL;
}

// A permute of a permute, of an expand, or of a dot that has the order of the result if its
// operands are exchanged.
static lm_value *permutation(lm_rewrite *r, lm_op *op) {
  lm_value *x = op->in[0];
  lm_type t = op->out[0]->type;
  if (lm_type_equal(x->type, t))
    return x;
  if (lm_op_is(x, LM_OP_PERMUTE))
    return lm_emit_permute(&r->b, x->def->in[0], t.axis, t.rank);
  if (lm_op_is(x, LM_OP_EXPAND))
    return lm_cast_to(r, x->def->in[0], t);
  if (!lm_op_is(x, LM_OP_DOT))
    return NULL;
  lm_value *flip =
      lm_emit_dot(&r->b, x->def->in[1], x->def->in[0], x->def->attr.axes, x->def->attr.n_axes);
  if (lm_type_equal(flip->type, t))
    return flip;
  lm_op_remove(flip->def);
  return NULL;
}

static lm_value *view(lm_rewrite *r, lm_op *op) {
  lm_value *x = op->in[0];
  if (lm_type_equal(x->type, op->out[0]->type))
    return x;
  if (!lm_op_is(x, LM_OP_VIEW))
    return NULL;
  const lm_attr *in = &x->def->attr;
  const lm_attr *out = &op->attr;
  if (!axes_equal(in->to, in->n_to, out->axes, out->n_axes))
    return NULL;
  if (axes_equal(in->axes, in->n_axes, out->to, out->n_to))
    return x->def->in[0];
  lm_attr a = *in;
  memcpy(a.to, out->to, sizeof a.to);
  a.n_to = out->n_to;
  return lm_emit(&r->b, LM_OP_VIEW, &x->def->in[0], 1, &a, NULL);
}

static lm_value *renaming(lm_rewrite *r, lm_op *op) {
  lm_value *x = op->in[0];
  if (lm_type_equal(x->type, op->out[0]->type))
    return x;
  return lm_op_is(x, LM_OP_RENAME) && lm_type_equal(x->def->in[0]->type, op->out[0]->type)
             ? x->def->in[0]
             : NULL;
}

// ---- slices

typedef struct interval {
  int64_t first;
  int64_t step;
  int64_t n;
} interval;

static interval taken(const lm_rewrite *r, const lm_op *slice) {
  const lm_attr *a = &slice->attr;
  return (interval){a->imm[0], a->imm[1], a->n_to ? lm_axis_size(r->b.m, a->to[0]) : 1};
}

// The elements iv of x along axis `from`, with the result axis (or none) of the slice.
static lm_value *resliced(lm_rewrite *r, lm_op *slice, lm_value *x, lm_axis from, interval iv) {
  lm_attr a = slice->attr;
  a.axes[0] = from;
  bool whole = a.n_to && iv.first == 0 && iv.step == 1 && iv.n == lm_axis_size(r->b.m, from);
  if (whole && a.to[0] == from)
    return x;
  a.imm[0] = iv.first;
  a.imm[1] = iv.step;
  if (whole) {
    a.n_imm = 0;
    a.imm[0] = a.imm[1] = 0;
  }
  return lm_emit(&r->b, whole ? LM_OP_RENAME : LM_OP_SLICE, &x, 1, &a, NULL);
}

static lm_value *slice_of_concat(lm_rewrite *r, lm_op *op, const lm_op *cat, interval iv) {
  int64_t base = 0;
  int64_t last = iv.first + iv.step * (iv.n - 1);
  if (cat->attr.to[0] != op->attr.axes[0])
    return NULL;
  for (uint32_t i = 0; i < cat->n_in; i++) {
    int64_t size = lm_axis_size(r->b.m, cat->attr.axes[i]);
    bool inside = iv.first >= base && iv.first < base + size && last >= base && last < base + size;
    iv.first -= inside ? base : 0;
    if (inside)
      return resliced(r, op, cat->in[i], cat->attr.axes[i], iv);
    base += size;
  }
  return NULL;
}

// A slice of exactly the padded operand is that operand; a single element outside of it is zero.
static lm_value *slice_of_pad(lm_rewrite *r, lm_op *op, const lm_op *pad, interval iv) {
  const lm_attr *p = &pad->attr;
  if (p->to[0] != op->attr.axes[0])
    return NULL;
  int64_t n = p->n_axes ? lm_axis_size(r->b.m, p->axes[0]) : 1;
  bool same = iv.first == p->imm[0] && iv.n == n && (n == 1 || iv.step == p->imm[1]);
  if (same && p->n_axes)
    return resliced(r, op, pad->in[0], p->axes[0], (interval){0, 1, n});
  if (same && !op->attr.n_to)
    return pad->in[0];
  if (n == 1 && iv.n == 1 && iv.first != p->imm[0])
    return lm_emit_const(&r->b, op->out[0]->type, 0);
  return NULL;
}

// A slice of a permute is a permute of a slice, which is often the identity.
static lm_value *slice_of_permute(lm_rewrite *r, lm_op *op, lm_value *x) {
  lm_type t = op->out[0]->type;
  return lm_emit_permute(&r->b, lm_emit(&r->b, LM_OP_SLICE, &x, 1, &op->attr, NULL), t.axis,
                         t.rank);
}

static lm_value *slice(lm_rewrite *r, lm_op *op) {
  lm_value *x = op->in[0];
  const lm_attr *a = &op->attr;
  interval iv = taken(r, op);
  if (a->n_to && a->to[0] == a->axes[0] && iv.first == 0 && iv.step == 1)
    return x;
  if (lm_op_is(x, LM_OP_CONCAT))
    return x->def->mark == LM_MULTIPLIED ? NULL : slice_of_concat(r, op, x->def, iv);
  if (lm_op_is(x, LM_OP_PAD))
    return slice_of_pad(r, op, x->def, iv);
  if (lm_op_is(x, LM_OP_PERMUTE))
    return slice_of_permute(r, op, x->def->in[0]);
  if (lm_op_is(x, LM_OP_EXPAND) && lm_type_find(x->def->in[0]->type, a->axes[0]) < 0)
    return lm_cast_to(r, x->def->in[0], op->out[0]->type);
  if (!lm_op_is(x, LM_OP_SLICE) || !x->def->attr.n_to || x->def->attr.to[0] != a->axes[0])
    return NULL;
  const lm_attr *in = &x->def->attr;
  interval both = {in->imm[0] + in->imm[1] * iv.first, in->imm[1] * iv.step, iv.n};
  return resliced(r, op, x->def->in[0], in->axes[0], both);
}

// ---- concat: the slices of one value in order are that value

static lm_value *concatenation(lm_rewrite *r, lm_op *op) {
  int64_t at = 0;
  lm_value *whole = NULL;
  for (uint32_t i = 0; i < op->n_in; i++) {
    lm_value *x = op->in[i];
    if (!lm_op_is(x, LM_OP_SLICE))
      return NULL;
    const lm_attr *a = &x->def->attr;
    if (!a->n_to || a->to[0] != op->attr.axes[i] || a->axes[0] != op->attr.to[0])
      return NULL;
    if (a->imm[0] != at || a->imm[1] != 1 || (whole && whole != x->def->in[0]))
      return NULL;
    whole = x->def->in[0];
    at += lm_axis_size(r->b.m, a->to[0]);
  }
  return whole;
}

lm_value *lm_simplify_move(lm_rewrite *r, lm_op *op) {
  double c;
  if (lm_op_has(op, LM_T_MOVE) && lm_const_of(op->in[0], &c))
    return lm_emit_const(&r->b, op->out[0]->type, c);
  switch (op->code) {
  case LM_OP_EXPAND: return expansion(r, op);
  case LM_OP_PERMUTE: return permutation(r, op);
  case LM_OP_VIEW: return view(r, op);
  case LM_OP_RENAME: return renaming(r, op);
  case LM_OP_SLICE: return slice(r, op);
  case LM_OP_CONCAT: return concatenation(r, op);
  default: return NULL;
  }
}
