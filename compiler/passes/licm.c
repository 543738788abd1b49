// licm.c - loop-invariant code motion of expensive operations.
//
// before: %y = loop 24 … %i … { %a = mul %pos, %f   %c = cos %a   %w = param @w   … }
// after:  %a = mul %pos, %f   %c = cos %a   %y = loop 24 … %i … { %w = param @w   … }
//
// An operation moves if it is pure, its operands are defined outside, and it is expensive: at least
// 4 flops per element, a reduction, a dot or a gather. Its operands move with it. Cheap operations
// stay, because recomputing them in the kernels that use them is faster than reading a tensor from
// memory: a mask of positions is recomputed in the attention of each layer. Declines: operations
// with effects, loops. Cost: moved values are live during the whole loop.
#include "compiler/ops/interface.h"
#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"

// op->mark
enum {
  STAYS,
  INVARIANT,
  MOVES
};

static bool is_expensive(const lm_op *op) {
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

static void mark_operands(const lm_op *op) {
  for (uint32_t i = 0; i < op->n_in; i++) {
    lm_op *def = op->in[i]->def;
    if (def && def->parent == op->parent && def->mark == INVARIANT) {
      def->mark = MOVES;
      mark_operands(def);
    }
  }
}

static void hoist(lm_op *loop) {
  for (lm_op *op = loop->body->first; op; op = op->next) {
    op->mark = invariant(op) ? INVARIANT : STAYS;
    if (op->mark && is_expensive(op))
      op->mark = MOVES;
  }
  for (lm_op *op = loop->body->first; op; op = op->next)
    if (op->mark == MOVES)
      mark_operands(op);
  for (lm_op *op = loop->body->first, *next; op; op = next) {
    next = op->next;
    if (op->mark != MOVES)
      continue;
    lm_op_remove(op);
    lm_op_insert_before(loop, op);
  }
}

// Inner loops first, so that operations can move through several loops.
static void licm_visit(lm_region *r) {
  for (lm_op *op = r->first; op; op = op->next) {
    if (op->code != LM_OP_LOOP)
      continue;
    licm_visit(op->body);
    hoist(op);
  }
}

bool lm_pass_licm(lm_module *m, const lm_pass_env *env) {
  for (lm_func *f = m->funcs; f; f = f->next)
    licm_visit(f->body);
  return true;
}
