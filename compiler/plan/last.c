// last.c - @micro_last: the last micro-batch of a step, with the sums of @reduce between its steps.
//
// Gradients are complete when the last micro-batch has added to them, those of the last layer
// first. So each sum of @reduce begins behind the last step that touches its gradients, and ends
// one iteration later, at the latest at the end of the function:
//
// @micro:  loop i0 < 24                        @reduce:  loop i0 < 24
//            gemm … -> grad[94208-4096*i0 …]               start all_reduce … grad[0+4096*i0 …]
//          end                                             wait 0 …
//                                                        end
// @micro_last:
//          loop i0 < 24
//            gemm … -> grad[94208-4096*i0 : 4096]
//            wait when 1.. 1 grad[98304-4096*i0 : 4096] …
//            start all_reduce … lane 1 as 1 grad[94208-4096*i0 : 4096] …
//          end
//          wait 1 grad[0 : 4096] …
//
// A kernel of @reduce that computes the operand of a collective, such as a cast, precedes its
// start. Steps that use the result, such as an addition, follow its wait, as does a sum over a
// second axis of the mesh. A sum that uses the results of several others follows all of them, such
// as that of a whole region over a second axis with zero 1. A loop of @reduce meets a
// loop of @micro of as many iterations, in the same or in the opposite order, each of which touches
// the gradients of one layer alone. Other sums of a loop are in another loop, at the end of the
// function. Of a loop at most WINDOW sums are under way at a time. The steps of @micro are the
// same, in the same order, and so are the collectives of @reduce, except that a region is added in
// parts (reduce.c). Each element is added as before, so the bits are those of @micro and @reduce.
// Cost: the memory of operands and results that are under way.
#include <stdlib.h>
#include <string.h>

#include "compiler/plan/internal.h"

enum {
  WINDOW = 2,
  UNITS_MAX = LM_PLAN_HANDLES / 2 // that have a handle
};

// When the steps of a sum run: those that begin it in an iteration, those that end it in the same
// one or in the next one; those behind the loop are of its last iteration.
typedef enum {
  IN_ITERATION,
  IN_NEXT,
  BEHIND_LOOP
} moment;

// A collective of @reduce, with the steps that compute its operand and use its result.
typedef struct unit {
  int loop;   // its LOOP step in @reduce; -1: none
  int start;  // its START step
  bool last;  // it uses what several others store
  int into;   // the LOOP step of @micro; -1: none
  int sign;   // of the order of iterations there
  int before; // the step of @micro before which it begins
  int handle;
} unit;

// A step that is to be inserted.
typedef struct insertion {
  int before; // a step of @micro
  pstep step;
} insertion;

typedef struct joiner {
  planner *p;
  pstep *reduce;
  int n;
  int *unit_of; // by step of @reduce: 1 + index; 0: none
  bool *late;   // by step of @reduce: it runs when the collective has ended
  unit *units;
  uint32_t n_units, cap_units;
  insertion *inserted;
  uint32_t n_inserted, cap_inserted;
  int handles;
  bool any; // some sum begins before a loop ends
} joiner;

void lm_last_keep(planner *p) {
  bool overlaps = p->m->mesh.n != 0;
  for (int k = 0; k < p->m->mesh.n; k++)
    overlaps &= p->m->mesh.axis[k].overlap;
  if (!overlaps)
    return;
  draft *d = &LM_PUSH(p->arena, p->drafts, p->n_drafts, p->cap_drafts);
  *d = (draft){
      .micro = &p->plan->funcs[p->plan->n_funcs - 1],
      .steps = LM_NEW_N(p->arena, pstep, p->n_steps + 1),
      .n_steps = p->n_steps,
      .storages = p->storages,
  };
  for (uint32_t i = 0; i < p->n_steps; i++) {
    pstep *s = &d->steps[i];
    *s = p->steps[i];
    s->refs = LM_NEW_N(p->arena, ref, s->step.n_bufs + 1);
    if (s->step.n_bufs)
      memcpy(s->refs, p->steps[i].refs, (size_t)s->step.n_bufs * sizeof *s->refs);
    if (s->step.kind == LM_STEP_GEMM) { // which has the number of a kernel
      s->step.gemm = LM_NEW(p->arena, lm_plan_gemm);
      *s->step.gemm = *p->steps[i].step.gemm;
    }
  }
}

