// scan_vjp.c - the derivative of scan: two scans.
//
//   %y = scan over(t) [1, 1, 0] (%h = %h0, %x = %xs) { … yield %n, %o }
// gives
//   %hs    = scan over(t) [1, 1, 0] (%h = %h0, %x = %xs) { … yield %n, %h }
//   %g, %d = scan over(t) [1, 3, 1] (%g = %gh, %h = %hs, %x = %xs, %gy = %gys) {
//              … yield ∂/∂h, ∂/∂x }
//
// The first recomputes the carries before each position; it is left out if they are among the
// results, as in `emit y = h`. The second runs from the last position
// to the first; its carries are the cotangents of the carries, then the sums of the cotangents of
// the operands that are the same at each position, in f32. Pass tile_scan has divided long scans,
// so that the carries of one tile of positions are kept at a time.
//
// Where an operand lacks an axis along which positions of the carries are independent, its
// cotangent is a sum over that axis, which would make it dependent. The operand is therefore
// expanded first, and the cotangent summed after the scan.
#include "compiler/ir/scan.h"
#include <string.h>
#include "compiler/ops/interface.h"
#include "compiler/ops/ops.h"
#include "compiler/ops/widen.h"

// ---- copying the region

static bool widens(const lm_op *scan) {
  for (const lm_op *op = scan->body->first; op != scan->body->last; op = op->next)
    if (!lm_widens(op))
      return false;
  return true;
}

// Copies the region of `from` to the builder's position; args: the values of its arguments.
// yields: the values that the copy would yield.
static void region_copy(lm_builder *b, const lm_op *from, lm_value *const *args, lm_value **yields,
                        bool widened) {
  lm_value **map = lm_calloc((size_t)b->m->n_values + 1, sizeof *map);
  lm_value *in[LM_RANK];
  for (uint32_t i = 0; i < from->body->n_args; i++)
    map[from->body->args[i]->id] = args[i];
  const lm_op *yield = from->body->last;
  for (const lm_op *op = from->body->first; op != yield; op = op->next) {
    b->loc = op->loc;
    if (!widened) {
      lm_op_clone(b, op, map);
      continue;
    }
    for (uint32_t i = 0; i < op->n_in; i++)
      in[i] = map[op->in[i]->id];
    map[op->out[0]->id] = lm_widen(b, op, in);
  }
  for (uint32_t i = 0; i < yield->n_in; i++)
    yields[i] = map[yield->in[i]->id];
  lm_free(map);
}

// ---- recomputing the carries

typedef struct vjp {
  lm_grad *g;
  lm_op *op;
  lm_value **operand;   // the forward values of op's operands
  lm_value **cotangent; // of op's results; NULL: zero
  lm_type parallel;
  bool widened;
  uint32_t n_carry;
  uint32_t n_slice;
  uint32_t n_stacked;
} vjp;

// The carries before each position, which results of the scan have. False if one has not.
static bool carries_read(vjp *v, lm_value **out) {
  lm_builder *b = v->g->b;
  uint32_t result;
  bool before;
  for (uint32_t i = 0; i < v->n_carry; i++)
    if (lm_scan_is_backward(v->op) || !lm_scan_stacks_carry(v->op, i, &result, &before))
      return false;
  for (uint32_t i = 0; i < v->n_carry; i++) {
    lm_scan_stacks_carry(v->op, i, &result, &before);
    out[i] = lm_grad_value(v->g, v->op->out[result]);
    if (!before)
      out[i] = lm_scan_before(b, out[i], lm_scan_axis(v->op), v->operand[i]);
  }
  return true;
}

// The carries before each position, stacked.
static lm_value **carries_recompute(vjp *v) {
  lm_builder *b = v->g->b;
  lm_value **args = LM_NEW_N(b->m->arena, lm_value *, v->op->n_in + 1);
  lm_value **yields = LM_NEW_N(b->m->arena, lm_value *, v->op->body->last->n_in + 1);
  lm_op *scan =
      lm_scan_begin(b, lm_scan_axis(v->op), lm_scan_is_backward(v->op), v->operand, v->n_carry);
  for (uint32_t i = v->n_carry; i < v->op->n_in; i++)
    lm_scan_operand_is_slice(v->op, i) ? lm_scan_slice(b->m, scan, v->operand[i])
                                       : lm_scan_whole(b->m, scan, v->operand[i]);
  memcpy(args, scan->body->args, v->op->n_in * sizeof *args);
  region_copy(b, v->op, args, yields, false);
  lm_scan_end(b, scan, yields, args, v->n_carry);
  return scan->out + v->n_carry;
}

