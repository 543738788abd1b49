// causal_proof.c - proofs about one operation of @probe from the facts of causal_cells.c, recorded
// in the form that causal_reach.c and causal_mask.c read after the facts are freed.
#include <math.h>
#include "compiler/passes/causal/causal.h"

static proof *proof_of(const probe *p, const lm_op *op) {
  return &p->proofs[op->out[0]->id];
}

static void prove_constant(probe *p, const lm_op *op) {
  bool *constant = LM_NEW_N(p->a, bool, p->n_positions);
  for (int64_t t = 0; t < p->n_positions; t++)
    constant[t] = !isnan(lm_fact_cell(p, op->out[0], t, 0));
  proof_of(p, op)->constant = constant;
}

static void prove_taken(probe *p, const lm_op *op) {
  uint8_t *taken = LM_NEW_N(p->a, uint8_t, p->n_positions);
  for (int64_t t = 0; t < p->n_positions; t++) {
    double c = lm_fact_cell(p, op->in[0], t, 0);
    taken[t] = isnan(c) ? TAKES_FIRST | TAKES_SECOND : c != 0 ? TAKES_FIRST : TAKES_SECOND;
  }
  proof_of(p, op)->taken = taken;
}

// Whether element t of a reduction over the history reads position s. gridded: the operands with
// both axes, a bit for each.
static bool reads(const probe *p, const lm_op *op, unsigned gridded, int64_t t, int64_t s) {
  if (op->code != LM_OP_DOT)
    return isnan(lm_fact_cell(p, op->in[0], t, s));
  for (uint32_t i = 0; i < op->n_in; i++)
    if (gridded >> i & 1 && lm_fact_cell(p, op->in[i], t, s) == 0)
      return false;
  return true;
}

static unsigned gridded_operands(const probe *p, const lm_op *op) {
  unsigned found = 0;
  for (uint32_t i = 0; i < op->n_in; i++)
    found |= (unsigned)lm_probe_gridded(p, op->in[i]->type) << i;
  return found;
}

static void prove_bounds(probe *p, const lm_op *op, unsigned gridded) {
  proof *x = proof_of(p, op);
  x->first = LM_NEW_N(p->a, int64_t, p->n_positions);
  x->last = LM_NEW_N(p->a, int64_t, p->n_positions);
  for (int64_t t = 0; t < p->n_positions; t++) {
    int64_t first = 0;
    int64_t last = p->n_positions - 1;
    while (first <= last && !reads(p, op, gridded, t, first))
      first++;
    while (last > first && !reads(p, op, gridded, t, last))
      last--;
    x->first[t] = first;
    x->last[t] = last;
  }
}

static void prove_index(probe *p, const lm_op *op) {
  int64_t *index = LM_NEW_N(p->a, int64_t, p->n_positions);
  for (int64_t t = 0; t < p->n_positions; t++) {
    double i = lm_fact_cell(p, op->in[1], t, 0);
    if (isnan(i))
      return;
    index[t] = i < 0 ? 0 : i >= (double)p->n_positions ? p->n_positions - 1 : (int64_t)i;
  }
  proof_of(p, op)->index = index;
}

// The axes of more than one element.
static lm_type wide_axes(const probe *p, lm_type t) {
  lm_type out = {.dtype = t.dtype};
  for (int i = 0; i < t.rank; i++)
    if (lm_axis_size(p->m, t.axis[i]) > 1)
      out.axis[out.rank++] = t.axis[i];
  return out;
}

static void prove_grid(probe *p, const lm_op *op) {
  const lm_tensor *known = &lm_fact(p, op->out[0])->known;
  proof *x = proof_of(p, op);
  lm_type t = wide_axes(p, op->out[0]->type);
  if (op->code == LM_OP_EXPAND && !known->v) {
    x->zero = p->proofs[op->in[0]->id].zero;
    x->grid_type = p->proofs[op->in[0]->id].grid_type;
  }
  if (!known->v || t.rank < 2)
    return;
  x->grid_type = t;
  x->zero = LM_NEW_N(p->a, bool, known->n);
  for (int64_t i = 0; i < known->n; i++)
    x->zero[i] = known->v[i] == 0;
}

static bool reduces_history(const probe *p, const lm_op *op) {
  bool reduces = op->code == LM_OP_SUM || op->code == LM_OP_MAX || op->code == LM_OP_ARGMAX ||
                 op->code == LM_OP_TOP_K || op->code == LM_OP_DOT;
  return (reduces && lm_probe_over(op, p->is_history)) || lm_probe_best(p, op);
}

void lm_fact_prove(probe *p, const lm_op *op) {
  lm_axis t;
  if (op->n_out != 1 || !lm_probe_has(p->is_position, op->out[0]->type, &t))
    return;
  bool plain = !lm_probe_gridded(p, op->out[0]->type);
  const fact *result = lm_fact(p, op->out[0]);
  if (plain && (result->known.v || result->cell))
    prove_constant(p, op);
  if (plain)
    prove_grid(p, op);
  if (op->code == LM_OP_SELECT && !lm_probe_gridded(p, op->in[0]->type))
    prove_taken(p, op);
  unsigned gridded = plain && reduces_history(p, op) ? gridded_operands(p, op) : 0;
  if (gridded)
    prove_bounds(p, op, gridded);
  if (op->code == LM_OP_GATHER && lm_probe_over(op, p->is_position) &&
      lm_probe_has(p->is_position, op->in[1]->type, &t) && !lm_probe_gridded(p, op->in[1]->type))
    prove_index(p, op);
}

// ---- notes for causal_mask.c

static double most_of(const lm_tensor *x) {
  double most = 0;
  for (int64_t i = 0; i < x->n; i++)
    most = fmax(most, isnan(x->v[i]) ? INFINITY : fabs(x->v[i]));
  return most;
}

static bool is_unknown(const probe *p, const fact *f) {
  for (int64_t i = 0; f->cell && i < p->n_positions * f->width; i++)
    if (!isnan(f->cell[i]))
      return false;
  return !f->known.v;
}

// A column whose value depends on the document.
static bool is_documents(const lm_value *v) {
  return !v->def && v->name && (lm_is_prompt(v) || lm_column_find(v->name) == LM_COLUMN_SEG);
}

// Carries of a loop may depend on documents from the second iteration on.
static void note_region(probe *p, const lm_op *op) {
  for (uint32_t i = 0; i < op->body->n_args; i++)
    p->sketches[op->body->args[i]->id].by_document =
        op->body->args[i]->type.dtype == LM_INT || op->body->args[i]->type.dtype == LM_BOOL;
}

void lm_mask_note(probe *p, const lm_op *op) {
  lm_axis any;
  bool by_document = false;
  for (uint32_t i = 0; i < op->n_in; i++)
    by_document |= p->sketches[op->in[i]->id].by_document || is_documents(op->in[i]);
  if (op->body)
    note_region(p, op);
  for (uint32_t i = 0; i < op->n_out; i++) {
    const lm_value *v = op->out[i];
    const fact *f = lm_fact(p, v);
    bool moves =
        lm_probe_has(p->is_position, v->type, &any) || lm_probe_has(p->is_history, v->type, &any);
    bool unknown = is_unknown(p, f);
    p->sketches[v->id] = (sketch){.visible = p->sketches[v->id].visible,
                                  .unknown = unknown,
                                  .by_document = by_document && !unknown,
                                  .most = f->known.v && !moves ? most_of(&f->known) : INFINITY};
  }
  if (op->code == LM_OP_SELECT && !lm_probe_gridded(p, op->in[0]->type))
    p->selects_document |= p->sketches[op->in[0]->id].by_document;
}
