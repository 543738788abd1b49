// grad.h - the interface of reverse-mode differentiation for derivative rules
// (compiler/passes/grad/grad.c implements it).
//
// The rules of a function's operations run in reverse order, each when the cotangent of a result is
// known. A rule emits operations at g->b and adds to the cotangents of the operands. Forward values
// may be defined in a loop that does not contain the backward code, so a rule must access them with
// lm_grad_value.
#ifndef LM_GRAD_H
#define LM_GRAD_H
#include "compiler/ir/ir.h"

typedef struct lm_grad lm_grad;
struct lm_grad {
  lm_builder *b; // insertion point of the backward code
  const struct lm_grad_methods *methods;
};
typedef struct lm_grad_methods {
  lm_value *(*cotangent)(lm_grad *g, lm_value *v);
  lm_value *(*value)(lm_grad *g, lm_value *v);
  bool (*needed)(lm_grad *g, lm_value *v);
  void (*add)(lm_grad *g, lm_value *v, lm_value *cotangent);
  void (*add_slice)(lm_grad *g, const lm_op *slice, lm_value *cotangent);
  bool (*add_iteration)(lm_grad *g, const lm_op *at, lm_value *cotangent);
  void (*indices)(lm_grad *g, const lm_op *op, uint32_t n, lm_value **out, lm_attr *attr);
  void (*loop)(lm_grad *g, lm_op *loop);
  void (*region)(lm_grad *g, lm_region *body, lm_value *const *of, lm_value *const *cotangent,
                 uint32_t n_of, lm_value *const *wrt, uint32_t n, lm_value **out);
  int64_t points; // of a scan that occupy the machine; no scan needs more
  int64_t block;  // the least positions of a block into which a scan's axis is divided
} lm_grad_methods;

// The cotangent of a forward value, NULL for zero.
static inline lm_value *lm_grad_of(lm_grad *g, lm_value *v) {
  return g->methods->cotangent(g, v);
}
// The forward value for use in backward code: itself, a stash or a recomputation.
static inline lm_value *lm_grad_value(lm_grad *g, lm_value *v) {
  return g->methods->value(g, v);
}
// True if the cotangent of v is needed; if not, a rule may skip it.
static inline bool lm_grad_needs(lm_grad *g, lm_value *v) {
  return g->methods->needed(g, v);
}
// Adds to v's cotangent. Axes that v lacks are summed and the rest is permuted first, so a rule may
// ignore broadcasting.
static inline void lm_grad_add(lm_grad *g, lm_value *v, lm_value *cotangent) {
  g->methods->add(g, v, cotangent);
}
// Adds the cotangent of a slice. Slices that tile an axis become one concat, others a pad each.
static inline void lm_grad_add_slice(lm_grad *g, const lm_op *slice, lm_value *cotangent) {
  g->methods->add_slice(g, slice, cotangent);
}
// Adds the cotangent of element at[i], if each iteration of the enclosing loop reads its own
// element and all elements are read: the loop then stacks the cotangents. False otherwise.
static inline bool lm_grad_add_iteration(lm_grad *g, const lm_op *at, lm_value *cotangent) {
  return g->methods->add_iteration(g, at, cotangent);
}
// Converts the first n operands of op, which are indices, and their (first, step) pairs for the
// backward loop; attr gets the pairs.
static inline void lm_grad_indices(lm_grad *g, const lm_op *op, uint32_t n, lm_value **out,
                                   lm_attr *attr) {
  g->methods->indices(g, op, n, out, attr);
}
// Appends to an isolated region the derivative of its n_of values `of`, given their cotangents
// (NULL: zero), with respect to n values of the region. out: their cotangents, NULL for zero.
static inline void lm_grad_region(lm_grad *g, lm_region *body, lm_value *const *of,
                                  lm_value *const *cotangent, uint32_t n_of, lm_value *const *wrt,
                                  uint32_t n, lm_value **out) {
  g->methods->region(g, body, of, cotangent, n_of, wrt, n, out);
}
static inline void lm_grad_loop(lm_grad *g, lm_op *loop) {
  g->methods->loop(g, loop);
}
// Applies the derivative rule of op: the table of ops.def (derivative.c).
void lm_op_differentiate(lm_grad *g, lm_op *op);
#endif
