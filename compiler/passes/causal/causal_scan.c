// causal_scan.c - scans of @probe: which positions their results depend on.
//
// At each position the region is followed with intervals of positions: a carry has the interval
// that the position before left, a slice that of its element. A select on `pos` or `seg` whose
// condition is known at the position takes one branch, so `select(pos > 0, h, 0)` ends the interval
// of h where a document begins. The region itself cannot look ahead: it has no axis of positions.
#include <math.h>
#include "compiler/ir/scan.h"
#include "compiler/ops/interface.h"
#include "compiler/passes/causal/causal_reach.h"

// ---- known values of the region, by position

typedef struct known {
  const probe *p;
  const lm_op *scan;
  double **at; // by value id: numbers by position, NAN: not known; NULL: nothing is known
} known;

static void operand_known(const known *k, uint32_t i) {
  const probe *p = k->p;
  const lm_value *v = k->scan->in[i];
  const fact *f = lm_fact(p, v);
  if (i < lm_scan_carries(k->scan) || (!f->known.v && !f->cell))
    return;
  double *x = LM_NEW_N(p->a, double, p->n_positions);
  for (int64_t t = 0; t < p->n_positions; t++)
    x[t] = lm_fact_cell(p, v, t, 0);
  k->at[k->scan->body->args[i]->id] = x;
}

static double number_at(const known *k, const lm_op *op, int64_t t) {
  double x[LM_RANK];
  bool all = true;
  bool zero = false;
  for (uint32_t i = 0; i < op->n_in; i++) {
    const double *in = k->at[op->in[i]->id];
    x[i] = in ? in[t] : NAN;
    all &= !isnan(x[i]);
    zero |= x[i] == 0;
  }
  if (op->code == LM_OP_CONST)
    return op->attr.num;
  if (op->code == LM_OP_EXPAND || op->code == LM_OP_STOP)
    return x[0];
  if (op->code == LM_OP_SELECT && !isnan(x[0]))
    return x[0] != 0 ? x[1] : x[2];
  if (zero && (op->code == LM_OP_MUL || op->code == LM_OP_AND))
    return 0;
  return all && op->n_in ? lm_eval_scalar(op, x) : NAN;
}

static void prove(const known *k, const lm_op *op) {
  const probe *p = k->p;
  proof *x = &p->proofs[op->out[0]->id];
  const double *now = k->at[op->out[0]->id];
  x->constant = LM_NEW_N(p->a, bool, p->n_positions);
  for (int64_t t = 0; t < p->n_positions; t++)
    x->constant[t] = !isnan(now[t]);
  if (op->code != LM_OP_SELECT)
    return;
  const double *c = k->at[op->in[0]->id];
  x->taken = LM_NEW_N(p->a, uint8_t, p->n_positions);
  for (int64_t t = 0; t < p->n_positions; t++)
    x->taken[t] = !c || isnan(c[t]) ? TAKES_FIRST | TAKES_SECOND
                  : c[t] != 0       ? TAKES_FIRST
                                    : TAKES_SECOND;
}

void lm_scan_prove(probe *p, const lm_op *scan) {
  known k = {p, scan, LM_NEW_N(p->a, double *, p->m->n_values + 1)};
  lm_axis position;
  if (!lm_probe_has(p->is_position, lm_type_make(LM_INT, scan->attr.axes, 1), &position))
    return;
  for (uint32_t i = 0; i < scan->n_in; i++)
    operand_known(&k, i);
  for (const lm_op *op = scan->body->first; op != scan->body->last; op = op->next) {
    if (op->n_out != 1 || op->n_in > LM_RANK || !lm_op_has(op, LM_T_ELEMENTWISE))
      continue;
    double *now = LM_NEW_N(p->a, double, p->n_positions);
    for (int64_t t = 0; t < p->n_positions; t++)
      now[t] = number_at(&k, op, t);
    k.at[op->out[0]->id] = now;
    prove(&k, op);
  }
}

// ---- intervals

// As in a term: the larger number is the larger interval, 0 is empty.
typedef struct interval {
  int32_t before;
  int32_t after;
} interval;

static interval joined(interval a, interval b) {
  return (interval){a.before > b.before ? a.before : b.before,
                    a.after > b.after ? a.after : b.after};
}

// The interval of element t of a term without other axes than t.
static interval interval_at(const term *x, int64_t t) {
  int64_t i = x->type.rank ? t : 0;
  return (interval){x->before[i], x->after[i]};
}

