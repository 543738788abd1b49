// licm.c - costly operations that do not vary in a loop move in front of it (loop-invariant code
// motion).
//
// before: %y = loop 24 … %i … { %a = mul %pos, %f   %c = cos %a   %w = param @w   … }
// after:  %a = mul %pos, %f   %c = cos %a   %y = loop 24 … %i … { %w = param @w   … }
//
// An operation moves if it is pure, all it uses is defined outside, and it costs something: 4 flops
// an element or more, a reduction, a product or a gather. What it uses moves with it. Cheap
// operations stay, as they cost less in the kernels that use them than a tensor read from memory
// would: a mask of positions is recomputed in the attention of each layer. Declines: operations
// with effects, loops. Cost: what moves lives as long as the loop.
#include "compiler/ops/interface.h"
#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"

enum {
  STAYS,
  INVARIANT,
  MOVES
}; // in op->mark

static bool costly(const lm_op *op) {
  return lm_op_accumulates(op) || (op->out[0]->type.rank && lm_op_info_of(op)->flops >= 4);
}

static bool invariant(const lm_op *op) {
  if (!lm_op_pure(op) || op->n_out != 1)
    return false;
  for (uint32_t i = 0; i < op->n_in; i++) {
    const lm_value *v = op->in[i];
    if (v->region == op->parent && !(v->def && v->def->mark))
      return false;
  }
  return true;
}

static void pull(const lm_op *op) {
  for (uint32_t i = 0; i < op->n_in; i++) {
    lm_op *def = op->in[i]->def;
    if (def && def->parent == op->parent && def->mark == INVARIANT) {
      def->mark = MOVES;
      pull(def);
    }
  }
}

static void hoist(lm_op *loop) {
  for (lm_op *op = loop->body->first; op; op = op->next) {
    op->mark = invariant(op) ? INVARIANT : STAYS;
    if (op->mark && costly(op))
      op->mark = MOVES;
  }
  for (lm_op *op = loop->body->first; op; op = op->next)
    if (op->mark == MOVES)
      pull(op);
  for (lm_op *op = loop->body->first, *next; op; op = next) {
    next = op->next;
    if (op->mark != MOVES)
      continue;
    lm_op_remove(op);
    lm_op_insert_before(loop, op);
  }
}

// Inner loops first, so that what leaves them can leave the outer ones.
static void visit(lm_region *r) {
  for (lm_op *op = r->first; op; op = op->next) {
    if (op->code != LM_OP_LOOP)
      continue;
    visit(op->body);
    hoist(op);
  }
}

bool lm_pass_licm(lm_module *m, const lm_pass_env *env) {
  for (lm_func *f = m->funcs; f; f = f->next)
    visit(f->body);
  return true;
}
