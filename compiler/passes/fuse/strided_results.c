// strided_results.c - lets kernels write their results where a concatenation has them.
//
// before: %dv, %dq, %dk = attend_vjp …
//         %g, %s = kernel (b, t) (%dq, %dk, %dv) { %1 = concat … (q, k, v) -> (qkv)   yield %1, … }
//         … = dot %g, …
// after:  %dv, %dq, %dk = attend_vjp …
//         %2 = view %dq (h, e) -> (q)   …
//         %g = concat %2, … (q, k, v) -> (qkv)
//         %s = kernel (b, t) (%g) …
//
// A kernel may compute some of the parts: they become results of it.
//
// before: %dz = kernel …
//         %g, %s = kernel (b, t) (%dx, %dz) { … %2 = concat %1, %dz (x, z) -> (xz)   yield %2, … }
// after:  %dz = kernel …
//         %1, %s = kernel (b, t) (%dx) { …   yield %1, … }
//         %g = concat %1, %dz (x, z) -> (xz)
//
// The planner gives the concatenation memory before its first part is computed, and the kernels
// that compute the parts write them there, at its strides. Saves a kernel that reads and writes all
// parts; a sum of the concatenation (the gradient of a bias) still reads it. Declines: targets
// whose kernels cannot write the results at these strides; operands that are not results of
// kernels, have another use, or pass through operations that are not views.
#include <string.h>

#include "compiler/ops/interface.h"
#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"
#include "compiler/plan/planner.h"

// A kernel's concatenation, which is its result `slot`.
typedef struct match {
  lm_op *kernel, *concat;
  uint32_t slot;
  bool computes; // some of the parts
} match;

// ---- matching

static bool used_once(const lm_replacement *r, const lm_value *v) {
  return v->id < r->n_uses && r->uses[v->id] == 1;
}

// The index of the one axis that an expand adds, of one element; -1 for other operations.
static int unit_axis(const lm_module *m, const lm_op *op) {
  if (op->code != LM_OP_EXPAND)
    return -1;
  lm_type x = op->in[0]->type, y = op->out[0]->type;
  if (!x.rank || y.rank != x.rank + 1)
    return -1;
  int at = 0;
  while (at < x.rank && x.axis[at] == y.axis[at])
    at++;
  bool rest = !memcmp(x.axis + at, y.axis + at + 1, (size_t)(x.rank - at) * sizeof *x.axis);
  return rest && lm_axis_size(m, y.axis[at]) == 1 && !m->axes[y.axis[at]].dyn ? at : -1;
}

// The argument that v is a view of, each step of which has no other use; NULL if there is none.
static lm_value *argument_of(const lm_replacement *r, lm_value *v) {
  for (; v->def; v = v->def->in[0]) {
    bool moves = lm_op_has(v->def, LM_T_VIEW) || unit_axis(r->m, v->def) >= 0;
    if (!moves || !used_once(r, v))
      return NULL;
  }
  return used_once(r, v) ? v : NULL;
}

// True if the part is a result of another kernel, which nothing else reads.
static bool is_outside(const lm_replacement *r, const match *m, const lm_value *part) {
  const lm_value *arg = argument_of(r, (lm_value *)part);
  const lm_value *v = arg ? m->kernel->in[arg->index] : NULL;
  return v && used_once(r, v) && v->def && v->def->parent == m->kernel->parent;
}

// True if the kernel computes v, rather than moves an operand or writes a constant.
static bool is_computed(const lm_value *v) {
  while (v->def && (lm_op_has(v->def, LM_T_VIEW) || v->def->code == LM_OP_EXPAND))
    v = v->def->in[0];
  return v->def && v->def->code != LM_OP_CONST;
}

static bool has_points(const lm_op *kernel, lm_type t) {
  for (int i = 0; i < kernel->attr.n_axes; i++)
    if (lm_type_find(t, kernel->attr.axes[i]) < 0)
      return false;
  return true;
}

