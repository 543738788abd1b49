// grad_value.c - forward values in the backward code: used directly, stashed or recomputed.
//
// Outside of loops a forward value is used directly. The reversed loop cannot access values of the
// forward loop: expensive ones that depend on more than parameters are stashed, that is stacked by
// the forward loop and read per iteration by the reversed one; the others are recomputed from
// these, once per frame and only if a rule needs them.
#include <string.h>
#include "compiler/ops/interface.h"
#include "compiler/passes/grad/grad.h"

// True if op is a dot of two activations that share axes, larger than either of them, such as
// attention scores: recomputing it is cheaper than storing and loading it.
static bool outer_product(const lm_module *m, const lm_op *op) {
  lm_type x = op->in[0]->type;
  lm_type w = op->in[1]->type;
  int64_t n = lm_type_elements(m, op->out[0]->type);
  int shared = 0;
  for (int i = 0; i < x.rank; i++)
    shared += lm_type_find(w, x.axis[i]) >= 0;
  if (shared == op->attr.n_axes || lm_value_is_weight(op->in[0]) || lm_value_is_weight(op->in[1]))
    return false;
  return n > lm_type_elements(m, x) && n > lm_type_elements(m, w);
}

// True if a collective sends data for a result that is no larger than its operand. The result of an
// all_gather is recomputed: its operand takes less memory.
static bool received(const lm_module *m, const lm_op *op) {
  if (op->code == LM_OP_PART || op->code == LM_OP_FIRST)
    return false;
  return lm_type_elements(m, op->out[0]->type) <= lm_type_elements(m, op->in[0]->type);
}

// True if op's result is stashed. Stashed: dots except outer products, also those of groups, and
// the order of their rows, reductions, gathers and scatters of floats, loops, attention, what
// collectives reduce. Recomputed: elementwise operations, data movement, parameters, constants, and
// random numbers, which are functions of their index. Also stashed: carries (see owned_value), sums
// that a GEMM computes (pass epilogue), rounded sums, and values that the recipe marks `save`.
// Values that it marks `recompute` are the concern of pass recompute, which removes stashes.
static bool keeps(const lm_module *m, const lm_op *op) {
  if (lm_remat_choice(op->remat) == LM_REMAT_SAVE)
    return true;
  if (lm_op_has(op, LM_T_DOT))
    return !outer_product(m, op);
  if (lm_op_has(op, LM_T_COLLECTIVE))
    return received(m, op);
  if (lm_op_has(op, LM_T_INDEXED))
    return lm_dtype_is_float(op->out[0]->type.dtype);
  return lm_op_accumulates(op) || lm_op_has(op, LM_T_GROUPED) || op->body;
}

// Emits a rename of v, from an axis that conflicts with the loop's axis, before the forward loop's
// yield.
static lm_value *renamed(lm_module *m, lm_op *loop, lm_value *v, lm_axis from, lm_axis to) {
  lm_builder b = {m, loop->body, loop->body->last, loop->loc};
  lm_attr a = {
      .axes = {from},
      .n_axes = 1,
      .to = {to},
      .n_to = 1,
  };
  return lm_emit(&b, LM_OP_RENAME, &v, 1, &a, NULL);
}

// Reads the element of the backward loop's iteration.
static lm_value *element_read(gradient *g, frame *f, lm_value *v) {
  lm_axis axis = f->loop->attr.n_axes ? f->loop->attr.axes[0] : 0;
  lm_axis other = 0;
  lm_value *kept = v;
  if (axis && lm_type_find(v->type, axis) >= 0) {
    other =
        lm_axis_add(g->m, g->m->axes[axis].name, lm_axis_size(g->m, axis), g->m->axes[axis].dyn);
    kept = renamed(g->m, f->loop, v, axis, other);
  }
  lm_value *stacked = lm_loop_stack(g->m, f->loop, kept);
  frame *inner = g->at;
  g->at = f->outer;
  stacked = lm_gradient_value(&g->base, stacked);
  g->at = inner;
  lm_attr a = {.n_imm = 2};
  lm_gradient_iteration(f, 0, 1, a.imm);
  lm_value *here =
      lm_emit(&f->b, LM_OP_AT, (lm_value *[]){stacked, f->reversed->body->args[0]}, 2, &a, NULL);
  here->name = v->name;
  if (!other)
    return here;
  lm_attr back = {
      .axes = {other},
      .n_axes = 1,
      .to = {axis},
      .n_to = 1,
  };
  return lm_emit(&f->b, LM_OP_RENAME, &here, 1, &back, NULL);
}

lm_value *lm_gradient_stash(gradient *g, frame *f, lm_value *v) {
  lm_value *here = element_read(g, f, v);
  lm_idmap_set(&f->stashes, here, v);
  return here;
}

// The index of the forward loop: count - 1 - iteration, or the iteration if the loop runs in order.
static lm_value *forward_index(frame *f) {
  if (f->in_order)
    return f->reversed->body->args[0];
  lm_type t = lm_type_make(LM_INT, NULL, 0);
  lm_value *last = lm_emit_const(&f->b, t, (double)(f->loop->attr.imm[0] - 1));
  return lm_emit2(&f->b, LM_OP_SUB, last, f->reversed->body->args[0]);
}

