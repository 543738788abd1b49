// reduce.c - sums, maxima and dots over axes.
#include <string.h>
#include "compiler/ir/dot.h"
#include "compiler/ops/ops.h"

static bool over_axes(const lm_module *m, const lm_op *op, lm_type x, lm_buf *why) {
  for (int i = 0; i < op->attr.n_axes; i++) {
    if (lm_type_find(x, op->attr.axes[i]) < 0) {
      lm_why_type(why, m, "", x, "");
      return lm_why(why, " has no axis %s", lm_axis_name(m, op->attr.axes[i]));
    }
    for (int j = 0; j < i; j++)
      if (op->attr.axes[i] == op->attr.axes[j])
        return lm_why(why, "axis %s twice", lm_axis_name(m, op->attr.axes[i]));
  }
  return true;
}

bool shape_reduce(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  lm_type x = op->in[0]->type;
  if (x.dtype == LM_BOOL)
    return lm_why(why, "the operand is bool");
  if (!lm_computes(m, x, why))
    return false;
  if (!op->attr.n_axes)
    return lm_why(why, "no axis is given");
  if (!over_axes(m, op, x, why))
    return false;
  *out = (lm_type){.dtype = x.dtype};
  for (int i = 0; i < x.rank; i++)
    if (!lm_attr_has_axis(&op->attr, x.axis[i]))
      out->axis[out->rank++] = x.axis[i];
  return true;
}

bool shape_argmax(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  if (!shape_reduce(m, op, out, why))
    return false;
  int64_t n = 1;
  for (int i = 0; i < op->attr.n_axes; i++)
    if (__builtin_mul_overflow(n, lm_axis_size(m, op->attr.axes[i]), &n) || n > INT32_MAX)
      return lm_why(why, "the axes have more elements than an int can index");
  out->dtype = LM_INT;
  return true;
}

// The free and batch axes of x, then the axes that only w has.
static bool dot_axes(const lm_module *m, const lm_op *op, lm_dtype result, lm_type *out,
                     lm_buf *why) {
  lm_type x = op->in[0]->type;
  lm_type w = op->in[1]->type;
  if (!over_axes(m, op, x, why) || !over_axes(m, op, w, why))
    return false;
  *out = (lm_type){.dtype = result};
  for (int i = 0; i < x.rank; i++)
    if (!lm_attr_has_axis(&op->attr, x.axis[i]))
      out->axis[out->rank++] = x.axis[i];
  for (int i = 0; i < w.rank; i++) {
    if (lm_attr_has_axis(&op->attr, w.axis[i]) || lm_type_find(x, w.axis[i]) >= 0)
      continue;
    if (out->rank == LM_RANK)
      return lm_why(why, "the result has more than %d axes", LM_RANK);
    out->axis[out->rank++] = w.axis[i];
  }
  return true;
}

// The result of f16 and bf16 operands may be f32.
bool shape_dot(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  lm_type x = op->in[0]->type;
  lm_type w = op->in[1]->type;
  bool wide = lm_dtype_is_half(x.dtype) && out->dtype == LM_F32;
  if (x.dtype != w.dtype || !lm_dtype_is_float(x.dtype)) {
    lm_why_type(why, m, "", x, " with ");
    return lm_why_type(why, m, "", w, ": not of one floating type");
  }
  return dot_axes(m, op, wide ? LM_F32 : (lm_dtype)x.dtype, out, why);
}

static bool is_float_code(lm_type t) {
  return t.dtype == LM_E4M3 || t.dtype == LM_E5M2;
}

