// grad_sum.c - cotangents: collects the parts of each cotangent and sums them.
//
// The cotangent of a value is the sum of the contributions of its uses. Parts that belong to slices
// of the value are kept separate until the sum is needed. If they tile an axis, they are
// concatenated:
//   before: %a = pad %ga (x) -> (e) [0, 1]   %b = pad %gb (y) -> (e) [4, 1]   %g = add %a, %b
//   after:  %g = concat %ga, %gb (x, y) -> (e)
// This is the case for the queries, keys and values of one merged GEMM, and for the halves of a
// rotary embedding.
#include <stdlib.h>
#include <string.h>
#include "compiler/passes/grad/grad.h"

bool lm_gradient_is_needed(lm_grad *base, lm_value *v) {
  const gradient *g = (gradient *)base;
  return v->id < g->n_active && g->active[v->id];
}

// c summed over the axes that t lacks, in the axis order of t.
static lm_value *fit(lm_builder *b, lm_value *c, lm_type t) {
  lm_axis over[LM_RANK];
  int n = 0;
  for (int i = 0; i < c->type.rank; i++)
    if (lm_type_find(t, c->type.axis[i]) < 0)
      over[n++] = c->type.axis[i];
  c = lm_emit_permute(b, lm_emit_reduce(b, LM_OP_SUM, c, over, n), t.axis, t.rank);
  if (!lm_type_equal(c->type, t))
    LM_BUG("the cotangent has another type than its value");
  return c;
}

static lm_value *add(gradient *g, lm_value *x, lm_value *y) {
  return x ? lm_emit2(g->base.b, LM_OP_ADD, x, y) : y;
}

static void add_part(gradient *g, lm_value *v, lm_value *c, const lm_op *slice) {
  frame *f = g->at;
  part *p = LM_NEW(g->m->arena, part);
  part *old = lm_idmap_get(&f->parts, v);
  if (!old && v->region != f->forward)
    LM_PUSH(g->m->arena, f->captured, f->n_captured, f->cap_captured) = v;
  *p = (part){old, c, slice};
  lm_idmap_set(&f->parts, v, p);
}

void lm_gradient_add(lm_grad *base, lm_value *v, lm_value *cotangent) {
  if (lm_gradient_is_needed(base, v))
    add_part((gradient *)base, v, fit(base->b, cotangent, v->type), NULL);
}

void lm_gradient_add_slice(lm_grad *base, const lm_op *slice, lm_value *cotangent) {
  if (lm_gradient_is_needed(base, slice->in[0]))
    add_part((gradient *)base, slice->in[0], cotangent, slice);
}

// True if each iteration of the loop reads its own element of an outer value, and all elements are
// read.
static bool reads_own_elements(const gradient *g, const lm_op *at) {
  const frame *f = g->at;
  if (!f->loop || at->in[1] != f->forward->args[0] || at->in[0]->region == f->forward)
    return false;
  bool in_order = at->attr.imm[0] == 0 && at->attr.imm[1] == 1;
  return in_order && lm_axis_size(g->m, at->in[0]->type.axis[0]) == f->loop->attr.imm[0];
}

bool lm_gradient_add_iteration(lm_grad *base, const lm_op *at, lm_value *cotangent) {
  gradient *g = (gradient *)base;
  frame *f = g->at;
  lm_value *whole = at->in[0];
  lm_value *old = lm_idmap_get(&f->elements, whole);
  if (!reads_own_elements(g, at))
    return false;
  if (!lm_gradient_is_needed(base, whole))
    return true;
  if (!old)
    LM_PUSH(g->m->arena, f->sliced, f->n_sliced, f->cap_sliced) = whole;
  lm_idmap_set(&f->elements, whole, add(g, old, fit(base->b, cotangent, at->out[0]->type)));
  return true;
}

// ---- tiles

static int by_first(const void *a, const void *b) {
  const part *x = *(part *const *)a;
  const part *y = *(part *const *)b;
  int64_t i = x->slice->attr.imm[0];
  int64_t j = y->slice->attr.imm[0];
  return i < j ? -1 : i > j;
}

static int64_t slice_size(const lm_module *m, const lm_op *slice) {
  return slice->attr.n_to ? lm_axis_size(m, slice->attr.to[0]) : 1;
}

