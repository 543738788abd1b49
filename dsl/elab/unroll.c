// unroll.c - loops that must be unrolled, as their index determines a value that has to be known at
// compile time.
//
// A loop over layers computes values from its index at run time, so that the IR does not grow with
// depth. If such a value is a condition (`if i < 2`), a size or a count, el_request_unroll records
// the loops that it comes from, and the function is emitted again from its beginning (lower.c) with
// these loops unrolled.
#include "dsl/elab/elab.h"

enum {
  MAX_VISITS = 4096
};

bool el_is_unrolled(const lm_elab *e, const void *over) {
  for (uint32_t i = 0; i < e->n_unrolled; i++)
    if (e->unrolled[i] == over)
      return true;
  return false;
}

// True if v is computed from constants and loop indices only. *loops: the set of these loops.
static bool from_indices(const lm_elab *e, const lm_value *v, uint32_t *loops, int *visits) {
  if (++*visits > MAX_VISITS)
    return false;
  if (v->def) {
    bool all = v->def->n_out == 1 && (lm_op_info_of(v->def)->traits & LM_T_ELEMENTWISE);
    for (uint32_t i = 0; all && i < v->def->n_in; i++)
      all = from_indices(e, v->def->in[i], loops, visits);
    return all;
  }
  for (int k = 0; k < e->n_loops; k++)
    if (v == e->loops[k].index) {
      *loops |= 1u << k;
      return true;
    }
  return false;
}

bool el_request_unroll(lm_elab *e, const el_val *v) {
  uint32_t loops = 0;
  int visits = 0;
  if (v->k != V_TENSOR || v->axes.n || !v->v || !from_indices(e, v->v, &loops, &visits) || !loops)
    return false;
  for (int k = 0; k < e->n_loops; k++)
    if (loops >> k & 1 && !el_is_unrolled(e, e->loops[k].over))
      LM_PUSH(e->a, e->unrolled, e->n_unrolled, e->cap_unrolled) = e->loops[k].over;
  return e->restart = true;
}

void el_unroll_element(lm_elab *e, const el_insts *xs, int64_t at) {
  if (!el_is_unrolled(e, xs->of[at]))
    LM_PUSH(e->a, e->unrolled, e->n_unrolled, e->cap_unrolled) = xs->of[at];
  e->restart = true;
}
