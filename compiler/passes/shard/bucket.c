// bucket.c - puts collectives of parameters and of gradients beside each other, so that they are
// one exchange.
//
// before: mesh dp = 2 rows zero 2
//         %s = reduce_scatter %g over(dp) (d) -> (d@dp)   accum @w, %s
//         %h = dot …
//         %t = reduce_scatter %h over(dp) (d) -> (d@dp)   accum @v, %t
// after:  mesh dp = 2 rows zero 2 bucket
//         %h = dot …
//         %s = reduce_scatter %g over(dp) (d) -> (d@dp)
//         %t = reduce_scatter %h over(dp) (d) -> (d@dp)
//         accum @w, %s   accum @v, %t
//
// and the gathers of a loop's parameters, at the beginning of an iteration:
//
// before: loop 24 %i …                               after: loop 24 %i …
//           %w = param @w[%i]                                 %w = param @w[%i]
//           %x = all_gather %w over(dp) …                     %v = param @v[%i]
//           …                                                 %x = all_gather %w over(dp) …
//           %v = param @v[%i]                                 %y = all_gather %v over(dp) …
//           %y = all_gather %v over(dp) …                     …
//
// An exchange of a few bytes takes the time of its messages' way, not of the bytes. Along axes with
// the flag `bucket` the planner makes one step of reduce_scatters or gathers beside each other
// (plan/bucket.c). A bucket of sums has operands of at most LM_COLL_BUCKET_BYTES; a larger sum is
// exchanged alone, so that it begins as early as it can. Gathers of parameters, and of values
// computed from parameters alone, move with all that they read. No operation changes, so neither do
// bits. Declines: as lm_sum_chain_find does; sums of another region, axis of the mesh or dtype end
// a bucket; an axis of the mesh without `zero`; gathers outside of loops. Cost: the memory of a
// bucket's operands until the last one is computed, and that of the gathered parameters of a layer,
// which the planner has in any case where it gathers them one iteration ahead (plan/overlap.c).
#include <stdlib.h>
#include <string.h>

#include "compiler/ops/interface.h"
#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"
#include "compiler/passes/sum_chain.h"
#include "contract/collective.h"

// ---- sums of gradients

typedef struct sums {
  lm_sum_chain *v;
  uint32_t n, cap;
} sums;

static int by_mark(const void *a, const void *b) {
  uint32_t x = ((const lm_sum_chain *)a)->collective->mark;
  uint32_t y = ((const lm_sum_chain *)b)->collective->mark;
  return (x > y) - (x < y);
}

// The small sums of a region, in its order.
static sums sums_find(lm_module *m, lm_func *f, const uint32_t *uses, lm_region *r) {
  sums out = {0};
  lm_region_number(r);
  for (lm_op *op = r->first; op; op = op->next) {
    lm_sum_chain c;
    if (lm_sum_chain_find(m, f, uses, op, &c) && lm_sum_may_bucket(m, c.collective))
      LM_PUSH(m->arena, out.v, out.n, out.cap) = c;
  }
  if (out.n)
    qsort(out.v, out.n, sizeof *out.v, by_mark);
  return out;
}

static bool same_kind(const lm_op *a, const lm_op *b) {
  return a->attr.mesh == b->attr.mesh && a->in[0]->type.dtype == b->in[0]->type.dtype;
}

// How many of the sums from `first` on are a bucket.
static uint32_t bucket_size(const lm_module *m, const sums *s, uint32_t first) {
  double bytes = 0;
  uint32_t n = 0;
  for (; first + n < s->n && n < LM_COLL_BUCKET; n++) {
    const lm_sum_chain *c = &s->v[first + n];
    bytes += lm_type_traffic(m, c->collective->in[0]->type);
    if (bytes > LM_COLL_BUCKET_BYTES || !same_kind(s->v[first].collective, c->collective))
      break;
  }
  return n;
}

// Moves the sums to the last one, and the operations that read them behind it.
static void bucket_make(lm_sum_chain *v, uint32_t n) {
  lm_op *last = v[n - 1].collective, *behind = last->next;
  for (uint32_t i = 0; i + 1 < n; i++) {
    lm_op_remove(v[i].collective);
    lm_op_insert_before(last, v[i].collective);
    while (v[i].n && v[i].v[0]->mark > last->mark) { // it is there
      v[i].n--;
      memmove(v[i].v, v[i].v + 1, (size_t)v[i].n * sizeof *v[i].v);
    }
    lm_sum_chain_move(&v[i], behind);
  }
}