// ---- the units of @reduce; its steps are those of the planner

// Step i of @reduce is one of the unit.
static bool is_of(const joiner *j, int i, const unit *u) {
  return j->unit_of[i] && u == &j->units[j->unit_of[i] - 1];
}

static bool is_kind(const pstep *s, lm_step_kind kind) {
  return s->step.kind == kind;
}

static bool reduce_refs_meet(const planner *p, const pstep *s, const ref *a, const pstep *t,
                             const ref *b) {
  if (s->loop == t->loop)
    return lm_refs_meet(p, s->loop, a, b);
  ref x = lm_ref_span(p, s->loop, lm_ref_resolve(a));
  ref y = lm_ref_span(p, t->loop, lm_ref_resolve(b));
  return x.at == y.at && x.offset < y.offset + y.bytes && y.offset < x.offset + x.bytes;
}

// One of the steps, of which s is in the same iteration or behind it, writes what the other uses.
static bool depends(const planner *p, const pstep *s, const pstep *on) {
  for (int b = 0; b < s->step.n_bufs; b++)
    for (int w = 0; w < on->step.n_bufs; w++) {
      bool writes = b >= s->step.n_read || w >= on->step.n_read;
      if (writes && reduce_refs_meet(p, s, &s->refs[b], on, &on->refs[w]))
        return true;
    }
  return false;
}

// The unit that step i, which is no WAIT, has to follow: the number of unit_of; 0: none. *many:
// it has to follow several, or one in another loop, or one before its collective has ended. A
// step that follows a `last` unit also follows all units before it.
static int unit_followed(const joiner *j, int i, bool *many) {
  const pstep *s = &j->reduce[i];
  int found = 0;
  bool several = false, late = false;
  for (int k = 0; k < i; k++) {
    const pstep *on = &j->reduce[k];
    int unit = j->unit_of[k];
    if (!unit || !depends(j->p, s, on))
      continue;
    if (unit > found && j->units[unit - 1].last)
      several = late = false;
    else
      several |= found && unit != found;
    several |= on->loop != s->loop;
    found = unit;
    late |= j->late[k];
  }
  *many |= several || (found && !late);
  return found;
}

static void unit_add(joiner *j, int start, int first, bool last) {
  LM_PUSH(j->p->arena, j->units, j->n_units, j->cap_units) = (unit){
      .loop = j->reduce[start].loop,
      .start = start,
      .last = last,
  };
  for (int i = first; i <= start; i++)
    if (!j->unit_of[i])
      j->unit_of[i] = (int)j->n_units;
}

static void units_find(joiner *j) {
  j->unit_of = LM_NEW_N(j->p->arena, int, j->n + 1);
  j->late = LM_NEW_N(j->p->arena, bool, j->n + 1);
  bool last = false; // the steps from `first` on have to follow several units
  for (int i = 0, first = 0; i < j->n; i++) {
    const pstep *s = &j->reduce[i];
    if (is_kind(s, LM_STEP_LOOP) || is_kind(s, LM_STEP_END)) {
      first = i + 1;
      continue;
    }
    bool many = false, waits = is_kind(s, LM_STEP_WAIT);
    int follows = waits ? j->unit_of[i - 1] : unit_followed(j, i, &many);
    if (follows && !many) {
      j->unit_of[i] = follows;
      j->late[i] = true;
      continue;
    }
    last |= many;
    if (!is_kind(s, LM_STEP_START))
      continue;
    unit_add(j, i, first, last);
    first = i + 1;
    last = false;
  }
}

// ---- where a sum begins; the steps of @micro are those of the planner

