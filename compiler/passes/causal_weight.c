// causal_weight.c - rejects losses that read the logits of a prompt at the tokens that they
// contain.
//
// Within a prompt the logits depend on the tokens that they predict. The weight `w` is 0 there, so
// what the loss reads of them has to be multiplied by it: sum(xent(z, bt.next) * bt.w).
#include "compiler/passes/causal.h"
#include "runtime/base/diag_code.h"

typedef struct tracker {
  const probe *p;
  const lm_op **from; // by value id: the gather that the value depends on; NULL: none
} tracker;

// True if the value is 0 wherever `w` is.
static bool is_weight(const lm_value *v) {
  const lm_op *op = v->def;
  if (!op)
    return v->name && lm_column_find(v->name) == LM_COLUMN_W;
  switch (op->code) {
  case LM_OP_CAST:
  case LM_OP_EXPAND:
  case LM_OP_PERMUTE: return is_weight(op->in[0]);
  case LM_OP_MUL: return is_weight(op->in[0]) || is_weight(op->in[1]);
  default: return false;
  }
}

static const lm_op *joined(const tracker *x, lm_value *const *v, uint32_t n) {
  for (uint32_t i = 0; i < n; i++)
    if (x->from[v[i]->id])
      return x->from[v[i]->id];
  return NULL;
}

static const lm_op *found(const tracker *x, const lm_op *op) {
  bool multiplies = op->code == LM_OP_MUL || op->code == LM_OP_DOT;
  if (op->n_out == 1 && x->p->reads_prompt[op->out[0]->id])
    return op;
  if (multiplies && (is_weight(op->in[0]) || is_weight(op->in[1])))
    return NULL;
  return joined(x, op->in, op->n_in);
}

static void region_visit(const tracker *x, const lm_region *r);

// Values of any iteration count for all of them.
static void body_visit(const tracker *x, const lm_op *op) {
  const lm_op *yield = op->body->last;
  const lm_op *from = joined(x, op->in, op->n_in);
  for (int visits = 0; visits < 2; visits++) {
    for (uint32_t i = 0; i < op->body->n_args; i++)
      x->from[op->body->args[i]->id] = from;
    region_visit(x, op->body);
    from = from ? from : joined(x, yield->in, yield->n_in);
  }
  for (uint32_t i = 0; i < op->n_out; i++)
    x->from[op->out[i]->id] = joined(x, yield->in, yield->n_in);
}

static void region_visit(const tracker *x, const lm_region *r) {
  for (const lm_op *op = r->first; op; op = op->next) {
    const lm_op *from = found(x, op);
    for (uint32_t i = 0; !op->body && i < op->n_out; i++)
      x->from[op->out[i]->id] = from;
    if (op->body)
      body_visit(x, op);
  }
}

void lm_probe_weights(probe *p, const lm_func *f) {
  tracker x = {p, LM_NEW_N(p->a, const lm_op *, p->m->n_values + 1)};
  const lm_op *end = f->body->last;
  region_visit(&x, f->body);
  const lm_op *from = joined(&x, end->in, end->n_in);
  if (!from)
    return;
  p->ok = false;
  lm_diag *d = LM_REPORT(p->c, from->loc, E0FF);
  lm_diag_help(p->c, d, "sum(xent(z, bt.next) * bt.w)");
}
