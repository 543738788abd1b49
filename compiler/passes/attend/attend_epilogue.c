// attend_epilogue.c - puts the kernels that read the gradients of queries and keys, as the
// derivatives of rotary embedding and norm, into the attention that computes these gradients.
//
// before: %dv, %dq, %dk = attend_vjp over(t, s) %g (%a = %v, …) {
//           …   %p = dot %z, %k over(s)   yield %score, %mask, %factor, %p, … }
//         %x, %c = kernel (b, t, g, h) -> (chunk) [1] (%y = %dq, %n = %qn, …) {
//           …   yield %r, %w } : bf16[b, t, g, h, e], f32[chunk, e]
// after:  %dv, %x, %c, … = attend_vjp over(t, s) %g (%a = %v, …, %b = %qn) {
//           …   %p = dot %z, %k over(s)
//           %x1, %c1 = kernel (b, t, g, h) -> (chunk) [1] (%y = %p, %n = %b, …) {
//             %s = reduce_precision %y   …   yield %r, %w }
//           yield %score, %mask, %factor, %x1, %c1, … }
//
// The sums of a block stay in registers, rounded as if they were read from memory, so no bit of the
// results changes, except for sums over points: each block is a chunk. Saves a launch and the bytes
// of the gradient for each kernel.
//
// Declines: kernels of which the target has no such epilogue (lm_codegen.attend_chunks);
// gradients with other users; kernels that read something else that is computed behind the
// attention, other than by pure operations; and what the cost model expects to be slower.
#include <string.h>

#include "compiler/ir/attend.h"
#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"
#include "compiler/plan/cost.h"
#include "compiler/plan/planner.h"

enum {
  KERNELS = 4
};

// A kernel that reads result `result` of the attention, and nothing else does, as its operand
// `operand`.
typedef struct reader {
  lm_op *kernel;
  uint32_t result;
  uint32_t operand;
} reader;

// In order.
typedef struct match {
  lm_op *attend;
  reader reader[KERNELS];
  int n;
} match;

// ---- matching

static bool used_once(const lm_replacement *r, const lm_value *v) {
  return v->id < r->n_uses && r->uses[v->id] == 1;
}

// The operation that uses v first, in the region of v; NULL: none there.
static lm_op *user_of(const lm_value *v) {
  for (lm_op *op = v->def->next; op; op = op->next)
    for (uint32_t i = 0; i < op->n_in; i++)
      if (op->in[i] == v)
        return op;
  return NULL;
}

// The one user of a kernel's chunks, which adds them; NULL if there is another one.
static lm_op *adder_of(const lm_replacement *r, const lm_value *chunks) {
  lm_op *op = used_once(r, chunks) ? user_of(chunks) : NULL;
  if (!op || op->code != LM_OP_KERNEL || op->n_in != 1)
    return NULL;
  const lm_op *sum = op->body->first;
  bool alone = sum->next == op->body->last;
  bool adds = sum->code == LM_OP_SUM && sum->attr.n_axes == 1;
  if (!alone || !adds)
    return NULL;
  return sum->attr.axes[0] == chunks->type.axis[0] ? op : NULL;
}

static uint32_t summed_from(const lm_op *kernel) {
  return kernel->attr.n_to ? (uint32_t)kernel->attr.imm[0] : kernel->n_out;
}

// True if v is computed in front of the attention, or may be.
static bool may_precede(const lm_value *v, const lm_op *attend) {
  const lm_op *op = attend;
  while (op && op != v->def)
    op = op->next;
  if (!op)
    return true;
  bool all = op != attend && !op->body && lm_op_pure(op);
  for (uint32_t i = 0; all && i < op->n_in; i++)
    all = may_precede(op->in[i], attend);
  return all;
}

// True if the kernel reads exactly one result of the attention, once.
static bool reader_make(const lm_replacement *r, const lm_op *attend, lm_op *kernel, reader *out) {
  int n = 0;
  if (kernel->code != LM_OP_KERNEL || !summed_from(kernel))
    return false;
  for (uint32_t i = 0; i < kernel->n_in; i++) {
    const lm_value *v = kernel->in[i];
    if (v->def != attend) {
      n += may_precede(v, attend) ? 0 : 2;
      continue;
    }
    out->kernel = kernel;
    out->result = v->index;
    out->operand = i;
    bool alone = used_once(r, v);
    n += alone && v->index ? 1 : 2;
  }
  for (uint32_t i = summed_from(kernel); n == 1 && i < kernel->n_out; i++)
    n += !adder_of(r, kernel->out[i]);
  if (n != 1)
    return false;
  lm_type t = kernel->in[out->operand]->type;
  return t.dtype == LM_BF16;
}