// ---- the backward scan

// Operand i with all parallel axes in front, behind t if it is a slice.
static lm_value *expanded(vjp *v, uint32_t i) {
  lm_value *x = v->operand[i];
  bool slice = lm_scan_operand_is_slice(v->op, i);
  lm_type to = {
      .dtype = x->type.dtype,
      .rank = slice,
      .axis = {x->type.axis[0] * slice},
  };
  if (!v->widened || !lm_grad_needs(v->g, v->op->in[i]) || lm_type_subset(v->parallel, x->type))
    return x;
  for (int k = 0; k < v->parallel.rank; k++)
    to.axis[to.rank++] = v->parallel.axis[k];
  for (int k = slice; k < x->type.rank; k++)
    if (lm_type_find(to, x->type.axis[k]) < 0)
      to.axis[to.rank++] = x->type.axis[k];
  return lm_widen_to(v->g->b, x, to);
}

static bool fits(const vjp *v) {
  for (uint32_t i = 0; i < v->op->n_in; i++) {
    int more = 0;
    for (int k = 0; k < v->parallel.rank; k++)
      more += lm_type_find(v->op->in[i]->type, v->parallel.axis[k]) < 0;
    if (v->op->in[i]->type.rank + more > LM_RANK - 1)
      return false;
  }
  return true;
}

static bool is_differentiated(vjp *v, uint32_t i) {
  lm_type t = v->op->in[i]->type;
  return lm_dtype_is_float(t.dtype) && (i < v->n_carry || lm_grad_needs(v->g, v->op->in[i]));
}

static lm_value *zeros(lm_builder *b, lm_type t) {
  return lm_emit_const(b, t, 0);
}

// The initial carries: the cotangents of the final carries, then zeros for the sums.
static uint32_t starts(vjp *v, lm_value *const *wide, lm_value **start) {
  lm_builder *b = v->g->b;
  uint32_t n = 0;
  for (uint32_t i = 0; i < v->op->n_in; i++) {
    if (!is_differentiated(v, i) || lm_scan_operand_is_slice(v->op, i))
      continue;
    bool carry = i < v->n_carry;
    lm_type t = carry ? v->op->in[i]->type : wide[i]->type;
    if (!carry)
      t.dtype = LM_F32;
    start[n++] = carry && v->cotangent[i] ? v->cotangent[i] : zeros(b, t);
  }
  return n;
}

// The arguments of the region of `back` that stand for those of op, and the cotangents of op's
// yields.
static void arguments(vjp *v, lm_op *back, lm_value *const *wide, lm_value *const *kept,
                      lm_value **args, lm_value **cotangents) {
  lm_module *m = v->g->b->m;
  for (uint32_t i = 0; i < v->n_carry; i++)
    args[i] = lm_scan_slice(m, back, kept[i]);
  for (uint32_t i = v->n_carry; i < v->n_carry + v->n_slice; i++)
    args[i] = lm_scan_slice(m, back, wide[i]);
  for (uint32_t i = 0, at = 0; i < v->n_carry + v->n_stacked; i++) {
    if (i < v->n_carry)
      cotangents[i] = is_differentiated(v, i) ? back->body->args[at++] : NULL;
    else
      cotangents[i] = v->cotangent[i] ? lm_scan_slice(m, back, v->cotangent[i]) : NULL;
  }
  for (uint32_t i = v->n_carry + v->n_slice; i < v->op->n_in; i++)
    args[i] = lm_scan_whole(m, back, wide[i]);
}

