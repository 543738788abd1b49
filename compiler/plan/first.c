// first.c - which steps overwrite the gradients in the first micro-batch of a step, so that they
// are neither cleared nor read.
//
// before: add work[0 : 3072] -> grad[0 : 3072]            gemm … accumulate … -> grad[4096 : 65536]
// after:  add init work[0 : 3072] -> grad[0 : 3072]       gemm init … accumulate …
//
// A step initializes the gradient of a parameter if it is the first in the function to add to it
// and writes every element: each stacked axis has no index, or is indexed by a loop that visits all
// of its indices, and later steps in that loop add to the same element. Gradients without such a
// step are cleared by FILL steps in front of the function, and so are rows of padding that it does
// not write. Both depend on the run (lm_exec_run_first).
#include <stdlib.h>
#include <string.h>

#include "compiler/plan/internal.h"

static int indices_of(const lm_op *accum) {
  return accum->attr.n_imm / 2;
}

// The loop whose index is v; NULL for a constant.
static const lm_op *loop_of(const lm_value *v) {
  return v->def ? NULL : v->region->owner;
}

static bool is_inside(const lm_op *op, const lm_op *loop) {
  for (const lm_region *r = op->parent; r; r = r->owner ? r->owner->parent : NULL)
    if (r->owner == loop)
      return true;
  return false;
}

// Index i of the accum takes every value of the stacked axis exactly once, by a loop that no other
// index uses.
static bool visits_all(const planner *p, const lm_global *g, const lm_op *accum, int i) {
  const lm_op *loop = loop_of(accum->in[i]);
  int64_t size = lm_axis_size(p->m, g->type.axis[i]);
  if (!loop)
    return size == 1;
  for (int k = 0; k < indices_of(accum); k++)
    if (k != i && accum->in[k] == accum->in[i])
      return false;
  return loop->attr.imm[0] == size && llabs(accum->attr.imm[2 * i + 1]) == 1;
}

// In each loop that both are in and that indexes `first`, both have the same index.
static bool indices_agree(const lm_op *first, const lm_op *other) {
  for (int i = 0; i < indices_of(first); i++) {
    const lm_op *loop = loop_of(first->in[i]);
    bool same = i < indices_of(other) && first->in[i] == other->in[i] &&
                !memcmp(&first->attr.imm[2 * i], &other->attr.imm[2 * i], 2 * sizeof(int64_t));
    if (loop && is_inside(other, loop) && !same)
      return false;
  }
  return true;
}

// True if the step adds to the gradient of g, or of a member of it.
static bool is_of(const planner *p, const pstep *s, const lm_global *g) {
  bool is = s->accum && s->accum->attr.sym == g->name;
  for (uint32_t i = 0; s->accum && i < g->n_members; i++)
    is |= s->accum->attr.sym == g->members[i];
  return is;
}

static bool initializes(const planner *p, const lm_global *g, const pstep *first) {
  if (first->accum->attr.sym != g->name)
    return false; // a member's elements are not all
  for (int i = 0; i < indices_of(first->accum); i++)
    if (!visits_all(p, g, first->accum, i))
      return false;
  for (const pstep *s = first + 1; s < p->steps + p->n_steps; s++)
    if (is_of(p, s, g) && !indices_agree(first->accum, s->accum))
      return false;
  return true;
}

// The step that initializes the gradient of g, or NULL.
static const pstep *global_initialize(planner *p, const lm_global *g) {
  for (uint32_t i = 0; i < p->n_steps; i++) {
    pstep *s = &p->steps[i];
    if (!is_of(p, s, g))
      continue;
    s->step.initializes = initializes(p, g, s);
    return s->step.initializes ? s : NULL;
  }
  return NULL;
}

// ---- gradients that are cleared

typedef struct range {
  int64_t first, end; // bytes
} range;
typedef struct ranges {
  range *v;
  uint32_t n, cap;
} ranges;

static int by_first(const void *a, const void *b) {
  const range *x = a;
  const range *y = b;
  return x->first < y->first ? -1 : x->first > y->first;
}

// The elements of one iteration's gradient that the step writes: a GEMM also those of padding.
static int64_t elements_written(const planner *p, const lm_global *g, const pstep *s) {
  if (indices_of(s->accum) == g->n_stack)
    return s->refs[s->step.n_read].bytes / (int64_t)sizeof(float);
  return lm_type_elements(p->m, g->type) / lm_global_instances(p->m, g);
}

