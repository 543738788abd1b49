// mix_form.c - the kernels that mix.c can write.
#include "codegen/cuda/mix.h"

enum {
  STEP = 16 // rows, columns and channels are multiples
};

bool cuda_mix_has(lm_type t, lm_axis a) {
  return lm_type_find(t, a) >= 0;
}

const lm_value *cuda_mix_unpermuted(const lm_value *v) {
  while (v->def && v->def->code == LM_OP_PERMUTE)
    v = v->def->in[0];
  return v;
}

static bool is_tile(const cuda_mix *x, lm_type t) {
  return cuda_mix_has(t, x->row) && cuda_mix_has(t, x->col);
}

static bool is_parallel(const cuda_mix *x, lm_axis a) {
  const lm_attr *points = &x->kernel->attr;
  for (int i = 0; i < points->n_axes; i++)
    if (points->axes[i] == a)
      return true;
  return false;
}

bool cuda_mix_is_of_block(const cuda_mix *x, lm_axis a) {
  return a == x->row || a == x->col || a == x->head || is_parallel(x, a);
}

static bool size_fits(int64_t n) {
  return n >= STEP && n <= CUDA_MIX_MOST && n % STEP == 0;
}

bool cuda_mix_sizes(int64_t rows, int64_t channels) {
  return size_fits(rows) && size_fits(channels);
}

// An operand of a dot whose last axis alone is summed or is that of the result's channels.
static bool factor_fits(const cuda_mix *x, const lm_value *v, lm_axis position, lm_axis channel) {
  lm_type t = v->type;
  bool fits = !v->def && t.dtype == LM_BF16 && t.rank >= 2 && t.axis[t.rank - 1] == channel &&
              cuda_mix_has(t, position) && size_fits(lm_axis_size(x->m, channel));
  for (int i = 0; i < t.rank - 1; i++)
    fits = fits && cuda_mix_is_of_block(x, t.axis[i]) &&
           (t.axis[i] == position || (t.axis[i] != x->row && t.axis[i] != x->col));
  return fits;
}

// ---- the dots

// The axes of the weights: those of the points, one of heads, rows, columns.
static bool axes_find(cuda_mix *x, lm_type of) {
  lm_type w = x->weights->type;
  for (int i = 0; i < w.rank; i++) {
    lm_axis a = w.axis[i];
    lm_axis *to = !cuda_mix_has(of, a) ? &x->row : &x->head;
    if (a == x->col || is_parallel(x, a))
      continue;
    if (*to)
      return false;
    *to = a;
  }
  return x->row && x->head && w.rank == x->kernel->attr.n_axes + 3;
}

static bool mix_find(cuda_mix *x) {
  x->mix = lm_kernel_mix(x->kernel);
  if (!x->mix || x->mix->attr.n_axes != 1)
    return false;
  x->col = x->mix->attr.axes[0];
  const lm_value *factor = NULL;
  for (int i = 0; i < 2; i++) {
    const lm_value *v = cuda_mix_unpermuted(x->mix->in[i]);
    if (v->def)
      x->weights = v;
    else
      factor = v;
  }
  if (!x->weights || !factor || !axes_find(x, factor->type))
    return false;
  lm_axis channel = factor->type.axis[factor->type.rank - 1];
  x->x = factor->index;
  x->channels = lm_axis_size(x->m, channel);
  x->rows = lm_axis_size(x->m, x->row);
  x->cols = lm_axis_size(x->m, x->col);
  x->heads = lm_axis_size(x->m, x->head);
  x->points = lm_type_elements(x->m, x->weights->type) / (x->rows * x->cols * x->heads);
  lm_type out = x->mix->out[0]->type;
  return !cuda_mix_is_of_block(x, channel) && factor_fits(x, factor, x->col, channel) &&
         size_fits(x->rows) && x->rows == x->cols && out.axis[out.rank - 1] == channel &&
         out.dtype == LM_BF16 && cuda_mix_has(factor->type, x->head);
}

static bool scores_fit(cuda_mix *x, const lm_op *dot) {
  if (x->scores || dot->attr.n_axes != 1 || dot->out[0]->type.dtype != LM_F32)
    return false;
  lm_axis channel = dot->attr.axes[0];
  bool rows = false;
  bool cols = false;
  x->scores = dot;
  x->score_channels = lm_axis_size(x->m, channel);
  for (int i = 0; i < 2; i++) {
    const lm_value *v = cuda_mix_unpermuted(dot->in[i]);
    bool row = cuda_mix_has(v->type, x->row);
    if (!factor_fits(x, v, row ? x->row : x->col, channel))
      return false;
    *(row ? &x->score_row : &x->score_col) = v->index;
    rows |= row;
    cols |= !row;
  }
  return rows && cols;
}

// ---- sums

