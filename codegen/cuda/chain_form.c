// chain_form.c - the scans that chain.c can write.
#include "codegen/cuda/chain.h"
#include "compiler/ir/dot.h"

enum {
  STEP = 16, // rows and columns are multiples
  LEAST = 32,
  MOST = 256, // rows of the state
  WIDEST = 64 // columns of a block
};

static bool has(lm_type t, lm_axis a) {
  return lm_type_find(t, a) >= 0;
}

static const lm_value *unpermuted(const lm_value *v) {
  while (v->def && v->def->code == LM_OP_PERMUTE)
    v = v->def->in[0];
  return v;
}

// True if both have the same elements: of one value, rounded before or after its axes are moved.
static bool is_same(const lm_value *v, const lm_value *w) {
  const lm_value *of[] = {unpermuted(v), unpermuted(w)};
  for (int i = 0; i < 2 && of[0] != of[1]; i++)
    if (of[i]->def && of[i]->def->code == LM_OP_CAST && of[i]->type.dtype == LM_BF16)
      of[i] = unpermuted(of[i]->def->in[0]);
  return of[0] == of[1] && v->type.dtype == w->type.dtype;
}

bool cuda_chain_is_state(const cuda_chain *x, const lm_value *v) {
  bool rounded = false;
  for (; v->def; v = v->def->in[0]) {
    bool rounds = v->def->code == LM_OP_CAST && v->type.dtype == LM_BF16 && !rounded;
    if (!rounds && v->def->code != LM_OP_PERMUTE)
      return false;
    rounded |= rounds;
  }
  return rounded && v == x->scan->body->args[0];
}

// ---- the dots

// Takes an operand of the region as a factor of the dot: the other factor, or NULL.
static const lm_value *factor_find(const cuda_chain *x, const lm_op *dot, uint32_t *out) {
  for (int i = 0; i < 2 && dot->attr.n_axes == 1; i++) {
    const lm_value *v = unpermuted(dot->in[i]);
    if (v->def || v->type.dtype != LM_BF16 || !lm_scan_operand_is_slice(x->scan, v->index))
      continue;
    *out = v->index;
    return dot->in[1 - i];
  }
  return NULL;
}

static bool read_take(cuda_chain *x, const lm_op *dot, uint32_t factor) {
  if (x->read)
    return false;
  x->read = dot;
  x->p = factor;
  x->k = dot->attr.axes[0];
  return true;
}

static bool mix_take(cuda_chain *x, const lm_op *dot, uint32_t factor, const lm_value *entry) {
  lm_axis i = dot->attr.axes[0];
  if (x->mixes == CUDA_CHAIN_MIXES || (x->mixes && (!is_same(x->entry, entry) || x->i != i)))
    return false;
  x->mix[x->mixes] = dot;
  x->m_of[x->mixes++] = factor;
  x->entry = entry;
  x->i = i;
  return true;
}

static bool dot_find(cuda_chain *x, const lm_op *dot) {
  uint32_t factor;
  const lm_value *v = factor_find(x, dot, &factor);
  if (!v)
    return false;
  if (cuda_chain_is_state(x, v))
    return read_take(x, dot, factor);
  if (!x->read || x->update)
    return false;
  if (!has(x->scan->body->args[factor]->type, x->k))
    return mix_take(x, dot, factor, unpermuted(v));
  x->update = dot;
  x->q = factor;
  x->j = dot->attr.axes[0];
  x->row = unpermuted(v);
  x->entry = x->mixes ? x->entry : x->row;
  x->i = x->mixes ? x->i : x->j;
  return true;
}

// The only axis of t that `other` lacks; 0 if there is none, or several.
static lm_axis lone_axis(lm_type t, lm_type other) {
  lm_axis found = 0;
  for (int i = 0; i < t.rank; i++)
    if (!has(other, t.axis[i])) {
      if (found)
        return 0;
      found = t.axis[i];
    }
  return found;
}

// True if v is a tile of these rows, rounded.
static bool row_fits(const cuda_chain *x, const lm_value *v, lm_axis rows) {
  lm_type s = x->scan->body->args[0]->type;
  if (!v->def || v->type.dtype != LM_BF16)
    return false;
  return has(v->type, rows) && has(v->type, x->v) && v->type.rank == s.rank;
}