// Finds the kernels behind the attention; false if the last of them is not `last`.
static bool find(const lm_replacement *r, lm_op *attend, const lm_op *last, match *out) {
  *out = (match){.attend = attend};
  for (lm_op *op = attend->next; op && out->n < KERNELS; op = op->next) {
    reader x;
    if (reader_make(r, attend, op, &x))
      out->reader[out->n++] = x;
  }
  if (!out->n)
    return false;
  return out->reader[out->n - 1].kernel == last;
}

// ---- the attention

static const reader *reader_of(const match *m, uint32_t result) {
  for (int i = 0; i < m->n; i++)
    if (m->reader[i].result == result)
      return &m->reader[i];
  return NULL;
}

static uint32_t operands_most(const match *m) {
  uint32_t n = m->attend->n_in;
  for (int i = 0; i < m->n; i++)
    n += m->reader[i].kernel->n_in;
  return n;
}

// The operands of the attention, then those of the kernels.
static uint32_t operands_of(const match *m, lm_value **out) {
  uint32_t n = m->attend->n_in;
  memcpy(out, m->attend->in, n * sizeof *out);
  for (int i = 0; i < m->n; i++) {
    const reader *x = &m->reader[i];
    for (uint32_t k = 0; k < x->kernel->n_in; k++) {
      lm_value *v = x->kernel->in[k];
      uint32_t at = m->attend->n_in;
      while (at < n && out[at] != v)
        at++;
      bool found = at < n;
      if (k != x->operand && !found)
        out[n++] = v;
    }
  }
  return n;
}

static lm_value *arg_of(const lm_op *attend, uint32_t from, const lm_value *v) {
  for (uint32_t i = from; i < attend->n_in; i++)
    if (attend->in[i] == v)
      return lm_attend_arg(attend, i);
  return NULL;
}

// The operation that renames the axis of positions of the kernel's operand; NULL: none.
static const lm_op *rename_of(const reader *x) {
  const lm_op *first = x->kernel->body->first;
  const lm_value *read = x->kernel->body->args[x->operand];
  if (first->code != LM_OP_RENAME)
    return NULL;
  return first->in[0] == read ? first : NULL;
}

// Copies the kernel into the region, where it reads `sum` as its first operand.
static lm_op *kernel_copy(lm_builder *b, const lm_op *attend, uint32_t from, const reader *x,
                          lm_value *sum, lm_axis chunk, lm_value **map) {
  const lm_op *kernel = x->kernel;
  const lm_op *rename = rename_of(x);
  const lm_value *read = kernel->body->args[x->operand];
  lm_value **in = lm_alloc((kernel->n_in + kernel->n_out + 1) * sizeof *in);
  lm_attr attr = kernel->attr;
  uint32_t n = 1;
  in[0] = sum;
  if (rename) {
    in[0] = lm_emit(b, LM_OP_RENAME, &sum, 1, &rename->attr, NULL);
    read = rename->out[0];
  }
  for (uint32_t i = 0; i < kernel->n_in; i++)
    if (i != x->operand)
      in[n++] = arg_of(attend, from, kernel->in[i]);
  if (attr.n_to)
    attr.to[0] = chunk;
  lm_op *copy = lm_kernel_begin(b, &attr, in, n);
  n = 1;
  for (uint32_t i = 0; i < kernel->n_in; i++)
    if (i != x->operand)
      map[kernel->body->args[i]->id] = copy->body->args[n++];
  lm_value *rounded = lm_emit1(b, LM_OP_REDUCE_PRECISION, copy->body->args[0]);
  map[read->id] = rounded;
  for (const lm_op *op = kernel->body->first; op != kernel->body->last; op = op->next)
    if (op != rename)
      lm_op_clone(b, op, map);
  for (uint32_t i = 0; i < kernel->n_out; i++)
    in[i] = map[kernel->body->last->in[i]->id];
  lm_kernel_end(b, copy, in, kernel->n_out);
  lm_free(in);
  return copy;
}

