// scan_gemms.c - makes one kernel of the scan that passes the states of a linear recurrence from
// chunk to chunk and of the GEMMs in front of it, whose result it adds, and behind it, which read
// the states.
//
// before: %a = dot %u, %k over(j) : bf16[chunk, b, h, p, n]
//         %h, %s = scan over(chunk) [1, 2, 0] (%h0, %f, %a) {
//           %1 = mul %h0, %f   %2 = cast %a : f32[…]   %3 = add %1, %2   %4 = cast %3 : bf16[…]
//           yield %3, %4
//         }
//         %y = dot %c, %s over(n) : bf16[chunk, i, b, h, p]
// after:  %h, %s, %y = scan over(chunk) [1, 4, 0] (%h0, %f, %u, %k, %c) {
//           %1 = mul %h0, %f   %2 = dot %u, %k over(j) : f32[b, h, p, n]   %3 = add %1, %2
//           %4 = cast %3 : bf16[…]   %5 = dot %c, %4 over(n)   yield %3, %4, %5
//         }
//
// The states stay in registers, so that memory moves u and the stacked states once, and not what
// chunks add, which is f32 in the kernel, since nothing rounds it to store it. The backward pass
// has the same form, from the last chunk to the first.
//
// Declines: forms that lm_codegen.scan_multiplies rejects; other uses of the first GEMM, and any
// of the last state; operands that are computed behind the scan.
#include "compiler/ir/dot.h"
#include "compiler/ir/scan.h"
#include "compiler/ops/interface.h"
#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"
#include "compiler/plan/planner.h"

typedef struct states {
  const lm_replacement *r;
  lm_op *scan;
  lm_op *added;   // the dot
  uint32_t slice; // the operand that it computes
  lm_op *read;    // NULL: none
  lm_value *query;
  lm_builder b; // in front of the scan
  lm_value **map;
} states;

// ---- matching

static bool has_front(const states *x, const lm_value *v) {
  return v->type.rank && v->type.axis[0] == lm_scan_axis(x->scan);
}

static bool is_gemm(const states *x, const lm_value *v) {
  const lm_op *dot = v->def;
  return lm_op_is(v, LM_OP_DOT) && dot->parent == x->scan->parent && dot->attr.n_axes == 1 &&
         v->type.dtype == LM_BF16 && has_front(x, dot->in[0]) && has_front(x, dot->in[1]);
}

static bool used_once(const states *x, const lm_value *v) {
  return v->id < x->r->n_uses && x->r->uses[v->id] == 1;
}

static bool added_find(states *x) {
  const lm_op *s = x->scan;
  for (uint32_t i = lm_scan_carries(s); i < s->n_in; i++) {
    if (!lm_scan_operand_is_slice(s, i) || !is_gemm(x, s->in[i]) || !used_once(x, s->in[i]))
      continue;
    x->added = s->in[i]->def;
    x->slice = i;
    return true;
  }
  return false;
}

static bool is_before(const lm_op *op, const lm_op *other) {
  while (op && op != other)
    op = op->next;
  return op;
}

// v, or the views of it that are behind the scan again in front of it; NULL: it is computed behind.
static lm_value *in_front(states *x, lm_value *v) {
  lm_op *op = v->def;
  if (!op || op->parent != x->scan->parent || is_before(op, x->scan))
    return v;
  lm_value *from = lm_op_has(op, LM_T_VIEW) ? in_front(x, op->in[0]) : NULL;
  return from ? lm_emit(&x->b, (lm_opcode)op->code, &from, 1, &op->attr, &v->type) : NULL;
}

// A GEMM that reads the stacked states, of operands that are known in front of the scan.
static void read_find(states *x, const lm_value *stacked) {
  for (lm_op *op = x->scan->next; op && !x->read; op = op->next) {
    bool reads = op->code == LM_OP_DOT && (op->in[0] == stacked || op->in[1] == stacked);
    if (!reads || !is_gemm(x, op->out[0]) || !has_front(x, op->out[0]))
      continue;
    x->query = in_front(x, op->in[op->in[0] == stacked]);
    x->read = x->query && x->query != stacked ? op : NULL;
  }
}

// ---- the scan

