// gemm_form.c - the kernels that begin with a dot and that gemm.c can write.
#include "codegen/cuda/gemm.h"

enum {
  PARTS = 4
};

int64_t cuda_gemm_size(const lm_module *m, lm_type t) {
  int64_t n = 1;
  for (int i = 0; i < t.rank; i++)
    n *= lm_axis_size(m, t.axis[i]);
  return n;
}

// ---- the axes of values

static lm_type dot_type(const lm_op *kernel) {
  return kernel->body->first->out[0]->type;
}

static bool has_rows(const cuda_gemm *x, lm_type c, lm_type t) {
  bool same = t.rank >= x->rows;
  for (int i = 0; same && i < x->rows; i++)
    same = t.axis[i] == c.axis[i];
  return same;
}

bool cuda_gemm_rest(const lm_module *m, const cuda_gemm *x, const lm_op *kernel, lm_type t,
                    lm_type *out) {
  lm_type c = dot_type(kernel);
  for (int i = 0; i < t.rank; i++)
    if (m->axes[t.axis[i]].dyn)
      return false;
  *out = lm_type_inner(t, has_rows(x, c, t) ? x->rows : 0);
  for (int i = 0; i < x->rows; i++)
    if (lm_type_find(*out, c.axis[i]) >= 0)
      return false;
  return true;
}

bool cuda_gemm_has_heads(const cuda_gemm *x, lm_type rest) {
  bool same = rest.rank >= x->heads.rank;
  for (int i = 0; same && i < x->heads.rank; i++)
    same = rest.axis[i] == x->heads.axis[i];
  return same;
}

// The axes within a head. False if the value has only some axes of the heads.
static bool within_head(const cuda_gemm *x, lm_type rest, lm_type *out) {
  *out = cuda_gemm_has_heads(x, rest) ? lm_type_inner(rest, x->heads.rank) : rest;
  for (int i = 0; i < x->heads.rank; i++)
    if (lm_type_find(*out, x->heads.axis[i]) >= 0)
      return false;
  return true;
}

// True if the value has one axis of columns, in parts as wide as the epilogue's.
static bool is_flat(const lm_module *m, const cuda_gemm *x, lm_type rest) {
  return rest.rank == 1 && cuda_gemm_size(m, rest) % x->columns == 0;
}

static bool value_fits(const lm_module *m, const cuda_gemm *x, const lm_op *kernel, lm_type t) {
  lm_type rest, in_head;
  if (!cuda_gemm_rest(m, x, kernel, t, &rest))
    return false;
  if (!rest.rank || is_flat(m, x, rest))
    return true;
  if (!x->head || !within_head(x, rest, &in_head))
    return false;
  int64_t size = cuda_gemm_size(m, in_head);
  return !in_head.rank || (x->head % size == 0 && size % x->unit == 0);
}

// ---- heads

static bool sums(const lm_op *op) {
  return op->code == LM_OP_SUM;
}

// The axes of the heads: those that a sum keeps; else all but the last one of the first value that
// has several. False if there are no heads.
static bool heads_find(const lm_module *m, cuda_gemm *x, const lm_op *kernel) {
  const lm_op *end = kernel->body->last;
  lm_type rest;
  for (const lm_op *op = kernel->body->first; op != end; op = op->next)
    if (sums(op))
      return cuda_gemm_rest(m, x, kernel, op->out[0]->type, &x->heads);
  for (const lm_op *op = kernel->body->first; op != end; op = op->next) {
    if (op->n_out != 1 || !cuda_gemm_rest(m, x, kernel, op->out[0]->type, &rest) || rest.rank < 2)
      continue;
    x->heads = rest;
    x->heads.rank--;
    return true;
  }
  return false;
}

// The narrowest part of a head that is an operand or result of an operation.
static void unit_note(const lm_module *m, cuda_gemm *x, const lm_op *kernel, lm_type t) {
  lm_type rest, in_head;
  if (!cuda_gemm_rest(m, x, kernel, t, &rest) || is_flat(m, x, rest) ||
      !within_head(x, rest, &in_head))
    return;
  int64_t size = cuda_gemm_size(m, in_head);
  if (in_head.rank && size < x->unit)
    x->unit = size;
}

static bool heads_choose(const lm_module *m, cuda_gemm *x, const lm_op *kernel) {
  int64_t n = cuda_gemm_size(m, x->heads);
  x->unit = x->head = x->columns / n;
  for (const lm_op *op = kernel->body->first->next; op != kernel->body->last; op = op->next) {
    for (uint32_t i = 0; i < op->n_in; i++)
      unit_note(m, x, kernel, op->in[i]->type);
    for (uint32_t i = 0; i < op->n_out; i++)
      unit_note(m, x, kernel, op->out[i]->type);
  }
  return x->head * n == x->columns && x->unit % 8 == 0 && x->head % x->unit == 0 &&
         CUDA_GEMM_COLUMNS % x->head == 0 && x->parts == 1;
}

// ---- operations

// A sum over all columns of a head.
static bool sum_fits(const lm_module *m, const cuda_gemm *x, const lm_op *kernel, const lm_op *op) {
  lm_type rest, of, in_head;
  return x->head && op->out[0]->type.dtype == LM_F32 &&
         cuda_gemm_rest(m, x, kernel, op->out[0]->type, &rest) &&
         cuda_gemm_rest(m, x, kernel, op->in[0]->type, &of) && rest.rank == x->heads.rank &&
         cuda_gemm_has_heads(x, rest) && cuda_gemm_has_heads(x, of) &&
         within_head(x, of, &in_head) && in_head.rank == 1 && cuda_gemm_size(m, in_head) == x->head;
}

