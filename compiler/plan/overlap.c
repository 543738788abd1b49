// overlap.c - collectives that run beside the computation, along axes of the mesh with the flag
// `overlap` (pass overlap).
//
// A collective ends before the first step that needs its result or writes its operand, at the
// latest behind the last step of its iteration:
//
// before: start reduce_scatter … lane 0 as 0 …      after: start reduce_scatter … lane 1 as 1 …
//         wait 0                                           gemm …
//         gemm …                                           wait 1
//         add …                                            add …
//
// Gathers of a loop's parameters begin one iteration ahead. Their results have two slots, which the
// iterations use in turn, and so has what a kernel, such as a cast, computes for them:
//
// before: loop i0 < 24
//           start all_gather … lane 0 as 0 param[0+65536*i0 : 65536] -> work[0 : 131072]
//           wait 0 …
//           gemm … work[0 : 131072] …
//         end
// after:  start all_gather … lane 1 as 1 param[0 : 65536] -> work[0 : 131072]
//         loop i0 < 24
//           start all_gather when 0..22 … lane 1 as 1 + (i0+1 mod 2) param[65536+65536*i0 : 65536]
//             -> work[131072*(i0+1 mod 2) : 131072]
//           wait 1 + (i0 mod 2) …
//           gemm … work[131072*(i0 mod 2) : 131072] …
//         end
//
// A group has two lanes, one for collectives that start ahead, so that the sum of a gradient does
// not wait for the next iteration's gathers. The ranks start the collectives of a group in the
// order of the steps. Cost: the memory of a second iteration's gathered parameters, and that of
// operands and results while they are under way.
#include <string.h>

#include "compiler/plan/internal.h"

enum {
  SLOTS = 2,
  ADJACENT = 0, // the handle of collectives that end where they begin
  LANES = 2,    // of a group
  LANE_LATE = 1,
  LANE_AHEAD = 2
};

// What becomes of a step.
typedef struct fate {
  int before; // WAIT: the step before which it is moved
  int handle; // START, WAIT: the first of its handles; ADJACENT: it stays as it is
  bool ahead; // it is computed one iteration ahead
} fate;

// The memory that an iteration computes for the next one.
typedef struct ring {
  const storage *of;
  storage *slots;
  int loop; // the LOOP step
} ring;

typedef struct overlapper {
  planner *p;
  fate *fates;            // by step
  bool stable[LM_ARENAS]; // no step of the function writes the arena
  ring *rings;
  uint32_t n_rings, cap_rings;
  int handles;
  step_list made;
} overlapper;

static const pstep *step_of(const overlapper *o, int i) {
  return &o->p->steps[i];
}

static bool is_collective(const pstep *s, lm_step_kind kind) {
  return s->step.kind == kind && !lm_plan_step_copies(&s->step);
}

static bool overlaps(const overlapper *o, int i) {
  const pstep *s = step_of(o, i);
  if (!is_collective(s, LM_STEP_START) || !s->step.comm->group)
    return false;
  return o->p->m->mesh.axis[s->step.comm->group - 1].overlap;
}

// ---- where a collective ends

// The step at the level of the loop `loop` that contains step i.
static int step_at_level(const overlapper *o, int i, int loop) {
  while (step_of(o, i)->loop != loop)
    i = step_of(o, i)->loop;
  return i;
}

static bool touches(const planner *p, const pstep *s, const pstep *wait) {
  for (int b = 0; b < s->step.n_bufs; b++) {
    bool writes = b >= s->step.n_read;
    for (int w = 0; w < wait->step.n_bufs; w++)
      if ((writes || w >= wait->step.n_read) && lm_refs_meet(p, -1, &s->refs[b], &wait->refs[w]))
        return true;
  }
  return false;
}

// The step before which the collective that ends in step `wait` has to end.
static int end_of(const overlapper *o, int wait) {
  const pstep *w = step_of(o, wait);
  int end = w->loop >= 0 ? step_of(o, w->loop)->step.match : (int)o->p->n_steps;
  for (int i = wait + 1; i < end; i++)
    if (touches(o->p, step_of(o, i), w))
      return step_at_level(o, i, w->loop);
  return end;
}

