// attend.c - analysis of the region of an attend or attend_vjp operation.
#include "codegen/common/attend.h"
#include <string.h>
#include "compiler/ops/ops.h"

static bool has(lm_type t, lm_axis a) {
  return lm_type_find(t, a) >= 0;
}

static void axis_add(const lm_module *m, lm_attend_axes *to, lm_axis a) {
  if (!to->n)
    to->size = 1;
  to->axis[to->n++] = a;
  to->size *= lm_axis_size(m, a);
}

// Axes of t that the scores do not have.
static lm_attend_axes channel_axes(const lm_attend_spec *f, lm_type t) {
  lm_attend_axes channels = {.size = 1};
  for (int i = 0; i < t.rank; i++)
    if (!has(f->space, t.axis[i]))
      axis_add(f->m, &channels, t.axis[i]);
  return channels;
}

int lm_attend_operand(const lm_attend_spec *f, const lm_value *arg) {
  if (arg->def)
    return -1;
  return f->vjp ? (arg->index ? (int)arg->index - 1 : -2) : (int)arg->index;
}

const lm_attend_dot *lm_attend_dot_of(const lm_attend_spec *f, const lm_value *v) {
  for (int i = 0; i < f->n_dots; i++)
    if (f->dots[i].v == v)
      return &f->dots[i];
  return NULL;
}

static bool orders_axes(const lm_op *op) {
  return op && (op->code == LM_OP_PERMUTE || op->code == LM_OP_RENAME);
}

static const lm_value *unpermuted(const lm_value *v) {
  while (orders_axes(v->def))
    v = v->def->in[0];
  return v;
}

// ---- dots

static bool attend_axes_equal(const lm_attend_axes *a, const lm_attend_axes *b) {
  bool same = a->n == b->n;
  for (int i = 0; i < a->n && same; i++) {
    bool found = false;
    for (int k = 0; k < b->n; k++)
      found |= a->axis[i] == b->axis[k];
    same = found;
  }
  return same;
}

// All dots read the rows of an operand in one order of channel axes: the order of the first dot
// that uses the operand with the same set of axes.
// Returns `fallback` if there is no such dot.
static lm_attend_axes row_order(const lm_attend_spec *f, uint32_t operand,
                                const lm_attend_axes *fallback) {
  for (int i = 0; i < f->n_dots; i++) {
    const lm_attend_dot *p = &f->dots[i];
    if ((p->row == operand || p->col == operand) && attend_axes_equal(&p->over, fallback))
      return p->over;
  }
  return *fallback;
}

static bool dot_add(lm_attend_spec *f, const lm_op *dot, lm_buf *why) {
  int x = lm_attend_operand(f, dot->in[0]);
  int w = lm_attend_operand(f, dot->in[1]);
  if (x < 0 || w < 0 || f->n_dots == LM_ATTEND_PARTS)
    return lm_why(why, "a dot of values that are not operands");
  bool first = has(dot->in[0]->type, f->t);
  lm_attend_dot p = {
      .v = dot->out[0], .row = (uint32_t)(first ? x : w), .col = (uint32_t)(first ? w : x)};
  for (int i = 0; i < dot->attr.n_axes; i++)
    axis_add(f->m, &p.over, dot->attr.axes[i]);
  lm_attend_axes row = row_order(f, p.row, &p.over);
  lm_attend_axes col = row_order(f, p.col, &row);
  if (memcmp(col.axis, row_order(f, p.row, &col).axis, sizeof *col.axis * (size_t)col.n))
    return lm_why(why, "an operand whose axes are used in two orders");
  p.over = col;
  f->dots[f->n_dots++] = p;
  return true;
}

static bool dots_find(lm_attend_spec *f, lm_buf *why) {
  for (const lm_op *op = f->op->body->first; op; op = op->next)
    if (op->code == LM_OP_DOT && lm_attend_tiled(f->op, op->out[0]->type) && !dot_add(f, op, why))
      return false;
  return true;
}

// ---- sums

