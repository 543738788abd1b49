// bucket.c - puts small sums of gradients over ranks beside each other, so that they are one
// exchange.
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
// An exchange of a few bytes takes the time of its messages' way, not of the bytes. Along axes with
// the flag `bucket` the planner makes one step of reduce_scatters beside each other
// (plan/bucket.c). A bucket has operands of at most LM_COLL_BUCKET_BYTES; a larger sum is exchanged
// alone, so that it begins as early as it can. No operation changes, so neither do bits. Declines:
// as lm_sum_chain_find does; sums of another region, axis of the mesh or dtype end a bucket. Cost:
// the memory of a bucket's operands until the last one is computed.
#include <stdlib.h>
#include <string.h>

#include "compiler/passes/pass.h"
#include "compiler/passes/sum_chain.h"
#include "contract/collective.h"

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
    if (!lm_sum_chain_find(m, f, uses, op, &c) || c.collective->code != LM_OP_REDUCE_SCATTER)
      continue;
    if (lm_sum_is_small(m, c.collective))
      LM_PUSH(m->arena, out.v, out.n, out.cap) = c;
  }
  if (out.n)
    qsort(out.v, out.n, sizeof *out.v, by_mark);
  return out;
}

static bool same_bucket(const lm_sum_chain *a, const lm_sum_chain *b) {
  const lm_op *x = a->collective, *y = b->collective;
  return x->attr.mesh == y->attr.mesh && x->in[0]->type.dtype == y->in[0]->type.dtype;
}

// How many of the sums from `first` on are a bucket.
static uint32_t bucket_size(const lm_module *m, const sums *s, uint32_t first) {
  double bytes = 0;
  uint32_t n = 0;
  for (; first + n < s->n && n < LM_COLL_BUCKET; n++) {
    const lm_sum_chain *c = &s->v[first + n];
    bytes += lm_type_traffic(m, c->collective->in[0]->type);
    if (bytes > LM_COLL_BUCKET_BYTES || !same_bucket(&s->v[first], c))
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

static void region_bucket(lm_module *m, lm_func *f, const uint32_t *uses, lm_region *r) {
  for (lm_op *op = r->first; op; op = op->next)
    if (op->code == LM_OP_LOOP)
      region_bucket(m, f, uses, op->body);
  sums s = sums_find(m, f, uses, r);
  for (uint32_t i = 0, n; i < s.n; i += n) {
    n = bucket_size(m, &s, i);
    bucket_make(&s.v[i], n);
  }
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