// True if the part may be a result of the kernel.
static bool may_be_result(const lm_replacement *r, const match *m, const lm_value *part) {
  return is_computed(part) && used_once(r, part) && has_points(m->kernel, part->type);
}

// True if all parts are such results; or one at least is, and the kernel computes the others, whose
// only reader is the concatenation.
static bool parts_match(const lm_replacement *r, match *m) {
  uint32_t outside = 0;
  for (uint32_t i = 0; i < m->concat->n_in; i++)
    outside += is_outside(r, m, m->concat->in[i]);
  m->computes = outside < m->concat->n_in;
  if (m->computes && !used_once(r, m->concat->out[0]))
    return false;
  for (uint32_t i = 0; m->computes && i < m->concat->n_in; i++) {
    const lm_value *v = m->concat->in[i];
    if (!is_outside(r, m, v) && !may_be_result(r, m, v))
      return false;
  }
  return outside;
}

static bool find(const lm_replacement *r, lm_op *kernel, match *out) {
  if (kernel->code != LM_OP_KERNEL)
    return false;
  lm_op *yield = kernel->body->last;
  uint32_t n = kernel->attr.n_to ? (uint32_t)kernel->attr.imm[0] : kernel->n_out; // not summed
  for (uint32_t i = 0; i < n; i++) {
    *out = (match){kernel, yield->in[i]->def, i};
    int times = 0;
    for (uint32_t k = 0; k < yield->n_in; k++)
      times += yield->in[k] == yield->in[i];
    if (lm_op_is(yield->in[i], LM_OP_CONCAT) && times == 1 && parts_match(r, out))
      return true;
  }
  return false;
}

// True if the operation that defines v can write it into the concatenation.
static bool is_written(const lm_replacement *r, const lm_value *v) {
  const lm_op *op = v->def;
  if (op->code != LM_OP_KERNEL && !lm_op_attends(op))
    return false;
  for (uint32_t i = 0; i < op->n_out; i++)
    if (op->out[i] == v)
      return r->env->codegen->writes_strided(op, i);
  return false;
}

// ---- rewriting

// An axis of one element beside its neighbour.
static lm_value *unit_view(lm_builder *b, lm_value *x, lm_type to, int at) {
  bool last = at == x->type.rank;
  lm_axis neighbour = x->type.axis[last ? at - 1 : at];
  return last ? lm_emit_split(b, x, neighbour, neighbour, to.axis[at])
              : lm_emit_split(b, x, neighbour, to.axis[at], neighbour);
}

// The value of the kernel's body outside of it.
static lm_value *view_copy(const lm_replacement *r, lm_builder *b, const match *m,
                           const lm_value *v) {
  if (!v->def)
    return m->kernel->in[v->index];
  lm_value *x = view_copy(r, b, m, v->def->in[0]);
  int at = unit_axis(r->m, v->def);
  return at < 0 ? lm_emit(b, (lm_opcode)v->def->code, &x, 1, &v->def->attr, &v->type)
                : unit_view(b, x, v->type, at);
}

static lm_value *concat_copy(const lm_replacement *r, lm_builder *b, const match *m) {
  const lm_op *concat = m->concat;
  lm_value **in = lm_alloc((concat->n_in + 1) * sizeof *in);
  for (uint32_t i = 0; i < concat->n_in; i++)
    in[i] = view_copy(r, b, m, concat->in[i]);
  lm_value *out = lm_emit(b, LM_OP_CONCAT, in, concat->n_in, &concat->attr, NULL);
  lm_free(in);
  return out;
}

// Marks the operations of the kernel's body that compute the concatenation, and no others.
static void concat_mark(const match *m) {
  for (lm_op *op = m->kernel->body->first; op; op = op->next)
    op->mark = op == m->concat;
  for (uint32_t i = 0; i < m->concat->n_in; i++)
    for (lm_value *v = m->concat->in[i]; v->def; v = v->def->in[0])
      v->def->mark = 1;
}