static bool sum_add(lm_attend_spec *f, uint32_t result, const lm_value *yield, lm_buf *why) {
  const lm_op *op = unpermuted(yield)->def;
  bool dot = op && op->code == LM_OP_DOT;
  if (!op || (!dot && op->code != LM_OP_SUM))
    return lm_why(why, "a cotangent that is not a sum over tiles");
  uint32_t k =
      dot && !lm_attend_tiled(f->op, op->in[0]->type); // index of the operand that is a tile
  bool rows = lm_attr_has_axis(&op->attr, f->s);
  lm_attend_sum *sum = &f->sums[f->n_sums++];
  *sum = (lm_attend_sum){
      .tile = op->in[k], .other = -1, .rows = rows, .result = result, .channels = {.size = 1}};
  if (!lm_attend_tiled(f->op, op->in[k]->type) || rows == lm_attr_has_axis(&op->attr, f->t))
    return lm_why(why, "a sum over something that is not a tile");
  if (!dot)
    return true;
  sum->other = lm_attend_operand(f, op->in[1 - k]);
  lm_attend_axes channels = channel_axes(f, op->in[1 - k]->type);
  if (sum->other >= 0)
    sum->channels = row_order(f, (uint32_t)sum->other, &channels);
  return sum->other >= 0 || lm_why(why, "a sum weighted by a value that is not an operand");
}

static bool sums_find(lm_attend_spec *f, lm_buf *why) {
  f->sums[f->n_sums++] = (lm_attend_sum){
      .other = LM_ATTEND_DO,
      .channels = f->v_channels,
  };
  if (f->op->n_out > LM_ATTEND_PARTS)
    return lm_why(why, "more than %d cotangents", LM_ATTEND_PARTS);
  for (uint32_t i = 1; i < f->op->n_out; i++) {
    const lm_value *v = lm_attend_yield(f->op, i - 1 + LM_ATTEND_COTANGENTS);
    const lm_op *epilogue = v->def && v->def->code == LM_OP_KERNEL ? v->def : NULL;
    if (epilogue && v->index)
      continue; // the first result of the epilogue has added the sum
    if (!sum_add(f, i, epilogue ? epilogue->in[0] : v, why))
      return false;
    f->sums[f->n_sums - 1].epilogue = epilogue;
  }
  return true;
}

// ---- the whole specification

static bool is_const(const lm_value *v, double *out) {
  if (!v->def || v->def->code != LM_OP_CONST)
    return false;
  *out = v->def->attr.num;
  return true;
}

static void axes_find(lm_attend_spec *f) {
  f->parallel = f->shared = (lm_attend_axes){.size = 1};
  for (int i = 0; i < f->space.rank; i++) {
    lm_axis a = f->space.axis[i];
    bool everywhere = true;
    if (a == f->t || a == f->s)
      continue;
    axis_add(f->m, &f->parallel, a);
    for (uint32_t r = 0; r < f->op->n_out; r++)
      everywhere &= has(f->op->out[r]->type, a);
    if (everywhere)
      axis_add(f->m, &f->shared, a);
  }
}

bool lm_attend_spec_make(const lm_module *m, const lm_op *op, lm_attend_spec *out, lm_buf *why) {
  double c;
  *out = (lm_attend_spec){.m = m,
                          .op = op,
                          .vjp = op->code == LM_OP_ATTEND_VJP,
                          .t = lm_attend_t(op),
                          .s = lm_attend_s(op),
                          .space = lm_attend_space(op),
                          .score = lm_attend_yield(op, LM_ATTEND_SCORE),
                          .mask = lm_attend_yield(op, LM_ATTEND_MASK),
                          .factor = lm_attend_yield(op, LM_ATTEND_FACTOR)};
  if (lm_attend_has_map(op)) {
    out->tile_t = op->attr.imm[0];
    out->tile_s = op->attr.imm[1];
  }
  if (is_const(out->mask, &c) && c != 0)
    out->mask = NULL;
  if (is_const(out->factor, &c) && c == 1)
    out->factor = NULL;
  out->v_channels = channel_axes(out, op->in[LM_ATTEND_V]->type);
  axes_find(out);
  return dots_find(out, why) && (!out->vjp || sums_find(out, why));
}

bool lm_attend_is_supported(const lm_module *m, const lm_op *op) {
  lm_attend_spec f;
  lm_buf why = {0};
  bool known = lm_attend_spec_make(m, op, &f, &why);
  lm_buf_free(&why);
  return known;
}

lm_attend_map_layout lm_attend_map_layout_of(const lm_attend_spec *f) {
  lm_attend_map_layout x = {.operand = lm_attend_map(f->op)};
  lm_type t = f->op->in[x.operand]->type;
  x.n = t.rank - 2;
  x.row = lm_axis_size(f->m, t.axis[t.rank - 1]);
  int64_t stride = x.row * lm_axis_size(f->m, t.axis[t.rank - 2]);
  for (int i = x.n - 1; i >= 0; i--) {
    x.axis[i] = t.axis[i];
    x.stride[i] = stride;
    stride *= lm_axis_size(f->m, t.axis[i]);
  }
  return x;
}