// True if t has the axes of the state, but `rows` instead of v.
static bool factor_fits(const cuda_chain *x, lm_type t, lm_axis rows) {
  lm_type s = x->scan->body->args[0]->type;
  return t.rank == s.rank && lone_axis(s, t) == x->v && lone_axis(t, s) == rows;
}

static bool mixes_fit(const cuda_chain *x) {
  lm_type s = x->scan->body->args[0]->type;
  for (int n = 0; n < x->mixes; n++) {
    lm_type t = x->scan->body->args[x->m_of[n]]->type;
    bool fits = t.rank == s.rank && x->i != x->j && has(t, x->i) && has(t, x->j) && !has(t, x->v);
    for (int k = 0; fits && k < t.rank; k++)
      fits = t.axis[k] == x->i || t.axis[k] == x->j || has(s, t.axis[k]);
    if (!fits)
      return false;
  }
  return true;
}

static bool axes_find(cuda_chain *x) {
  lm_type s = x->scan->body->args[0]->type;
  lm_type p = x->scan->body->args[x->p]->type;
  lm_type q = x->scan->body->args[x->q]->type;
  x->v = lone_axis(s, p);
  x->rows = lm_axis_size(x->m, x->j);
  x->depth = lm_axis_size(x->m, x->k);
  x->cols = x->v ? lm_axis_size(x->m, x->v) : 0;
  x->steps = lm_axis_size(x->m, lm_scan_axis(x->scan));
  if (!x->v || x->v == x->k || s.dtype != LM_F32)
    return false;
  if (!factor_fits(x, p, x->i) || !factor_fits(x, q, x->j) || !mixes_fit(x))
    return false;
  x->points = lm_type_elements(x->m, s) / (x->depth * x->cols);
  return lm_axis_size(x->m, x->i) == x->rows && row_fits(x, x->row, x->j) &&
         row_fits(x, x->entry, x->i);
}

// ---- the other operations

static bool is_of_points(const cuda_chain *x, lm_type t) {
  lm_type s = x->scan->body->args[0]->type;
  for (int i = 0; i < t.rank; i++)
    if (t.axis[i] != x->i && t.axis[i] != x->j && !has(s, t.axis[i]))
      return false;
  return has(t, x->k) + has(t, x->j) + (x->i != x->j && has(t, x->i)) < 2;
}

static bool is_mix(const cuda_chain *x, const lm_op *op) {
  for (int n = 0; n < x->mixes; n++)
    if (op == x->mix[n])
      return true;
  return false;
}

static bool op_fits(const cuda_chain *x, const lm_op *op) {
  if (op == x->read || op == x->update || is_mix(x, op))
    return true;
  bool elementwise = lm_op_info_of(op)->traits & LM_T_ELEMENTWISE;
  bool moves = op->code == LM_OP_PERMUTE;
  if (op->code == LM_OP_IOTA || op->code == LM_OP_RNG)
    return false;
  if (moves && !unpermuted(op->out[0])->def)
    return true; // of an operand
  if (op->n_out != 1 || (!elementwise && !moves))
    return false;
  return is_of_points(x, op->out[0]->type);
}

static bool is_last(lm_type t, lm_axis a) {
  return t.rank && t.axis[t.rank - 1] == a;
}

static bool result_fits(const cuda_chain *x, const lm_value *v) {
  bool known = cuda_chain_is_state(x, v) || is_same(v, x->row);
  return known && is_last(v->type, x->v) && v->type.dtype == LM_BF16;
}

static bool is_tile(const cuda_chain *x, lm_type t) {
  return has(t, x->v) && (has(t, x->i) || has(t, x->j) || has(t, x->k));
}

static bool has_two(const cuda_chain *x, lm_type t) {
  bool rows = has(t, x->i) || has(t, x->j);
  return (has(t, x->i) && has(t, x->j) && x->i != x->j) || (rows && has(t, x->k)) || has(t, x->v);
}

