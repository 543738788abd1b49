// grad.h - what the files of the pass `grad` share.
//
// A frame is a forward region being reversed, and the backward code for it. The function's frame
// emits in front of the function's `return`; a loop's frame into the body of the reversed loop.
// Frames nest as the regions do.
#ifndef LM_GRAD_PASS_H
#define LM_GRAD_PASS_H
#include "compiler/ops/grad.h"
#include "compiler/passes/rewrite.h"

typedef struct part part;
struct part {
  part *next;
  lm_value *v;
  const lm_op *slice;
}; // v is a cotangent, or that of what `slice` took

typedef struct frame {
  struct frame *outer;
  lm_region *forward;
  lm_op *loop, *reversed; // NULL for the function's frame
  lm_builder b;
  lm_idmap parts; // forward value -> part list, last added first
  lm_idmap total; // forward value -> cotangent, once asked for
  lm_idmap memo;  // forward value -> what stands for it here
  lm_value **captured;
  uint32_t n_captured, cap_captured; // of outer regions, with cotangents, in order
  bool forth;                        // a loop that carries nothing: its turns run in the same order
  lm_idmap turns; // captured values of which each turn reads its own place: cotangent of that
  lm_value **turned;
  uint32_t n_turned, cap_turned; // those, in order
} frame;

typedef struct gradient {
  lm_grad base; // first: the rules see this
  lm_module *m;
  frame *at;
  uint8_t *active;
  uint32_t n_active; // by value id: depends on a parameter
  uint8_t *sums;     // by value id, of the forward pass: stashed in place of its product; or NULL
  lm_axis one;       // an axis of size 1, made when needed
} gradient;

bool lm_func_is_loss(const lm_func *f); // @loss or @loss.N
// By value id, which the caller frees: whether a value of f depends on a parameter.
uint8_t *lm_gradient_activity(const lm_func *f);
void lm_gradient_enter(gradient *g, frame *f); // f becomes g->at
void lm_gradient_leave(gradient *g);
// Reverses the operations of the frame's region, given the cotangents added so far.
void lm_gradient_reverse(gradient *g);
void lm_gradient_reverse_loop(lm_grad *base, lm_op *loop); // grad_loop.c
// Place first + step * i of the forward loop's turns is this pair at turn i of the reversed loop.
void lm_gradient_iteration(const frame *f, int64_t first, int64_t step, int64_t *out);

// grad_value.c: forward values for the backward code
lm_value *lm_gradient_value(lm_grad *base, lm_value *v);
void lm_gradient_indices(lm_grad *base, const lm_op *op, uint32_t n, lm_value **out, lm_attr *attr);

// grad_sum.c: cotangents
bool lm_gradient_is_needed(lm_grad *base, lm_value *v);
void lm_gradient_add(lm_grad *base, lm_value *v, lm_value *cotangent);
void lm_gradient_add_slice(lm_grad *base, const lm_op *slice, lm_value *cotangent);
bool lm_gradient_add_iteration(lm_grad *base, const lm_op *at, lm_value *cotangent);
lm_value *lm_gradient_cotangent(lm_grad *base, lm_value *v); // NULL for zero
// What frame f, outside of the one at hand, has of v's cotangent so far, NULL for zero; from then
// on it has none of it.
lm_value *lm_gradient_take(gradient *g, frame *f, lm_value *v);
#endif