// True if the concatenation reads operand i of the kernel.
static bool is_part(const match *m, uint32_t i) {
  for (uint32_t k = 0; k < m->concat->n_in; k++) {
    const lm_value *v = m->concat->in[k];
    while (v->def)
      v = v->def->in[0];
    if (v == m->kernel->body->args[i])
      return true;
  }
  return false;
}

// The kernel that computes the other results, with the concatenation as its last operand.
static void rest_make(const lm_replacement *r, lm_builder *b, const match *m, lm_value *whole) {
  lm_op *kernel = m->kernel, *yield = kernel->body->last;
  lm_value **values = lm_alloc((kernel->n_in + yield->n_in + 1) * sizeof *values);
  lm_value **map = lm_alloc((r->m->n_values + 1) * sizeof *map);
  lm_attr attr = kernel->attr;
  uint32_t n = 0;
  attr.imm[0] -= attr.n_to ? 1 : 0;
  for (uint32_t i = 0; i < kernel->n_in; i++)
    if (!is_part(m, i))
      values[n++] = kernel->in[i];
  values[n++] = whole;
  lm_op *rest = lm_kernel_begin(b, &attr, values, n);
  for (uint32_t i = 0, k = 0; i < kernel->n_in; i++)
    if (!is_part(m, i))
      map[kernel->body->args[i]->id] = rest->body->args[k++];
  map[m->concat->out[0]->id] = rest->body->args[n - 1];
  for (const lm_op *op = kernel->body->first; op != yield; op = op->next)
    if (!op->mark)
      lm_op_clone(b, op, map);
  n = 0;
  for (uint32_t i = 0; i < yield->n_in; i++)
    if (i != m->slot)
      values[n++] = map[yield->in[i]->id];
  lm_kernel_end(b, rest, values, n);
  for (uint32_t i = 0, k = 0; i < kernel->n_out; i++)
    if (i != m->slot)
      r->map[kernel->out[i]->id] = rest->out[k++];
  lm_free(values);
  lm_free(map);
}

static void copies_remove(lm_op *from, const lm_op *to) {
  for (lm_op *op = from, *next; op != to; op = next) {
    next = op->next;
    lm_op_remove(op);
  }
}

// ---- kernels that compute some of the parts

// Marks the operations that only move the parts of other kernels, and the concatenation.
static void moves_mark(const lm_replacement *r, const match *m) {
  for (lm_op *op = m->kernel->body->first; op; op = op->next)
    op->mark = op == m->concat;
  for (uint32_t i = 0; i < m->concat->n_in; i++)
    for (lm_value *v = m->concat->in[i]; is_outside(r, m, m->concat->in[i]) && v->def;
         v = v->def->in[0])
      v->def->mark = 1;
}

// True if one of the parts of other kernels is operand i.
static bool is_moved(const lm_replacement *r, const match *m, uint32_t i) {
  for (uint32_t k = 0; k < m->concat->n_in; k++)
    if (is_outside(r, m, m->concat->in[k]) &&
        argument_of(r, m->concat->in[k]) == m->kernel->body->args[i])
      return true;
  return false;
}

