// offload.c - memory of the host: the steps that use it get slots of the device's memory, and
// copies on lanes beside the computation move each slot in and out.
//
// before: loop i0 < 24
//           kernel k0 over 65536 grad[0+65536*i0 : 65536] state[0+65536*i0 : 65536] -> state[…]
//         end
// after:  start copy lane 0 as 0 state[0 : 65536] -> work[0 : 65536]
//         loop i0 < 24
//           wait copy when 2.. 3 + (i0+1 mod 3) work[0+65536*(i0+1 mod 3) : 65536] -> state[…]
//           start copy when 0..22 lane 0 as 0 + (i0+1 mod 3) state[65536+65536*i0 : 65536]
//             -> work[0+65536*(i0+1 mod 3) : 65536]
//           wait copy 0 + (i0 mod 3) state[0+65536*i0 : 65536] -> work[0+65536*(i0 mod 3) : 65536]
//           kernel k0 over 65536 grad[…] work[0+65536*(i0 mod 3) : 65536] -> work[…]
//           start copy lane 1 as 3 + (i0 mod 3) work[0+65536*(i0 mod 3) : 65536] -> state[…]
//         end
//         wait copy …                       of the last two iterations
//
// What an iteration uses of an arena is a window, which has a ring of slots: three if it is read
// and written, so that one slot is filled for the next iteration and one is written back while the
// kernel computes; two if it is only read, or only written. A window outside of loops has one slot.
// A ring takes the memory of its slots; a copy takes none of the device's time, but a wait takes
// the rest of the copy.
#include <stdlib.h>
#include <string.h>

#include "compiler/plan/internal.h"

enum {
  LANE_IN,
  LANE_OUT
};

// A range of an arena of the host that the steps of one iteration of a loop use, or the steps
// outside of loops.
typedef struct window {
  uint8_t arena;
  int loop;                      // the LOOP step, at depth 0; -1: outside of loops
  int64_t offset, stride, bytes; // of iteration 0; from iteration to iteration
  int first, last;               // of the steps at the depth of the window that use it
  bool reads, writes;
  storage *ring;
  int slots, in, out; // in, out: the first handles of its copies
} window;

typedef struct offloader {
  planner *p;
  window *all;
  uint32_t n, cap;
  pstep *made; // the steps with the copies
  uint32_t n_made, cap_made;
  int handles;
} offloader;

static bool is_on_host(const planner *p, const ref *r) {
  ref at = lm_storage_resolve(r->at);
  return p->plan->on_host[at.at->arena];
}

// A reference without the storages inside others.
static ref resolved(const ref *r) {
  ref at = lm_storage_resolve(r->at);
  at.offset += r->offset;
  for (int d = 0; d < LM_PLAN_DEPTH; d++)
    at.loop[d] += r->loop[d];
  at.bytes = r->bytes;
  return at;
}

// The LOOP step at depth 0 around step i; -1: none.
static int outermost_loop(const planner *p, int i) {
  int loop = p->steps[i].loop;
  while (loop >= 0 && p->steps[loop].step.depth > 0)
    loop = p->steps[loop].loop;
  return loop;
}

// The step at the depth of a window that contains step i: itself, or a loop.
static int step_at_depth(const planner *p, int i, int loop, bool end) {
  for (int k = p->steps[i].loop; k != loop && k >= 0; k = p->steps[k].loop)
    i = end ? p->steps[k].step.match : k;
  return i;
}

// ---- windows

// The window of one reference: over all iterations of the loops inside of the window's.
static window window_of(const planner *p, int i, const ref *r, bool write) {
  ref at = resolved(r);
  int loop = at.loop[0] ? outermost_loop(p, i) : -1;
  window w = {
      .arena = at.at->arena,
      .loop = loop,
      .offset = at.offset,
      .stride = at.loop[0],
      .bytes = at.bytes,
      .first = step_at_depth(p, i, loop, false),
      .last = step_at_depth(p, i, loop, true),
      .reads = !write || p->steps[i].accum,
      .writes = write,
  };
  for (int k = p->steps[i].loop; k != loop && k >= 0; k = p->steps[k].loop) {
    int64_t moved = at.loop[p->steps[k].step.depth] * (p->steps[k].step.count - 1);
    w.offset += moved < 0 ? moved : 0;
    w.bytes += llabs(moved);
  }
  return w;
}

