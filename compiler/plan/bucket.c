// bucket.c - one step for collectives that stand beside each other, along axes of the mesh with
// `zero` and the flag `bucket` (pass bucket).
//
// before: start reduce_scatter sum f32 96 over dp lane 0 as 0 work[0 : 768] -> work[768 : 384]
//         wait 0 …
//         start reduce_scatter sum f32 48 over dp lane 0 as 0 work[1152 : 384] -> work[1536 : 192]
//         wait 0 …
// after:  start reduce_scatter sum f32 144 over dp of 2 lane 0 as 0
//           work[0 : 768] work[1152 : 384] -> work[768 : 384] work[1536 : 192]
//         wait 0 …
//
// Each tensor is added or gathered as before; messages of all are under way at the same time. The
// copies of tensors that are divided along an inner axis (collective.c) are between the
// collectives: one in front of a sum moves before the sums in front of it, and one behind a gather
// to the first step that needs its result. Declines: sums of more than LM_COLL_BUCKET_BYTES and
// gathers of more than LM_COLL_GATHER_BYTES together, a collective that reads or overwrites what
// another one of the bucket writes, other kinds than reduce_scatter and all_gather.
#include <stdlib.h>
#include <string.h>

#include "compiler/plan/internal.h"

static bool gathers(const pstep *s) {
  return s->step.comm && s->step.comm->kind == LM_COLL_ALL_GATHER;
}

// A START, or the WAIT behind it.
static bool is_member(const planner *p, const pstep *s) {
  const lm_plan_comm *c = s->step.comm;
  if (!c || !c->group || c->tensors > 1 || lm_plan_step_copies(&s->step))
    return false;
  bool kind = c->kind == LM_COLL_REDUCE_SCATTER || gathers(s);
  return kind && lm_mesh_axis_buckets(&p->m->mesh.axis[c->group - 1]);
}

static bool starts(const planner *p, const pstep *s) {
  return s->step.kind == LM_STEP_START && is_member(p, s);
}

// ---- copies between collectives

// True if one of the steps writes what the other one uses.
static bool conflict(const planner *p, const pstep *a, const pstep *b) {
  int loop = a->loop == b->loop ? a->loop : -1;
  for (int i = 0; i < a->step.n_bufs; i++)
    for (int k = 0; k < b->step.n_bufs; k++) {
      bool writes = i >= a->step.n_read || k >= b->step.n_read;
      if (writes && lm_refs_meet(p, loop, &a->refs[i], &b->refs[k]))
        return true;
    }
  return false;
}

static void step_move(planner *p, int from, int to) {
  pstep s = p->steps[from];
  size_t n = (size_t)abs(to - from);
  pstep *at = &p->steps[from < to ? from : to];
  memmove(at + (from > to), at + (from < to), n * sizeof *at);
  p->steps[to] = s;
  lm_steps_nest(p);
}

// The step before which step i can be, behind a step other than a sum, or one that it depends on.
static int before_sums(const planner *p, int i) {
  int at = i;
  while (at > 0 && is_member(p, &p->steps[at - 1]) && !gathers(&p->steps[at - 1]) &&
         !conflict(p, &p->steps[at - 1], &p->steps[i]))
    at--;
  return at;
}

// The step, at the level of step i, before which it has to be.
static int needed_at(const planner *p, int i) {
  int loop = p->steps[i].loop;
  int end = loop >= 0 ? p->steps[loop].step.match : (int)p->n_steps;
  int at = i + 1;
  while (at < end && !conflict(p, &p->steps[at], &p->steps[i]))
    at++;
  while (at < end && p->steps[at].loop != loop)
    at = p->steps[at].loop;
  return at;
}

static bool is_copy(const pstep *s) {
  return s->step.kind == LM_STEP_COPY;
}

static void copies_move(planner *p) {
  for (int i = 0; i + 1 < (int)p->n_steps; i++) {
    const pstep *start = &p->steps[i + 1];
    if (is_copy(&p->steps[i]) && starts(p, start) && !gathers(start))
      step_move(p, i, before_sums(p, i));
  }
  for (int i = (int)p->n_steps - 1; i > 0; i--) {
    const pstep *wait = &p->steps[i - 1];
    bool gathered = is_member(p, wait) && wait->step.kind == LM_STEP_WAIT && gathers(wait);
    if (is_copy(&p->steps[i]) && gathered)
      step_move(p, i, needed_at(p, i) - 1);
  }
}

// ---- buckets

static bool same_kind(const pstep *a, const pstep *b) {
  const lm_plan_comm *x = a->step.comm;
  const lm_plan_comm *y = b->step.comm;
  return x->kind == y->kind && x->group == y->group && x->dtype == y->dtype && x->op == y->op;
}

// How many STARTs, each followed by its WAIT, are the bucket that begins with step i.
static int bucket_size(const planner *p, int i) {
  int64_t bytes = 0;
  int64_t most = gathers(&p->steps[i]) ? LM_COLL_GATHER_BYTES : LM_COLL_BUCKET_BYTES;
  int n = 0;
  for (; n < LM_COLL_BUCKET && i + 2 * n < (int)p->n_steps; n++) {
    const pstep *s = &p->steps[i + 2 * n];
    if (!starts(p, s) || !same_kind(&p->steps[i], s))
      return n;
    bytes += s->refs[gathers(s)].bytes;
    if (bytes > most)
      return n;
    for (int k = 0; k < n; k++)
      if (conflict(p, &p->steps[i + 2 * k], s))
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
  const char *what = gathers(s) ? "gathers" : "sums";
  s->step.label = lm_arena_printf(p->arena, "%d %s: %s", n, what, s->step.label);
}

void lm_steps_bucket(planner *p) {
  copies_move(p);
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