// The WAIT step of a START step, which it follows.
static int wait_of(int start) {
  return start + 1;
}

static void ends_find(overlapper *o) {
  for (int i = 0; i < (int)o->p->n_steps; i++)
    if (is_collective(step_of(o, i), LM_STEP_START))
      o->fates[wait_of(i)].before = end_of(o, wait_of(i));
}

// ---- what can be computed one iteration ahead

static bool moves_inside(const ref *r, int depth) {
  for (int d = depth + 1; d < LM_PLAN_DEPTH; d++)
    if (r->loop[d])
      return true;
  return false;
}

static int depth_of(const overlapper *o, int loop) {
  return step_of(o, loop)->step.depth;
}

// Memory that is the same before and in the loop, at an address that moves with it alone.
static bool is_stable(const overlapper *o, const ref *r, int loop) {
  ref at = lm_ref_resolve(r);
  int depth = depth_of(o, loop);
  return o->stable[at.at->arena] && !moves_inside(&at, depth) && !at.ring[depth].slots;
}

// Memory of one iteration, as a whole.
static bool is_own(const overlapper *o, const ref *r, int loop) {
  const storage *s = r->at;
  int depth = depth_of(o, loop);
  bool moves = moves_inside(r, -1) || r->offset;
  return s->arena == LM_ARENA_WORK && !s->into && s->depth == depth + 1 && !moves &&
         r->bytes == s->bytes;
}

static bool uses(const pstep *s, const storage *at) {
  for (int b = 0; b < s->step.n_bufs; b++)
    if (s->refs[b].at == at)
      return true;
  return false;
}

// The memory cannot be a slot: other storages are inside of it, or a step reads a part of it that
// depends on the iteration.
static bool is_divided(const overlapper *o, const storage *at) {
  for (const storage *x = o->p->storages; x; x = x->next)
    if (x->into && lm_storage_resolve((storage *)x).at == at)
      return true;
  for (int i = 0; i < (int)o->p->n_steps; i++)
    for (int b = 0; b < step_of(o, i)->step.n_bufs; b++) {
      const ref *r = &step_of(o, i)->refs[b];
      if (r->at == at && r->loop[at->depth - 1])
        return true;
    }
  return false;
}

static bool is_ahead(const overlapper *o, int i) {
  return i >= 0 && o->fates[i].ahead;
}

// The one step of the loop that computes what ref r of step i reads; -1: there is none.
static int source_of(const overlapper *o, int i, const ref *r) {
  int loop = step_of(o, i)->loop;
  int found = -1;
  for (int k = loop + 1; k < step_of(o, loop)->step.match; k++) {
    const pstep *s = step_of(o, k);
    for (int b = s->step.n_read; b < s->step.n_bufs; b++) {
      if (lm_storage_resolve(s->refs[b].at).at != r->at)
        continue;
      if (found >= 0 || k > i || s->loop != loop)
        return -1;
      found = k;
    }
  }
  return found;
}

static bool reads_stable(const overlapper *o, int i) {
  const pstep *s = step_of(o, i);
  for (int b = 0; b < s->step.n_read; b++)
    if (!is_stable(o, &s->refs[b], s->loop) && !is_ahead(o, source_of(o, i, &s->refs[b])))
      return false;
  return true;
}

static bool writes_own(const overlapper *o, int i) {
  const pstep *s = step_of(o, i);
  for (int b = s->step.n_read; b < s->step.n_bufs; b++)
    if (!is_own(o, &s->refs[b], s->loop) || is_divided(o, s->refs[b].at))
      return false;
  return true;
}

// Whether the results of step i are used by its collectives alone, which are one iteration ahead.
static bool used_ahead(const overlapper *o, int i) {
  const pstep *s = step_of(o, i);
  for (int k = 0; k < (int)o->p->n_steps; k++)
    for (int b = s->step.n_read; b < s->step.n_bufs && k != i; b++) {
      const pstep *user = step_of(o, k);
      bool starts = is_collective(user, LM_STEP_START) && is_ahead(o, k);
      bool waits = is_collective(user, LM_STEP_WAIT) && is_ahead(o, k - 1);
      if (uses(user, s->refs[b].at) && !starts && !waits)
        return false;
    }
  return true;
}