// The gradient of g for index i of its stacked axes, from element `first` up to element `end`.
static void range_add(const planner *p, const lm_global *g, int64_t i, int64_t first, int64_t end,
                      ranges *out) {
  const lm_layout_location *grad = &p->layout.globals[g - p->m->globals].grad;
  int64_t unit = (int64_t)sizeof(float);
  int64_t at = grad->offset;
  for (int s = g->n_stack - 1; s >= 0; s--) {
    int64_t size = lm_axis_size(p->m, g->type.axis[s]);
    at += i % size * grad->stride[s];
    i /= size;
  }
  LM_PUSH(p->arena, out->v, out->n, out->cap) = (range){
      .first = at + first * unit,
      .end = at + end * unit,
  };
}

static void ranges_merge(ranges *r) {
  uint32_t n = 0;
  if (r->n)
    qsort(r->v, r->n, sizeof *r->v, by_first);
  for (uint32_t i = 0; i < r->n; i++) {
    if (n && r->v[n - 1].end == r->v[i].first)
      r->v[n - 1].end = r->v[i].end;
    else
      r->v[n++] = r->v[i];
  }
  r->n = n;
}

// Moves the steps behind n new ones.
static void steps_shift(planner *p, uint32_t n) {
  uint32_t old = p->n_steps;
  for (uint32_t i = 0; i < n; i++)
    LM_PUSH(p->arena, p->steps, p->n_steps, p->cap_steps) = (pstep){0};
  memmove(p->steps + n, p->steps, old * sizeof *p->steps);
}

static pstep clear_make(planner *p, range r) {
  pstep s = {.step = {.kind = LM_STEP_FILL,
                      .n_bufs = 1,
                      .n_write = 1,
                      .bytes = r.end - r.first,
                      .element = (int)sizeof(float),
                      .initializes = true,
                      .label = "clear gradients"},
             .refs = LM_NEW_N(p->arena, ref, 1)};
  s.refs[0] = (ref){
      .at = p->fixed[LM_ARENA_GRAD],
      .offset = r.first,
      .bytes = r.end - r.first,
  };
  return s;
}

static bool adds_to_gradients(const planner *p) {
  for (uint32_t i = 0; i < p->n_steps; i++)
    if (p->steps[i].accum)
      return true;
  return false;
}

// The elements of one iteration's gradient, with its padding in *out_stored.
static int64_t elements_of(const planner *p, const lm_global *g, int64_t *out_stored) {
  int64_t blocks = 0;
  for (uint32_t i = 0; i < g->n_members; i++) {
    const lm_global *member = lm_global_find(p->m, g->members[i]);
    blocks += lm_global_blocks(p->m, member);
  }
  if (!g->n_members)
    blocks = lm_global_blocks(p->m, g);
  int64_t all = g->n_members ? blocks * LM_BLOCK : lm_global_stored_elements(p->m, g);
  *out_stored = g->kind == LM_GLOBAL_TERMS ? all : blocks * LM_BLOCK;
  return all;
}

static void global_clear(planner *p, const lm_global *g, ranges *clear) {
  const pstep *s = global_initialize(p, g);
  int64_t stored;
  int64_t all = elements_of(p, g, &stored);
  int64_t written = s ? elements_written(p, g, s) : 0;
  for (int64_t i = 0; i < lm_global_instances(p->m, g) && written < all; i++)
    range_add(p, g, i, written, stored, clear);
}

void lm_steps_initialize(planner *p) {
  ranges clear = {0};
  int64_t at;
  if (p->f->key.id == LM_FUNC_REDUCE || !adds_to_gradients(p))
    return;
  for (uint32_t i = 0; i < p->m->n_globals; i++) {
    const lm_global *g = &p->m->globals[i];
    bool alone = g->kind == LM_GLOBAL_PACKED || g->kind == LM_GLOBAL_TERMS;
    if (alone || (g->kind == LM_GLOBAL_PARAM && !lm_global_pack(p->m, g, &at)))
      global_clear(p, g, &clear);
  }
  ranges_merge(&clear);
  steps_shift(p, clear.n);
  for (uint32_t i = 0; i < clear.n; i++)
    p->steps[i] = clear_make(p, clear.v[i]);
  lm_steps_nest(p);
}
