// causal_shows.c - whether a row that is masked on the sample is masked as a whole: the position
// that it reads may be in a gap of the sample.
#include <math.h>
#include "compiler/ops/interface.h"
#include "compiler/passes/causal/causal_prover.h"

// The element of a value at a position t and a position s of the same document; NAN: not known.
typedef struct pair {
  double t, s, document, prompt; // the last at t, and at s if it is 1
} pair;

static double element(prover *x, const lm_value *v, bool at_s, const pair *at);

static double column_element(const lm_value *v, bool at_s, const pair *at) {
  if (lm_is_prompt(v))
    return at_s && at->prompt == 0 ? NAN : at->prompt;
  switch (v->name ? lm_column_find(v->name) : LM_COLUMNS) {
  case LM_COLUMN_POS: return at_s ? at->s : at->t;
  case LM_COLUMN_SEG: return at->document;
  default: return NAN;
  }
}

static double combined(prover *x, const lm_op *op, bool at_s, const pair *at) {
  double in[LM_RANK];
  bool all = op->n_in > 0 && op->n_in <= LM_RANK && lm_op_has(op, LM_T_ELEMENTWISE), no = false;
  for (uint32_t i = 0; i < op->n_in && all; i++) {
    in[i] = element(x, op->in[i], at_s, at);
    no |= in[i] == 0;
    if (isnan(in[i]) && op->code != LM_OP_AND && op->code != LM_OP_MUL)
      return NAN;
  }
  if (no && (op->code == LM_OP_AND || op->code == LM_OP_MUL))
    return 0;
  for (uint32_t i = 0; i < op->n_in && all; i++)
    all &= !isnan(in[i]);
  return all ? lm_eval_scalar(op, in) : NAN;
}

static double element(prover *x, const lm_value *v, bool at_s, const pair *at) {
  const lm_op *op = v->def;
  if (!lm_prover_visit(x, v))
    return NAN;
  if (!op)
    return column_element(v, at_s, at);
  if (op->code == LM_OP_CONST)
    return op->attr.num;
  if (op->code == LM_OP_HISTORY || lm_prover_keeps(x, op))
    return element(x, op->in[0], at_s || op->code == LM_OP_HISTORY, at);
  double c = op->code == LM_OP_SELECT ? element(x, op->in[0], at_s, at) : NAN;
  if (!isnan(c))
    return element(x, op->in[c != 0 ? 1 : 2], at_s, at);
  return combined(x, op, at_s, at);
}

bool lm_mask_shows(const probe *p, const lm_value *v, int64_t t) {
  enum {
    MAX_BACK = 4096
  };
  lm_axis of_t, of_s;
  if (!lm_probe_has(p->is_position, v->type, &of_t) || !lm_probe_has(p->is_history, v->type, &of_s))
    return false;
  double first = fmax(0, p->pos[t] - MAX_BACK);
  for (double s = p->pos[t]; s >= first; s--) {
    prover x = lm_prover_of(p, of_t, of_s, false);
    pair at = {p->pos[t], s, p->seg[t], p->prompt ? p->prompt[t] : 0};
    if (!(element(&x, v, false, &at) <= LM_NEVER))
      return true;
  }
  return false;
}
