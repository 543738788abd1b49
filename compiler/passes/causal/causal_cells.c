// causal_cells.c - propagates the columns of positions and documents through @probe: values that
// are known as a whole, and cells of other values.
#include <math.h>
#include <string.h>
#include "compiler/passes/causal/causal.h"
#include "compiler/passes/rewrite.h"

enum {
  MAX_KNOWN = 1 << 20, // elements of a value that is known as a whole
  MAX_OTHERS = 64,     // indices along other axes that are compared to find a constant cell
  OPERANDS = 8,
};

// ---- operands, read a row at a time

typedef struct source {
  const double *v;     // NULL: nothing is known
  int64_t at_t, at_s;  // strides
  int64_t at[LM_RANK]; // strides along the result's other axes
} source;

static int64_t stride(const probe *p, lm_type t, int axis) {
  int64_t n = 1;
  for (int i = axis + 1; i < t.rank; i++)
    n *= lm_axis_size(p->m, t.axis[i]);
  return n;
}

static source source_of_known(const probe *p, const lm_tensor *x, lm_type out) {
  source s = {.v = x->v};
  for (int i = 0; i < x->type.rank; i++) {
    lm_axis a = x->type.axis[i];
    int64_t step = stride(p, x->type, i);
    int other = lm_type_find(out, a);
    if (p->is_position[a])
      s.at_t = step;
    else if (p->is_history[a])
      s.at_s = step;
    else if (other >= 0)
      s.at[other] = step;
  }
  return s;
}

static source source_of(const probe *p, const lm_value *v, lm_type out) {
  const fact *f = lm_fact(p, v);
  if (f->known.v)
    return source_of_known(p, &f->known, out);
  return f->cell ? (source){.v = f->cell, .at_t = f->width, .at_s = f->width > 1,} : (source){0};
}

// n values of row t: a pointer into the operand if they are contiguous there, else a copy in
// `buffer`.
static const double *row(const source *x, int64_t t, int64_t other, int64_t n, double *buffer) {
  const double *from = x->v ? x->v + t * x->at_t + other : NULL;
  if (from && (x->at_s == 1 || n == 1))
    return from;
  for (int64_t s = 0; s < n; s++)
    buffer[s] = from ? from[s * x->at_s] : NAN;
  return buffer;
}

// ---- elementwise

// A masked score absorbs small and unknown values, not a constant such as 1e30.
static double negligible_sum(double x, double y) {
  if (x <= LM_NEVER && !(fabs(y) >= LM_LARGE))
    return x;
  if (y <= LM_NEVER && !(fabs(x) >= LM_LARGE))
    return y;
  return x + y;
}

// A row whose maximum is masked is masked as a whole.
static double difference(double x, double y) {
  return x <= LM_NEVER && y <= LM_NEVER ? 0 : negligible_sum(x, -y);
}

static double comparison(double x, double y, bool holds) {
  return isnan(x) || isnan(y) ? NAN : holds;
}
static double exponential(double x) {
  return x <= LM_NEVER ? 0 : exp(x);
}
static double cell_product(double x, double y) {
  return x == 0 || y == 0 ? 0 : x * y;
}
static double both(double x, double y) {
  return x == 0 || y == 0 ? 0 : isnan(x) || isnan(y) ? NAN : 1;
}
static double either(double x, double y) {
  return x == 1 || y == 1 ? 1 : isnan(x) || isnan(y) ? NAN : 0;
}

static double chosen(double c, double x, double y) {
  if (isnan(c))
    return x == y ? x : NAN;
  return c != 0 ? x : y;
}

static double any_other(const lm_op *op, const double *const *in, int64_t s) {
  double x[OPERANDS] = {0};
  for (uint32_t i = 0; i < op->n_in; i++) {
    x[i] = in[i][s];
    if (isnan(x[i]))
      return NAN;
  }
  return op->n_in ? lm_eval_scalar(op, x) : NAN;
}

#define EACH(VALUE)                                                                                \
  for (int64_t s = 0; s < n; s++)                                                                  \
  out[s] = (VALUE)

