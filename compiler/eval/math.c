// math.c - operations that compute one result from whole operands.
#include <math.h>
#include <string.h>
#include "compiler/eval/internal.h"
#include "compiler/ir/dot.h"
#include "runtime/base/dtype.h"
#include "runtime/base/philox.h"

typedef struct run {
  const lm_op *op;
  const lm_eval *e;
  const double *in[4];
  double *out;
  int64_t size;
  int64_t stride;
  double *best;
} run;

// ---- elementwise

static double binade(double x) {
  int exponent;
  if (!isfinite(x))
    return INFINITY;
  frexp(x, &exponent);
  return fabs(x) < 0x1p-126 ? 0 : ldexp(1, exponent - 1); // of f32
}

static double unary(lm_opcode code, double x) {
  switch (code) {
  case LM_OP_NEG: return -x;
  case LM_OP_EXP: return exp(x);
  case LM_OP_LOG: return log(x);
  case LM_OP_LOG1P: return log1p(x);
  case LM_OP_SQRT: return sqrt(x);
  case LM_OP_RSQRT: return 1 / sqrt(x);
  case LM_OP_SIN: return sin(x);
  case LM_OP_COS: return cos(x);
  case LM_OP_TANH: return tanh(x);
  case LM_OP_LOGISTIC: return 1 / (1 + exp(-x));
  case LM_OP_ERF: return erf(x);
  case LM_OP_FLOOR: return floor(x);
  case LM_OP_ROUND: return rint(x);
  case LM_OP_BINADE: return binade(x);
  case LM_OP_NOT: return !x;
  default: return x;
  }
}

static double binary(lm_opcode code, double x, double y) {
  switch (code) {
  case LM_OP_ADD: return x + y;
  case LM_OP_SUB: return x - y;
  case LM_OP_MUL: return x * y;
  case LM_OP_DIV: return x / y;
  case LM_OP_POW: return pow(x, y);
  case LM_OP_IDIV: return floor(x / y);
  case LM_OP_MOD: return x - y * floor(x / y);
  case LM_OP_EQ: return x == y;
  case LM_OP_NE: return x != y;
  case LM_OP_LT: return x < y;
  case LM_OP_LE: return x <= y;
  case LM_OP_GT: return x > y;
  case LM_OP_GE: return x >= y;
  case LM_OP_AND: return x && y;
  case LM_OP_OR: return x || y;
  default: return x;
  }
}

// 32 bits, two's complement; exact where float64 is not.
static double whole(lm_opcode code, double x, double y) {
  int64_t a = (int64_t)x;
  int64_t b = (int64_t)y;
  int64_t z;
  switch (code) {
  case LM_OP_ADD: z = a + b; break;
  case LM_OP_SUB: z = a - b; break;
  case LM_OP_MUL: z = a * b; break;
  case LM_OP_NEG: z = -a; break;
  case LM_OP_IDIV:
  case LM_OP_MOD: z = b ? (int64_t)binary(code, x, y) : 0; break;
  default: return binary(code, x, y);
  }
  return (double)(int32_t)(uint32_t)(uint64_t)z;
}

double lm_eval_scalar(const lm_op *op, const double *in) {
  lm_dtype from = op->n_in ? op->in[0]->type.dtype : LM_F64;
  lm_dtype to = op->out[0]->type.dtype;
  if (op->code == LM_OP_CAST || op->code == LM_OP_UNROUNDED)
    return lm_dtype_is_float(to) ? in[0] : lm_dtype_round(to, in[0]);
  if (op->code == LM_OP_SELECT)
    return in[0] ? in[1] : in[2];
  if (from == LM_INT)
    return whole(op->code, in[0], op->n_in > 1 ? in[1] : 0);
  return op->n_in == 1 ? unary(op->code, in[0]) : binary(op->code, in[0], in[1]);
}

