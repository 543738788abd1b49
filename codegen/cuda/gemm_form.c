// gemm_form.c - the kernels that begin with a dot and that gemm.c can write.
#include "codegen/cuda/gemm.h"

enum {
  PARTS = 4
};

// True if the value has all columns of the section, in order; or one axis of columns, in parts as
// wide as the epilogue's.
static bool is_flat(const lm_module *m, const cuda_gemm *x, const cuda_gemm_section *s,
                    lm_type rest) {
  int64_t size = cuda_gemm_size(m, rest);
  return (x->head && size == s->columns) || (rest.rank == 1 && size % x->columns == 0);
}

static bool value_fits(const lm_module *m, const cuda_gemm *x, const lm_op *kernel,
                       const cuda_gemm_section *s, lm_type t) {
  lm_type rest, in_head;
  if (!cuda_gemm_rest(m, x, kernel, t, &rest))
    return false;
  if (!rest.rank || is_flat(m, x, s, rest))
    return true;
  if (!x->head || !cuda_gemm_within_head(x, s, rest, &in_head))
    return false;
  int64_t size = cuda_gemm_size(m, in_head);
  return !in_head.rank || (size <= x->head && size % x->unit == 0);
}

// ---- operations

// A sum over all columns of a head.
static bool sum_fits(const lm_module *m, const cuda_gemm *x, const lm_op *kernel,
                     const cuda_gemm_section *s, const lm_op *op) {
  lm_type rest, of, in_head;
  return x->head && op->out[0]->type.dtype == LM_F32 &&
         cuda_gemm_rest(m, x, kernel, op->out[0]->type, &rest) &&
         cuda_gemm_rest(m, x, kernel, op->in[0]->type, &of) && rest.rank == s->heads.rank &&
         cuda_gemm_has_heads(x, s, rest) && cuda_gemm_has_heads(x, s, of) &&
         cuda_gemm_within_head(x, s, of, &in_head) && in_head.rank == 1 &&
         cuda_gemm_size(m, in_head) == x->head;
}

static bool op_fits(const lm_module *m, const cuda_gemm *x, const lm_op *kernel,
                    const cuda_gemm_section *s, const lm_op *op) {
  lm_type out = op->out[0]->type;
  lm_axis last =
      op->n_in && op->in[0]->type.rank ? op->in[0]->type.axis[op->in[0]->type.rank - 1] : 0;
  switch (op->code) {
  case LM_OP_CONST: return true;
  case LM_OP_SUM: return sum_fits(m, x, kernel, s, op);
  case LM_OP_VIEW: return x->head;
  case LM_OP_SLICE:
    return x->head || (op->attr.n_to && op->attr.imm[1] == 1 && op->attr.axes[0] == last &&
                       op->attr.imm[0] % x->columns == 0);
  case LM_OP_CONCAT: return x->head || (out.rank && op->attr.to[0] == out.axis[out.rank - 1]);
  default: return lm_op_info_of(op)->traits & LM_T_ELEMENTWISE;
  }
}

static bool op_fits_section(const lm_module *m, const cuda_gemm *x, const lm_op *kernel,
                            const cuda_gemm_section *s, const lm_op *op) {
  if (!op_fits(m, x, kernel, s, op) || !value_fits(m, x, kernel, s, op->out[0]->type))
    return false;
  for (uint32_t i = 0; i < op->n_in; i++) {
    bool loads = op->code == LM_OP_SLICE && !op->in[i]->def; // from anywhere in an operand
    if (!loads && !cuda_gemm_is_wide(x, kernel, op->in[i]) &&
        !value_fits(m, x, kernel, s, op->in[i]->type))
      return false;
  }
  return true;
}

// An operation on columns of several sections, of which the sections' operations are parts.
static bool wide_fits(const lm_module *m, const cuda_gemm *x, const lm_op *kernel,
                      const lm_op *op) {
  lm_type rest;
  bool moves = op->code == LM_OP_VIEW || op->code == LM_OP_SLICE;
  return (moves || lm_op_info_of(op)->traits & LM_T_ELEMENTWISE) &&
         cuda_gemm_rest(m, x, kernel, op->out[0]->type, &rest);
}

// Operations on parameters alone are of no section, and fit if they fit one.
static bool body_fits(const lm_module *m, const cuda_gemm *x, const lm_op *kernel) {
  for (const lm_op *op = kernel->body->first->next; op != kernel->body->last; op = op->next) {
    if (op->n_out != 1)
      return false;
    const cuda_gemm_section *of = cuda_gemm_section_of(x, kernel, op->out[0]);
    bool wide = !of && cuda_gemm_is_wide(x, kernel, op->out[0]);
    bool fits = of ? op_fits_section(m, x, kernel, of, op) : wide && wide_fits(m, x, kernel, op);
    for (int i = 0; !of && !wide && i < x->n_sections; i++)
      fits |= op_fits_section(m, x, kernel, &x->section[i], op);
    if (!fits)
      return false;
  }
  return true;
}

// ---- results