// The parts that are slices along axis, in the order of their elements, if they cover the axis
// without gap or overlap; 0 if not.
static int tiles(const gradient *g, part *list, lm_axis axis, part **out) {
  int n = 0;
  int64_t at = 0;
  for (part *p = list; p; p = p->next) {
    if (!p->slice || p->slice->attr.axes[0] != axis)
      continue;
    if (n == LM_RANK || (p->slice->attr.imm[1] != 1 && p->slice->attr.n_to))
      return 0;
    out[n++] = p;
  }
  qsort(out, (size_t)n, sizeof *out, by_first);
  for (int i = 0; i < n; i++) {
    if (out[i]->slice->attr.imm[0] != at)
      return 0;
    at += slice_size(g->m, out[i]->slice);
  }
  return at == lm_axis_size(g->m, axis) ? n : 0;
}

// The part, with an axis of size 1 if its slice took one element.
static lm_value *with_axis(gradient *g, const part *p, lm_type whole, lm_axis axis) {
  if (p->slice->attr.n_to)
    return p->v;
  if (!g->one)
    g->one = lm_axis_add(g->m, LM_SYM(g->m->ctx, "one"), 1, 0);
  whole.axis[lm_type_find(whole, axis)] = g->one;
  return lm_emit_expand(g->base.b, p->v, whole);
}

static lm_value *concatenated(gradient *g, lm_value *v, part **tile, int n) {
  lm_value *in[LM_RANK];
  lm_axis axis = tile[0]->slice->attr.axes[0];
  lm_attr a = {
      .n_axes = (uint8_t)n,
      .to = {axis},
      .n_to = 1,
  };
  for (int i = 0; i < n; i++) {
    in[i] = with_axis(g, tile[i], v->type, axis);
    a.axes[i] = tile[i]->slice->attr.n_to ? tile[i]->slice->attr.to[0] : g->one;
    tile[i]->v = NULL; // consumed
  }
  return lm_emit(g->base.b, LM_OP_CONCAT, in, (uint32_t)n, &a, NULL);
}

static lm_value *padded(gradient *g, const part *p, lm_type whole) {
  lm_attr a = {.axes = {p->slice->attr.to[0]},
               .n_axes = p->slice->attr.n_to,
               .to = {p->slice->attr.axes[0]},
               .n_to = 1,
               .imm = {p->slice->attr.imm[0], p->slice->attr.n_to ? p->slice->attr.imm[1] : 1},
               .n_imm = 2};
  return fit(g->base.b, lm_emit(g->base.b, LM_OP_PAD, &p->v, 1, &a, NULL), whole);
}

// ---- the sum

static part *reversed(part *list) {
  part *out = NULL;
  for (part *next; list; list = next) {
    next = list->next;
    list->next = out;
    out = list;
  }
  return out;
}

static lm_value *sum_of(gradient *g, lm_value *v, part *list) {
  lm_value *sum = NULL;
  part *tile[LM_RANK];
  for (part *p = list; p; p = p->next)
    if (!p->slice)
      sum = add(g, sum, p->v);
  for (part *p = list; p; p = p->next) {
    if (!p->slice || !p->v)
      continue;
    int n = tiles(g, list, p->slice->attr.axes[0], tile);
    sum = add(g, sum, n ? concatenated(g, v, tile, n) : padded(g, p, v->type));
  }
  return sum;
}

lm_value *lm_gradient_cotangent(lm_grad *base, lm_value *v) {
  gradient *g = (gradient *)base;
  lm_value *sum = lm_idmap_get(&g->at->total, v);
  part *list = lm_idmap_get(&g->at->parts, v);
  if (sum || !list)
    return sum;
  sum = sum_of(g, v, reversed(list));
  lm_idmap_set(&g->at->total, v, sum);
  return sum;
}

lm_value *lm_gradient_take(gradient *g, frame *f, lm_value *v) {
  frame *inner = g->at;
  if (v->region != f->forward)
    return NULL;
  g->at = f;
  g->base.b = &f->b;
  lm_value *sum = lm_gradient_cotangent(&g->base, v);
  lm_idmap_set(&f->parts, v, NULL);
  lm_idmap_set(&f->total, v, NULL);
  g->at = inner;
  g->base.b = &inner->b;
  return sum;
}
