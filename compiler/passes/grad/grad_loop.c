// grad_loop.c - the derivative of a loop: the reversed loop.
//
// before: %y = loop 24 over(l) %i carry(%x = %x0) {
//           %w = param @w[%i]   %x2 = f(%x, %w, %t)   yield %x2 }          (%t is defined outside)
// after:  %y, %xs = loop 24 over(l) %i carry(%x = %x0) { …   yield %x2, %x }    (%x is stashed)
//         %gx0, %gt = loop 24 %j carry(%g = %gy, %a = 0) {
//           %x = at %xs, %j [23, -1]   %w = param @w[%j * -1 + 23]
//           accum @w[%j * -1 + 23], ∂f/∂w   yield ∂f/∂x, %a + ∂f/∂t }
//
// The carries are the cotangents of the carries that depend on parameters, then the cotangents of
// captured outer values, which start at zero and accumulate. A parameter that is read outside of
// the loop needs no carry: its gradient is accumulated inside.
//
// A loop without carries is reversed to a loop in the same order, so that pass fuse_loops can fuse
// both. If each iteration reads its own element of an outer value, the reversed loop stacks the
// cotangents of the elements, from the last slot to the first if its order is reversed; cotangents
// from other uses are added inside the loop, per iteration, instead of to the whole tensor
// afterwards.
#include "compiler/passes/grad/grad.h"

static lm_value *zeros(lm_builder *b, lm_type t) {
  return lm_emit_const(b, t, 0);
}

// The carries that have a cotangent: their indices, and the initial values of the reversed loop.
static uint32_t starts(gradient *g, lm_op *loop, uint32_t *which, lm_value **start) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < loop->n_in; i++) {
    if (!lm_gradient_is_needed(&g->base, loop->body->args[i + 1]))
      continue;
    lm_value *c = lm_gradient_cotangent(&g->base, loop->out[i]);
    which[n] = i;
    start[n++] = c ? c : zeros(g->base.b, loop->out[i]->type);
  }
  return n;
}

// Adds the cotangents of carries and stacked results, per iteration, to the values that the body
// yields.
static void seed(gradient *g, frame *f, lm_value *const *stacked, const uint32_t *which,
                 uint32_t n) {
  const lm_op *loop = f->loop;
  const lm_op *yield = loop->body->last;
  lm_value **args = f->reversed->body->args;
  for (uint32_t i = 0; i < n; i++)
    lm_gradient_add(&g->base, yield->in[which[i]], args[i + 1]);
  for (uint32_t i = loop->n_in; i < loop->n_out; i++) {
    if (!stacked[i])
      continue;
    lm_attr a = {.n_imm = 2};
    lm_gradient_iteration(f, 0, 1, a.imm);
    lm_value *c = lm_emit(&f->b, LM_OP_AT, (lm_value *[]){stacked[i], args[0]}, 2, &a, NULL);
    lm_gradient_add(&g->base, yield->in[i], c);
  }
}

static void carry_add(gradient *g, lm_op *loop, lm_value *init) {
  lm_value **in = LM_NEW_N(g->m->arena, lm_value *, loop->n_in + 1);
  for (uint32_t i = 0; i < loop->n_in; i++)
    in[i] = loop->in[i];
  in[loop->n_in++] = init;
  loop->in = in;
  lm_arg_add(g->m, loop->body, init->type, init->name);
}

// The number of casts and movements between v and a parameter; 0 if v is not such a value.
static uint32_t distance_to_parameter(const lm_value *v) {
  uint32_t n = 0;
  for (; lm_op_is(v, LM_OP_CAST) || lm_op_is(v, LM_OP_VIEW) || lm_op_is(v, LM_OP_PERMUTE) ||
         lm_op_is(v, LM_OP_RENAME);
       n++)
    v = v->def->in[0];
  return lm_op_is(v, LM_OP_PARAM) ? n : 0;
}

// Propagates cotangents of such values to the parameters, which thereby become captured. The values
// farthest from their parameter come first, because intermediate values may have other uses.
static void weights_reverse(gradient *g, frame *f) {
  uint32_t maximum = 0;
  for (uint32_t i = 0; i < f->n_captured; i++)
    if (distance_to_parameter(f->captured[i]) > maximum)
      maximum = distance_to_parameter(f->captured[i]);
  for (; maximum; maximum--)
    for (uint32_t i = 0, n = f->n_captured; i < n; i++)
      if (distance_to_parameter(f->captured[i]) == maximum)
        lm_op_differentiate(&g->base, f->captured[i]->def);
}