// The interval of each position of operand i, or one if it is the same at each.
static term operand_term(const reacher *r, const lm_op *scan, uint32_t i) {
  const reach *x = &r->of[scan->in[i]->id];
  lm_axis t = lm_scan_axis(scan);
  lm_axis others[LM_RANK];
  bool slice = lm_scan_operand_is_slice(scan, i);
  reach plain = {.n = 0};
  for (int k = 0; k < x->n; k++) {
    int n = 0;
    for (int j = 0; j < x->v[k].type.rank; j++)
      if (!slice || x->v[k].type.axis[j] != t)
        others[n++] = x->v[k].type.axis[j];
    term one = lm_term_reduced(r, &x->v[k], others, n);
    lm_reach_add(r, &plain, lm_term_spread(r, &one, lm_type_make(LM_INT, &t, slice)));
  }
  if (plain.n)
    return lm_term_spread(r, &plain.v[0], lm_type_make(LM_INT, &t, slice));
  return (term){.type = {0}, .before = LM_NEW(r->a, int32_t), .after = LM_NEW(r->a, int32_t)};
}

static interval op_interval(const reacher *r, const lm_op *op, const interval *of, int64_t t) {
  const proof *known = &r->p->proofs[op->out[0]->id];
  interval x = {0, 0};
  if (known->constant && known->constant[t])
    return x;
  for (uint32_t i = 0; i < op->n_in; i++) {
    bool dropped = op->code == LM_OP_SELECT && i && known->taken &&
                   !(known->taken[t] & (i == 1 ? TAKES_FIRST : TAKES_SECOND));
    if (!dropped)
      x = joined(x, of[op->in[i]->id]);
  }
  return x;
}

// The intervals of a position, from those of the carries. Sets `of` for each value of the region.
static void position_visit(const reacher *r, const lm_op *scan, const term *operands, int64_t t,
                           const interval *carry, interval *of) {
  for (uint32_t i = 0; i < scan->n_in; i++)
    of[scan->body->args[i]->id] =
        i < lm_scan_carries(scan) ? carry[i] : interval_at(&operands[i], t);
  for (const lm_op *op = scan->body->first; op != scan->body->last; op = op->next)
    if (op->n_out == 1)
      of[op->out[0]->id] = op_interval(r, op, of, t);
}

static reach result_reach(const reacher *r, const lm_op *scan, const term *x) {
  reach out = {.n = 0};
  for (uint32_t i = 0; i < scan->n_in; i++) {
    out.tokens |= r->of[scan->in[i]->id].tokens;
    out.targets |= r->of[scan->in[i]->id].targets;
  }
  lm_reach_add(r, &out, *x);
  return out;
}

static term term_of(const reacher *r, lm_axis t, int64_t n) {
  return (term){n > 1 ? lm_type_make(LM_INT, &t, 1) : (lm_type){0}, LM_NEW_N(r->a, int32_t, n),
                LM_NEW_N(r->a, int32_t, n)};
}

static void term_set(term *x, int64_t i, interval v) {
  x->before[i] = v.before;
  x->after[i] = v.after;
}

void lm_reach_scan(const reacher *r, const lm_op *scan) {
  int64_t n = lm_axis_size(r->p->m, lm_scan_axis(scan));
  uint32_t n_carry = lm_scan_carries(scan);
  const lm_op *yield = scan->body->last;
  interval *of = lm_calloc((size_t)r->p->m->n_values + 1, sizeof *of);
  interval *carry = lm_calloc(n_carry, sizeof *carry);
  term *operands = LM_NEW_N(r->a, term, scan->n_in + 1);
  term *results = LM_NEW_N(r->a, term, scan->n_out + 1);
  for (uint32_t i = 0; i < scan->n_in; i++)
    operands[i] = operand_term(r, scan, i);
  for (uint32_t i = 0; i < scan->n_out; i++)
    results[i] = term_of(r, lm_scan_axis(scan), i < n_carry ? 1 : n);
  for (uint32_t i = 0; i < n_carry; i++)
    carry[i] = interval_at(&operands[i], 0);
  for (int64_t t = 0; t < n; t++) {
    position_visit(r, scan, operands, t, carry, of);
    for (uint32_t i = 0; i < scan->n_out; i++)
      if (i < n_carry)
        carry[i] = of[yield->in[i]->id];
      else
        term_set(&results[i], t, of[yield->in[i]->id]);
  }
  for (uint32_t i = 0; i < scan->n_out; i++) {
    if (i < n_carry)
      term_set(&results[i], 0, carry[i]);
    r->of[scan->out[i]->id] = result_reach(r, scan, &results[i]);
  }
  lm_free(of);
  lm_free(carry);
}