static bool meet(const window *a, const window *b) {
  return a->arena == b->arena && a->loop == b->loop && a->stride == b->stride &&
         a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

// Joins b, which later steps use, to a. A range is copied in unless the first step that uses it
// writes all of it.
static void window_join(window *a, const window *b) {
  int64_t end = a->offset + a->bytes, other = b->offset + b->bytes;
  bool covered = b->offset >= a->offset && other <= end;
  a->reads |= b->first < a->first ? b->reads : !covered || (b->reads && !a->writes);
  a->writes |= b->writes;
  a->offset = b->offset < a->offset ? b->offset : a->offset;
  a->bytes = (other > end ? other : end) - a->offset;
  a->first = b->first < a->first ? b->first : a->first;
  a->last = b->last > a->last ? b->last : a->last;
}

// Adds the window, or joins it to those that it meets.
static void window_add(offloader *o, window w) {
  for (uint32_t i = 0; i < o->n; i++) {
    window *x = &o->all[i];
    if (!meet(x, &w))
      continue;
    window_join(x, &w);
    w = *x;
    *x = o->all[--o->n];
    i = UINT32_MAX; // the union may meet others
  }
  LM_PUSH(o->p->arena, o->all, o->n, o->cap) = w;
}

static void windows_find(offloader *o) {
  planner *p = o->p;
  for (int i = 0; i < (int)p->n_steps; i++) {
    const pstep *s = &p->steps[i];
    for (int b = 0; b < s->step.n_bufs; b++)
      if (is_on_host(p, &s->refs[b]))
        window_add(o, window_of(p, i, &s->refs[b], b >= s->step.n_read));
  }
}

static int64_t iterations(const planner *p, const window *w) {
  return w->loop < 0 ? 1 : p->steps[w->loop].step.count;
}

static void ring_make(offloader *o, window *w) {
  planner *p = o->p;
  int64_t count = iterations(p, w);
  int slots = w->reads && w->writes ? 3 : 2;
  w->slots = count < slots ? (int)count : slots;
  w->in = o->handles;
  w->out = w->in + (w->reads ? w->slots : 0);
  o->handles = w->out + (w->writes ? w->slots : 0);
  const char *label = lm_arena_printf(p->arena, "%s on the GPU", lm_arena_titles[w->arena]);
  w->ring = lm_storage_new(p, lm_plan_aligned(w->bytes) * w->slots, 0, label);
}

static const window *window_with(const offloader *o, int i, const ref *r) {
  window one = window_of(o->p, i, r, false);
  for (uint32_t k = 0; k < o->n; k++)
    if (meet(&o->all[k], &one))
      return &o->all[k];
  LM_BUG("a step uses the host's memory outside of all windows");
}

// ---- copies

// Of the iteration `ahead` iterations after the current one; constant: of iteration `ahead`.
typedef struct moment {
  int ahead;
  bool constant;
} moment;

static ref host_ref(const offloader *o, const window *w, moment at) {
  ref r = {
      .at = o->p->fixed[w->arena],
      .offset = w->offset + at.ahead * w->stride,
      .bytes = w->bytes,
  };
  r.loop[0] = at.constant ? 0 : w->stride;
  return r;
}

static int slot_of(const window *w, moment at) {
  return (at.ahead % w->slots + w->slots) % w->slots;
}

static ref ring_ref(const window *w, moment at) {
  ref r = {
      .at = w->ring,
      .bytes = w->bytes,
  };
  int64_t slot = lm_plan_aligned(w->bytes);
  if (at.constant || w->slots == 1) {
    r.offset = slot * slot_of(w, at);
    return r;
  }
  r.loop[0] = slot;
  r.slots = w->slots;
  r.ahead = slot_of(w, at);
  return r;
}

static pstep *copy_add(offloader *o, lm_step_kind kind, const window *w, int lane, moment at) {
  planner *p = o->p;
  pstep *s = &LM_PUSH(p->arena, o->made, o->n_made, o->cap_made);
  lm_plan_comm *c = LM_NEW(p->arena, lm_plan_comm);
  bool fixed = at.constant || w->slots == 1;
  *c = (lm_plan_comm){
      .kind = LM_COLL_COPY,
      .lane = lane,
      .handle = (lane == LANE_IN ? w->in : w->out) + (fixed ? slot_of(w, at) : 0),
      .slots = fixed ? 0 : w->slots,
      .ahead = fixed ? 0 : slot_of(w, at),
  };
  *s = (pstep){
      .step = {.kind = kind,
               .comm = c,
               .n_bufs = 2,
               .n_read = 1,
               .n_write = 1,
               .label = lm_arena_printf(p->arena, "%s %s the GPU", lm_arena_titles[w->arena],
                                        lane == LANE_IN ? "to" : "from")},
      .refs = LM_NEW_N(p->arena, ref, 2),
      .loop = -1,
  };
  s->refs[lane == LANE_IN ? 0 : 1] = host_ref(o, w, at);
  s->refs[lane == LANE_IN ? 1 : 0] = ring_ref(w, at);
  return s;
}

// In iterations from … end - 1 of the loop; end 0: up to the last one.
static void copy_when(pstep *s, int64_t from, int64_t end) {
  s->step.from = from;
  s->step.end = end;
}

static const moment now = {0, false};

// Behind the LOOP step, at the beginning of each iteration: a slot that was written back is filled
// for the next iteration.
static void iteration_begin(offloader *o, const window *w) {
  int64_t count = iterations(o->p, w);
  if (!w->reads || count < 2)
    return;
  if (w->writes && count >= w->slots)
    copy_when(copy_add(o, LM_STEP_WAIT, w, LANE_OUT, (moment){1 - w->slots, false}), w->slots - 1,
              0);
  copy_when(copy_add(o, LM_STEP_START, w, LANE_IN, (moment){1, false}), 0, count - 1);
}

// Before the first step that uses the window.
static void use_begin(offloader *o, const window *w) {
  if (w->reads && w->loop < 0)
    copy_add(o, LM_STEP_START, w, LANE_IN, now);
  if (w->reads)
    copy_add(o, LM_STEP_WAIT, w, LANE_IN, now);
  else if (iterations(o->p, w) > w->slots)
    copy_when(copy_add(o, LM_STEP_WAIT, w, LANE_OUT, (moment){-w->slots, false}), w->slots, 0);
}

static void use_end(offloader *o, const window *w) {
  if (w->writes)
    copy_add(o, LM_STEP_START, w, LANE_OUT, now);
  if (w->writes && w->loop < 0)
    copy_add(o, LM_STEP_WAIT, w, LANE_OUT, now);
}

static void loop_begin(offloader *o, const window *w) {
  if (w->reads)
    copy_add(o, LM_STEP_START, w, LANE_IN, (moment){0, true});
}

// Behind the END step: the copies of the last iterations, which no iteration has waited for.
static void loop_end(offloader *o, const window *w) {
  int64_t count = iterations(o->p, w), rest = w->slots;
  if (w->reads && count >= w->slots && count > 1)
    rest = w->slots - 1;
  for (int64_t i = count - rest; w->writes && i < count; i++)
    copy_add(o, LM_STEP_WAIT, w, LANE_OUT, (moment){(int)i, true});
}

// ---- the steps

// Calls `add` for each window for which `of` is true.
typedef void window_fn(offloader *o, const window *w);
static void windows_at_loop(offloader *o, int loop, window_fn *add) {
  for (uint32_t i = 0; i < o->n; i++)
    if (o->all[i].loop == loop)
      add(o, &o->all[i]);
}
static void windows_at_use(offloader *o, int step, bool end, window_fn *add) {
  for (uint32_t i = 0; i < o->n; i++)
    if ((end ? o->all[i].last : o->all[i].first) == step)
      add(o, &o->all[i]);
}

static void refs_replace(offloader *o, int i) {
  pstep *s = &o->p->steps[i];
  for (int b = 0; b < s->step.n_bufs; b++) {
    if (!is_on_host(o->p, &s->refs[b]))
      continue;
    const window *w = window_with(o, i, &s->refs[b]);
    ref own = resolved(&s->refs[b]), at = ring_ref(w, now);
    at.offset += own.offset - w->offset;
    at.bytes = own.bytes;
    for (int d = 1; d < LM_PLAN_DEPTH; d++)
      at.loop[d] = own.loop[d];
    if (w->loop < 0)
      at.loop[0] = own.loop[0];
    s->refs[b] = at;
  }
}

static bool is_outermost(const pstep *s, lm_step_kind kind) {
  return s->step.kind == kind && s->step.depth == 0;
}

// Writes the steps with the copies between them. to: the new number of each step.
static void steps_write(offloader *o, int *to) {
  planner *p = o->p;
  for (int i = 0; i < (int)p->n_steps; i++) {
    const pstep *s = &p->steps[i];
    int loop = s->step.kind == LM_STEP_END ? s->step.match : i;
    if (is_outermost(s, LM_STEP_LOOP))
      windows_at_loop(o, i, loop_begin);
    windows_at_use(o, i, false, use_begin);
    to[i] = (int)o->n_made;
    LM_PUSH(p->arena, o->made, o->n_made, o->cap_made) = *s;
    if (is_outermost(s, LM_STEP_LOOP))
      windows_at_loop(o, i, iteration_begin);
    windows_at_use(o, i, true, use_end);
    if (is_outermost(s, LM_STEP_END))
      windows_at_loop(o, loop, loop_end);
  }
}

// The copies between the steps have the loop around them.
static void steps_renumber(offloader *o, const int *to) {
  int loop = -1;
  for (int i = 0; i < (int)o->n_made; i++) {
    pstep *s = &o->made[i];
    if (lm_plan_step_copies(&s->step))
      s->loop = loop;
    else if (s->loop >= 0)
      s->loop = to[s->loop];
    if (s->step.kind == LM_STEP_LOOP || s->step.kind == LM_STEP_END)
      s->step.match = to[s->step.match];
    if (is_outermost(s, LM_STEP_LOOP))
      loop = i;
    if (is_outermost(s, LM_STEP_END))
      loop = -1;
  }
}

void lm_steps_offload(planner *p) {
  offloader o = {.p = p};
  windows_find(&o);
  if (!o.n)
    return;
  for (uint32_t i = 0; i < o.n; i++)
    ring_make(&o, &o.all[i]);
  for (int i = 0; i < (int)p->n_steps; i++)
    refs_replace(&o, i);
  int *to = LM_NEW_N(p->arena, int, p->n_steps);
  steps_write(&o, to);
  steps_renumber(&o, to);
  p->steps = o.made;
  p->n_steps = o.n_made;
  p->cap_steps = o.cap_made;
}