// The narrowest of the dot and the results, which have rows and columns.
static bool columns_choose(const lm_module *m, cuda_gemm *x, const lm_op *kernel) {
  const lm_op *yield = kernel->body->last;
  x->columns = x->g.n.fixed;
  for (int last = 0; last < 2; last++)
    for (uint32_t i = 0; i < yield->n_in; i++) {
      lm_type rest;
      if (!cuda_gemm_result(m, x, kernel, yield->in[i]->type, &rest) || rest.rank != 1)
        return false;
      int64_t size = cuda_gemm_size(m, rest);
      if (last && size % x->columns)
        return false;
      x->columns = size < x->columns ? size : x->columns;
    }
  return x->g.n.fixed % x->columns == 0 && x->columns % 8 == 0;
}

// In a plan of decoding, which has run-time axes, the bits of a row must not depend on how many
// rows are computed with it, except in training and evaluation.
static bool is_for_any_rows(const lm_module *m, const lm_op *kernel) {
  if (lm_func_is_of_batch(kernel->parent->func->key))
    return false;
  for (uint32_t i = 1; i < m->n_axes; i++)
    if (m->axes[i].dyn)
      return true;
  return false;
}

// The rows of groups are along m.
static bool grouped_operands_fit(const lm_module *m, const lm_op *kernel, cuda_gemm *x) {
  lm_plan_gemm *g = &x->g;
  x->by_k = g->b_k == 1;
  x->counts = "a2";
  g->aligned = true; // dense operands
  return !is_for_any_rows(m, kernel) && cuda_ring_copies(g) && g->c_n == 1 &&
         g->c_m == g->n.fixed && (g->dtype_c == LM_BF16 || g->dtype_c == LM_F32);
}

// TMA needs lines of multiples of 16 bytes; A's are along k.
static bool operands_fit(const lm_module *m, const lm_op *kernel, cuda_gemm *x) {
  const lm_plan_gemm *g = &x->g;
  if (g->groups.count)
    return grouped_operands_fit(m, kernel, x);
  int64_t n = g->n.fixed, k = g->k.fixed;
  bool fixed = !g->m.n_dyn && !g->n.n_dyn && !g->k.n_dyn;
  x->by_k = g->b_k == 1 && g->b_n == k;
  return fixed && !lm_plan_gemm_any_rows(g) && g->dtype_ab == LM_BF16 &&
         (g->dtype_c == LM_BF16 || g->dtype_c == LM_F32) && g->a_k == 1 && g->a_m == k &&
         g->c_n == 1 && g->c_m == n && (x->by_k || (g->b_n == 1 && g->b_k == n)) && k % 8 == 0 &&
         n % 8 == 0 && g->m.fixed < (int64_t)1 << 30;
}

// Without heads: a tile has a part of each of the dot's parts.
static bool parts_choose(const lm_module *m, cuda_gemm *x, const lm_op *kernel) {
  if (!columns_choose(m, x, kernel))
    return false;
  int64_t parts = x->g.n.fixed / x->columns;
  x->parts = (int)parts;
  x->panel = (int)(CUDA_GEMM_COLUMNS / parts);
  x->unit = x->columns;
  x->n_sections = 1;
  x->section[0].columns = x->columns;
  return parts <= PARTS && CUDA_GEMM_COLUMNS % parts == 0;
}

bool cuda_gemm_make(const lm_module *m, const lm_op *kernel, cuda_gemm *out) {
  *out = (cuda_gemm){
      .rows = lm_dot_rows(kernel->body->first),
      .width = CUDA_GEMM_COLUMNS,
      .registers = "x",
      .factor = "",
  };
  if (!lm_plan_gemm_of_kernel(m, kernel, &out->g) || !operands_fit(m, kernel, out) ||
      out->rows < 1 || kernel->attr.n_to)
    return false;
  bool heads = cuda_gemm_may_have_heads(m, out, kernel);
  if (heads ? !cuda_gemm_sections_make(m, kernel, out) : !parts_choose(m, out, kernel))
    return false;
  return body_fits(m, out, kernel);
}

bool cuda_gemm_of_sums(const lm_module *m, const lm_op *kernel, int rows, cuda_gemm *out) {
  const lm_op *first = kernel->body->first;
  lm_type t = first->out[0]->type;
  lm_type down = t, across;
  *out = (cuda_gemm){
      .rows = rows,
      .width = CUDA_GEMM_COLUMNS,
      .factor = "",
  };
  if (first->code != LM_OP_REDUCE_PRECISION || rows < 1 || rows >= t.rank ||
      !cuda_gemm_rest(m, out, kernel, t, &across))
    return false;
  down.rank = (uint8_t)rows;
  out->g.m.fixed = cuda_gemm_size(m, down);
  out->g.n.fixed = cuda_gemm_size(m, across);
  if (!cuda_gemm_sections_make(m, kernel, out) || out->n_sections != 1)
    return false;
  out->panel = (int)out->head;
  return out->section[0].columns == out->g.n.fixed && body_fits(m, out, kernel);
}