static uint32_t yields_most(const match *m) {
  uint32_t n = m->attend->body->last->n_in;
  for (int i = 0; i < m->n; i++)
    n += m->reader[i].kernel->n_out;
  return n;
}

// chunk: by kernel, the axis of its sums over points. copy: by kernel.
static lm_op *fused_make(const lm_replacement *r, const match *m, const lm_axis *chunk,
                         lm_op **copy) {
  const lm_op *old = m->attend;
  const lm_op *yield = old->body->last;
  lm_builder b = {r->m, old->parent, m->attend, old->loc, old->remat};
  lm_value **in = lm_alloc((operands_most(m) + 1) * sizeof *in);
  lm_value **yields = lm_alloc((yields_most(m) + 1) * sizeof *yields);
  lm_value **map = lm_calloc(r->m->n_values + 1, sizeof *map);
  uint32_t n_in = operands_of(m, in);
  uint32_t n = LM_ATTEND_COTANGENTS;
  lm_op *fused = lm_attend_begin(&b, &old->attr, in, n_in, &old->body->args[0]->type);
  for (uint32_t i = 0; i < old->body->n_args; i++)
    map[old->body->args[i]->id] = fused->body->args[i];
  for (const lm_op *op = old->body->first; op != yield; op = op->next)
    lm_op_clone(&b, op, map);
  for (uint32_t i = 0; i < LM_ATTEND_COTANGENTS; i++)
    yields[i] = map[yield->in[i]->id];
  for (uint32_t i = LM_ATTEND_COTANGENTS; i < yield->n_in; i++) {
    const reader *x = reader_of(m, i - LM_ATTEND_COTANGENTS + 1);
    lm_value *sum = map[yield->in[i]->id];
    if (!x) {
      yields[n++] = sum;
      continue;
    }
    long at = x - m->reader;
    lm_op *k = kernel_copy(&b, fused, old->n_in, x, sum, chunk[at], map);
    copy[at] = k;
    for (uint32_t j = 0; j < k->n_out; j++)
      yields[n++] = k->out[j];
  }
  lm_attend_end(&b, fused, yields, n);
  lm_free(in);
  lm_free(yields);
  lm_free(map);
  return fused;
}

// ---- profit

static double kernel_seconds(const lm_replacement *r, const lm_plan_options *o, const lm_op *op) {
  lm_kernel_code code;
  if (!o->codegen->kernel(o, op, r->m->arena, &code))
    return 0;
  lm_cost_kernel k = {
      .bytes = lm_op_traffic(r->m, op),
      .instructions = code.instructions,
  };
  return o->target.rates.gap + lm_cost_of_kernel(&o->target, &k).seconds;
}

static double attend_seconds(const lm_replacement *r, const lm_plan_options *o, const lm_op *op) {
  lm_kernel_code code;
  lm_plan_attend a = lm_plan_attend_sizes(r->m, op);
  if (!o->codegen->kernel(o, op, r->m->arena, &code))
    return 0;
  a.instructions = code.instructions;
  return lm_cost_of_attend(&o->target, &a, lm_op_traffic(r->m, op), true).seconds;
}

static bool is_profitable(const lm_replacement *r, const match *m, const lm_op *fused) {
  const lm_target *t = r->env->target;
  lm_plan_options o = {
      .target = *t,
      .codegen = r->env->codegen,
  };
  if (lm_pass_is_forced(r->env, "attend_epilogue"))
    return true;
  bool known = lm_target_bandwidth(t) > 0;
  known = known && lm_cost_peak(t, LM_BF16) > 0;
  if (!known)
    return false;
  double apart = attend_seconds(r, &o, m->attend);
  for (int i = 0; i < m->n; i++)
    apart += kernel_seconds(r, &o, m->reader[i].kernel);
  return attend_seconds(r, &o, fused) < apart;
}

// ---- rewriting

// The adder reads the chunks of the new axis.
static void adder_change(const lm_replacement *r, const lm_value *chunks, lm_axis axis) {
  lm_op *adder = adder_of(r, chunks);
  adder->body->args[0]->type.axis[0] = axis;
  adder->body->first->attr.axes[0] = axis;
}