// A copy of the kernel that returns each part of the concatenation that it computes as a separate
// result. It neither reads nor moves the parts that other kernels compute.
static lm_op *parts_kernel(const lm_replacement *r, lm_builder *b, const match *m) {
  lm_op *kernel = m->kernel, *yield = kernel->body->last;
  uint32_t most = kernel->n_in + yield->n_in + m->concat->n_in;
  lm_value **values = lm_alloc((most + 1) * sizeof *values);
  lm_value **map = lm_calloc(r->m->n_values + 1, sizeof *map);
  lm_attr attr = kernel->attr;
  uint32_t n = 0, computed = 0;
  moves_mark(r, m);
  for (uint32_t i = 0; i < m->concat->n_in; i++)
    computed += !is_outside(r, m, m->concat->in[i]);
  attr.imm[0] += attr.n_to ? computed - 1 : 0;
  for (uint32_t i = 0; i < kernel->n_in; i++)
    if (!is_moved(r, m, i))
      values[n++] = kernel->in[i];
  lm_op *out = lm_kernel_begin(b, &attr, values, n);
  for (uint32_t i = 0, k = 0; i < kernel->n_in; i++)
    if (!is_moved(r, m, i))
      map[kernel->body->args[i]->id] = out->body->args[k++];
  for (const lm_op *op = kernel->body->first; op != yield; op = op->next)
    if (!op->mark)
      lm_op_clone(b, op, map);
  n = 0;
  for (uint32_t i = 0; i < yield->n_in; i++)
    for (uint32_t k = 0; k < (i == m->slot ? m->concat->n_in : 1); k++) {
      const lm_value *v = i == m->slot ? m->concat->in[k] : yield->in[i];
      if (i != m->slot || !is_outside(r, m, v))
        values[n++] = map[v->id];
    }
  lm_kernel_end(b, out, values, n);
  lm_free(values);
  lm_free(map);
  return out;
}

static bool all_written(const lm_replacement *r, const match *m, const lm_op *concat) {
  for (uint32_t i = 0; i < concat->n_in; i++) {
    const lm_value *v = concat->in[i];
    while (v->def && is_outside(r, m, m->concat->in[i]) && lm_op_has(v->def, LM_T_VIEW))
      v = v->def->in[0];
    if (!v->def || !is_written(r, v))
      return false;
  }
  return true;
}

static void part_out(const lm_replacement *r, const match *m) {
  lm_op *kernel = m->kernel, *before = kernel->prev;
  lm_builder b = {r->m, kernel->parent, kernel, kernel->loc, kernel->remat};
  lm_value **in = lm_alloc((m->concat->n_in + 1) * sizeof *in);
  lm_op *parts = parts_kernel(r, &b, m);
  uint32_t at = m->slot;
  for (uint32_t i = 0; i < m->concat->n_in; i++)
    in[i] = is_outside(r, m, m->concat->in[i]) ? view_copy(r, &b, m, m->concat->in[i])
                                               : parts->out[at++];
  lm_value *whole = lm_emit(&b, LM_OP_CONCAT, in, m->concat->n_in, &m->concat->attr, NULL);
  lm_free(in);
  if (!all_written(r, m, whole->def)) {
    copies_remove(before ? before->next : kernel->parent->first, kernel);
    return;
  }
  for (uint32_t i = 0; i < kernel->n_out; i++)
    if (i != m->slot)
      r->map[kernel->out[i]->id] = parts->out[i < m->slot ? i : i + at - m->slot - 1];
  r->map[kernel->out[m->slot]->id] = whole;
  lm_op_remove(kernel);
}

static void visit(const lm_replacement *r, lm_op *kernel) {
  match m;
  if (!find(r, kernel, &m))
    return;
  if (m.computes) {
    part_out(r, &m);
    return;
  }
  lm_builder b = {r->m, kernel->parent, kernel, kernel->loc, kernel->remat};
  lm_op *before = kernel->prev;
  lm_value *whole = concat_copy(r, &b, &m);
  bool all = true;
  for (uint32_t i = 0; i < kernel->n_in; i++)
    all = all && (!is_part(&m, i) || is_written(r, kernel->in[i]));
  if (!all) {
    copies_remove(before ? before->next : kernel->parent->first, kernel);
    return;
  }
  concat_mark(&m);
  if (kernel->n_out > 1)
    rest_make(r, &b, &m, whole);
  r->map[kernel->out[m.slot]->id] = whole;
  lm_op_remove(kernel);
}

bool lm_pass_strided_results(lm_module *m, const lm_pass_env *env) {
  if (!env->codegen || !env->codegen->writes_strided)
    return true;
  lm_replace_each(m, env, visit);
  return true;
}
