// verify.c - the invariants of a module: structure, visibility, order, types, stages.
//
// lm_op_check checks one operation in its region. The parser calls it for each operation that it
// reads, so that the message has a location; lm_module_verify calls it for a whole module between
// passes.
#include <string.h>
#include "compiler/ir/internal.h"
#include "compiler/ops/ops.h"

int64_t lm_op_result_count(const lm_module *m, const lm_op *op, lm_buf *why) {
  const lm_op_info *info = lm_op_info_of(op);
  if (info->n_out >= 0)
    return info->n_out;
  int64_t yields = op->body && op->body->last ? (int64_t)op->body->last->n_in : -1;
  if (yields >= 0 && op->code != LM_OP_ATTEND_VJP)
    return yields;
  if (yields >= 3)
    return yields - 2; // the cotangent of v for score, mask and factor
  if (yields >= 0) {
    lm_why(why, "the region yields no score, mask and factor");
    return -1;
  }
  const lm_func *f = op->attr.sym ? lm_func_find((lm_module *)m, op->attr.sym) : NULL;
  if (f)
    return f->n_out;
  lm_why(why, op->attr.sym ? "there is no function @%s" : "there is no body%s",
         op->attr.sym ? op->attr.sym : "");
  return -1;
}

static bool axes_known(const lm_module *m, const lm_axis *axes, int n, lm_buf *why) {
  for (int i = 0; i < n; i++)
    if (!axes[i] || axes[i] >= m->n_axes)
      return lm_why(why, "an unknown axis");
  return true;
}

static bool attributes_fit(const lm_module *m, const lm_op *op, lm_buf *why) {
  uint32_t has = lm_op_info_of(op)->attrs;
  const lm_attr *a = &op->attr;
  if (a->n_axes && !(has & LM_A_AXES))
    return lm_why(why, "takes no axes");
  if (a->n_to && !(has & LM_A_TO))
    return lm_why(why, "takes no new axes");
  if (a->n_imm && !(has & LM_A_IMM))
    return lm_why(why, "takes no [numbers]");
  if (a->sym && !(has & LM_A_SYM))
    return lm_why(why, "takes no @name");
  if (!a->sym && (has & LM_A_SYM))
    return lm_why(why, "needs a @name");
  if (!op->body != !(has & LM_A_BODY))
    return lm_why(why, op->body ? "takes no body" : "needs a body");
  return axes_known(m, a->axes, a->n_axes, why) && axes_known(m, a->to, a->n_to, why);
}

bool lm_op_infer(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  const lm_op_info *info = lm_op_info_of(op);
  if (info->n_in >= 0 && op->n_in != (uint32_t)info->n_in)
    return lm_why(why, "takes %d operands, not %u", info->n_in, op->n_in);
  if (!attributes_fit(m, op, why))
    return false;
  if (info->traits & LM_T_TYPED && !lm_type_wellformed(m, out[0], why))
    return false;
  if (!info->shape(m, op, out, why))
    return false;
  if (info->n_out == 1 && !lm_type_wellformed(m, out[0], why))
    return false;
  return true;
}

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
  if (lm_op_info_of(op)->stages & allowed)
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

bool lm_op_check(const lm_module *m, const lm_op *op, lm_buf *why) {
  if (!stage_allows(m, op, why))
    return false;
  if (lm_op_ends_region(op) && (op->next || !op->parent->owner != (op->code == LM_OP_RETURN)))
    return lm_why(why, "does not stand at the end of a %s",
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
  return ok;
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
