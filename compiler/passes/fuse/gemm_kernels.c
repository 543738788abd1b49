// gemm_kernels.c - makes one kernel of a GEMM and of the kernels that read its result.
//
// before: %p = dot %y, %w over(d) : bf16[b, t, pack]
//         %h = kernel (b, t, ff) -> () (%v = %p) {
//           %g = slice %v (pack) -> (ff) [0, 1]     %s = logistic %g   %a = mul %g, %s
//           %u = slice %v (pack) -> (ff) [2048, 1]  %h = mul %a, %u    yield %h
//         }
//         ... the backward pass reads %p
// after:  %h, %p = kernel (b, t) -> () (%x = %y, %w1 = %w) {
//           %v = dot %x, %w1 over(d)   %r = reduce_precision %v
//           ...  yield %h, %v
//         }
//
// The same of a grouped_dot, whose counts are the third operand.
//
// The result of the dot stays in registers, so that the kernel need not read it (here 134 MB);
// unless it has another use it is not written either. It is rounded to its type, as if it were read
// from memory: which of its readers are in a kernel with the dot changes no bit.
//
// Kernels that read different columns, as the norms of queries and of keys do, become one with the
// dot together, if no operand of a later one is computed behind the first; else the first does.
//
// Declines: forms that lm_codegen.multiplies rejects; factors that are not dense, which a GEMM
// reads through views and a kernel would have copied; results that are parts of a concatenation; a
// dot whose result is read before the kernel; and what the cost model expects to be slower than the
// library's GEMM and a separate kernel, or machines whose figures are not known.
#include <string.h>

#include "compiler/ir/dot.h"
#include "compiler/ops/interface.h"
#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"
#include "compiler/plan/cost.h"
#include "compiler/plan/planner.h"

enum {
  KERNELS = 4
};

// The kernels that read the result of a dot, in order.
typedef struct match {
  lm_op *dot, *kernel[KERNELS];
  int n;
} match;

// ---- matching

typedef struct reads {
  const lm_value *v;
  uint32_t n;
} reads;

static uint32_t reads_at(const lm_op *op, const lm_value *v) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < op->n_in; i++)
    n += op->in[i] == v;
  return n;
}

static void reads_count(lm_op *op, void *user) {
  reads *r = user;
  r->n += reads_at(op, r->v);
}

static uint32_t reads_in(const lm_op *op, const lm_value *v) {
  reads r = {v, 0};
  reads_count((lm_op *)op, &r);
  if (op->body)
    lm_region_walk(op->body, reads_count, &r);
  return r.n;
}

static bool read_between(const match *m) {
  for (const lm_op *op = m->dot->next; op != m->kernel[0]; op = op->next)
    if (reads_in(op, m->dot->out[0]))
      return true;
  return false;
}

static bool has_parts(const lm_replacement *r, const lm_op *kernel) {
  lm_plan_part part;
  for (uint32_t i = 0; i < kernel->n_out; i++)
    if (lm_plan_part_of(r->m, kernel->out[i], &part))
      return true;
  return false;
}

// The axes of the rows.
static lm_attr rows_of(const lm_op *dot) {
  lm_type t = dot->out[0]->type;
  lm_attr a = {.n_axes = (uint8_t)lm_dot_rows(dot)};
  memcpy(a.axes, t.axis, a.n_axes * sizeof *a.axes);
  return a;
}

static bool results_have_rows(const lm_op *dot, const lm_op *kernel) {
  lm_attr rows = rows_of(dot);
  for (uint32_t i = 0; i < kernel->n_out; i++)
    for (int k = 0; k < rows.n_axes; k++)
      if (lm_type_find(kernel->out[i]->type, rows.axes[k]) < 0)
        return false;
  return true;
}

static bool may_join(const lm_replacement *r, const lm_op *kernel) {
  return kernel->code == LM_OP_KERNEL && !kernel->attr.n_to && !lm_kernel_dot(kernel) &&
         !lm_kernel_mix(kernel) && !has_parts(r, kernel);
}

// True if an operand of the kernel is computed by one from `first` on.
static bool depends(const lm_op *first, const lm_op *kernel) {
  for (const lm_op *op = first; op != kernel; op = op->next)
    for (uint32_t i = 0; i < kernel->n_in; i++)
      if (kernel->in[i]->def == op)
        return true;
  return false;
}

