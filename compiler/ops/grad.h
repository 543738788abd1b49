// grad.h - what a derivative rule sees of reverse-mode differentiation (compiler/passes/grad.c
// implements it).
//
// A rule runs in reverse order over the operations of a function, once the cotangent of a result is
// known. It emits operations at g->b and adds the cotangents of the operands. Values of the forward
// computation may live in a loop that the backward code does not stand in: a rule reads them
// through lm_grad_value alone.
#ifndef LM_GRAD_H
#define LM_GRAD_H
#include "compiler/ir/ir.h"

struct lm_grad {
  lm_builder *b; // where the backward code goes
  const struct lm_grad_methods *methods;
};
typedef struct lm_grad_methods {
  lm_value *(*cotangent)(lm_grad *g, lm_value *v);
  lm_value *(*value)(lm_grad *g, lm_value *v);
  bool (*wants)(lm_grad *g, lm_value *v);
  void (*add)(lm_grad *g, lm_value *v, lm_value *cotangent);
  void (*add_place)(lm_grad *g, const lm_op *slice, lm_value *cotangent);
  bool (*add_turn)(lm_grad *g, const lm_op *at, lm_value *cotangent);
  void (*indices)(lm_grad *g, const lm_op *op, uint32_t n, lm_value **out, lm_attr *attr);
  void (*loop)(lm_grad *g, lm_op *loop);
  void (*region)(lm_grad *g, lm_region *body, lm_value *of, lm_value *cotangent,
                 lm_value *const *wrt, uint32_t n, lm_value **out);
} lm_grad_methods;

// The cotangent of a forward value, NULL for zero.
static inline lm_value *lm_grad_of(lm_grad *g, lm_value *v) {
  return g->methods->cotangent(g, v);
}
// A forward value, where the backward code can use it: itself, a stash or computed again.
static inline lm_value *lm_grad_value(lm_grad *g, lm_value *v) {
  return g->methods->value(g, v);
}
// Whether anything depends on v's cotangent; a rule may skip what it would add.
static inline bool lm_grad_needs(lm_grad *g, lm_value *v) {
  return g->methods->wants(g, v);
}
// Adds to v's cotangent; sums over axes that v has not and permutes first, so a rule may ignore
// broadcasting.
static inline void lm_grad_add(lm_grad *g, lm_value *v, lm_value *cotangent) {
  g->methods->add(g, v, cotangent);
}
// The cotangent of a slice: several that tile an axis become one concat, others a pad each.
static inline void lm_grad_add_slice(lm_grad *g, const lm_op *slice, lm_value *cotangent) {
  g->methods->add_place(g, slice, cotangent);
}
// The cotangent of a place, if the turns of the loop around read every place once, each its own:
// these become the cotangent of the whole. False otherwise.
static inline bool lm_grad_add_iteration(lm_grad *g, const lm_op *at, lm_value *cotangent) {
  return g->methods->add_turn(g, at, cotangent);
}
// The first n operands of op as indices of places, with (first, step) pairs in attr, restated for
// the backward loop: place first + step * i of trip i.
static inline void lm_grad_indices(lm_grad *g, const lm_op *op, uint32_t n, lm_value **out,
                                   lm_attr *attr) {
  g->methods->indices(g, op, n, out, attr);
}
// Appends to an isolated region the derivative of its value `of`, whose cotangent is given, with
// respect to n values of it; out: their cotangents, NULL for zero.
static inline void lm_grad_region(lm_grad *g, lm_region *body, lm_value *of, lm_value *cotangent,
                                  lm_value *const *wrt, uint32_t n, lm_value **out) {
  g->methods->region(g, body, of, cotangent, wrt, n, out);
}
static inline void lm_grad_loop(lm_grad *g, lm_op *loop) {
  g->methods->loop(g, loop);
}
#endif