// n cells of the result; NAN: not a constant. large: unknown operands may be as large as a masked
// score, which then does not absorb them.
static void combine(const lm_op *op, bool large, const double *const *in, int64_t n, double *out) {
  const double *x = in[0];
  const double *y = op->n_in > 1 ? in[1] : NULL;
  switch (op->code) {
  case LM_OP_EXPAND:
  case LM_OP_STOP: EACH(x[s]); break;
  case LM_OP_SELECT: EACH(chosen(x[s], y[s], in[2][s])); break;
  case LM_OP_ADD: EACH(large ? x[s] + y[s] : negligible_sum(x[s], y[s])); break;
  case LM_OP_SUB: EACH(large ? x[s] - y[s] : difference(x[s], y[s])); break;
  case LM_OP_MUL: EACH(cell_product(x[s], y[s])); break;
  case LM_OP_DIV: EACH(x[s] == 0 ? 0 : x[s] / y[s]); break;
  case LM_OP_EXP: EACH(exponential(x[s])); break;
  case LM_OP_AND: EACH(both(x[s], y[s])); break;
  case LM_OP_OR: EACH(either(x[s], y[s])); break;
  case LM_OP_EQ: EACH(comparison(x[s], y[s], x[s] == y[s])); break;
  case LM_OP_GE: EACH(comparison(x[s], y[s], x[s] >= y[s])); break;
  case LM_OP_GT: EACH(comparison(x[s], y[s], x[s] > y[s])); break;
  case LM_OP_LE: EACH(comparison(x[s], y[s], x[s] <= y[s])); break;
  case LM_OP_LT: EACH(comparison(x[s], y[s], x[s] < y[s])); break;
  default: EACH(any_other(op, in, s)); break;
  }
}

// The axes of the result along which a known operand varies. A cell is a constant if it is equal at
// every index of these axes.
typedef struct others {
  int axis[LM_RANK], n;
  int64_t count;
} others;

static others others_of(const probe *p, lm_type out, const source *in, uint32_t n_in) {
  others o = {.count = 1};
  for (int k = 0; k < out.rank; k++) {
    bool varies = false;
    for (uint32_t i = 0; i < n_in; i++)
      varies |= in[i].at[k] != 0;
    if (!varies || lm_axis_size(p->m, out.axis[k]) == 1)
      continue;
    o.axis[o.n++] = k;
    o.count *= lm_axis_size(p->m, out.axis[k]);
  }
  return o;
}

static int64_t other_offset(const probe *p, lm_type out, const others *o, int64_t k,
                            const source *x) {
  int64_t at = 0;
  for (int i = o->n - 1; i >= 0; i--) {
    int64_t size = lm_axis_size(p->m, out.axis[o->axis[i]]);
    at += k % size * x->at[o->axis[i]];
    k /= size;
  }
  return at;
}

static void forget_varying(source *in, uint32_t n_in) {
  for (uint32_t i = 0; i < n_in; i++)
    for (int k = 0; k < LM_RANK; k++)
      if (in[i].at[k])
        in[i] = (source){0};
}

static void merge(double *out, const double *now, int64_t n) {
  EACH(out[s] == now[s] ? out[s] : NAN);
}

static void elementwise_row(const probe *p, const lm_op *op, const source *in, const others *o,
                            int64_t t, int64_t n, double *buffer, double *out) {
  for (int64_t k = 0; k < o->count; k++) {
    const double *x[OPERANDS] = {0};
    for (uint32_t i = 0; i < op->n_in; i++)
      x[i] =
          row(&in[i], t, other_offset(p, op->out[0]->type, o, k, &in[i]), n, buffer + (i + 1) * n);
    combine(op, lm_fact(p, op->out[0])->large, x, n, k ? buffer : out);
    if (k)
      merge(out, buffer, n);
  }
}

static bool any_known(const source *in, uint32_t n) {
  for (uint32_t i = 0; i < n; i++)
    if (in[i].v)
      return true;
  return false;
}

// The cells of a fact, which the caller fills. Those of a grid are megabytes and are used again.
static void cells_begin(probe *p, const lm_op *op, int64_t width) {
  fact *f = lm_fact(p, op->out[0]);
  f->width = width;
  if (width > 1 && p->n_spare)
    f->cell = p->spare[--p->n_spare];
  else
    f->cell = lm_alloc((size_t)(p->n_positions * width) * sizeof *f->cell);
}

// True if each known operand is a single number.
static bool is_uniform(const source *in, uint32_t n) {
  for (uint32_t i = 0; i < n; i++)
    if (in[i].v && (in[i].at_t || in[i].at_s))
      return false;
  return true;
}

static void fill_cells(probe *p, const lm_op *op, int64_t width, double x) {
  if (isnan(x))
    return;
  cells_begin(p, op, width);
  for (int64_t i = 0; i < p->n_positions * width; i++)
    lm_fact(p, op->out[0])->cell[i] = x;
}

