// verify.c - the invariants of a module: structure, visibility, order, types, stages.
//
// lm_op_check checks one operation in its region. The parser calls it for each operation that it
// reads, so that the message has a location; lm_module_verify calls it for a whole module between
// passes.
#include <string.h>
#include "compiler/ir/dot.h"
#include "compiler/ir/internal.h"
#include "compiler/ops/ops.h"

// The isolated operation that contains r; NULL if there is none.
static const lm_op *isolation(const lm_region *r) {
  for (; r->owner; r = r->owner->parent)
    if (lm_op_isolated(r->owner))
      return r->owner;
  return NULL;
}

static bool stage_allows(const lm_module *m, const lm_op *op, lm_buf *why) {
  static const uint32_t levels[] = {LM_IN_GRAPH, LM_IN_STEP, LM_IN_KERNEL};
  const lm_op *inside = isolation(op->parent);
  bool kernel = inside && inside->code == LM_OP_KERNEL;
  uint32_t allowed = kernel ? LM_IN_BODY : levels[m->stage] | (inside ? LM_IN_BODY : 0);
  bool begins = op == op->parent->first && lm_op_multiplies_rows(op);
  bool multiplies = kernel && (begins || op->code == LM_OP_DOT);
  if (multiplies || lm_op_info_of(op)->stages & allowed)
    return true;
  return kernel ? lm_why(why, "is not allowed in a kernel")
                : lm_why(why, "is not allowed at stage %s", lm_stage_names[m->stage]);
}

static bool result_types_match(const lm_module *m, const lm_op *op, const lm_type *want,
                               lm_buf *why) {
  for (uint32_t i = 0; i < op->n_out; i++) {
    if (!lm_type_valid(m, want[i], why))
      return false;
    if (lm_type_equal(want[i], op->out[i]->type))
      continue;
    lm_why_type(why, m, "the result is ", want[i], ", not ");
    return lm_why_type(why, m, "", op->out[i]->type, "");
  }
  return true;
}

// A value that the host has is a stack of a loop. The last slots of a stack stay in the device's
// memory, so its loop writes them in their order.
static bool stacks_on_host_fit(const lm_op *op, lm_buf *why) {
  bool loop = op->code == LM_OP_LOOP;
  for (uint32_t i = 0; i < op->n_out; i++) {
    if (!op->out[i]->on_host)
      continue;
    if (!loop || i < op->n_in)
      return lm_why(why, "has a result on_host that no loop stacks");
    if (lm_loop_is_reversed(op))
      return lm_why(why, "is reversed and has a stack on_host");
  }
  return true;
}

bool lm_op_check(const lm_module *m, const lm_op *op, lm_buf *why) {
  if (!stage_allows(m, op, why))
    return false;
  if (lm_op_ends_region(op) && (op->next || !op->parent->owner != (op->code == LM_OP_RETURN)))
    return lm_why(why, "is not at the end of a %s",
                  op->code == LM_OP_RETURN ? "function" : "region");
  int64_t n = lm_op_result_count(m, op, why);
  if (n < 0)
    return false;
  if (n != op->n_out)
    return lm_why(why, "gives %lld results, not %u", (long long)n, op->n_out);
  lm_type few[4], *types = n <= 4 ? few : lm_calloc((size_t)n, sizeof *types);
  if (n)
    types[0] = op->out[0]->type;
  bool ok = lm_op_infer(m, op, types, why) && result_types_match(m, op, types, why);
  if (types != few)
    lm_free(types);
  return ok && stacks_on_host_fit(op, why);
}

bool lm_value_visible(const lm_value *v, const lm_region *r) {
  for (; r != v->region; r = r->owner->parent)
    if (!r->owner || lm_op_isolated(r->owner))
      return false;
  return true;
}

// ---- whole modules

typedef struct verify {
  const lm_module *m;
  lm_buf *out;
  uint8_t *defined;
  bool ok;
} verify;

static void complain(verify *v, const lm_func *f, const lm_op *op, const char *what) {
  lm_buf_printf(v->out, "@%s: ", f->name);
  if (op) {
    lm_op_print(op, v->out);
    lm_buf_puts(v->out, ": ");
  }
  lm_buf_printf(v->out, "%s\n", what);
  v->ok = false;
}

static void define(verify *v, const lm_func *f, const lm_op *op, const lm_value *x,
                   const lm_region *r) {
  if (x->id >= v->m->n_values || v->defined[x->id])
    complain(v, f, op, "a value's number is used twice or out of range");
  else
    v->defined[x->id] = 1;
  if (x->region != r || x->def != op)
    complain(v, f, op, "a value does not know where it is defined");
  if (x->type.dtype == LM_REAL && (v->m->stage != LM_STAGE_GRAPH || v->m->real != LM_REAL))
    complain(v, f, op, "a value is of type real after pass precision");
}

static void check_operands(verify *v, const lm_func *f, const lm_op *op) {
  for (uint32_t i = 0; i < op->n_in; i++) {
    const lm_value *x = op->in[i];
    bool before = x->id < v->m->n_values && v->defined[x->id];
    if (!before || !lm_value_visible(x, op->parent))
      complain(v, f, op, "an operand is not defined here");
  }
}

static void check_region(verify *v, const lm_func *f, const lm_region *r, const lm_op *owner) {
  for (uint32_t i = 0; i < r->n_args; i++)
    define(v, f, NULL, r->args[i], r);
  lm_opcode end = owner ? LM_OP_YIELD : LM_OP_RETURN;
  if (!r->last || r->last->code != end)
    complain(v, f, owner,
             owner ? "the body does not end with a yield" : "does not end with a return");
  for (const lm_op *op = r->first; op; op = op->next) {
    lm_buf why = {0};
    check_operands(v, f, op);
    if (op->parent != r)
      complain(v, f, op, "does not know its region");
    if (op->body)
      check_region(v, f, op->body, op);
    if (!lm_op_check(v->m, op, &why))
      complain(v, f, op, why.p ? why.p : "is ill-formed");
    for (uint32_t i = 0; i < op->n_out; i++)
      define(v, f, op, op->out[i], r);
    lm_buf_free(&why);
  }
}

bool lm_module_verify(const lm_module *m, lm_buf *out) {
  verify v = {m, out, lm_calloc((size_t)m->n_values + 1, 1), true};
  for (const lm_func *f = m->funcs; f; f = f->next) {
    check_region(&v, f, f->body, NULL);
    if (f->body->last && f->n_out != f->body->last->n_in)
      complain(&v, f, f->body->last, "results and their names differ in number");
  }
  lm_free(v.defined);
  return v.ok;
}
