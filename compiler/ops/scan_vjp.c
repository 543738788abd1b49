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
// cotangent is a sum over that axis, which makes it dependent. The region of the second scan
// therefore expands the operand along as many of these axes as the points take that occupy the
// machine, and the cotangent is summed over them after the scan. Where a part of an axis suffices,
// the axis is divided into blocks. On a GPU, whose points are threads, the operand is expanded
// along all of them; on a CPU this would make each cotangent as large as the carries of all
// positions.
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

// An axis that is divided, whole = (block, rest); 0: none.
typedef struct division {
  lm_axis whole, block, rest;
} division;

static lm_type with_rest(const division *d, lm_type t) {
  for (int i = 0; i < t.rank; i++)
    t.axis[i] = t.axis[i] == d->whole ? d->rest : t.axis[i];
  return t;
}

// Copies op for operands that have more axes, and the divided axis in two parts.
static lm_value *op_copy(lm_builder *b, const lm_op *op, const division *d, lm_value **in) {
  lm_value operand = {0};
  lm_value result = *op->out[0];
  lm_op like = *op;
  result.type = with_rest(d, result.type);
  if (op->n_in) {
    operand = *op->in[0];
    operand.type = with_rest(d, operand.type);
  }
  like.in = (lm_value *[]){&operand};
  like.out = (lm_value *[]){&result};
  return lm_widen(b, &like, in);
}