// The dot that operand `at` of the kernel is the result of, and the kernels that may become one
// with it.
static bool find(const lm_replacement *r, const lm_op *kernel, uint32_t at, match *out) {
  const lm_value *v = kernel->in[at];
  *out = (match){.dot = v->def};
  bool is_old = v->id < r->n_uses && !r->map[v->id]; // not yet in a kernel
  bool has_rows = v->type.rank > 1;
  if (!is_old || !has_rows || !v->def || !lm_op_multiplies_rows(v->def) ||
      v->def->parent != kernel->parent)
    return false;
  for (lm_op *op = v->def->next; op && out->n < KERNELS; op = op->next)
    if (may_join(r, op) && reads_in(op, v) && results_have_rows(out->dot, op) &&
        (!out->n || !depends(out->kernel[0], op)))
      out->kernel[out->n++] = op;
  return out->n && !read_between(out);
}

// ---- the kernel

// The index of v in the values from `from` to n, else n.
static uint32_t operand_find(lm_value *const *values, uint32_t from, uint32_t n,
                             const lm_value *v) {
  uint32_t i = from;
  while (i < n && values[i] != v)
    i++;
  return i;
}

// The operands: those of the dot, then those of the kernels without its result.
static uint32_t operands_of(const match *m, lm_value **out) {
  uint32_t n = m->dot->n_in;
  memcpy(out, m->dot->in, n * sizeof *out);
  for (int k = 0; k < m->n; k++)
    for (uint32_t i = 0; i < m->kernel[k]->n_in; i++) {
      lm_value *v = m->kernel[k]->in[i];
      if (v != m->dot->out[0] && operand_find(out, m->dot->n_in, n, v) == n)
        out[n++] = v;
    }
  return n;
}

static uint32_t operands_and_results(const match *m) {
  uint32_t n = m->dot->n_in + 1;
  for (int k = 0; k < m->n; k++)
    n += m->kernel[k]->n_in + m->kernel[k]->n_out;
  return n;
}

// Copies the body of a kernel, in which `read` is the result of the dot. out: its results.
static void body_copy(lm_builder *b, const lm_op *fused, const lm_op *kernel, const lm_op *dot,
                      lm_value *read, lm_value **map, lm_value **out) {
  const lm_op *yield = kernel->body->last;
  for (uint32_t i = 0; i < kernel->n_in; i++) {
    lm_value *v = kernel->in[i];
    uint32_t at = operand_find(fused->in, dot->n_in, fused->n_in, v);
    map[kernel->body->args[i]->id] = v == dot->out[0] ? read : fused->body->args[at];
  }
  for (const lm_op *op = kernel->body->first; op != yield; op = op->next)
    lm_op_clone(b, op, map);
  for (uint32_t i = 0; i < yield->n_in; i++)
    out[i] = map[yield->in[i]->id];
}

static lm_op *fused_make(const lm_replacement *r, const match *m, bool stored) {
  lm_op *first = m->kernel[0];
  lm_value **values = lm_alloc(operands_and_results(m) * sizeof *values);
  lm_value **map = lm_calloc(r->m->n_values + 1, sizeof *map);
  lm_builder b = {r->m, first->parent, first, first->loc, first->remat};
  lm_attr attr = rows_of(m->dot);
  uint32_t n = operands_of(m, values);
  lm_op *fused = lm_kernel_begin(&b, &attr, values, n);
  for (uint32_t i = 0; i < m->dot->n_in; i++)
    map[m->dot->in[i]->id] = fused->body->args[i];
  lm_value *sums = lm_op_clone(&b, m->dot, map)->out[0];
  bool rounds = lm_dtype_is_half((lm_dtype)sums->type.dtype);
  lm_value *read = rounds ? lm_emit1(&b, LM_OP_REDUCE_PRECISION, sums) : sums;
  n = 0;
  for (int k = 0; k < m->n; k++) {
    body_copy(&b, fused, m->kernel[k], m->dot, read, map, values + n);
    n += m->kernel[k]->n_out;
  }
  if (stored)
    values[n++] = sums;
  lm_kernel_end(&b, fused, values, n);
  lm_free(values);
  lm_free(map);
  return fused;
}

