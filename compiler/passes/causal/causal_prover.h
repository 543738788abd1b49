// causal_prover.h - a proof about the pairs of a position and one of the history, shared by
// causal_mask.c and causal_shows.c.
#ifndef LM_CAUSAL_PROVER_H
#define LM_CAUSAL_PROVER_H
#include "compiler/passes/causal/causal.h"
#include "compiler/passes/causal/causal_formula.h"

// A term that is not linear: idiv or mod of two linear operands.
typedef struct quotient {
  lm_opcode code;
  lm_linear x, by;
} quotient;

typedef struct prover {
  const probe *p;
  lm_axis t, s;
  bool itself;  // only the pairs with s at t
  bool exact;   // masked scores are one constant, `fill`; 0: none is found yet
  double never; // scores up to this are masked
  double fill;
  quotient quotients[LM_TERMS_MAX];
  int n_quotients, visits;
} prover;

prover lm_prover_of(const probe *p, lm_axis t, lm_axis s, bool itself);
// Counts a value that the proof looks at. False if it has looked at too many, or if the value has
// other axes of positions or of the history than those of the prover.
bool lm_prover_visit(prover *x, const lm_value *v);
// True if the operation has the elements of its first operand, or moves them along other axes.
bool lm_prover_keeps(const prover *x, const lm_op *op);
#endif