// Cotangents of outer values: parameters are accumulated, in the dtype and shape in which they are
// used; other values are carried. The carried entries of `captured` move to its front; returns
// their number.
static uint32_t carry_captured(gradient *g, frame *f, lm_value **next, uint32_t n) {
  uint32_t kept = 0;
  weights_reverse(g, f);
  for (uint32_t i = 0; i < f->n_captured; i++) {
    lm_value *v = f->captured[i];
    if (distance_to_parameter(v))
      continue;
    if (lm_op_is(v, LM_OP_PARAM)) {
      lm_op_differentiate(&g->base, v->def);
      continue;
    }
    lm_value *c = lm_gradient_cotangent(&g->base, v);
    carry_add(g, f->reversed, zeros(&f->outer->b, v->type));
    next[n + kept] = lm_emit2(&f->b, LM_OP_ADD, f->reversed->body->args[n + kept + 1], c);
    f->captured[kept++] = v;
  }
  return kept;
}

// Cotangents of the elements that each iteration reads. The reversed loop stacks them along the
// axis of the first.
static lm_value **element_cotangents(gradient *g, frame *f) {
  lm_value **own = LM_NEW_N(g->m->arena, lm_value *, f->n_sliced + 1);
  for (uint32_t i = 0; i < f->n_sliced; i++) {
    lm_value *others = lm_gradient_take(g, f->outer, f->sliced[i]);
    lm_attr index = {.n_imm = 2};
    lm_gradient_iteration(f, 0, 1, index.imm);
    own[i] = lm_idmap_get(&f->elements, f->sliced[i]);
    if (others)
      own[i] = lm_emit2(&f->b, LM_OP_ADD, own[i],
                        lm_emit(&f->b, LM_OP_AT, (lm_value *[]){others, f->reversed->body->args[0]},
                                2, &index, NULL));
  }
  if (f->n_sliced)
    f->reversed->attr.axes[f->reversed->attr.n_axes++] = f->sliced[0]->type.axis[0];
  if (f->n_sliced && !f->in_order)
    f->reversed->attr.imm[f->reversed->attr.n_imm++] = 1;
  return own;
}

static lm_value *with_axis_of(frame *outer, const lm_value *whole, lm_value *stacked) {
  lm_attr a = {
      .axes = {stacked->type.axis[0]}, .n_axes = 1, .to = {whole->type.axis[0]}, .n_to = 1};
  return a.axes[0] == a.to[0] ? stacked : lm_emit(&outer->b, LM_OP_RENAME, &stacked, 1, &a, NULL);
}

static lm_value **stacked_cotangents(gradient *g, const lm_op *loop) {
  lm_value **out = LM_NEW_N(g->m->arena, lm_value *, loop->n_out + 1);
  for (uint32_t i = loop->n_in; i < loop->n_out; i++)
    out[i] = lm_gradient_cotangent(&g->base, loop->out[i]);
  return out;
}

// The cotangents of stacked results are computed before the body is reversed, which adds stashes to
// the results.
void lm_gradient_reverse_loop(lm_grad *base, lm_op *loop) {
  gradient *g = (gradient *)base;
  frame *outer = g->at;
  frame f = {
      .forward = loop->body,
      .loop = loop,
      .in_order = !loop->n_in,
  };
  lm_builder after = outer->b;
  uint32_t *which = LM_NEW_N(g->m->arena, uint32_t, loop->n_in + 1);
  lm_value **start = LM_NEW_N(g->m->arena, lm_value *, loop->n_in + 1);
  lm_value **stacked = stacked_cotangents(g, loop);
  uint32_t n = starts(g, loop, which, start);
  f.b = outer->b;
  f.reversed = lm_loop_begin(&f.b, loop->attr.imm[0], 0, start, n);
  outer->b.before = f.reversed; // operations of outer regions precede the loop

  lm_gradient_enter(g, &f);
  seed(g, &f, stacked, which, n);
  lm_gradient_reverse(g);
  lm_value **next = LM_NEW_N(g->m->arena, lm_value *, n + f.n_captured + 1);
  for (uint32_t i = 0; i < n; i++) {
    lm_value *c = lm_gradient_cotangent(base, loop->body->args[which[i] + 1]);
    next[i] = c ? c : zeros(&f.b, loop->in[which[i]]->type);
  }
  uint32_t carried = carry_captured(g, &f, next, n);
  lm_value **own = element_cotangents(g, &f);
  lm_loop_end(&f.b, f.reversed, next, n + carried, own, f.n_sliced);
  lm_gradient_stash_codes(g, &f);
  lm_gradient_leave(g);

  outer->b.before = after.before;
  for (uint32_t i = 0; i < n; i++)
    lm_gradient_add(base, loop->in[which[i]], f.reversed->out[i]);
  for (uint32_t i = 0; i < carried; i++)
    lm_gradient_add(base, f.captured[i], f.reversed->out[n + i]);
  for (uint32_t i = 0; i < f.n_sliced; i++)
    lm_gradient_add(base, f.sliced[i],
                    with_axis_of(outer, f.sliced[i], f.reversed->out[n + carried + i]));
}