bool cuda_chain_is_factor(const cuda_chain *x, uint32_t i) {
  for (int n = 0; n < x->mixes; n++)
    if (i == x->m_of[n])
      return true;
  return i == x->p || i == x->q;
}

bool cuda_chain_copies(const cuda_chain *x, uint32_t i) {
  return i && (cuda_chain_is_factor(x, i) || is_tile(x, x->scan->body->args[i]->type));
}

lm_axis cuda_chain_row_axis(const cuda_chain *x, lm_type t) {
  const lm_axis axes[] = {x->i, x->j, x->k};
  for (size_t n = 0; n < LM_COUNT(axes); n++)
    if (has(t, axes[n]) && (!is_last(t, axes[n]) || !has_two(x, t)))
      return axes[n];
  LM_BUG("a tile without rows");
}

static bool operand_fits(const cuda_chain *x, uint32_t i) {
  lm_type t = x->scan->body->args[i]->type;
  if (i == x->p || i == x->q)
    return is_last(t, x->k);
  if (cuda_chain_is_factor(x, i))
    return is_last(t, x->i) || is_last(t, x->j);
  if (!is_of_points(x, t))
    return false;
  if (is_tile(x, t))
    return t.dtype == LM_BF16 && is_last(t, x->v);
  return t.dtype == LM_F32 || t.dtype == LM_BF16;
}

static bool values_fit(const cuda_chain *x) {
  const lm_op *yield = x->scan->body->last;
  bool fits = yield->in[0]->def != NULL;
  for (const lm_op *op = x->scan->body->first; op != yield; op = op->next)
    fits = fits && op_fits(x, op);
  for (uint32_t i = 1; i < yield->n_in; i++)
    fits = fits && result_fits(x, yield->in[i]);
  for (uint32_t i = 1; i < x->scan->n_in; i++)
    fits = fits && operand_fits(x, i);
  return fits;
}

// Warps share the columns of 16 rows of r if there are more warps than rows of it.
static bool sizes_fit(const cuda_chain *x) {
  if (x->depth < LEAST || x->depth > MOST || x->rows < STEP)
    return false;
  if (x->depth % STEP || x->rows % STEP)
    return false;
  return x->depth % x->rows == 0 && x->steps > 0;
}

bool cuda_chain_make(const lm_module *m, const lm_op *scan, cuda_chain *out) {
  *out = (cuda_chain){
      .m = m,
      .scan = scan,
  };
  if (!lm_op_chains(scan) || lm_scan_carries(scan) != 1)
    return false;
  for (const lm_op *op = scan->body->first; op; op = op->next)
    if (op->code == LM_OP_DOT && !dot_find(out, op))
      return false;
  if (!out->read || !out->update || !cuda_sizes_known(m, scan))
    return false;
  return axes_find(out) && sizes_fit(out) && values_fit(out);
}

bool cuda_chain_may_slice(const cuda_chain *x, int64_t columns) {
  int64_t parts = x->depth / x->rows; // of the columns of r
  return columns >= STEP && x->cols % columns == 0 && columns % (STEP * parts) == 0;
}

// Narrow slices read p and q more often; wide ones may leave multiprocessors idle.
int64_t cuda_chain_slice(const cuda_chain *x, const lm_target *t) {
  int64_t least = 0;
  for (int64_t n = WIDEST; n >= STEP; n /= 2) {
    if (!cuda_chain_may_slice(x, n))
      continue;
    least = n;
    if (x->points * (x->cols / n) >= t->units)
      break;
  }
  return least;
}

// ---- operands in memory

void cuda_chain_strides(const cuda_chain *x, uint32_t i, int64_t *out) {
  cuda_tile_strides(x->m, x->scan->in[i], cuda_chain_copies(x, i), out);
}

bool cuda_chain_reads_strided(const lm_op *op, uint32_t i) {
  int64_t strides[LM_RANK];
  cuda_chain x;
  return lm_op_chains(op) && cuda_chain_make(lm_op_module(op), op, &x) &&
         cuda_chain_copies(&x, i) && cuda_tile_views(x.m, op->in[i], strides);
}