static bool op_fits(const lm_module *m, const cuda_gemm *x, const lm_op *kernel, const lm_op *op) {
  lm_type out = op->out[0]->type;
  lm_axis last =
      op->n_in && op->in[0]->type.rank ? op->in[0]->type.axis[op->in[0]->type.rank - 1] : 0;
  switch (op->code) {
  case LM_OP_CONST: return true;
  case LM_OP_SUM: return sum_fits(m, x, kernel, op);
  case LM_OP_VIEW: return x->head;
  case LM_OP_SLICE:
    return x->head || (op->attr.n_to && op->attr.imm[1] == 1 && op->attr.axes[0] == last &&
                       op->attr.imm[0] % x->columns == 0);
  case LM_OP_CONCAT: return x->head || (out.rank && op->attr.to[0] == out.axis[out.rank - 1]);
  default: return lm_op_info_of(op)->traits & LM_T_ELEMENTWISE;
  }
}

static bool body_fits(const lm_module *m, const cuda_gemm *x, const lm_op *kernel) {
  for (const lm_op *op = kernel->body->first->next; op != kernel->body->last; op = op->next) {
    if (op->n_out != 1 || !op_fits(m, x, kernel, op) || !value_fits(m, x, kernel, op->out[0]->type))
      return false;
    for (uint32_t i = 0; i < op->n_in; i++)
      if (!value_fits(m, x, kernel, op->in[i]->type))
        return false;
  }
  return true;
}

// ---- results

// A result has rows, and columns or heads.
static bool result_fits(const lm_module *m, const cuda_gemm *x, const lm_op *kernel, lm_type t,
                        bool heads) {
  lm_type rest;
  if (!has_rows(x, dot_type(kernel), t) || !cuda_gemm_rest(m, x, kernel, t, &rest))
    return false;
  bool kept = heads && cuda_gemm_has_heads(x, rest);
  return rest.rank == 1 || (kept && rest.rank <= x->heads.rank + 1);
}

// The narrowest of the dot and the results that have columns.
static bool columns_choose(const lm_module *m, cuda_gemm *x, const lm_op *kernel, bool heads) {
  const lm_op *yield = kernel->body->last;
  x->columns = x->g.n.fixed;
  for (int last = 0; last < 2; last++)
    for (uint32_t i = 0; i < yield->n_in; i++) {
      lm_type t = yield->in[i]->type, rest;
      if (!result_fits(m, x, kernel, t, heads))
        return false;
      cuda_gemm_rest(m, x, kernel, t, &rest);
      int64_t size = cuda_gemm_size(m, rest);
      if (heads && rest.rank == x->heads.rank && cuda_gemm_has_heads(x, rest))
        continue;
      if (last && size % x->columns)
        return false;
      x->columns = size < x->columns ? size : x->columns;
    }
  return x->g.n.fixed % x->columns == 0 && x->columns % 8 == 0;
}

// In a plan of decoding, which has run-time axes, the bits of a row must not depend on how many
// rows are computed with it.
static bool is_for_any_rows(const lm_module *m) {
  for (uint32_t i = 1; i < m->n_axes; i++)
    if (m->axes[i].dyn)
      return true;
  return false;
}

// The rows of groups are along m.
static bool grouped_operands_fit(const lm_module *m, cuda_gemm *x) {
  lm_plan_gemm *g = &x->g;
  x->by_k = g->b_k == 1;
  x->counts = "a2";
  g->aligned = true; // dense operands
  return !is_for_any_rows(m) && cuda_ring_copies(g) && g->c_n == 1 && g->c_m == g->n.fixed &&
         (g->dtype_c == LM_BF16 || g->dtype_c == LM_F32);
}

// TMA needs lines of multiples of 16 bytes; A's are along k.
static bool operands_fit(const lm_module *m, cuda_gemm *x) {
  const lm_plan_gemm *g = &x->g;
  if (g->groups.count)
    return grouped_operands_fit(m, x);
  int64_t n = g->n.fixed, k = g->k.fixed;
  bool fixed = !g->m.n_dyn && !g->n.n_dyn && !g->k.n_dyn;
  x->by_k = g->b_k == 1 && g->b_n == k;
  return fixed && !lm_plan_gemm_any_rows(g) && g->dtype_ab == LM_BF16 &&
         (g->dtype_c == LM_BF16 || g->dtype_c == LM_F32) && g->a_k == 1 && g->a_m == k &&
         g->c_n == 1 && g->c_m == n && (x->by_k || (g->b_n == 1 && g->b_k == n)) && k % 8 == 0 &&
         n % 8 == 0 && g->m.fixed < (int64_t)1 << 30;
}

bool cuda_gemm_make(const lm_module *m, const lm_op *kernel, cuda_gemm *out) {
  *out = (cuda_gemm){.rows = lm_dot_rows(kernel->body->first)};
  if (!lm_plan_gemm_of_kernel(m, kernel, &out->g) || !operands_fit(m, out) || out->rows < 1)
    return false;
  bool heads = heads_find(m, out, kernel);
  if (!columns_choose(m, out, kernel, heads))
    return false;
  int64_t parts = out->g.n.fixed / out->columns;
  out->parts = (int)parts;
  out->panel = (int)(CUDA_GEMM_COLUMNS / parts);
  out->unit = out->columns;
  if (heads && !heads_choose(m, out, kernel))
    return false;
  return parts <= PARTS && CUDA_GEMM_COLUMNS % parts == 0 && !kernel->attr.n_to &&
         body_fits(m, out, kernel);
}