static void sums_bucket(lm_module *m, lm_func *f, const uint32_t *uses, lm_region *r) {
  sums s = sums_find(m, f, uses, r);
  for (uint32_t i = 0, n; i < s.n; i += n) {
    n = bucket_size(m, &s, i);
    bucket_make(&s.v[i], n);
  }
}

// ---- gathers of a loop's parameters

// op->mark, of the operations of a loop's body
enum {
  OTHER,
  INDEX,   // computed from the iteration, and from values outside of the loop
  WEIGHTS, // and from parameters
  TAKEN    // in the list of what moves
};

typedef struct ops {
  lm_op **v;
  uint32_t n, cap;
} ops;

static uint32_t class_of(const lm_op *op) {
  bool plain = lm_op_pure(op) || op->code == LM_OP_KERNEL;
  if (!plain || lm_op_has(op, LM_T_COLLECTIVE) || op->code == LM_OP_GRADIENT)
    return OTHER;
  uint32_t class = op->code == LM_OP_PARAM ? WEIGHTS : INDEX;
  for (uint32_t i = 0; i < op->n_in; i++) {
    const lm_value *v = op->in[i];
    if (v->region != op->parent)
      continue;
    uint32_t of = v->def ? v->def->mark : v->index == 0 ? INDEX : OTHER; // no carry
    if (of == OTHER)
      return OTHER;
    class = of > class ? of : class;
  }
  return class;
}

static bool gathers_weights(const lm_module *m, const lm_op *op) {
  bool gathers = op->code == LM_OP_ALL_GATHER || op->code == LM_OP_COLLECT;
  if (gathers && !m->mesh.axis[op->attr.mesh - 1].zero)
    return false;
  const lm_op *from = gathers ? op->in[0]->def : NULL;
  return from && from->parent == op->parent && from->mark == WEIGHTS;
}

static ops gathers_find(lm_module *m, lm_region *r) {
  ops out = {0};
  for (lm_op *op = r->first; op; op = op->next) {
    op->mark = class_of(op);
    if (gathers_weights(m, op))
      LM_PUSH(m->arena, out.v, out.n, out.cap) = op;
  }
  return out;
}

static void take(lm_module *m, ops *to, lm_op *op) {
  op->mark = TAKEN;
  LM_PUSH(m->arena, to->v, to->n, to->cap) = op;
}

// Appends what op reads, in order.
static void sources_take(lm_module *m, ops *to, const lm_op *op) {
  for (uint32_t i = 0; i < op->n_in; i++) {
    lm_op *def = op->in[i]->def;
    if (!def || def->parent != op->parent || def->mark == TAKEN)
      continue;
    sources_take(m, to, def);
    take(m, to, def);
  }
}

// Appends the gathers, those of one bucket beside each other.
static void gathers_take(lm_module *m, ops *to, const ops *gathers) {
  for (uint32_t i = 0; i < gathers->n; i++)
    for (uint32_t k = i, taken = gathers->v[i]->mark == TAKEN; k < gathers->n && !taken; k++)
      if (gathers->v[k]->mark != TAKEN && same_kind(gathers->v[i], gathers->v[k]))
        take(m, to, gathers->v[k]);
}

// What the first gather reads is the last of the sources, so that pass `overlap` does not move it.
static void gathers_bucket(lm_module *m, lm_region *r) {
  ops gathers = gathers_find(m, r), moved = {0};
  for (uint32_t i = 1; i <= gathers.n; i++)
    sources_take(m, &moved, gathers.v[i % gathers.n]);
  gathers_take(m, &moved, &gathers);
  for (uint32_t i = 0; i < moved.n; i++)
    lm_op_remove(moved.v[i]);
  lm_op *at = r->first;
  for (uint32_t i = 0; i < moved.n; i++)
    lm_op_insert_before(at, moved.v[i]);
}

// ---- the pass

static void region_bucket(lm_module *m, lm_func *f, const uint32_t *uses, lm_region *r) {
  for (lm_op *op = r->first; op; op = op->next)
    if (op->code == LM_OP_LOOP)
      region_bucket(m, f, uses, op->body);
  if (r->owner)
    gathers_bucket(m, r);
  sums_bucket(m, f, uses, r);
}

bool lm_pass_bucket(lm_module *m, const lm_pass_env *env) {
  for (int k = 0; k < m->mesh.n; k++)
    m->mesh.axis[k].bucket = true;
  for (lm_func *f = m->funcs; f && m->mesh.n; f = f->next) {
    uint32_t *uses = lm_func_uses(f);
    region_bucket(m, f, uses, f->body);
    lm_free(uses);
  }
  return true;
}
