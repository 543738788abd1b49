// unroll.c - loops whose index decides something that only a number known at compile time can.
//
// A loop over layers computes what follows its index, so that the IR does not grow with depth.
// Where the text decides by such a number (`if i < 2`, a size, a count), the loops that it comes
// from are unrolled instead: el_request_unroll notes them and the function is made again from its
// beginning (lower.c), with every place of those loops an iteration of its own.
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

// Whether v is made of constants and indices of the loops around alone; *loops: which of them.
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