static void find_elementwise(probe *p, const lm_op *op, int64_t width) {
  source in[OPERANDS] = {{0}};
  for (uint32_t i = 0; i < op->n_in; i++)
    in[i] = source_of(p, op->in[i], op->out[0]->type);
  others o = others_of(p, op->out[0]->type, in, op->n_in);
  if (o.count > MAX_OTHERS) {
    forget_varying(in, op->n_in);
    o = (others){.count = 1};
  }
  if (!any_known(in, op->n_in))
    return;
  if (is_uniform(in, op->n_in)) {
    double cell, few[OPERANDS + 1];
    elementwise_row(p, op, in, &o, 0, 1, few, &cell);
    fill_cells(p, op, width, cell);
    return;
  }
  double *buffer = lm_calloc((size_t)(width * (OPERANDS + 1)), sizeof *buffer);
  cells_begin(p, op, width);
  for (int64_t t = 0; t < p->n_positions; t++)
    elementwise_row(p, op, in, &o, t, width, buffer, lm_fact(p, op->out[0])->cell + t * width);
  lm_free(buffer);
}

// ---- reductions over the history

// The maximum of a fully masked row, or the maximum or sum of a row in which every cell is
// constant.
static double row_reduced(const lm_op *op, const double *x, int64_t n, bool *out_hidden) {
  double sum = 0, maximum = -INFINITY;
  bool all = true;
  *out_hidden = op->code == LM_OP_MAX;
  for (int64_t s = 0; s < n; s++) {
    *out_hidden &= x[s] <= LM_NEVER;
    all &= !isnan(x[s]);
    sum += x[s];
    maximum = x[s] > maximum ? x[s] : maximum;
  }
  return !all ? NAN : op->code == LM_OP_MAX ? maximum : sum;
}

// True if earlier positions of the document are missing on the row.
static bool is_behind_gap(const probe *p, int64_t t) {
  int64_t first = t - (int64_t)p->pos[t];
  return first < 0 || p->pos[first] != 0 || p->seg[first] != p->seg[t];
}

// Rows of which no position on the row is visible, but one that the sample lacks, are not hidden.
// At the first one that is hidden the model is rejected, so the others are not examined.
static void correct_hidden(const probe *p, const lm_op *op) {
  fact *f = lm_fact(p, op->out[0]);
  for (int64_t t = 0; t < p->n_positions; t++) {
    if (!f->hidden[t] || p->seg[t] < 0)
      continue;
    if (!is_behind_gap(p, t) || !lm_mask_shows(p, op->in[0], t))
      return;
    f->hidden[t] = false;
    if (f->cell)
      f->cell[t] = NAN;
  }
}

static void find_reduced(probe *p, const lm_op *op) {
  const fact *x = lm_fact(p, op->in[0]);
  fact *f = lm_fact(p, op->out[0]);
  if (!x->cell || x->width == 1 || (op->code == LM_OP_SUM && op->attr.n_axes > 1))
    return;
  cells_begin(p, op, 1);
  f->hidden = lm_calloc((size_t)p->n_positions, sizeof *f->hidden);
  f->owns_hidden = true;
  for (int64_t t = 0; t < p->n_positions; t++)
    f->cell[t] = row_reduced(op, x->cell + t * p->n_positions, p->n_positions, &f->hidden[t]);
  correct_hidden(p, op);
}

// ---- data movement that keeps t and s

static bool keeps_grid(const probe *p, const lm_op *op) {
  switch (op->code) {
  case LM_OP_RENAME: return true;
  case LM_OP_VIEW:
  case LM_OP_PERMUTE:
  case LM_OP_SLICE:
  case LM_OP_PAD:
  case LM_OP_CONCAT: break;
  case LM_OP_SUM:
  case LM_OP_MAX:
  case LM_OP_DOT: break;
  default: return false;
  }
  return !lm_probe_over(op, p->is_position) && !lm_probe_over(op, p->is_history);
}

// The cell is the constant that the operands share. A dot (over heads) is zero if one of its
// operands is.
static double moved(const probe *p, const lm_op *op, int64_t t, int64_t s) {
  double x = lm_fact_cell(p, op->in[0], t, s);
  if (op->code == LM_OP_DOT)
    return x == 0 || lm_fact_cell(p, op->in[1], t, s) == 0 ? 0 : NAN;
  for (uint32_t i = 1; i < op->n_in; i++)
    if (lm_fact_cell(p, op->in[i], t, s) != x)
      return NAN;
  if (op->code == LM_OP_PAD || op->code == LM_OP_SUM)
    return x == 0 ? 0 : NAN;
  return x;
}