// ---- profit

// True if the factors of the dot are as dense as those of the kernel.
static bool factors_are_dense(const lm_module *m, const lm_op *dot, const lm_plan_gemm *dense) {
  lm_plan_gemm g;
  return lm_plan_gemm_from_dot(m, dot, &g) && g.a_m == dense->a_m && g.a_k == dense->a_k &&
         g.b_k == dense->b_k && g.b_n == dense->b_n && g.groups.b == dense->groups.b &&
         g.m.fixed == dense->m.fixed && !g.n_batch;
}

static lm_cost_gemm_kernel sizes_of(const lm_module *m, const lm_op *fused, const lm_plan_gemm *g) {
  lm_cost_gemm gemm = {
      .m = (double)g->m.fixed,
      .n = (double)g->n.fixed,
      .k = (double)g->k.fixed,
      .batch = 1,
      .ab = (lm_dtype)g->dtype_ab,
      .bytes = lm_op_traffic(m, fused),
      .alignment = 16,
      .groups = (double)g->groups.count,
      .warpgroups = g->groups.count > 0,
  };
  return (lm_cost_gemm_kernel){
      .gemm = gemm,
      .c = (lm_dtype)g->dtype_c,
      .stored = g->stored,
  };
}

static bool is_profitable(const lm_replacement *r, const lm_op *dot, const lm_op *fused) {
  const lm_target *t = r->env->target;
  lm_plan_options o = {
      .target = *t,
      .codegen = r->env->codegen,
  };
  lm_plan_gemm g;
  lm_kernel_code code;
  if (!lm_plan_gemm_of_kernel(r->m, fused, &g) || !factors_are_dense(r->m, dot, &g))
    return false;
  if (!o.codegen->multiplies(t, fused))
    return false;
  if (lm_pass_is_forced(r->env, "gemm_kernels"))
    return true;
  bool known = lm_target_bandwidth(t) > 0 && lm_cost_peak(t, LM_BF16) > 0;
  if (!known || !o.codegen->kernel(&o, fused, r->m->arena, &code))
    return false;
  lm_cost_gemm_kernel k = sizes_of(r->m, fused, &g);
  k.instructions = code.instructions;
  return lm_cost_of_gemm_kernel(t, &k).seconds < lm_cost_of_gemm_apart(t, &k);
}

// ---- rewriting

static uint32_t reads_of(const match *m) {
  uint32_t n = 0;
  for (int k = 0; k < m->n; k++)
    n += reads_in(m->kernel[k], m->dot->out[0]);
  return n;
}

static void value_replace(const lm_replacement *r, lm_value *old, lm_value *to) {
  r->map[old->id] = to;
  to->name = old->name;
}

static bool fuse(const lm_replacement *r, const match *m) {
  lm_value *old = m->dot->out[0];
  bool stored = r->uses[old->id] > reads_of(m);
  lm_op *fused = fused_make(r, m, stored);
  uint32_t n = 0;
  if (!is_profitable(r, m->dot, fused)) {
    lm_op_remove(fused);
    return false;
  }
  for (int k = 0; k < m->n; k++)
    for (uint32_t i = 0; i < m->kernel[k]->n_out; i++)
      value_replace(r, m->kernel[k]->out[i], fused->out[n++]);
  if (stored)
    value_replace(r, old, fused->out[n]);
  for (int k = 0; k < m->n; k++)
    lm_op_remove(m->kernel[k]);
  lm_op_remove(m->dot);
  return true;
}

// Visits the last of the kernels, so that none of them is the next operation of the walk.
static void visit(const lm_replacement *r, lm_op *kernel) {
  match m;
  if (!may_join(r, kernel))
    return;
  for (uint32_t i = 0; i < kernel->n_in; i++) {
    if (!find(r, kernel, i, &m) || m.kernel[m.n - 1] != kernel)
      continue;
    for (; m.n; m.n = m.n > 1 ? 1 : 0)
      if (fuse(r, &m))
        return;
  }
}

bool lm_pass_gemm_kernels(lm_module *m, const lm_pass_env *env) {
  if (!env->codegen || !env->codegen->multiplies || !env->target)
    return true;
  lm_replace_each(m, env, visit);
  return true;
}
