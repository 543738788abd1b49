// grad.h - data structures of pass `grad`.
//
// A frame is a forward region that is being reversed, with the builder of its backward code. The
// frame of the function emits before the function's `return`; the frame of a loop emits into the
// body of the reversed loop. Frames nest like the regions.
#ifndef LM_GRAD_PASS_H
#define LM_GRAD_PASS_H
#include "compiler/ops/grad.h"
#include "compiler/passes/rewrite.h"

typedef struct part part;
struct part {
  part *next;
  lm_value *v;
  const lm_op *slice; // v is the cotangent of the elements that `slice` takes; NULL: of all
};

typedef struct frame {
  struct frame *outer;
  lm_region *forward;
  lm_op *loop, *reversed; // NULL for the function's frame
  lm_builder b;
  lm_idmap parts;      // forward value -> part list, last added first
  lm_idmap total;      // forward value -> cotangent, once computed
  lm_idmap memo;       // forward value -> its value in the backward code
  lm_idmap stashes;    // value of the reversed loop that is an element of a stash -> forward value
  lm_value **captured; // values of outer regions that have cotangents, in order
  uint32_t n_captured, cap_captured;
  bool in_order; // a loop without carries: the reversed loop runs in the same order
  // Captured values of which each iteration reads its own element: the cotangent of that element,
  // and the values in order.
  lm_idmap elements;
  lm_value **sliced;
  uint32_t n_sliced, cap_sliced;
} frame;

typedef struct gradient {
  lm_grad base; // first member: the rules use it
  lm_module *m;
  frame *at;
  uint8_t *active; // by value id: depends on a parameter
  uint32_t n_active;
  uint8_t *sums;      // by forward value id: a sum that is stashed instead of its dot; optional
  uint8_t *of_params; // by forward value id: marks of lm_params_only
  lm_axis one;        // an axis of size 1, created on demand
} gradient;

// grad_ticks.c: adds the derivative of a loss that is a pipeline with one_f_one_b. `seed` emits the
// cotangent of the sum; sums: see lm_epilogue_sums. False if f is no such pipeline.
typedef lm_value *lm_gradient_seed(lm_builder *b, const lm_value *sum);
bool lm_gradient_ticks(lm_func *f, const lm_grad_methods *methods, lm_gradient_seed *seed,
                       bool sums);
// Lets a function of a pipeline with several stages on a rank compute the operations in front of
// the stages and behind them once for each micro-batch.
void lm_forward_ticks(lm_func *f);
// The loop over the ticks of a pipeline along this axis of the mesh, from 1; NULL: there is none.
lm_op *lm_gradient_ticks_loop(const lm_func *f, int mesh);
// Marks in `late`, by id, the values of this loop's body that depend on what a stage has received.
void lm_gradient_ticks_late(const lm_op *loop, uint8_t *late);
// True if an operation of the body does.
bool lm_gradient_ticks_is_late(const lm_op *op, const uint8_t *late);

// grad_region.c: the operations of one region, last to first
void lm_gradient_enter(gradient *g, frame *f); // f becomes g->at
void lm_gradient_leave(gradient *g);
// Reverses the operations of the frame's region, given the cotangents added so far.
void lm_gradient_reverse(gradient *g);

// grad_loop.c
void lm_gradient_reverse_loop(lm_grad *base, lm_op *loop);
// Converts index first + step * i of the forward loop's iteration i to the reversed loop: out[0] +
// out[1] * i.
void lm_gradient_iteration(const frame *f, int64_t first, int64_t step, int64_t *out);

// grad_value.c: forward values for the backward code
lm_value *lm_gradient_value(lm_grad *base, lm_value *v);
void lm_gradient_indices(lm_grad *base, const lm_op *op, uint32_t n, lm_value **out, lm_attr *attr);

// Adds v, of the forward loop of f, to its stashes; its element in the reversed loop.
lm_value *lm_gradient_stash(gradient *g, frame *f, lm_value *v);
// grad_codes.c: stashes codes instead of numbers that the reversed loop of f, which is complete,
// only rounds to these codes.
void lm_gradient_stash_codes(gradient *g, frame *f);

// grad_sum.c: cotangents
bool lm_gradient_is_needed(lm_grad *base, lm_value *v);
void lm_gradient_add(lm_grad *base, lm_value *v, lm_value *cotangent);
void lm_gradient_add_slice(lm_grad *base, const lm_op *slice, lm_value *cotangent);
bool lm_gradient_add_iteration(lm_grad *base, const lm_op *at, lm_value *cotangent);
lm_value *lm_gradient_cotangent(lm_grad *base, lm_value *v); // NULL for zero
// Removes the cotangent of v that frame f, outside of the current one, has collected so far, and
// returns it; NULL for zero.
lm_value *lm_gradient_take(gradient *g, frame *f, lm_value *v);
#endif
