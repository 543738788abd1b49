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

static bool dot_find(cuda_chain *x, const lm_op *dot) {
  uint32_t factor;
  const lm_value *v = factor_find(x, dot, &factor);
  if (!v)
    return false;
  bool reads = cuda_chain_is_state(x, v);
  if (reads ? x->read || x->update : !x->read || x->update)
    return false;
  *(reads ? &x->read : &x->update) = dot;
  *(reads ? &x->p : &x->q) = factor;
  *(reads ? &x->k : &x->j) = dot->attr.axes[0];
  x->row = reads ? NULL : unpermuted(v);
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

static bool row_fits(const cuda_chain *x) {
  lm_type s = x->scan->body->args[0]->type;
  lm_type row = x->row->type;
  if (!x->row->def || row.dtype != LM_BF16)
    return false;
  return has(row, x->j) && has(row, x->v) && row.rank == s.rank;
}

static bool axes_find(cuda_chain *x) {
  lm_type s = x->scan->body->args[0]->type;
  lm_type p = x->scan->body->args[x->p]->type;
  lm_type q = x->scan->body->args[x->q]->type;
  x->v = lone_axis(s, p);
  x->rows = x->j ? lm_axis_size(x->m, x->j) : 0;
  x->depth = lm_axis_size(x->m, x->k);
  x->cols = x->v ? lm_axis_size(x->m, x->v) : 0;
  x->steps = lm_axis_size(x->m, lm_scan_axis(x->scan));
  if (!x->v || x->v == x->k || s.dtype != LM_F32)
    return false;
  if (lone_axis(p, s) != x->j || !lm_type_same_axes(p, q))
    return false;
  x->points = lm_type_elements(x->m, s) / (x->depth * x->cols);
  return row_fits(x);
}

// ---- the other operations

static bool is_of_points(const cuda_chain *x, lm_type t) {
  lm_type s = x->scan->body->args[0]->type;
  for (int i = 0; i < t.rank; i++)
    if (t.axis[i] != x->j && !has(s, t.axis[i]))
      return false;
  return !(has(t, x->j) && has(t, x->k));
}

static bool op_fits(const cuda_chain *x, const lm_op *op) {
  if (op == x->read || op == x->update)
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
  bool known = cuda_chain_is_state(x, v) || unpermuted(v) == x->row;
  return known && is_last(v->type, x->v) && v->type.dtype == LM_BF16;
}

static bool is_tile(const cuda_chain *x, lm_type t) {
  return has(t, x->v) && (has(t, x->j) || has(t, x->k));
}

bool cuda_chain_copies(const cuda_chain *x, uint32_t i) {
  return i && (i == x->p || i == x->q || is_tile(x, x->scan->body->args[i]->type));
}

static bool operand_fits(const cuda_chain *x, uint32_t i) {
  lm_type t = x->scan->body->args[i]->type;
  if (i == x->p || i == x->q)
    return is_last(t, x->k);
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
