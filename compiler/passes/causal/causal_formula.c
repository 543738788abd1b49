// causal_formula.c - see causal_formula.h.
//
// A formula is refuted by cases: each case is a set of inequalities, one of every `or`. Those of
// the form x - y + c >= 0 are the edges of a graph, y - x <= c; the set has no solution if the
// graph has a cycle of negative length (Cormen et al., Introduction to Algorithms, "Difference
// constraints").
#include "compiler/passes/causal/causal_formula.h"

#include <string.h>

enum {
  NODES = LM_TERMS_MAX + 1, // the terms, and the number 0
  MAX_CASES = 4096,
  MAX_ATOMS = 64,
};
// Sums of such bounds along any path fit in 64 bits.
static const int64_t FAR = INT64_MAX / 4;

lm_linear lm_linear_term(int i) {
  lm_linear x = {.c = 0};
  x.at[i] = 1;
  return x;
}

lm_linear lm_linear_add(const lm_linear *x, const lm_linear *y, int64_t factor) {
  lm_linear out;
  for (int i = 0; i < LM_TERMS_MAX; i++)
    out.at[i] = x->at[i] + factor * y->at[i];
  out.c = x->c + factor * y->c;
  return out;
}

bool lm_linear_equal(const lm_linear *x, const lm_linear *y) {
  return !memcmp(x, y, sizeof *x);
}

// ---- construction

static const lm_formula constants[] = {{.kind = LM_FORMULA_FALSE}, {.kind = LM_FORMULA_TRUE}};

const lm_formula *lm_formula_constant(bool value) {
  return &constants[value];
}

static const lm_formula *node(lm_arena *a, lm_formula x) {
  lm_formula *out = LM_NEW(a, lm_formula);
  *out = x;
  return out;
}

const lm_formula *lm_formula_atom(lm_arena *a, const lm_linear *x) {
  return node(a, (lm_formula){
                     .kind = LM_FORMULA_ATOM,
                     .x = *x,
                 });
}

const lm_formula *lm_formula_zero(lm_arena *a, const lm_linear *x) {
  lm_linear none = {.c = 0}, minus = lm_linear_add(&none, x, -1);
  return lm_formula_and(a, lm_formula_atom(a, x), lm_formula_atom(a, &minus));
}

const lm_formula *lm_formula_and(lm_arena *a, const lm_formula *x, const lm_formula *y) {
  if (x->kind == LM_FORMULA_TRUE || y->kind == LM_FORMULA_FALSE)
    return y;
  if (y->kind == LM_FORMULA_TRUE || x->kind == LM_FORMULA_FALSE)
    return x;
  return node(a, (lm_formula){
                     .kind = LM_FORMULA_AND,
                     .a = x,
                     .b = y,
                 });
}

const lm_formula *lm_formula_or(lm_arena *a, const lm_formula *x, const lm_formula *y) {
  if (x->kind == LM_FORMULA_FALSE || y->kind == LM_FORMULA_TRUE)
    return y;
  if (y->kind == LM_FORMULA_FALSE || x->kind == LM_FORMULA_TRUE)
    return x;
  return node(a, (lm_formula){
                     .kind = LM_FORMULA_OR,
                     .a = x,
                     .b = y,
                 });
}

// !(x >= 0) is -x - 1 >= 0.
static const lm_formula *atom_not(lm_arena *a, const lm_linear *x) {
  lm_linear one = {.c = -1}, out = lm_linear_add(&one, x, -1);
  return lm_formula_atom(a, &out);
}

const lm_formula *lm_formula_not(lm_arena *a, const lm_formula *x) {
  switch (x->kind) {
  case LM_FORMULA_FALSE: return lm_formula_constant(true);
  case LM_FORMULA_TRUE: return lm_formula_constant(false);
  case LM_FORMULA_ATOM: return atom_not(a, &x->x);
  case LM_FORMULA_AND: return lm_formula_or(a, lm_formula_not(a, x->a), lm_formula_not(a, x->b));
  case LM_FORMULA_OR: break;
  }
  return lm_formula_and(a, lm_formula_not(a, x->a), lm_formula_not(a, x->b));
}