// A gather, or a kernel or copy whose result one may gather.
static bool may_be_ahead(const overlapper *o, int i) {
  const pstep *s = step_of(o, i);
  bool computes =
      (s->step.kind == LM_STEP_KERNEL || s->step.kind == LM_STEP_COPY) && s->step.n_read;
  bool gathers = overlaps(o, i) && s->step.comm->kind == LM_COLL_ALL_GATHER;
  if ((!computes && !gathers) || s->loop < 0 || step_of(o, s->loop)->step.count < SLOTS)
    return false;
  return reads_stable(o, i) && writes_own(o, i);
}

static bool stays_ahead(const overlapper *o, int i) {
  bool starts = is_collective(step_of(o, i), LM_STEP_START);
  return reads_stable(o, i) && (starts || used_ahead(o, i));
}

// Withdraws steps whose sources or users are not ahead.
static void ahead_settle(overlapper *o) {
  for (bool changes = true; changes;) {
    changes = false;
    for (int i = 0; i < (int)o->p->n_steps; i++) {
      if (!o->fates[i].ahead || stays_ahead(o, i))
        continue;
      o->fates[i].ahead = false;
      changes = true;
    }
  }
}

static void ahead_find(overlapper *o) {
  for (int i = 0; i < (int)o->p->n_steps; i++)
    o->fates[i].ahead = may_be_ahead(o, i);
  ahead_settle(o);
}

// ---- handles and rings

static void handles_give(overlapper *o) {
  o->handles = ADJACENT + 1;
  for (int i = 0; i < (int)o->p->n_steps; i++) {
    if (!overlaps(o, i))
      continue;
    int wait = wait_of(i);
    int n = o->fates[i].ahead ? SLOTS : 1;
    bool apart = o->fates[i].ahead || o->fates[wait].before > wait + 1;
    if (!apart || o->handles + n > LM_PLAN_HANDLES) {
      o->fates[i].ahead = false;
      continue;
    }
    o->fates[i].handle = o->fates[wait].handle = o->handles;
    o->handles += n;
  }
}

static const ring *ring_of(const overlapper *o, const storage *at) {
  for (uint32_t i = 0; i < o->n_rings; i++)
    if (o->rings[i].of == at)
      return &o->rings[i];
  return NULL;
}

static void rings_make(overlapper *o) {
  planner *p = o->p;
  for (int i = 0; i < (int)p->n_steps; i++) {
    const pstep *s = step_of(o, i);
    for (int b = s->step.n_read; b < s->step.n_bufs && o->fates[i].ahead; b++) {
      const storage *at = s->refs[b].at;
      storage *slots = lm_storage_new(p, lm_plan_aligned(at->bytes) * SLOTS, at->depth - 1,
                                      lm_arena_printf(p->arena, "two of %s", at->label));
      LM_PUSH(p->arena, o->rings, o->n_rings, o->cap_rings) = (ring){at, slots, s->loop};
    }
  }
}

// ---- writing the steps

// A reference in the iteration `ahead` iterations after the current one of the loop; `first`: in
// iteration 0, before the loop.
static ref ref_at(const overlapper *o, const ref *r, int loop, int ahead, bool first) {
  const ring *x = ring_of(o, r->at);
  int depth = depth_of(o, x ? x->loop : loop);
  ref out = *r;
  out.offset += first ? 0 : ahead * r->loop[depth];
  out.loop[depth] = first ? 0 : r->loop[depth];
  if (!x)
    return out;
  out.at = x->slots;
  if (first)
    return out;
  out.loop[depth] = lm_plan_aligned(x->of->bytes);
  out.ring[depth].slots = SLOTS;
  out.ring[depth].ahead = ahead;
  return out;
}