static bool moves_cells(const probe *p, const lm_op *op) {
  bool any = false, all = true;
  for (uint32_t i = 0; i < op->n_in; i++) {
    const fact *f = lm_fact(p, op->in[i]);
    any |= f->cell != NULL;
    all &= f->cell || f->known.v;
  }
  return op->code == LM_OP_DOT ? any : all && op->n_in;
}

static void find_moved(probe *p, const lm_op *op, int64_t width) {
  if (!moves_cells(p, op))
    return;
  cells_begin(p, op, width);
  for (int64_t t = 0; t < p->n_positions; t++)
    for (int64_t s = 0; s < width; s++)
      lm_fact(p, op->out[0])->cell[t * width + s] = moved(p, op, t, s);
}

// The constant of a known tensor at (t, s); NAN if it differs along other axes.
static double known_cell(const probe *p, const lm_tensor *x, int64_t t, int64_t s) {
  lm_type none = {0};
  source all = source_of_known(p, x, x->type);
  source grid = source_of_known(p, x, none);
  others o = others_of(p, x->type, &all, 1);
  const double *at = x->v + t * grid.at_t + s * grid.at_s;
  for (int64_t k = 1; k < o.count; k++)
    if (at[other_offset(p, x->type, &o, k, &all)] != at[0])
      return NAN;
  return at[0];
}

double lm_fact_cell(const probe *p, const lm_value *v, int64_t t, int64_t s) {
  const fact *f = lm_fact(p, v);
  if (f->known.v)
    return known_cell(p, &f->known, t, s);
  return f->cell ? f->cell[t * f->width + (f->width > 1 ? s : 0)] : NAN;
}

// ---- every operation

static bool is_computed(const lm_op *op) {
  if (op->n_out != 1 || op->n_in > OPERANDS || op->body || !lm_op_pure(op))
    return false;
  return op->code != LM_OP_PARAM && op->code != LM_OP_RNG && op->code != LM_OP_DOT &&
         op->code != LM_OP_AT;
}

static bool fill_known(const probe *p, const lm_value *v, lm_tensor *out) {
  source to = source_of_known(p, out, v->type);
  lm_type none = {0};
  source grid = source_of_known(p, out, none);
  others o = others_of(p, v->type, &to, 1);
  int64_t width = lm_fact(p, v)->width;
  for (int64_t t = 0; t < p->n_positions; t++)
    for (int64_t s = 0; s < width; s++)
      for (int64_t k = 0; k < o.count; k++) {
        double x = lm_fact(p, v)->cell[t * width + s];
        if (isnan(x))
          return false;
        out->v[t * grid.at_t + s * grid.at_s + other_offset(p, v->type, &o, k, &to)] = x;
      }
  return true;
}

// Makes a value whose cells are all constants known as a whole; false if some cell is not, or if
// the value is too large.
static bool make_known(const probe *p, const lm_value *v) {
  fact *f = lm_fact(p, v);
  int64_t n = lm_type_elements(p->m, v->type);
  if (f->known.v || !f->cell || n > MAX_KNOWN)
    return f->known.v;
  lm_tensor x = {v->type, n, lm_calloc((size_t)n, sizeof *x.v)};
  if (fill_known(p, v, &x))
    f->known = x;
  else
    lm_tensor_free(&x);
  return f->known.v;
}

static bool find_known(probe *p, const lm_op *op) {
  lm_tensor in[OPERANDS] = {{{0}}};
  if (!is_computed(op) || lm_type_elements(p->m, op->out[0]->type) > MAX_KNOWN)
    return false;
  for (uint32_t i = 0; i < op->n_in; i++) {
    if (!make_known(p, op->in[i]))
      return false;
    in[i] = lm_fact(p, op->in[i])->known;
  }
  lm_eval_known(p->m, op, in, &lm_fact(p, op->out[0])->known);
  return true;
}

// ---- large values

static bool is_unknown(const probe *p, const lm_value *v) {
  const fact *f = lm_fact(p, v);
  if (f->known.v || !f->cell)
    return !f->known.v;
  for (int64_t i = 0; i < p->n_positions * f->width; i++)
    if (isnan(f->cell[i]))
      return true;
  return false;
}

