// gemm_axes.c - the axes of the values of a kernel that begins with a dot: of rows, of heads, of
// columns.
#include "codegen/cuda/gemm.h"

int64_t cuda_gemm_size(const lm_module *m, lm_type t) {
  int64_t n = 1;
  for (int i = 0; i < t.rank; i++)
    n *= lm_axis_size(m, t.axis[i]);
  return n;
}

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

bool cuda_gemm_result(const lm_module *m, const cuda_gemm *x, const lm_op *kernel, lm_type t,
                      lm_type *rest) {
  return has_rows(x, dot_type(kernel), t) && cuda_gemm_rest(m, x, kernel, t, rest);
}

bool cuda_gemm_has_heads(const cuda_gemm *x, const cuda_gemm_section *s, lm_type rest) {
  bool same = rest.rank >= s->heads.rank && (s->heads.rank || s->columns == x->head);
  for (int i = 0; same && i < s->heads.rank; i++)
    same = rest.axis[i] == s->heads.axis[i];
  return same;
}

bool cuda_gemm_within_head(const cuda_gemm *x, const cuda_gemm_section *s, lm_type rest,
                           lm_type *out) {
  *out = cuda_gemm_has_heads(x, s, rest) ? lm_type_inner(rest, s->heads.rank) : rest;
  for (int i = 0; i < s->heads.rank; i++)
    if (lm_type_find(*out, s->heads.axis[i]) >= 0)
      return false;
  return true;
}