// Differentiates the region; yields the next carries and the cotangents of the slices.
static lm_op *backward(vjp *v, lm_value *const *wide, lm_value *const *kept) {
  lm_builder *b = v->g->b;
  lm_arena *a = b->m->arena;
  uint32_t n_in = v->op->n_in;
  uint32_t n_yield = v->op->body->last->n_in;
  uint32_t n = 0;
  lm_value **start = LM_NEW_N(a, lm_value *, n_in + 1);
  lm_value **args = LM_NEW_N(a, lm_value *, n_in + 1);
  lm_value **yields = LM_NEW_N(a, lm_value *, n_yield + 1);
  lm_value **cotangents = LM_NEW_N(a, lm_value *, n_yield + 1);
  lm_value **wrt = LM_NEW_N(a, lm_value *, n_in + 1);
  lm_value **found = LM_NEW_N(a, lm_value *, n_in + 1);
  lm_value **next = LM_NEW_N(a, lm_value *, n_in + 1);
  lm_value **stacked = LM_NEW_N(a, lm_value *, n_in + 1);
  uint32_t n_start = starts(v, wide, start);
  uint32_t n_next = 0;
  uint32_t n_slices = 0;
  lm_op *back = lm_scan_begin(b, lm_scan_axis(v->op), !lm_scan_is_backward(v->op), start, n_start);
  arguments(v, back, wide, kept, args, cotangents);
  region_copy(b, v->op, args, yields, v->widened);
  for (uint32_t i = 0; i < n_in; i++)
    if (is_differentiated(v, i))
      wrt[n++] = args[i];
  lm_grad_region(v->g, back->body, yields, cotangents, n_yield, wrt, n, found);
  b->at = back->body;
  b->before = NULL;
  for (uint32_t i = 0, k = 0; i < n_in; i++) {
    if (!is_differentiated(v, i))
      continue;
    lm_value *c = found[k++];
    if (lm_scan_operand_is_slice(v->op, i))
      stacked[n_slices++] = c ? c : zeros(b, args[i]->type);
    else if (i < v->n_carry)
      next[n_next++] = c ? c : zeros(b, v->op->in[i]->type);
    else {
      lm_value *sum = back->body->args[n_next];
      next[n_next++] = c ? lm_emit2(b, LM_OP_ADD, sum, lm_emit_cast(b, c, LM_F32)) : sum;
    }
  }
  lm_scan_end(b, back, next, stacked, n_slices);
  return back;
}

void vjp_scan(lm_grad *g, lm_op *op) {
  lm_builder *b = g->b;
  vjp v = {.g = g,
           .op = op,
           .operand = LM_NEW_N(b->m->arena, lm_value *, op->n_in + 1),
           .cotangent = LM_NEW_N(b->m->arena, lm_value *, op->n_out + 1),
           .parallel = lm_scan_parallel(op),
           .n_carry = lm_scan_carries(op),
           .n_slice = lm_scan_slices(op),
           .n_stacked = op->n_out - lm_scan_carries(op)};
  v.widened = fits(&v) && widens(op);
  lm_value **wide = LM_NEW_N(b->m->arena, lm_value *, op->n_in + 1);
  for (uint32_t i = 0; i < op->n_in; i++)
    v.operand[i] = lm_grad_value(g, op->in[i]);
  for (uint32_t i = 0; i < op->n_out; i++)
    v.cotangent[i] = lm_grad_of(g, op->out[i]);
  for (uint32_t i = v.n_carry; i < op->n_in; i++)
    wide[i] = expanded(&v, i);
  lm_loc at = b->loc;
  lm_value **kept = LM_NEW_N(b->m->arena, lm_value *, v.n_carry + 1);
  if (!carries_read(&v, kept))
    kept = carries_recompute(&v);
  b->loc = at;
  const lm_op *back = backward(&v, wide, kept);
  b->loc = at;
  uint32_t sums = 0;
  uint32_t slices = lm_scan_carries(back);
  for (uint32_t i = 0; i < op->n_in; i++) {
    if (!is_differentiated(&v, i))
      continue;
    lm_value *c = back->out[lm_scan_operand_is_slice(op, i) ? slices++ : sums++];
    if (lm_grad_needs(g, op->in[i]))
      lm_grad_add(g, op->in[i], lm_emit_cast(b, c, (lm_dtype)op->in[i]->type.dtype));
  }
}