// A constant factor makes the other operand large: x * 1e30, x / 1e-30.
static bool is_large_factor(const lm_op *op, int which) {
  const lm_value *v = op->in[which];
  while (v->def && (v->def->code == LM_OP_EXPAND || v->def->code == LM_OP_CAST))
    v = v->def->in[0];
  if (!v->def || v->def->code != LM_OP_CONST)
    return false;
  double c = fabs(v->def->attr.num);
  return op->code == LM_OP_MUL ? c >= LM_LARGE
                               : op->code == LM_OP_DIV && which == 1 && c * LM_LARGE <= 1;
}

// True if v may be a constant of this sign as large as a masked score, by a condition that is not
// known: a masked score does not absorb it.
static bool selects_large(const probe *p, const lm_value *v, int sign) {
  const lm_op *op = v->def;
  if (!lm_op_is(v, LM_OP_SELECT) || !is_unknown(p, op->in[0]))
    return false;
  for (uint32_t i = 1; i < op->n_in; i++) {
    const lm_value *x = op->in[i];
    while (lm_op_is(x, LM_OP_EXPAND) || lm_op_is(x, LM_OP_CAST))
      x = x->def->in[0];
    if (lm_op_is(x, LM_OP_CONST) && sign * x->def->attr.num >= LM_LARGE)
      return true;
  }
  return false;
}

// The values of a top_k hold masked scores where fewer positions are visible.
void lm_fact_large(probe *p, const lm_op *op) {
  fact *f = lm_fact(p, op->out[0]);
  if (op->out[0]->type.dtype == LM_BOOL)
    return;
  f->large = lm_probe_best(p, op) || selects_large(p, op->out[0], 1);
  if (op->code == LM_OP_NEG || op->code == LM_OP_SUB)
    f->large |= selects_large(p, op->in[op->n_in - 1], -1);
  for (uint32_t i = 0; i < op->n_in; i++)
    f->large |= lm_fact(p, op->in[i])->large;
  for (int i = 0; op->n_in == 2 && i < 2; i++)
    f->large |= is_large_factor(op, i) && is_unknown(p, op->in[1 - i]);
}

static void inherit_hidden(probe *p, const lm_op *op) {
  fact *f = lm_fact(p, op->out[0]);
  for (uint32_t i = 0; i < op->n_in && !f->hidden; i++)
    f->hidden = lm_fact(p, op->in[i])->hidden;
}

// Finds the rows that a mask hides, for a maximum that is known as a whole.
static void find_hidden(probe *p, const lm_op *op) {
  fact *f = lm_fact(p, op->out[0]);
  lm_axis position;
  if (op->code != LM_OP_MAX || !lm_probe_over(op, p->is_history) ||
      !lm_probe_has(p->is_position, op->out[0]->type, &position))
    return;
  f->hidden = lm_calloc((size_t)p->n_positions, sizeof *f->hidden);
  f->owns_hidden = true;
  for (int64_t t = 0; t < p->n_positions; t++)
    f->hidden[t] = lm_fact_cell(p, op->out[0], t, 0) <= LM_NEVER;
}

void lm_fact_find(probe *p, const lm_op *op) {
  lm_axis position;
  if (op->n_out != 1)
    return;
  lm_type t = op->out[0]->type;
  bool elementwise = lm_op_info_of(op)->traits & LM_T_ELEMENTWISE;
  bool gridded = lm_probe_gridded(p, t);
  lm_fact_large(p, op);
  if (!(elementwise && gridded) && find_known(p, op)) {
    inherit_hidden(p, op);
    find_hidden(p, op);
    return;
  }
  if (!lm_probe_has(p->is_position, t, &position) || op->n_in > OPERANDS)
    return;
  int64_t width = gridded ? p->n_positions : 1;
  bool reduces =
      (op->code == LM_OP_MAX || op->code == LM_OP_SUM) && lm_probe_over(op, p->is_history);
  inherit_hidden(p, op);
  if (op->code == LM_OP_CONST)
    fill_cells(p, op, width, op->attr.num);
  else if (elementwise)
    find_elementwise(p, op, width);
  else if (reduces && !gridded)
    find_reduced(p, op);
  else if (keeps_grid(p, op))
    find_moved(p, op, width);
}

void lm_fact_free(probe *p, fact *f) {
  if (f->cell && f->width > 1)
    LM_PUSH(p->a, p->spare, p->n_spare, p->cap_spare) = f->cell;
  else
    lm_free(f->cell);
  lm_tensor_free(&f->known);
  f->cell = NULL;
}
