// bucket.c - one step for collectives that stand beside each other, along axes of the mesh with the
// flag `bucket` (pass bucket).
//
// before: start reduce_scatter sum f32 96 over dp lane 0 as 0 work[0 : 768] -> work[768 : 384]
//         wait 0 …
//         start reduce_scatter sum f32 48 over dp lane 0 as 0 work[1152 : 384] -> work[1536 : 192]
//         wait 0 …
// after:  start reduce_scatter sum f32 144 over dp of 2 lane 0 as 0
//           work[0 : 768] work[1152 : 384] -> work[768 : 384] work[1536 : 192]
//         wait 0 …
//
// Each tensor is added as before; messages of all are under way at the same time. Declines: a sum
// of more than LM_COLL_BUCKET_BYTES, one that reads or overwrites what another one of the bucket
// writes, other kinds than reduce_scatter.
#include "compiler/plan/internal.h"

static bool may_join(const planner *p, const pstep *s) {
  const lm_plan_comm *c = s->step.comm;
  return s->step.kind == LM_STEP_START && c->kind == LM_COLL_REDUCE_SCATTER && c->group &&
         p->m->mesh.axis[c->group - 1].bucket && c->tensors <= 1;
}

static bool depends(const planner *p, const pstep *a, const pstep *b) {
  const ref *from = &b->refs[0], *to = &b->refs[1];
  return lm_refs_meet(p, -1, &a->refs[1], from) || lm_refs_meet(p, -1, &a->refs[1], to) ||
         lm_refs_meet(p, -1, &a->refs[0], to);
}

static bool same_kind(const pstep *a, const pstep *b) {
  const lm_plan_comm *x = a->step.comm, *y = b->step.comm;
  return x->group == y->group && x->dtype == y->dtype && x->op == y->op;
}

// How many STARTs, each followed by its WAIT, are the bucket that begins with step i.
static int bucket_size(const planner *p, int i) {
  int64_t bytes = 0;
  int n = 0;
  for (; n < LM_COLL_BUCKET && i + 2 * n < (int)p->n_steps; n++) {
    const pstep *s = &p->steps[i + 2 * n];
    if (!may_join(p, s) || !same_kind(&p->steps[i], s))
      return n;
    bytes += s->refs[0].bytes;
    if (bytes > LM_COLL_BUCKET_BYTES)
      return n;
    for (int k = 0; k < n; k++)
      if (depends(p, &p->steps[i + 2 * k], s))
        return n;
  }
  return n;
}

// Makes step `at`, the first START or WAIT, that of n collectives.
static void bucket_write(planner *p, int at, int n) {
  pstep *s = &p->steps[at];
  ref *refs = LM_NEW_N(p->arena, ref, 2 * n + 1);
  lm_plan_comm *c = LM_NEW(p->arena, lm_plan_comm);
  *c = *s->step.comm;
  c->count = 0;
  c->tensors = n;
  int64_t moved = 0;
  for (int i = 0; i < n; i++) {
    const pstep *one = &p->steps[at + 2 * i];
    refs[i] = one->refs[0];
    refs[n + i] = one->refs[1];
    c->count += one->step.comm->count;
    moved += one->step.moved;
  }
  s->refs = refs;
  s->step.comm = c;
  s->step.n_bufs = 2 * n;
  s->step.n_read = s->step.n_write = n;
  s->step.moved = moved;
  s->step.label = lm_arena_printf(p->arena, "%d sums: %s", n, s->step.label);
}

void lm_steps_bucket(planner *p) {
  bool *gone = LM_NEW_N(p->arena, bool, p->n_steps + 1);
  for (int i = 0; i < (int)p->n_steps; i++) {
    int n = gone[i] ? 0 : bucket_size(p, i);
    if (n < 2)
      continue;
    bucket_write(p, i, n);
    bucket_write(p, i + 1, n);
    for (int k = 2; k < 2 * n; k++)
      gone[i + k] = true;
  }
  lm_steps_remove(p, gone);
}