static void results_replace(const lm_replacement *r, const match *m, const lm_op *fused) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < m->attend->n_out; i++) {
    const reader *x = reader_of(m, i);
    const lm_op *of = x ? x->kernel : m->attend;
    uint32_t from = x ? 0 : i;
    uint32_t to = x ? of->n_out : i + 1;
    for (uint32_t k = from; k < to; k++) {
      lm_value *old = of->out[k];
      lm_value *v = fused->out[n++];
      r->map[old->id] = v;
      v->name = old->name;
    }
  }
}

static bool chunks_set(const lm_replacement *r, const match *m, const lm_op *fused,
                       const lm_axis *chunk, lm_op *const *copy) {
  for (int i = 0; i < m->n; i++) {
    int64_t n = r->env->codegen->attend_chunks(r->env->target, fused, copy[i]);
    if (!n)
      return false;
    r->m->axes[chunk[i]].size = n;
  }
  return true;
}

// Moves what computes v in front of the attention.
static void precede(lm_value *v, lm_op *attend) {
  lm_op *op = attend;
  while (op && op != v->def)
    op = op->next;
  if (!op)
    return;
  for (uint32_t i = 0; i < op->n_in; i++)
    precede(op->in[i], attend);
  lm_op_remove(op);
  lm_op_insert_before(attend, op);
}

static void operands_precede(const match *m) {
  for (int i = 0; i < m->n; i++) {
    const reader *x = &m->reader[i];
    for (uint32_t k = 0; k < x->kernel->n_in; k++)
      if (k != x->operand)
        precede(x->kernel->in[k], m->attend);
  }
}

// The attention with the kernels of m; NULL: the target has no such epilogues.
static lm_op *attempt(const lm_replacement *r, const match *m, const lm_axis *chunk) {
  lm_op *copy[KERNELS];
  lm_op *fused = fused_make(r, m, chunk, copy);
  if (chunks_set(r, m, fused, chunk, copy))
    return fused;
  lm_op_remove(fused);
  return NULL;
}

// The same with those kernels that the attention may have if it has no other; m keeps these.
static lm_op *attempt_some(const lm_replacement *r, match *m, const lm_axis *chunk) {
  int n = 0;
  for (int i = 0; i < m->n; i++) {
    match one = {.attend = m->attend, .reader = {m->reader[i]}, .n = 1};
    lm_op *fused = attempt(r, &one, chunk);
    if (!fused)
      continue;
    lm_op_remove(fused);
    m->reader[n++] = m->reader[i];
  }
  m->n = n;
  return n ? attempt(r, m, chunk) : NULL;
}

static bool fuse(const lm_replacement *r, match *m) {
  lm_axis chunk[KERNELS];
  for (int i = 0; i < m->n; i++)
    chunk[i] = lm_axis_add(r->m, LM_SYM(r->m->ctx, "chunk"), 1, 0);
  operands_precede(m);
  lm_op *fused = attempt(r, m, chunk);
  if (!fused && m->n > 1)
    fused = attempt_some(r, m, chunk);
  if (!fused)
    return false;
  if (!is_profitable(r, m, fused)) {
    lm_op_remove(fused);
    return false;
  }
  for (int i = 0; i < m->n; i++) {
    const lm_op *kernel = m->reader[i].kernel;
    for (uint32_t k = summed_from(kernel); k < kernel->n_out; k++)
      adder_change(r, kernel->out[k], chunk[i]);
  }
  results_replace(r, m, fused);
  for (int i = 0; i < m->n; i++)
    lm_op_remove(m->reader[i].kernel);
  lm_op_remove(m->attend);
  return true;
}

// Visits the last of the kernels, so that none of them is the next operation of the walk.
static void visit(const lm_replacement *r, lm_op *kernel) {
  match m;
  if (kernel->code != LM_OP_KERNEL)
    return;
  for (uint32_t i = 0; i < kernel->n_in; i++) {
    lm_op *attend = kernel->in[i]->def;
    if (!attend || attend->code != LM_OP_ATTEND_VJP)
      continue;
    bool is_old = kernel->in[i]->id < r->n_uses;
    bool beside = attend->parent == kernel->parent;
    if (!is_old || !beside || !find(r, attend, kernel, &m))
      continue;
    if (fuse(r, &m))
      return;
  }
}

bool lm_pass_attend_epilogue(lm_module *m, const lm_pass_env *env) {
  if (!env->codegen || !env->codegen->attend_chunks || !env->target)
    return true;
  lm_replace_each(m, env, visit);
  return true;
}