static lm_value *dot_copy(states *x, const lm_op *dot, lm_value *const *in, lm_dtype t) {
  lm_type out = lm_type_inner(dot->out[0]->type, 1);
  out.dtype = (uint8_t)t;
  return lm_emit(&x->b, LM_OP_DOT, in, 2, &dot->attr, &out);
}

static void body_copy(states *x, lm_value *sum) {
  const lm_region *body = x->scan->body;
  const lm_value *added = body->args[x->slice];
  for (const lm_op *op = body->first; op != body->last; op = op->next)
    if (op->code == LM_OP_CAST && op->in[0] == added)
      x->map[op->out[0]->id] = sum;
    else
      lm_op_clone(&x->b, op, x->map);
}

// The slices of the dot, in its order.
static void slices_add(states *x, lm_op *scan, const lm_op *dot, lm_value **out) {
  for (int i = 0; i < 2; i++)
    out[i] = lm_scan_slice(x->r->m, scan, dot->in[i]);
}

// The axis of positions is that of the dots too, so their attributes stay.
static lm_op *scan_make(states *x) {
  const lm_op *old = x->scan;
  const lm_op *yield = old->body->last;
  lm_value *factors[2], *query, *all[4];
  lm_module *m = x->r->m;
  lm_op *scan = lm_scan_begin(&x->b, lm_scan_axis(old), lm_scan_is_backward(old), old->in, 1);
  x->map[old->body->args[0]->id] = scan->body->args[0];
  for (uint32_t i = 1; i < old->n_in; i++)
    if (i != x->slice)
      x->map[old->body->args[i]->id] = lm_scan_slice(m, scan, old->in[i]);
  slices_add(x, scan, x->added, factors);
  query = x->read ? lm_scan_slice(m, scan, x->query) : NULL;
  body_copy(x, dot_copy(x, x->added, factors, LM_F32));
  for (uint32_t i = 0; i < old->n_out; i++)
    all[i] = x->map[yield->in[i]->id];
  if (x->read) {
    bool second = x->read->in[0] == old->out[1];
    lm_value *in[] = {second ? all[1] : query, second ? query : all[1]};
    all[old->n_out] = dot_copy(x, x->read, in, LM_BF16);
  }
  lm_scan_end(&x->b, scan, all, all + 1, old->n_out - 1 + (x->read != NULL));
  return scan;
}

static void replace(states *x, const lm_op *scan) {
  const lm_op *old = x->scan;
  for (uint32_t i = 0; i < old->n_out; i++) {
    scan->out[i]->name = old->out[i]->name;
    x->r->map[old->out[i]->id] = scan->out[i];
  }
  if (x->read) {
    scan->out[old->n_out]->name = x->read->out[0]->name;
    x->r->map[x->read->out[0]->id] = scan->out[old->n_out];
    lm_op_remove(x->read);
  }
  lm_op_remove(x->scan);
  lm_op_remove(x->added);
}

// True for a scan of one state, of which nothing uses the last one.
static bool is_walk(const lm_replacement *r, const lm_op *scan) {
  return scan->code == LM_OP_SCAN && lm_scan_carries(scan) == 1 && scan->n_out == 2 &&
         scan->n_in == 1 + lm_scan_slices(scan) && !r->uses[scan->out[0]->id];
}

static void visit(const lm_replacement *r, lm_op *scan) {
  states x = {
      .r = r,
      .scan = scan,
  };
  const lm_pass_env *env = r->env;
  if (!is_walk(r, scan) || !added_find(&x))
    return;
  x.b = (lm_builder){r->m, scan->parent, scan, scan->loc, scan->remat};
  read_find(&x, scan->out[1]);
  x.map = lm_calloc(r->m->n_values + 1, sizeof *x.map);
  lm_op *made = scan_make(&x);
  lm_free(x.map);
  if (env->codegen->scan_multiplies(env->target, made))
    replace(&x, made);
  else
    lm_op_remove(made);
}

bool lm_pass_scan_gemms(lm_module *m, const lm_pass_env *env) {
  if (!env->codegen || !env->codegen->scan_multiplies || !env->target)
    return true;
  lm_replace_each(m, env, visit);
  return true;
}