// ---- refutation

typedef struct cases {
  const lm_linear *atom[MAX_ATOMS];
  int n_atoms, tried;
} cases;

typedef struct pending {
  const lm_formula *f;
  const struct pending *next;
} pending;

// Sets an edge for x - y + c >= 0, where x or y may be missing. True for inequalities of another
// form, which only fewer solutions would satisfy.
static bool edge_add(int64_t length[NODES][NODES], const lm_linear *x) {
  int plus = LM_TERMS_MAX, minus = LM_TERMS_MAX;
  for (int i = 0; i < LM_TERMS_MAX; i++) {
    if (!x->at[i])
      continue;
    int *end = x->at[i] == 1 ? &plus : x->at[i] == -1 ? &minus : NULL;
    if (!end || *end != LM_TERMS_MAX)
      return true;
    *end = i;
  }
  if (plus == minus)
    return x->c >= 0;
  if (x->c < length[plus][minus])
    length[plus][minus] = x->c;
  return true;
}

static bool has_solution(const cases *s) {
  int64_t length[NODES][NODES];
  for (int i = 0; i < NODES; i++)
    for (int k = 0; k < NODES; k++)
      length[i][k] = i == k ? 0 : FAR;
  for (int i = 0; i < s->n_atoms; i++)
    if (!edge_add(length, s->atom[i]))
      return false;
  for (int via = 0; via < NODES; via++)
    for (int i = 0; i < NODES; i++)
      for (int k = 0; k < NODES; k++)
        if (length[i][via] < FAR && length[via][k] < FAR &&
            length[i][via] + length[via][k] < length[i][k])
          length[i][k] = length[i][via] + length[via][k];
  for (int i = 0; i < NODES; i++)
    if (length[i][i] < 0)
      return false;
  return true;
}

static bool satisfiable(cases *s, const pending *rest);

static bool either_satisfiable(cases *s, const lm_formula *f, const pending *rest) {
  int before = s->n_atoms;
  if (satisfiable(s, &(pending){f->a, rest}))
    return true;
  s->n_atoms = before;
  return satisfiable(s, &(pending){f->b, rest});
}

static bool satisfiable(cases *s, const pending *rest) {
  if (!rest)
    return s->tried++ >= MAX_CASES || has_solution(s);
  const lm_formula *f = rest->f;
  switch (f->kind) {
  case LM_FORMULA_FALSE: return false;
  case LM_FORMULA_TRUE: return satisfiable(s, rest->next);
  case LM_FORMULA_AND: return satisfiable(s, &(pending){f->a, &(pending){f->b, rest->next}});
  case LM_FORMULA_OR: return either_satisfiable(s, f, rest->next);
  case LM_FORMULA_ATOM: break;
  }
  if (s->n_atoms == MAX_ATOMS)
    return true;
  s->atom[s->n_atoms++] = &f->x;
  return satisfiable(s, rest->next);
}

bool lm_formula_refuted(const lm_formula *x) {
  cases s = {.n_atoms = 0};
  return !satisfiable(&s, &(pending){x, NULL});
}

// ---- columns

const lm_formula *lm_formula_at_least(lm_arena *a, int more, int less, int64_t c) {
  lm_linear x = lm_linear_term(more);
  lm_linear y = lm_linear_term(less);
  lm_linear d = lm_linear_add(&x, &y, -1);
  d.c -= c;
  return lm_formula_atom(a, &d);
}

const lm_formula *lm_formula_domain(lm_arena *a) {
  const lm_formula *all = lm_formula_constant(true);
  for (int i = 0; i < LM_TERMS_BASE; i++) {
    lm_linear term = lm_linear_term(i);
    term.c = i == LM_SEG_S ? 1 : 0;
    all = lm_formula_and(a, all, lm_formula_atom(a, &term));
  }
  for (int i = LM_PROMPT_T; i <= LM_PROMPT_S; i++) {
    lm_linear one = {.c = 1}, term = lm_linear_term(i), rest = lm_linear_add(&one, &term, -1);
    all = lm_formula_and(a, all, lm_formula_atom(a, &rest));
  }
  return all;
}