double lm_eval_gelu(double x) {
  return 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

static void scalar_inner(void *user, int64_t n, const int64_t *at, const int64_t *step) {
  const run *r = user;
  double in[3] = {0};
  for (int64_t i = 0; i < n; i++) {
    for (uint32_t k = 0; k < r->op->n_in; k++)
      in[k] = r->in[k][at[k + 1] + i * step[k + 1]];
    r->out[at[0] + i * step[0]] = lm_eval_scalar(r->op, in);
  }
}

static void number_inner(void *user, int64_t n, const int64_t *at, const int64_t *step) {
  const run *r = user;
  for (int64_t i = 0; i < n; i++)
    r->out[at[0] + i * step[0]] = r->op->code == LM_OP_IOTA ? (double)i : r->op->attr.num;
}

static void elementwise(const lm_eval *e, run *r, nest_inner *inner) {
  const lm_op *op = r->op;
  lm_type t = op->out[0]->type;
  nest n = nest_over(e, t.axis, t.rank);
  nest_operand(e, &n, 0, t);
  for (uint32_t i = 0; i < op->n_in; i++)
    nest_operand(e, &n, (int)i + 1, op->in[i]->type);
  nest_run(&n, inner, r);
}

// ---- random numbers: operand 1 of the nest is the column, operand 2 the rows

static void rng_inner(void *user, int64_t n, const int64_t *at, const int64_t *step) {
  const run *r = user;
  lm_philox_key2 key = lm_philox_key((uint64_t)r->op->attr.imm[0], (uint64_t)r->op->attr.imm[1]);
  uint32_t train_step = (uint32_t)(int64_t)r->in[0][0];
  uint32_t layer = (uint32_t)(int64_t)r->in[3][0];
  uint64_t width = (uint64_t)r->op->attr.imm[2];
  for (int64_t i = 0; i < n; i++) {
    uint32_t row = (uint32_t)(int64_t)r->in[1][at[2] + i * step[2]];
    uint64_t element = row * width + (uint64_t)(at[1] + i * step[1]);
    uint64_t block = element / 4;
    lm_philox4 w =
        lm_philox((lm_philox4){{(uint32_t)block, (uint32_t)(block >> 32), layer, train_step}}, key);
    r->out[at[0] + i * step[0]] = lm_philox_unit(w.v[element % 4]);
  }
}

static void rng(const lm_eval *e, run *r) {
  lm_type t = r->op->out[0]->type;
  nest n = nest_over(e, t.axis, t.rank);
  nest_operand(e, &n, 0, t);
  nest_operand(e, &n, 1, lm_type_make(LM_INT, t.axis + t.rank - (t.rank > 0), t.rank > 0));
  nest_operand(e, &n, 2, r->op->in[1]->type);
  n.start[1] = (int64_t)r->in[2][0];
  nest_run(&n, rng_inner, r);
}

// ---- reductions

static void sum_inner(void *user, int64_t n, const int64_t *at, const int64_t *step) {
  const run *r = user;
  for (int64_t i = 0; i < n; i++)
    r->out[at[0] + i * step[0]] += r->in[0][at[1] + i * step[1]];
}

static void max_inner(void *user, int64_t n, const int64_t *at, const int64_t *step) {
  const run *r = user;
  for (int64_t i = 0; i < n; i++) {
    double x = r->in[0][at[1] + i * step[1]];
    double *m = &r->out[at[0] + i * step[0]];
    if (x > *m || x != x)
      *m = x;
  }
}

// Operand 2 of the nest is the row-major index over the axes.
static void argmax_inner(void *user, int64_t n, const int64_t *at, const int64_t *step) {
  const run *r = user;
  for (int64_t i = 0; i < n; i++) {
    double x = r->in[0][at[1] + i * step[1]];
    int64_t to = at[0] + i * step[0];
    if (x <= r->best[to])
      continue;
    r->best[to] = x;
    r->out[to] = (double)(at[2] + i * step[2]);
  }
}

static void dot_inner(void *user, int64_t n, const int64_t *at, const int64_t *step) {
  const run *r = user;
  const double *x = r->in[0] + at[1];
  const double *w = r->in[1] + at[2];
  double *z = r->out + at[0];
  for (int64_t i = 0; i < n; i++)
    z[i * step[0]] += x[i * step[1]] * w[i * step[2]];
}

// The loop order: the result's axes except the last, the reduction axes, then the last, so that
// inner loops run along rows.
static nest reduction(const lm_eval *e, const lm_op *op) {
  lm_type t = op->out[0]->type;
  nest n = nest_over(e, t.axis, t.rank ? t.rank - 1 : 0);
  for (int i = 0; i < op->attr.n_axes; i++)
    nest_add(e, &n, op->attr.axes[i]);
  if (t.rank)
    nest_add(e, &n, t.axis[t.rank - 1]);
  nest_operand(e, &n, 0, t);
  for (uint32_t i = 0; i < op->n_in && i < 2; i++)
    nest_operand(e, &n, (int)i + 1, op->in[i]->type);
  return n;
}

static void fill(lm_tensor *t, double v) {
  for (int64_t i = 0; i < t->n; i++)
    t->v[i] = v;
}

static void argmax(const lm_eval *e, run *r, lm_tensor *out) {
  nest n = reduction(e, r->op);
  lm_tensor best = {
      .n = out->n,
      .v = lm_calloc((size_t)out->n, sizeof(double)),
  };
  nest_operand(e, &n, 2, lm_type_make(LM_INT, r->op->attr.axes, r->op->attr.n_axes));
  fill(&best, -INFINITY);
  r->best = best.v;
  nest_run(&n, argmax_inner, r);
  lm_free(best.v);
}

// ---- data movement: a copy between strides

static void move(const lm_eval *e, run *r, lm_type from, lm_type to, bool out_is_wide) {
  const lm_attr *a = &r->op->attr;
  lm_axis wide = out_is_wide ? a->to[0] : a->axes[0];
  lm_axis narrow = out_is_wide ? a->axes[0] : a->to[0];
  int k = out_is_wide ? 0 : 1; // the operand that has the wide axis
  lm_type t = out_is_wide ? from : to;
  int64_t stride = stride_of(e, out_is_wide ? to : from, wide);
  nest n = nest_over(e, t.axis, t.rank);
  nest_operand(e, &n, 0, to);
  nest_operand(e, &n, 1, from);
  n.start[k] = a->imm[0] * stride;
  for (int i = 0; i < n.rank; i++)
    if (n.axis[i] == narrow && narrow)
      n.step[k][i] = a->imm[1] * stride;
  lm_eval_copy(&n, r->out, r->in[0], false);
}

// For each tap, copies the positions of u that have it within t. An unwindow copies back.
static void window(const lm_eval *e, run *r, lm_type narrow, lm_type wide, bool back) {
  const lm_attr *a = &r->op->attr;
  lm_axis t = back ? a->to[0] : a->axes[0];
  lm_axis u = back ? a->axes[0] : a->to[0];
  int64_t size = lm_eval_size(e, t);
  int64_t taps = lm_eval_size(e, a->to[1]);
  int64_t stride = stride_of(e, narrow, t);
  int own = back ? 0 : 1; // the operand that has t
  for (int64_t k = 0; k < taps; k++) {
    int64_t first = k * a->imm[2] - a->imm[0];
    int64_t begin = first < 0 ? (-first + a->imm[1] - 1) / a->imm[1] : 0;
    int64_t end = size > first ? (size - 1 - first) / a->imm[1] + 1 : 0;
    int64_t n_u = lm_eval_size(e, u);
    nest n = nest_over(e, wide.axis, wide.rank);
    nest_operand(e, &n, 1 - own, wide);
    nest_operand(e, &n, own, narrow);
    end = end < n_u ? end : n_u;
    if (begin >= end)
      continue;
    for (int i = 0; i < n.rank; i++) {
      if (n.axis[i] == u) {
        n.size[i] = end - begin;
        n.step[own][i] = a->imm[1] * stride;
        n.start[1 - own] += begin * n.step[1 - own][i];
        n.start[own] += (first + begin * a->imm[1]) * stride;
      } else if (n.axis[i] == a->to[1]) {
        n.size[i] = 1;
        n.start[0] += k * n.step[0][i];
        n.start[1] += k * n.step[1][i];
      }
    }
    lm_eval_copy(&n, r->out, r->in[0], false);
  }
}

static void concat(const lm_eval *e, run *r, const lm_tensor *in) {
  const lm_attr *a = &r->op->attr;
  lm_type to = r->op->out[0]->type;
  int64_t first = 0;
  int64_t stride = stride_of(e, to, a->to[0]);
  for (uint32_t i = 0; i < r->op->n_in; i++) {
    nest n = nest_over(e, in[i].type.axis, in[i].type.rank);
    nest_operand(e, &n, 0, to);
    nest_operand(e, &n, 1, in[i].type);
    n.start[0] = first * stride;
    n.step[0][lm_type_find(in[i].type, a->axes[i])] = stride;
    lm_eval_copy(&n, r->out, in[i].v, false);
    first += lm_axis_size(e->m, a->axes[i]);
  }
}

static void same_order(run *r, const lm_tensor *in) {
  memcpy(r->out, in->v, (size_t)in->n * sizeof *r->out);
}

// ---- gather: operand 0 the result (or the updates), 1 the index, 2 the table

// The row of the table that element `at` of the index selects, clamped.
static int64_t row_of(const run *r, int64_t at) {
  return (int64_t)fmin(fmax(r->in[1][at], 0), (double)(r->size - 1));
}

static void gather_inner(void *user, int64_t n, const int64_t *at, const int64_t *step) {
  const run *r = user;
  for (int64_t i = 0; i < n; i++) {
    int64_t k = row_of(r, at[1] + i * step[1]);
    r->out[at[0] + i * step[0]] = r->in[0][at[2] + i * step[2] + k * r->stride];
  }
}

static void scatter_inner(void *user, int64_t n, const int64_t *at, const int64_t *step) {
  const run *r = user;
  for (int64_t i = 0; i < n; i++) {
    int64_t k = row_of(r, at[1] + i * step[1]);
    r->out[at[2] + i * step[2] + k * r->stride] += r->in[0][at[0] + i * step[0]];
  }
}

static void gather(const lm_eval *e, run *r, lm_type rows, lm_type table, nest_inner *inner) {
  nest n = nest_over(e, rows.axis, rows.rank);
  nest_operand(e, &n, 0, rows);
  nest_operand(e, &n, 1, r->op->in[1]->type);
  nest_operand(e, &n, 2, table);
  r->size = lm_eval_size(e, r->op->attr.axes[0]);
  r->stride = stride_of(e, table, r->op->attr.axes[0]);
  nest_run(&n, inner, r);
}

// ---- every operation

static void reduce(const lm_eval *e, run *r, nest_inner *inner) {
  nest n = reduction(e, r->op);
  nest_run(&n, inner, r);
}

void lm_eval_dot(const lm_eval *e, const lm_op *op, const lm_tensor *in, lm_tensor *out) {
  reduce(e,
         &(run){
             .op = op,
             .e = e,
             .in = {in[0].v, in[1].v},
             .out = out->v,
         },
         dot_inner);
}

// Where the scale of a row and of a column of blocks is (compiler/ir/dot.h).
static int64_t scale_at(const lm_eval *e, lm_type scales, lm_scales kind, int64_t row,
                        int64_t column) {
  int64_t tile = row / LM_SCALES_ROWS;
  if (kind == LM_SCALES_VEC128)
    return column * lm_axis_size(e->m, scales.axis[1]) + row;
  if (kind == LM_SCALES_BLK128)
    return tile * lm_axis_size(e->m, scales.axis[1]) * LM_SCALES_COLUMNS + column;
  tile = tile * lm_axis_size(e->m, scales.axis[1]) + column / LM_SCALES_COLUMNS;
  int64_t at = row % LM_SCALES_GROUP * 16 + row % LM_SCALES_ROWS / LM_SCALES_GROUP * 4;
  return tile * 512 + at + column % LM_SCALES_COLUMNS;
}

// The elements of an operand times the scales of their blocks.
static lm_tensor in_blocks(const lm_eval *e, const lm_op *op, int operand, const lm_tensor *x,
                           const lm_tensor *scales) {
  lm_tensor to = lm_eval_tensor(e, x->type);
  lm_scales kind = lm_dot_scales(op, operand);
  for (int64_t i = 0; i < x->n; i++) {
    int64_t part[2] = {0, 0}, size[2] = {1, 1}, rest = i; // of the row, and along the sum
    for (int a = x->type.rank; a-- > 0;) {
      int64_t n = lm_axis_size(e->m, x->type.axis[a]);
      int summed = lm_attr_has_axis(&op->attr, x->type.axis[a]);
      part[summed] += rest % n * size[summed];
      size[summed] *= n;
      rest /= n;
    }
    int64_t column = part[1] / lm_scales_of(kind).elements;
    to.v[i] = x->v[i] * scales->v[scale_at(e, scales->type, kind, part[0], column)];
  }
  return to;
}

// Codes are the numbers that they stand for.
static void dot_scaled(const lm_eval *e, const lm_op *op, const lm_tensor *in, lm_tensor *out) {
  const lm_tensor *scales = &in[LM_DOT_SCALE_X];
  lm_tensor both[] = {in[LM_DOT_X], in[LM_DOT_W]};
  bool blocks = scales->type.rank > 0;
  double scale = blocks ? 1 : scales[0].v[0] * scales[1].v[0];
  for (int i = 0; i < 2 && blocks; i++)
    both[i] = in_blocks(e, op, i, &both[i], &scales[i]);
  lm_eval_dot(e, op, both, out);
  for (int i = 0; i < 2 && blocks; i++)
    lm_tensor_free(&both[i]);
  for (int64_t i = 0; i < out->n; i++)
    out->v[i] *= scale;
}

void lm_eval_math(lm_eval *e, const lm_op *op, const lm_tensor *in, lm_tensor *out) {
  run r = {
      .op = op,
      .e = e,
      .out = out->v,
  };
  for (uint32_t i = 0; i < op->n_in && i < 4; i++)
    r.in[i] = in[i].v;
  switch (op->code) {
  case LM_OP_CONST:
  case LM_OP_IOTA: elementwise(e, &r, number_inner); break;
  case LM_OP_RNG: rng(e, &r); break;
  case LM_OP_VIEW:
  case LM_OP_RENAME:
  case LM_OP_HISTORY: same_order(&r, in); break;
  case LM_OP_SLICE: move(e, &r, in->type, out->type, false); break;
  case LM_OP_PAD: move(e, &r, in->type, out->type, true); break;
  case LM_OP_CONCAT: concat(e, &r, in); break;
  case LM_OP_WINDOW: window(e, &r, in->type, out->type, false); break;
  case LM_OP_UNWINDOW: window(e, &r, out->type, in->type, true); break;
  case LM_OP_SUM: reduce(e, &r, sum_inner); break;
  case LM_OP_MAX:
    fill(out, -INFINITY);
    reduce(e, &r, max_inner);
    break;
  case LM_OP_ARGMAX: argmax(e, &r, out); break;
  case LM_OP_DOT: lm_eval_dot(e, op, in, out); break;
  case LM_OP_DOT_SCALED: dot_scaled(e, op, in, out); break;
  case LM_OP_GATHER: gather(e, &r, out->type, in->type, gather_inner); break;
  case LM_OP_SCATTER: gather(e, &r, in->type, out->type, scatter_inner); break;
  case LM_OP_TOP_K:
  case LM_OP_GROUP_COUNTS:
  case LM_OP_GROUP_ORDER:
  case LM_OP_GROUP_INVERSE:
  case LM_OP_GROUP_ROWS:
  case LM_OP_UNGROUP_ROWS:
  case LM_OP_GROUPED_DOT:
  case LM_OP_GROUPED_OUTER: lm_eval_route(e, op, in, out); break;
  default: elementwise(e, &r, scalar_inner); break;
  }
}
