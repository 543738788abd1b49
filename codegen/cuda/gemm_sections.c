// gemm_sections.c - heads of a GEMM with a kernel in its epilogue, and the sections of its columns
// (gemm.h).
//
// The dot has all columns, a slice of it those that it keeps, another operation those of its
// operands. Results and sums with columns in common are of one section, and the operations that
// have no others.
#include <string.h>

#include "codegen/cuda/gemm.h"

// Columns of the dot; hi = 0: none.
typedef struct range {
  int64_t lo, hi;
} range;

// ---- the columns that operations depend on

static int index_in(const lm_op *kernel, const lm_op *op) {
  int i = 0;
  for (const lm_op *o = kernel->body->first; o && o != op; o = o->next)
    i++;
  return i;
}

static bool is_inside(const lm_op *kernel, const lm_value *v) {
  return v->def && v->def->parent == kernel->body;
}

static void range_add(range *to, range r) {
  if (!r.hi)
    return;
  if (!to->hi || r.lo < to->lo)
    to->lo = r.lo;
  if (r.hi > to->hi)
    to->hi = r.hi;
}

// The columns of a slice of the first of the axes of columns, of an operand that has all from r.lo
// to r.hi; of other operations r.
static range range_of_slice(const lm_module *m, const cuda_gemm *x, const lm_op *kernel,
                            const lm_op *op, range r) {
  lm_type rest;
  const lm_attr *a = &op->attr;
  if (op->code != LM_OP_SLICE || a->imm[1] != 1)
    return r;
  if (!cuda_gemm_rest(m, x, kernel, op->in[0]->type, &rest))
    return r;
  bool first = rest.rank && a->axes[0] == rest.axis[0];
  if (!first || cuda_gemm_size(m, rest) != r.hi - r.lo)
    return r;
  int64_t stride = cuda_gemm_size(m, lm_type_inner(rest, 1));
  int64_t n = a->n_to ? lm_axis_size(m, a->to[0]) : 1;
  r.lo += a->imm[0] * stride;
  r.hi = r.lo + n * stride;
  return r;
}

static range range_at(const lm_op *kernel, const lm_value *v, const range *of) {
  if (!is_inside(kernel, v))
    return (range){0};
  return of[index_in(kernel, v->def)];
}

// Sets the range of each operation of the body. False if they are too many.
static bool ranges_find(const lm_module *m, const cuda_gemm *x, const lm_op *kernel, range *out) {
  int n = 0;
  for (const lm_op *op = kernel->body->first; op != kernel->body->last; op = op->next) {
    range r = {0};
    if (n == CUDA_GEMM_OPS)
      return false;
    if (!n)
      r.hi = x->g.n.fixed;
    for (uint32_t i = 0; n && i < op->n_in; i++)
      range_add(&r, range_at(kernel, op->in[i], out));
    out[n] = range_of_slice(m, x, kernel, op, r);
    n++;
  }
  return true;
}

// ---- sections

static bool sums(const lm_op *op) {
  return op->code == LM_OP_SUM;
}

// Adds a range to the sections, in order; those with columns in common become one. False if it is
// empty, or the sections are too many.
static bool section_add(cuda_gemm *x, range r) {
  int n = 0;
  cuda_gemm_section all[CUDA_GEMM_SECTIONS] = {0};
  if (!r.hi)
    return false;
  for (int i = 0; i < x->n_sections; i++) {
    cuda_gemm_section s = x->section[i];
    if (s.first < r.hi && r.lo < s.first + s.columns) {
      range_add(&r, (range){s.first, s.first + s.columns});
      continue;
    }
    all[n++] = s;
  }
  if (n == CUDA_GEMM_SECTIONS)
    return false;
  int at = n;
  while (at > 0 && all[at - 1].first > r.lo) {
    all[at] = all[at - 1];
    at--;
  }
  all[at] = (cuda_gemm_section){
      .first = r.lo,
      .columns = r.hi - r.lo,
  };
  x->n_sections = n + 1;
  memcpy(x->section, all, sizeof x->section);
  return true;
}