static bool sum_fits(cuda_mix *x, const lm_op *op) {
  if (op->attr.n_axes != 1 || op->out[0]->type.dtype != LM_F32 || x->n_sums == CUDA_MIX_SUMS ||
      !is_tile(x, op->in[0]->type))
    return false;
  lm_axis over = op->attr.axes[0];
  bool known = over == x->row || over == x->col || over == x->head;
  x->sum[x->n_sums++] = (cuda_mix_sum){op, over == x->col   ? CUDA_MIX_OF_ROWS
                                           : over == x->row ? CUDA_MIX_OF_COLS
                                                            : CUDA_MIX_OF_HEADS};
  return known;
}

// ---- what depends on sums

// The kinds of sums that v is computed from, as bits: the marks of its operations.
static uint32_t sums_of(const lm_value *v) {
  return v->def ? v->def->mark : 0;
}

static uint32_t sums_of_operands(const lm_op *op) {
  uint32_t all = 0;
  for (uint32_t i = 0; i < op->n_in; i++)
    all |= sums_of(op->in[i]);
  return all;
}

// A sum is complete behind the elements of its head, or of all heads: neither the weights nor the
// terms of another sum may depend on it.
static bool sums_mark(const cuda_mix *x, lm_op *op) {
  op->mark = sums_of_operands(op);
  bool fits = !op->mark || (op != x->mix && op->code != LM_OP_SUM);
  for (int i = 0; i < x->n_sums; i++)
    if (x->sum[i].op == op)
      op->mark |= 1u << x->sum[i].kind;
  return fits;
}

// A tile is stored behind the last head, other results in each head.
static bool sums_fit(const lm_value *result, bool tile) {
  uint32_t heads = 1u << CUDA_MIX_OF_HEADS;
  return !(sums_of(result) & (tile ? ~heads : heads));
}

// ---- the other operations

static bool renames_positions(const cuda_mix *x, const lm_op *op) {
  lm_axis from = op->attr.axes[0];
  lm_axis to = op->attr.to[0];
  return op->attr.n_axes == 1 &&
         ((from == x->row && to == x->col) || (from == x->col && to == x->row));
}

static bool op_fits(cuda_mix *x, const lm_op *op) {
  if (op == x->mix)
    return true;
  switch (op->code) {
  case LM_OP_DOT: return scores_fit(x, op);
  case LM_OP_SUM: return sum_fits(x, op);
  case LM_OP_RENAME: return renames_positions(x, op);
  case LM_OP_PERMUTE: return true;
  case LM_OP_RNG: return false;
  default: return op->n_out == 1 && (lm_op_info_of(op)->traits & LM_T_ELEMENTWISE);
  }
}

// Results: the mix; of rows or columns; of rows and columns, from sums over heads.
static bool result_fits(const cuda_mix *x, const lm_value *v) {
  if (cuda_mix_unpermuted(v) == x->mix->out[0])
    return v == x->mix->out[0];
  bool tile = is_tile(x, v->type);
  bool one = cuda_mix_has(v->type, x->row) || cuda_mix_has(v->type, x->col);
  for (int i = 0; i < v->type.rank; i++)
    if (!cuda_mix_is_of_block(x, v->type.axis[i]))
      return false;
  bool heads = cuda_mix_has(v->type, x->head);
  return v->def && one && heads != tile && sums_fit(v, tile) && v->type.dtype != LM_BOOL &&
         v->type.rank == x->kernel->attr.n_axes + 2;
}

bool cuda_mix_make(const lm_module *m, const lm_op *kernel, cuda_mix *out) {
  *out = (cuda_mix){
      .m = m,
      .kernel = kernel,
  };
  if (kernel->code != LM_OP_KERNEL || kernel->attr.n_to || !mix_find(out))
    return false;
  const lm_op *yield = kernel->body->last;
  for (lm_op *op = kernel->body->first; op != yield; op = op->next)
    if (!op_fits(out, op) || !sums_mark(out, op))
      return false;
  bool fits = true;
  for (uint32_t i = 0; i < yield->n_in; i++)
    fits = fits && result_fits(out, yield->in[i]);
  return fits && cuda_sizes_known(m, kernel);
}

// ---- operands in memory

static bool multiplies(const cuda_mix *x, uint32_t k) {
  return k == x->x || (x->scores && (k == x->score_row || k == x->score_col));
}

void cuda_mix_strides(const cuda_mix *x, uint32_t k, int64_t *out) {
  cuda_tile_strides(x->m, x->kernel->in[k], multiplies(x, k), out);
}

bool cuda_mix_reads_strided(const lm_op *op, uint32_t k) {
  int64_t strides[LM_RANK];
  cuda_mix x;
  return lm_kernel_mix(op) && cuda_mix_make(lm_op_module(op), op, &x) && multiplies(&x, k) &&
         cuda_tile_views(x.m, op->in[k], strides);
}
