// causal_formula_test.c - random formulas: a refuted one has no solution among small integers, and
// one of difference constraints that has none is refuted.
#include "compiler/passes/causal/causal_formula.h"
#include "tests/runtime/check.h"

#include "runtime/base/philox.h"

enum {
  TERMS = LM_SEG_S + 1,
  LEAST = -9, // with constants up to 2 and at most 4 terms, a solution exists within this range
  MOST = 9,
  FORMULAS = 400,
  DEPTH = 3,
};

static uint32_t draw(uint64_t *state, uint32_t n) {
  return (uint32_t)(lm_philox_mix((*state)++) >> 33) % n;
}

// differences: only x - y + c and x + c, of which every solution can be moved into the range
static lm_linear atom_drawn(uint64_t *state, bool differences) {
  lm_linear x = {.c = (int64_t)draw(state, 5) - 2};
  x.at[draw(state, TERMS)] += 1;
  x.at[draw(state, TERMS)] -= 1;
  if (!differences && draw(state, 2))
    x.at[draw(state, TERMS)] += 1;
  return x;
}

static const lm_formula *formula_drawn(lm_arena *a, uint64_t *state, int depth, bool differences) {
  lm_linear x = atom_drawn(state, differences);
  if (!depth || !draw(state, 5))
    return draw(state, 3) ? lm_formula_atom(a, &x) : lm_formula_zero(a, &x);
  const lm_formula *l = formula_drawn(a, state, depth - 1, differences);
  const lm_formula *r = formula_drawn(a, state, depth - 1, differences);
  const lm_formula *f = draw(state, 3) ? lm_formula_and(a, l, r) : lm_formula_or(a, l, r);
  return draw(state, 4) ? f : lm_formula_not(a, f);
}

static bool holds(const lm_formula *f, const int64_t *v) {
  int64_t sum = f->x.c;
  switch (f->kind) {
  case LM_FORMULA_FALSE: return false;
  case LM_FORMULA_TRUE: return true;
  case LM_FORMULA_AND: return holds(f->a, v) && holds(f->b, v);
  case LM_FORMULA_OR: return holds(f->a, v) || holds(f->b, v);
  case LM_FORMULA_ATOM: break;
  }
  for (int i = 0; i < TERMS; i++)
    sum += f->x.at[i] * v[i];
  return sum >= 0;
}

static bool has_solution(const lm_formula *f) {
  int64_t v[TERMS];
  for (v[0] = LEAST; v[0] <= MOST; v[0]++)
    for (v[1] = LEAST; v[1] <= MOST; v[1]++)
      for (v[2] = LEAST; v[2] <= MOST; v[2]++)
        for (v[3] = LEAST; v[3] <= MOST; v[3]++)
          if (holds(f, v))
            return true;
  return false;
}

int main(void) {
  uint64_t state = 1;
  int refuted = 0;
  for (int i = 0; i < FORMULAS; i++) {
    lm_arena *a = lm_arena_create();
    bool differences = i % 2;
    const lm_formula *f = formula_drawn(a, &state, DEPTH, differences);
    const lm_formula *not = lm_formula_not(a, f);
    bool none = lm_formula_refuted(f), solved = has_solution(f);
    CHECK(!(none && solved));
    CHECK(!differences || none == !solved);
    CHECK(!(none && lm_formula_refuted(not )));
    CHECK(lm_formula_refuted(lm_formula_and(a, f, not )) || !differences);
    refuted += none;
    lm_arena_destroy(a);
  }
  CHECK(refuted > FORMULAS / 20 && refuted < FORMULAS / 2);
}