// The results, except for the dot itself, and the sums have columns.
static bool sections_find(cuda_gemm *x, const lm_op *kernel, const range *of) {
  const lm_op *dot = kernel->body->first, *yield = kernel->body->last;
  for (const lm_op *op = dot; op != yield; op = op->next)
    if (sums(op) && !section_add(x, range_at(kernel, op->out[0], of)))
      return false;
  for (uint32_t i = 0; i < yield->n_in; i++) {
    const lm_value *v = yield->in[i];
    if (v->def == dot)
      continue;
    if (!section_add(x, range_at(kernel, v, of)))
      return false;
  }
  return x->n_sections > 0;
}

static void ops_assign(cuda_gemm *x, const lm_op *kernel, const range *of) {
  int n = 0;
  for (const lm_op *op = kernel->body->first; op != kernel->body->last; op = op->next, n++) {
    x->of[n] = of[n].hi ? CUDA_GEMM_WIDE : CUDA_GEMM_APART;
    for (int i = 0; i < x->n_sections; i++) {
      const cuda_gemm_section *s = &x->section[i];
      bool begins = of[n].lo >= s->first;
      bool ends = of[n].hi <= s->first + s->columns;
      if (of[n].hi && begins && ends)
        x->of[n] = (int8_t)i;
    }
  }
}

static int section_at(const cuda_gemm *x, const lm_op *kernel, const lm_value *v) {
  return is_inside(kernel, v) ? x->of[index_in(kernel, v->def)] : CUDA_GEMM_APART;
}

const cuda_gemm_section *cuda_gemm_section_of(const cuda_gemm *x, const lm_op *kernel,
                                              const lm_value *v) {
  int at = x->head ? section_at(x, kernel, v) : 0;
  return at < 0 ? NULL : &x->section[at];
}

bool cuda_gemm_is_wide(const cuda_gemm *x, const lm_op *kernel, const lm_value *v) {
  return x->head && section_at(x, kernel, v) == CUDA_GEMM_WIDE;
}

// ---- heads

bool cuda_gemm_may_have_heads(const lm_module *m, const cuda_gemm *x, const lm_op *kernel) {
  lm_type rest;
  for (const lm_op *op = kernel->body->first; op != kernel->body->last; op = op->next)
    if (op->n_out == 1 && cuda_gemm_rest(m, x, kernel, op->out[0]->type, &rest) &&
        (sums(op) || rest.rank > 1))
      return true;
  return false;
}

// Sets the axes of the heads of a section to those of v but the last, if it is of the section and
// has several.
static bool heads_take(const lm_module *m, cuda_gemm *x, const lm_op *kernel, int section,
                       const lm_value *v) {
  cuda_gemm_section *s = &x->section[section];
  lm_type rest;
  if (section_at(x, kernel, v) != section || !cuda_gemm_rest(m, x, kernel, v->type, &rest) ||
      rest.rank < 2)
    return false;
  s->heads = rest;
  s->heads.rank--;
  return true;
}

// The axes of the heads of a section: those that a sum keeps; else all but the last one of the
// first result, or value, that has several; else none.
static void heads_find(const lm_module *m, cuda_gemm *x, const lm_op *kernel, int section) {
  const lm_op *yield = kernel->body->last;
  lm_type *heads = &x->section[section].heads;
  for (const lm_op *op = kernel->body->first; op != yield; op = op->next)
    if (sums(op) && section_at(x, kernel, op->out[0]) == section &&
        cuda_gemm_rest(m, x, kernel, op->out[0]->type, heads))
      return;
  for (uint32_t i = 0; i < yield->n_in; i++)
    if (yield->in[i]->def != kernel->body->first && heads_take(m, x, kernel, section, yield->in[i]))
      return;
  for (const lm_op *op = kernel->body->first; op != yield; op = op->next)
    if (op->n_out == 1 && heads_take(m, x, kernel, section, op->out[0]))
      return;
}