// Whether s are the scales of x of some kind (compiler/ir/dot.h).
static bool scales_fit(const lm_module *m, lm_type s, lm_type x, const lm_attr *over,
                       lm_scales kind) {
  int64_t rows = 1;
  int64_t k = 1;
  int64_t elements = lm_scales_of(kind).elements;
  for (int i = 0; i < x.rank; i++)
    *(lm_attr_has_axis(over, x.axis[i]) ? &k : &rows) *= lm_axis_size(m, x.axis[i]);
  int64_t columns = elements ? (k + elements - 1) / elements : 1;
  int64_t row_tiles = (rows + LM_SCALES_ROWS - 1) / LM_SCALES_ROWS;
  int64_t column_tiles = (columns + LM_SCALES_COLUMNS - 1) / LM_SCALES_COLUMNS;
  const struct {
    int rank;
    int64_t size[5];
  } of[] = {
      [LM_SCALES_NUMBER] = {0},
      [LM_SCALES_VEC32] = {5,
                           {row_tiles, column_tiles, LM_SCALES_GROUP,
                            LM_SCALES_ROWS / LM_SCALES_GROUP, LM_SCALES_COLUMNS}},
      [LM_SCALES_VEC128] = {2, {columns, rows}},
      [LM_SCALES_BLK128] = {3, {row_tiles, column_tiles, LM_SCALES_COLUMNS}},
  };
  bool fits = s.rank == of[kind].rank && s.dtype == (kind == LM_SCALES_VEC32 ? LM_E8M0 : LM_F32);
  for (int i = 0; fits && i < s.rank; i++)
    fits = lm_axis_size(m, s.axis[i]) == of[kind].size[i];
  return fits && (kind != LM_SCALES_VEC32 || k % elements == 0);
}

bool shape_dot_scaled(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  lm_type x = op->in[LM_DOT_X]->type;
  lm_type w = op->in[LM_DOT_W]->type;
  lm_scales kind[] = {lm_dot_scales(op, LM_DOT_X), lm_dot_scales(op, LM_DOT_W)};
  lm_dtype result = out->dtype == LM_BF16 ? LM_BF16 : LM_F32;
  if (!is_float_code(x) || !is_float_code(w) || (x.dtype == LM_E5M2 && w.dtype == LM_E5M2)) {
    lm_why_type(why, m, "", x, " with ");
    return lm_why_type(why, m, "", w, ": not of e4m3, or of e4m3 and e5m2");
  }
  for (int i = LM_DOT_X; i <= LM_DOT_W; i++) {
    lm_type s = op->in[LM_DOT_SCALE_X + i]->type;
    if (!scales_fit(m, s, op->in[i]->type, &op->attr, kind[i]))
      return lm_why_type(why, m, "", s, " is neither a scalar f32 nor the scales of blocks");
  }
  if (op->attr.n_imm && (op->attr.n_imm != 1 || op->attr.imm[0] != 1))
    return lm_why(why, "takes [1] or no number");
  if (!lm_scales_fit(kind[LM_DOT_X], kind[LM_DOT_W]))
    return lm_why(why, "scales %s with %s", lm_scales_of(kind[LM_DOT_X]).name,
                  lm_scales_of(kind[LM_DOT_W]).name);
  return dot_axes(m, op, result, out, why);
}

// The operands after the factors: a residual, a bias, or both in this order.
static bool addends_fit(const lm_module *m, const lm_op *op, lm_type z, lm_buf *why) {
  uint32_t i = LM_DOT_ADDENDS;
  if (i < op->n_in && lm_type_equal(op->in[i]->type, z))
    i++;
  if (i < op->n_in && lm_type_is_bias(op->in[i]->type, z))
    i++;
  if (i == op->n_in)
    return true;
  lm_why_type(why, m, "", op->in[i]->type, " is neither residual nor bias of ");
  return lm_why_type(why, m, "", z, "");
}

bool shape_dot_add(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  if (op->n_in <= LM_DOT_ADDENDS)
    return lm_why(why, "has neither residual nor bias");
  return shape_dot(m, op, out, why) && addends_fit(m, op, out[0], why);
}

bool shape_dot_gelu(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  if (op->n_in < LM_DOT_ADDENDS)
    return lm_why(why, "needs two factors");
  if (!shape_dot(m, op, out, why) || !addends_fit(m, op, out[0], why))
    return false;
  out[LM_GELU_OF] = out[0];
  return true;
}