static frame *owner(gradient *g, const lm_value *v) {
  frame *f = g->at;
  while (f && f->forward != v->region)
    f = f->outer;
  if (!f)
    LM_BUG("value %u belongs to no region that is being reversed", v->id);
  return f;
}

static bool is_index(const frame *f, const lm_value *v) {
  return f->loop && v == f->forward->args[0];
}

// The index of `at`, and its (first, step) for the backward loop in *a.
static lm_value *element_index(gradient *g, const lm_op *op, lm_attr *a) {
  frame *f = owner(g, op->in[1]);
  if (!is_index(f, op->in[1]))
    return lm_gradient_value(&g->base, op->in[1]);
  lm_gradient_iteration(f, op->attr.imm[0], op->attr.imm[1], a->imm);
  return f->reversed->body->args[0];
}

static lm_value *recomputed(gradient *g, frame *f, lm_op *op) {
  frame *inner = g->at;
  lm_value **in = LM_NEW_N(g->m->arena, lm_value *, op->n_in + 1);
  lm_attr a = op->attr;
  g->at = f;
  uint32_t indexed = op->code == LM_OP_PARAM ? op->n_in : 0;
  if (indexed)
    lm_gradient_indices(&g->base, op, indexed, in, &a);
  for (uint32_t i = indexed; i < op->n_in; i++)
    in[i] = op->code == LM_OP_AT && i == 1 ? element_index(g, op, &a)
                                           : lm_gradient_value(&g->base, op->in[i]);
  g->at = inner;
  lm_loc at = f->b.loc;
  f->b.loc = op->loc;
  lm_value *v = lm_emit(&f->b, op->code, in, op->n_in, &a, &op->out[0]->type);
  v->name = op->out[0]->name;
  f->b.loc = at;
  return v;
}

static bool reads(const lm_region *r, const lm_value *v, const lm_op *besides) {
  for (const lm_op *op = r->first; op; op = op->next) {
    for (uint32_t i = 0; op != besides && i < op->n_in; i++)
      if (op->in[i] == v)
        return true;
    if (op->body && reads(op->body, v, besides))
      return true;
  }
  return false;
}

// True if v rounds an f32 sum that nothing else reads: half of its bytes are kept.
static bool rounds_sum(const lm_value *v) {
  if (!lm_op_is(v, LM_OP_CAST) || !lm_dtype_is_half(v->type.dtype))
    return false;
  const lm_value *sum = v->def->in[0];
  return lm_op_is(sum, LM_OP_SUM) && sum->region == v->region && !reads(v->region, sum, v->def);
}

// A value of the forward loop of f.
static lm_value *owned_value(gradient *g, frame *f, lm_value *v) {
  if (is_index(f, v))
    return forward_index(f);
  bool known = v->id < g->n_active;
  bool sum = g->sums && known && g->sums[v->id];
  bool saved = v->def && lm_remat_choice(v->def->remat) == LM_REMAT_SAVE;
  if (known && g->of_params && g->of_params[v->id] && !saved)
    return recomputed(g, f, v->def);
  bool kept = !v->def || sum || keeps(g->m, v->def) || rounds_sum(v);
  return kept ? lm_gradient_stash(g, f, v) : recomputed(g, f, v->def);
}

lm_value *lm_gradient_value(lm_grad *base, lm_value *v) {
  gradient *g = (gradient *)base;
  // the other operand gives the cotangent only, or is for pass epilogue
  while (lm_op_is(v, LM_OP_STRAIGHT) || lm_op_is(v, LM_OP_EDITED))
    v = v->def->in[0];
  frame *f = owner(g, v);
  if (!f->loop)
    return v;
  lm_value *here = lm_idmap_get(&f->memo, v);
  if (here)
    return here;
  here = owned_value(g, f, v);
  lm_idmap_set(&f->memo, v, here);
  return here;
}

// The forward index is count - 1 - j at iteration j of the reversed loop: first + step * (count -
// 1) - step * j.
void lm_gradient_iteration(const frame *f, int64_t first, int64_t step, int64_t *out) {
  out[0] = f->in_order ? first : first + step * (f->loop->attr.imm[0] - 1);
  out[1] = f->in_order ? step : -step;
}

void lm_gradient_indices(lm_grad *base, const lm_op *op, uint32_t n, lm_value **out,
                         lm_attr *attr) {
  gradient *g = (gradient *)base;
  for (uint32_t i = 0; i < n; i++) {
    frame *f = owner(g, op->in[i]);
    bool index = is_index(f, op->in[i]);
    out[i] = index ? f->reversed->body->args[0] : lm_gradient_value(base, op->in[i]);
    if (index)
      lm_gradient_iteration(f, op->attr.imm[2 * i], op->attr.imm[2 * i + 1], &attr->imm[2 * i]);
    else
      memcpy(&attr->imm[2 * i], &op->attr.imm[2 * i], 2 * sizeof *attr->imm);
  }
  attr->n_imm = (uint8_t)(2 * n);
}