// The columns of a head, which is the same in all sections that have heads.
static bool head_choose(const lm_module *m, cuda_gemm *x, const lm_op *kernel) {
  for (int i = 0; i < x->n_sections; i++) {
    const cuda_gemm_section *s = &x->section[i];
    if (!s->heads.rank && x->n_sections > 1)
      continue;
    int64_t n = cuda_gemm_size(m, s->heads);
    int64_t head = s->columns / n;
    if (head * n != s->columns)
      return false;
    if (x->head && head != x->head)
      return false;
    x->head = head;
  }
  return x->head > 0;
}

// The narrowest part of a head that is an operand or result of an operation.
static void unit_note(const lm_module *m, cuda_gemm *x, const lm_op *kernel,
                      const cuda_gemm_section *s, lm_type t) {
  lm_type rest, in_head;
  if (!cuda_gemm_rest(m, x, kernel, t, &rest) || !cuda_gemm_within_head(x, s, rest, &in_head))
    return;
  int64_t size = cuda_gemm_size(m, in_head);
  if (in_head.rank && size < x->unit)
    x->unit = size;
}

static void unit_choose(const lm_module *m, cuda_gemm *x, const lm_op *kernel) {
  x->unit = x->head;
  for (const lm_op *op = kernel->body->first->next; op != kernel->body->last; op = op->next) {
    const cuda_gemm_section *s = op->n_out ? cuda_gemm_section_of(x, kernel, op->out[0]) : NULL;
    for (uint32_t i = 0; s && i < op->n_in; i++)
      unit_note(m, x, kernel, s, op->in[i]->type);
    if (s)
      unit_note(m, x, kernel, s, op->out[0]->type);
  }
}

// A result has a number for each head, or all columns of its section.
static bool results_fit(const lm_module *m, const cuda_gemm *x, const lm_op *kernel) {
  const lm_op *yield = kernel->body->last;
  for (uint32_t i = 0; i < yield->n_in; i++) {
    const cuda_gemm_section *s = cuda_gemm_section_of(x, kernel, yield->in[i]);
    lm_type rest;
    if (!cuda_gemm_result(m, x, kernel, yield->in[i]->type, &rest))
      return false;
    int64_t size = cuda_gemm_size(m, rest);
    if (!s && size != x->columns)
      return false;
    if (!s)
      continue;
    bool has_heads = cuda_gemm_has_heads(x, s, rest);
    bool of_heads = has_heads && rest.rank == s->heads.rank;
    bool in_heads = has_heads && rest.rank == s->heads.rank + 1;
    bool whole = size == s->columns && (in_heads || rest.rank == 1);
    if (!whole && !of_heads)
      return false;
  }
  return true;
}

bool cuda_gemm_sections_make(const lm_module *m, const lm_op *kernel, cuda_gemm *x) {
  range of[CUDA_GEMM_OPS];
  x->columns = x->g.n.fixed;
  x->parts = 1;
  x->panel = CUDA_GEMM_COLUMNS;
  if (!ranges_find(m, x, kernel, of) || !sections_find(x, kernel, of))
    return false;
  ops_assign(x, kernel, of);
  for (int i = 0; i < x->n_sections; i++)
    heads_find(m, x, kernel, i);
  if (!head_choose(m, x, kernel))
    return false;
  unit_choose(m, x, kernel);
  for (int i = 0; i < x->n_sections; i++) {
    const cuda_gemm_section *s = &x->section[i];
    if (s->first % x->head || s->columns % x->head)
      return false;
  }
  bool pairs = x->unit % 8 == 0 && x->head % x->unit == 0;
  bool tiles = CUDA_GEMM_COLUMNS % x->head == 0 && x->columns % x->head == 0;
  return pairs && tiles && results_fit(m, x, kernel);
}