static pstep *step_write(overlapper *o, const pstep *s) {
  pstep *out = lm_steps_push(o->p, &o->made, s);
  out->refs = LM_NEW_N(o->p->arena, ref, s->step.n_bufs + 1);
  if (s->step.n_bufs)
    memcpy(out->refs, s->refs, (size_t)s->step.n_bufs * sizeof *s->refs);
  return out;
}

int lm_overlap_lane(int group) {
  return LANES * (group - 1) + LANE_LATE;
}

// start: the START step of the collective.
static void comm_set(overlapper *o, pstep *s, int start, int slots, int ahead) {
  lm_plan_comm *c = LM_NEW(o->p->arena, lm_plan_comm);
  *c = *s->step.comm;
  c->lane = lm_overlap_lane(c->group) + (o->fates[start].ahead ? LANE_AHEAD - LANE_LATE : 0);
  c->handle = o->fates[start].handle;
  c->slots = slots;
  c->ahead = ahead;
  s->step.comm = c;
}

// The steps of the loop that are ahead: of iteration 0 in front of it, else of the next iteration.
static void ahead_write(overlapper *o, int loop, bool first) {
  for (int i = loop + 1; i < step_of(o, loop)->step.match; i++) {
    const pstep *from = step_of(o, i);
    if (!o->fates[i].ahead || from->loop != loop)
      continue;
    pstep *s = step_write(o, from);
    for (int b = 0; b < s->step.n_bufs; b++)
      s->refs[b] = ref_at(o, &from->refs[b], loop, 1, first);
    if (s->step.kind == LM_STEP_START)
      comm_set(o, s, i, first ? 0 : SLOTS, first ? 0 : 1);
    s->step.end = first ? 0 : step_of(o, loop)->step.count - 1;
  }
}

static void plain_write(overlapper *o, int i) {
  const pstep *from = step_of(o, i);
  pstep *s = step_write(o, from);
  for (int b = 0; b < s->step.n_bufs; b++)
    if (ring_of(o, from->refs[b].at))
      s->refs[b] = ref_at(o, &from->refs[b], -1, 0, false);
  int start = is_collective(from, LM_STEP_WAIT) ? i - 1 : i;
  if (o->fates[i].handle)
    comm_set(o, s, start, o->fates[start].ahead ? SLOTS : 0, 0);
}

static bool is_moved(const overlapper *o, int i) {
  return is_collective(step_of(o, i), LM_STEP_WAIT) && o->fates[i].handle;
}

static void waits_write(overlapper *o, int before) {
  for (int i = 0; i < before; i++)
    if (is_moved(o, i) && o->fates[i].before == before)
      plain_write(o, i);
}

static void steps_write(overlapper *o) {
  int n = (int)o->p->n_steps;
  for (int i = 0; i < n; i++) {
    const pstep *s = step_of(o, i);
    waits_write(o, i);
    if (s->step.kind == LM_STEP_LOOP)
      ahead_write(o, i, true);
    if (!o->fates[i].ahead && !is_moved(o, i))
      plain_write(o, i);
    if (s->step.kind == LM_STEP_LOOP)
      ahead_write(o, i, false);
  }
  waits_write(o, n);
}

// ---- the function

static void arenas_find(overlapper *o) {
  planner *p = o->p;
  o->stable[LM_ARENA_PARAM] = o->stable[LM_ARENA_COPY] = o->stable[LM_ARENA_FIXED] = true;
  for (int i = 0; i < (int)p->n_steps; i++) {
    const pstep *s = step_of(o, i);
    for (int b = s->step.n_read; b < s->step.n_bufs; b++)
      o->stable[lm_storage_resolve(s->refs[b].at).at->arena] = false;
  }
}

void lm_steps_overlap(planner *p) {
  overlapper o = {
      .p = p,
      .fates = LM_NEW_N(p->arena, fate, p->n_steps + 1),
  };
  bool any = false;
  for (int i = 0; i < (int)p->n_steps; i++)
    any |= overlaps(&o, i);
  if (!any)
    return;
  arenas_find(&o);
  ends_find(&o);
  ahead_find(&o);
  handles_give(&o);
  ahead_settle(&o);
  rings_make(&o);
  steps_write(&o);
  lm_steps_replace(p, &o.made);
}
