// mesh_state.h - how each value is spread over the ranks along one axis of the mesh: what its type
// does not say, derived by a data-flow analysis.
//
// In @loss at stage graph, values that are equal on all ranks have one of two forms, which differ
// in the cotangent (compiler/ops/mesh_vjp.c). From stage step on, where nothing is differentiated
// any more, they are all EQUAL.
#ifndef LM_MESH_STATE_H
#define LM_MESH_STATE_H
#include "compiler/ir/ir.h"

typedef enum {
  LM_MESH_ZERO,    // the constant 0, which is anything
  LM_MESH_EQUAL,   // equal on all ranks; in graph: without a gradient, or in either form
  LM_MESH_WHOLE,   // equal, with the whole cotangent on each rank
  LM_MESH_TERMS,   // equal, with a term of the cotangent on each rank
  LM_MESH_PARTS,   // divided: the type has an axis that this axis of the mesh divides
  LM_MESH_PARTIAL, // the value is the sum of the ranks' values
  LM_MESH_OWN,     // the same, and zero where the index of a table row is another rank's
  LM_MESH_MAXIMA,  // the value is the maximum of the ranks' values
  LM_MESH_ROWS,    // rows of the own part of a table, valid where the index is the rank's own
  LM_MESH_LOCAL,   // depends on the rank: indices and masks of own rows
  LM_MESH_UNKNOWN, // not followed, such as parts behind a view that merges their axis with another
} lm_mesh_state;

// The states of all values of f, by value id, in an array that the caller frees. An operation whose
// operands do not fit together is appended to `why`, and its result is UNKNOWN.
uint8_t *lm_mesh_states(const lm_func *f, int mesh, lm_buf *why);
#endif