// Copies the region of `from` to the builder's position; args: the values of its arguments, with
// more axes unless d is NULL. yields: the values that the copy would yield.
static void region_copy(lm_builder *b, const lm_op *from, lm_value *const *args, lm_value **yields,
                        const division *d) {
  lm_value **map = lm_calloc((size_t)b->m->n_values + 1, sizeof *map);
  lm_value *in[LM_RANK];
  for (uint32_t i = 0; i < from->body->n_args; i++)
    map[from->body->args[i]->id] = args[i];
  const lm_op *yield = from->body->last;
  for (const lm_op *op = from->body->first; op != yield; op = op->next) {
    b->loc = op->loc;
    if (!d) {
      lm_op_clone(b, op, map);
      continue;
    }
    for (uint32_t i = 0; i < op->n_in; i++)
      in[i] = map[op->in[i]->id];
    map[op->out[0]->id] = op_copy(b, op, d, in);
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
  bool widened;
  lm_type parallel; // axes of the points of the backward scan, if widened
  division divided;
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
static void carries_recompute(vjp *v, lm_value **out) {
  lm_builder *b = v->g->b;
  lm_value **args = LM_NEW_N(b->m->arena, lm_value *, v->op->n_in + 1);
  lm_value **yields = LM_NEW_N(b->m->arena, lm_value *, v->op->body->last->n_in + 1);
  lm_op *scan =
      lm_scan_begin(b, lm_scan_axis(v->op), lm_scan_is_backward(v->op), v->operand, v->n_carry);
  for (uint32_t i = v->n_carry; i < v->op->n_in; i++)
    lm_scan_operand_is_slice(v->op, i) ? lm_scan_slice(b->m, scan, v->operand[i])
                                       : lm_scan_whole(b->m, scan, v->operand[i]);
  memcpy(args, scan->body->args, v->op->n_in * sizeof *args);
  region_copy(b, v->op, args, yields, NULL);
  lm_scan_end(b, scan, yields, args, v->n_carry);
  memcpy(out, scan->out + v->n_carry, v->n_carry * sizeof *out);
}

// ---- parallel axes of the backward scan

static bool is_differentiated(vjp *v, uint32_t i) {
  lm_type t = v->op->in[i]->type;
  return lm_dtype_is_float(t.dtype) && (i < v->n_carry || lm_grad_needs(v->g, v->op->in[i]));
}

static bool is_lacking(vjp *v, lm_axis a) {
  for (uint32_t i = v->n_carry; i < v->op->n_in; i++)
    if (is_differentiated(v, i) && lm_type_find(v->op->in[i]->type, a) < 0)
      return true;
  return false;
}

static bool fits(const vjp *v, lm_type parallel) {
  for (uint32_t i = 0; i < v->op->n_in; i++) {
    int more = v->g->methods->block > 1; // an axis may be divided
    for (int k = 0; k < parallel.rank; k++)
      more += lm_type_find(v->op->in[i]->type, parallel.axis[k]) < 0;
    if (v->op->in[i]->type.rank + more > LM_RANK - 1)
      return false;
  }
  return true;
}

// True if the region has the indices of axis a, which are not those of a block.
static bool is_indexed(const vjp *v, lm_axis a) {
  for (const lm_op *op = v->op->body->first; op; op = op->next)
    if (op->code == LM_OP_IOTA && lm_type_find(op->out[0]->type, a) >= 0)
      return true;
  return false;
}

// The blocks of axis a: the least divisor of its size n that is not less than `least`; n if there
// is none. Blocks of the axis along which the first carry is contiguous have full vectors.
static int64_t blocks_of(const vjp *v, lm_axis a, int64_t least) {
  const lm_axis_info *axis = &v->g->b->m->axes[a];
  lm_type carry = v->op->in[0]->type;
  bool contiguous = carry.axis[carry.rank - 1] == a;
  int64_t most = contiguous ? axis->size / v->g->methods->block : axis->size;
  int64_t blocks = least < most ? least : most > 1 ? most : 1;
  while (axis->size % blocks)
    blocks++;
  return axis->dyn || is_indexed(v, a) ? axis->size : blocks;
}

static void parallel_add(vjp *v, lm_axis a) {
  v->parallel.axis[v->parallel.rank++] = a;
}

// Divides axis a, of n positions, into blocks.
static void divide(vjp *v, lm_axis a, int64_t n, int64_t blocks) {
  lm_module *m = v->g->b->m;
  lm_sym name = m->axes[a].name;
  lm_axis block = lm_axis_add(m, name, blocks, 0);
  v->divided = (division){a, block, lm_axis_add(m, name, n / blocks, 0)};
  parallel_add(v, block);
}

static void parallel_choose(vjp *v) {
  const lm_module *m = v->g->b->m;
  lm_type all = lm_scan_parallel(v->op);
  int64_t points = 1;
  v->widened = fits(v, all) && widens(v->op);
  for (int i = 0; i < all.rank; i++)
    if (!is_lacking(v, all.axis[i])) {
      parallel_add(v, all.axis[i]);
      points *= lm_axis_size(m, all.axis[i]);
    }
  for (int i = 0; i < all.rank && points < v->g->methods->points && !v->divided.whole; i++) {
    lm_axis a = all.axis[i];
    int64_t n = lm_axis_size(m, a);
    int64_t blocks = blocks_of(v, a, (v->g->methods->points - 1) / points + 1);
    if (!is_lacking(v, a) || blocks == 1)
      continue;
    blocks < n ? divide(v, a, n, blocks) : parallel_add(v, a);
    points *= blocks;
  }
}

static lm_value *view(vjp *v, lm_value *x, bool joins) {
  const division *d = &v->divided;
  lm_builder *b = v->g->b;
  if (!v->widened || !d->whole || lm_type_find(x->type, joins ? d->rest : d->whole) < 0)
    return x;
  return joins ? lm_emit_join(b, x, d->block, d->rest, d->whole)
               : lm_emit_split(b, x, d->whole, d->block, d->rest);
}

// t with the parallel axes that it lacks in front.
static lm_type expanded_type(const vjp *v, lm_type t) {
  lm_type to = {
      .dtype = t.dtype,
  };
  for (int k = 0; v->widened && k < v->parallel.rank; k++)
    if (lm_type_find(t, v->parallel.axis[k]) < 0)
      to.axis[to.rank++] = v->parallel.axis[k];
  memcpy(to.axis + to.rank, t.axis, t.rank * sizeof *t.axis);
  to.rank = (uint8_t)(to.rank + t.rank);
  return to;
}

// ---- the backward scan

static lm_value *zeros(lm_builder *b, lm_type t) {
  return lm_emit_const(b, t, 0);
}

// The initial carries: the cotangents of the final carries, then zeros for the sums.
static uint32_t starts(vjp *v, lm_value **start) {
  lm_builder *b = v->g->b;
  uint32_t n = 0;
  for (uint32_t i = 0; i < v->op->n_in; i++) {
    if (!is_differentiated(v, i) || lm_scan_operand_is_slice(v->op, i))
      continue;
    lm_type t = v->operand[i]->type;
    if (i >= v->n_carry) {
      t = expanded_type(v, t);
      t.dtype = LM_F32;
    }
    bool given = i < v->n_carry && v->cotangent[i];
    start[n++] = given ? v->cotangent[i] : zeros(b, t);
  }
  return n;
}

// The arguments of the region of `back` that stand for those of op, and the cotangents of op's
// yields.
static void arguments(vjp *v, lm_op *back, lm_value *const *kept, lm_value **args,
                      lm_value **cotangents) {
  lm_builder *b = v->g->b;
  uint32_t slices = v->n_carry + v->n_slice;
  for (uint32_t i = 0; i < slices; i++)
    args[i] = lm_scan_slice(b->m, back, i < v->n_carry ? kept[i] : v->operand[i]);
  for (uint32_t i = 0, at = 0; i < v->n_carry + v->n_stacked; i++) {
    if (i < v->n_carry)
      cotangents[i] = is_differentiated(v, i) ? back->body->args[at++] : NULL;
    else
      cotangents[i] = v->cotangent[i] ? lm_scan_slice(b->m, back, v->cotangent[i]) : NULL;
  }
  for (uint32_t i = slices; i < v->op->n_in; i++)
    args[i] = lm_scan_whole(b->m, back, v->operand[i]);
  for (uint32_t i = v->n_carry; i < v->op->n_in; i++)
    if (is_differentiated(v, i))
      args[i] = lm_emit_expand(b, args[i], expanded_type(v, args[i]->type));
}

// Differentiates the region; yields the next carries and the cotangents of the slices.
static lm_op *backward(vjp *v, lm_value *const *kept) {
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
  uint32_t n_start = starts(v, start);
  uint32_t n_next = 0;
  uint32_t n_slices = 0;
  lm_op *back = lm_scan_begin(b, lm_scan_axis(v->op), !lm_scan_is_backward(v->op), start, n_start);
  arguments(v, back, kept, args, cotangents);
  region_copy(b, v->op, args, yields, v->widened ? &v->divided : NULL);
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
      next[n_next++] = c ? c : zeros(b, args[i]->type);
    else {
      lm_value *sum = back->body->args[n_next];
      next[n_next++] = c ? lm_emit2(b, LM_OP_ADD, sum, lm_emit_cast(b, c, LM_F32)) : sum;
    }
  }
  lm_scan_end(b, back, next, stacked, n_slices);
  return back;
}

// The carries before each position, and the operands and cotangents with the divided axis in two.
static lm_value **values_divide(vjp *v) {
  lm_value **kept = LM_NEW_N(v->g->b->m->arena, lm_value *, v->n_carry + 1);
  lm_loc at = v->g->b->loc;
  if (!carries_read(v, kept))
    carries_recompute(v, kept);
  v->g->b->loc = at;
  for (uint32_t i = 0; i < v->n_carry; i++)
    kept[i] = view(v, kept[i], false);
  for (uint32_t i = 0; i < v->op->n_in; i++)
    v->operand[i] = view(v, v->operand[i], false);
  for (uint32_t i = 0; i < v->op->n_out; i++)
    if (v->cotangent[i])
      v->cotangent[i] = view(v, v->cotangent[i], false);
  return kept;
}

void vjp_scan(lm_grad *g, lm_op *op) {
  lm_builder *b = g->b;
  vjp v = {.g = g,
           .op = op,
           .operand = LM_NEW_N(b->m->arena, lm_value *, op->n_in + 1),
           .cotangent = LM_NEW_N(b->m->arena, lm_value *, op->n_out + 1),
           .n_carry = lm_scan_carries(op),
           .n_slice = lm_scan_slices(op),
           .n_stacked = op->n_out - lm_scan_carries(op)};
  for (uint32_t i = 0; i < op->n_in; i++)
    v.operand[i] = lm_grad_value(g, op->in[i]);
  for (uint32_t i = 0; i < op->n_out; i++)
    v.cotangent[i] = lm_grad_of(g, op->out[i]);
  parallel_choose(&v);
  lm_loc at = b->loc;
  const lm_op *back = backward(&v, values_divide(&v));
  b->loc = at;
  uint32_t sums = 0;
  uint32_t slices = lm_scan_carries(back);
  for (uint32_t i = 0; i < op->n_in; i++) {
    if (!is_differentiated(&v, i))
      continue;
    uint32_t result = lm_scan_operand_is_slice(op, i) ? slices++ : sums++;
    lm_value *c = view(&v, back->out[result], true);
    if (lm_grad_needs(g, op->in[i]))
      lm_grad_add(g, op->in[i], lm_emit_cast(b, c, (lm_dtype)op->in[i]->type.dtype));
  }
}