// The gradients that step i of @micro touches by ref r, in the iterations in which it runs.
static ref gradients_of(const joiner *j, int i, const ref *r) {
  const pstep *s = &j->p->steps[i];
  ref at = lm_ref_resolve(r);
  if (at.at->arena != LM_ARENA_GRAD)
    return (ref){0};
  int64_t moves = s->loop >= 0 ? at.loop[j->p->steps[s->loop].step.depth] : 0;
  at = lm_ref_span(j->p, s->loop, at);
  at.offset += moves > 0 ? moves * s->step.from : 0;
  at.bytes -= llabs(moves) * s->step.from;
  return at;
}

// The gradients of all iterations that step i of @reduce touches by ref r.
static ref gradients_of_all(const joiner *j, int i, const ref *r) {
  ref at = lm_ref_resolve(r);
  int loop = j->reduce[i].loop;
  int64_t moved = loop >= 0 ? at.loop[0] * (j->reduce[loop].step.count - 1) : 0;
  at.bytes += moved;
  return at.at->arena == LM_ARENA_GRAD ? at : (ref){0};
}

static bool meet(ref a, ref b) {
  return a.at && b.at && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

// References, of a step of @micro and of a unit, that may meet.
typedef struct touch {
  int step;
  const ref *micro, *reduce;
} touch;
typedef bool touch_fn(const joiner *j, unit *u, const touch *t);

// Visits the steps of @micro that touch the gradients `all`, which ref `own` of the unit touches.
static bool gradients_visit(const joiner *j, unit *u, ref all, const ref *own, touch_fn *fn) {
  for (int i = 0; i < (int)j->p->n_steps; i++) {
    const pstep *s = &j->p->steps[i];
    for (int b = 0; b < s->step.n_bufs; b++) {
      touch t = {i, &s->refs[b], own};
      if (meet(all, gradients_of(j, i, t.micro)) && !fn(j, u, &t))
        return false;
    }
  }
  return true;
}

// Calls fn for each step of @micro that touches gradients of the unit; false if fn is once.
static bool touches_visit(const joiner *j, unit *u, touch_fn *fn) {
  for (int i = 0; i < j->n; i++) {
    const pstep *s = &j->reduce[i];
    for (int b = 0; is_of(j, i, u) && b < s->step.n_bufs; b++) {
      ref all = gradients_of_all(j, i, &s->refs[b]);
      if (!gradients_visit(j, u, all, &s->refs[b], fn))
        return false;
    }
  }
  return true;
}

// The step in the loop `loop` that contains step i, of a loop its END.
static int step_in(const planner *p, int i, int loop) {
  while (p->steps[i].loop != loop)
    i = p->steps[p->steps[i].loop].step.match;
  return i;
}

static int outermost_loop(const planner *p, int i) {
  int loop = p->steps[i].loop;
  while (loop >= 0 && p->steps[loop].loop >= 0)
    loop = p->steps[loop].loop;
  return loop;
}

static bool top_note(const joiner *j, unit *u, const touch *t) {
  int end = step_in(j->p, t->step, -1);
  u->before = u->before > end ? u->before : end + 1;
  return true;
}

static bool loop_note(const joiner *j, unit *u, const touch *t) {
  if (t->step >= u->before) {
    u->into = outermost_loop(j->p, t->step);
    u->before = t->step + 1;
  }
  return true;
}

// Whether the step precedes the loop, or touches in each of its iterations the gradients of one
// layer, which is that of the iteration or of the opposite one.
static bool layer_note(const joiner *j, unit *u, const touch *t) {
  if (t->step < u->into)
    return true;
  ref own = lm_ref_resolve(t->reduce);
  ref at = lm_ref_resolve(t->micro);
  int64_t layer = own.loop[0];
  int64_t moves = at.loop[0];
  int sign = moves > 0 ? 1 : -1;
  if (!layer || moves != sign * layer || u->sign == -sign)
    return false;
  at.loop[0] = 0;
  at = lm_ref_span(j->p, j->p->steps[t->step].loop, at);
  u->sign = sign;
  int end = step_in(j->p, t->step, u->into);
  u->before = u->before > end ? u->before : end + 1;
  int64_t last = j->reduce[u->loop].step.count - 1;
  int64_t first = own.offset + (sign < 0 ? layer * last : 0);
  return at.offset >= first && at.offset + at.bytes <= first + layer;
}

// A work buffer of @reduce has to be the same in all iterations.
static bool buffers_stay(const joiner *j, const unit *u) {
  for (int i = 0; i < j->n; i++) {
    const pstep *s = &j->reduce[i];
    for (int b = 0; is_of(j, i, u) && b < s->step.n_bufs; b++) {
      ref r = lm_ref_resolve(&s->refs[b]);
      if (r.loop[0] && r.at->arena != LM_ARENA_GRAD)
        return false;
    }
  }
  return true;
}

static bool unit_into_loop(const joiner *j, unit *u) {
  u->into = -1;
  u->before = 0;
  u->sign = 0;
  touches_visit(j, u, loop_note);
  if (u->into < 0 || j->p->steps[u->into].step.count != j->reduce[u->loop].step.count)
    return false;
  u->before = u->into;
  return buffers_stay(j, u) && touches_visit(j, u, layer_note);
}

// ---- the steps

static ref ref_at(const joiner *j, const unit *u, const ref *r, moment when) {
  ref out = lm_ref_resolve(r);
  if (u->into < 0 || !out.loop[0])
    return out;
  int64_t last = j->reduce[u->loop].step.count - 1;
  out.offset += u->sign < 0 ? out.loop[0] * last : 0;
  out.loop[0] *= u->sign;
  out.offset += when == IN_NEXT ? -out.loop[0] : when == BEHIND_LOOP ? out.loop[0] * last : 0;
  out.loop[0] = when == BEHIND_LOOP ? 0 : out.loop[0];
  return out;
}

static pstep *step_insert(joiner *j, int i, int before) {
  insertion *x = &LM_PUSH(j->p->arena, j->inserted, j->n_inserted, j->cap_inserted);
  *x = (insertion){before, j->reduce[i]};
  return &x->step;
}

// Step i of @reduce, of a unit that begins between the steps of @micro.
static void step_put(joiner *j, const unit *u, int i, moment when, int before) {
  pstep *s = step_insert(j, i, before);
  bool own = i == u->start || i == u->start + 1;
  s->refs = LM_NEW_N(j->p->arena, ref, s->step.n_bufs + 1);
  for (int b = 0; b < s->step.n_bufs; b++) {
    s->refs[b] = ref_at(j, u, &j->reduce[i].refs[b], when);
    if (s->refs[b].at->arena == LM_ARENA_WORK)
      s->refs[b].at->depth = 0;
  }
  s->step.from = when == IN_NEXT;
  if (!own)
    return;
  s->step.comm = LM_NEW(j->p->arena, lm_plan_comm);
  *s->step.comm = *j->reduce[i].step.comm;
  s->step.comm->handle = u->handle;
  s->step.comm->lane = lm_overlap_lane(s->step.comm->group);
}

static void unit_put(joiner *j, const unit *u, bool late, moment when, int before) {
  for (int i = 0; i < j->n; i++)
    if (is_of(j, i, u) && j->late[i] == late)
      step_put(j, u, i, when, before);
}

// Appends the unit as it is in @reduce, in a separate loop.
static void unit_append(joiner *j, const unit *u) {
  int end = (int)j->p->n_steps;
  if (u->loop >= 0)
    step_insert(j, u->loop, end);
  for (int i = 0; i < j->n; i++)
    if (is_of(j, i, u))
      step_insert(j, i, end);
  if (u->loop >= 0)
    step_insert(j, j->reduce[u->loop].step.match, end);
}

static void inserted_write(joiner *j) {
  planner *p = j->p;
  step_list made = {0};
  for (int i = 0; i <= (int)p->n_steps; i++) {
    for (uint32_t k = 0; k < j->n_inserted; k++)
      if (j->inserted[k].before == i)
        lm_steps_push(p, &made, &j->inserted[k].step);
    if (i < (int)p->n_steps)
      lm_steps_push(p, &made, &p->steps[i]);
  }
  j->n_inserted = 0;
  lm_steps_replace(p, &made);
}

// ---- units of a loop, and others

// Sorts the units that begin in a loop by the steps before which they do.
static void units_sort(unit **v, int n) {
  for (int i = 1; i < n; i++)
    for (int k = i; k > 0 && v[k - 1]->before > v[k]->before; k--) {
      unit *x = v[k];
      v[k] = v[k - 1];
      v[k - 1] = x;
    }
}

// Unit k begins when unit k - WINDOW, or of the iteration before the last ones, has ended.
static void units_put(joiner *j, unit **v, int n) {
  int window = n < WINDOW ? n : WINDOW;
  int end = (int)j->p->n_steps;
  units_sort(v, n);
  for (int k = 0; k < n; k++) {
    bool next = k < window;
    const unit *ended = v[next ? n - window + k : k - window];
    unit_put(j, ended, true, next ? IN_NEXT : IN_ITERATION, v[k]->before);
    unit_put(j, v[k], false, IN_ITERATION, v[k]->before);
  }
  for (int k = n - window; k < n; k++)
    unit_put(j, v[k], true, BEHIND_LOOP, end);
  j->any |= n > 0;
}

static void loop_join(joiner *j, int loop) {
  unit **v = LM_NEW_N(j->p->arena, unit *, j->n_units + 1);
  int n = 0;
  for (uint32_t i = 0; i < j->n_units; i++) {
    unit *u = &j->units[i];
    if (u->loop != loop || u->last)
      continue;
    bool fits = j->handles < UNITS_MAX && unit_into_loop(j, u) && (!n || u->into == v[0]->into);
    if (!fits) {
      u->into = -1;
      unit_append(j, u);
      continue;
    }
    u->handle = j->handles++;
    v[n++] = u;
  }
  units_put(j, v, n);
  for (uint32_t i = 0; i < j->n_units; i++)
    if (j->units[i].loop == loop && j->units[i].last)
      unit_append(j, &j->units[i]);
  inserted_write(j);
}

static void unit_join(joiner *j, unit *u) {
  int end = (int)j->p->n_steps;
  u->into = -1;
  touches_visit(j, u, top_note);
  u->before = u->last ? end : u->before;
  if (j->handles >= UNITS_MAX || u->before == end) {
    unit_append(j, u);
  } else {
    u->handle = j->handles++;
    unit_put(j, u, false, IN_ITERATION, u->before);
    unit_put(j, u, true, IN_ITERATION, end);
  }
  for (int i = u->before; i < end; i++)
    j->any |= is_kind(&j->p->steps[i], LM_STEP_LOOP);
  inserted_write(j);
}

// ---- the function

// The steps of @reduce are of a form that can be divided: collectives end where they begin, and no
// loop has an inner one.
static bool is_simple(const joiner *j) {
  for (int i = 0; i < j->n; i++) {
    const pstep *s = &j->reduce[i];
    bool inner = is_kind(s, LM_STEP_LOOP) && s->loop >= 0;
    bool free = !j->unit_of[i] && !is_kind(s, LM_STEP_LOOP) && !is_kind(s, LM_STEP_END);
    if (inner || free)
      return false;
  }
  return true;
}

static void draft_take(planner *p, const draft *d) {
  storage **end = &p->storages;
  while (*end)
    end = &(*end)->next;
  *end = d->storages;
  p->steps = d->steps;
  p->n_steps = p->cap_steps = d->n_steps;
}

bool lm_last_join(planner *p, const draft *d) {
  joiner j = {
      .p = p,
      .reduce = p->steps,
      .n = (int)p->n_steps,
  };
  units_find(&j);
  if (!is_simple(&j))
    return false;
  draft_take(p, d);
  j.handles = lm_handles_count(p) > 1 ? lm_handles_count(p) : 1;
  for (int i = 0; i < j.n; i++) {
    if (is_kind(&j.reduce[i], LM_STEP_LOOP))
      loop_join(&j, i);
    bool alone = j.unit_of[i] && j.reduce[i].loop < 0;
    unit *u = alone ? &j.units[j.unit_of[i] - 1] : NULL;
    if (u && u->start == i)
      unit_join(&j, u);
  }
  return j.any;
}
