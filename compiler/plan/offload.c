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
// Only the iterations that use a window copy it: a step that gathers the next layer's parameters
// runs in all iterations but the last, in which there is no next layer to copy.
//
// A ring takes the memory of its slots; a copy takes none of the device's time, but a wait takes
// the rest of the copy. All copies of a window end with its loop, so that loops behind each other
// use the same handles.
//
// A stash is a stack that one loop writes, element i in iteration i, and that a later one reads
// from the last element to the first. Both windows have one ring of two slots, element e in slot
// e mod 2: the last two elements stay there from loop to loop and are never copied.
//
// before: loop i0 < 24
//           kernel k0 … -> stash[0+4096*i0 : 4096]
//         end
//         loop i0 < 24
//           kernel k1 … stash[94208-4096*i0 : 4096] -> …
//         end
// after:  loop i0 < 24
//           wait copy when 2.. 0 + (i0 mod 2) work[4096*(i0 mod 2) …] -> stash[-8192+4096*i0 …]
//           kernel k0 … -> work[4096*(i0 mod 2) : 4096]
//           start copy when 0..21 lane 1 as 0 + (i0 mod 2) work[…] -> stash[4096*i0 …]
//         end
//         loop i0 < 24
//           start copy when 1..22 lane 0 as 0 + (i0 mod 2) stash[90112-4096*i0 …] -> work[…]
//           wait copy when 2.. 0 + (i0+1 mod 2) stash[94208-4096*i0 …] -> work[…]
//           kernel k1 … work[4096*(i0+1 mod 2) : 4096] -> …
//         end
//
// Inside of other loops, as that over the micro-batches of 1F1B, both loops are at one depth, in
// one iteration of the loops around them, whose next iteration uses the same ring, handles and
// memory of the host:
//
//         loop i0 < 8                                   micro-batches
//           loop i1 < 24   … -> work[4096*(i1 mod 2) : 4096]   …   end
//           loop i1 < 24   … work[4096*(i1+1 mod 2) : 4096]   …   end
//         end
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
  storage *at;                   // of the arena, or of a stash
  int loop;                      // the LOOP step; -1: outside of loops
  int depth;                     // of the loop: 0, or that of the loops of a stash
  int64_t offset, stride, bytes; // of iteration 0; from iteration to iteration
  int64_t from, until;           // the iterations that use it: from … until - 1
  int first;                     // the first step at the depth of the window that uses it
  int written;                   // the last one that writes it; -1: none
  bool reads, writes;
  storage *ring;
  int slots, in, out, end; // in, out: the first handles of its copies; end: behind the last one
  // Of a stash: iteration i has slot (i + shift) mod slots, and the elements of the last iterations
  // that write, which are those of the first ones that read, stay in their slots.
  int shift, resident;
} window;

typedef struct offloader {
  planner *p;
  window *all;
  uint32_t n, cap;
  step_list made; // the steps with the copies
  int handles;
} offloader;

static bool is_on_host(const planner *p, const ref *r) {
  ref at = lm_storage_resolve(r->at);
  return p->plan->on_host[at.at->arena];
}

// The LOOP step at a depth around step i; -1: none.
static int loop_at(const planner *p, int i, int depth) {
  int loop = p->steps[i].loop;
  while (loop >= 0 && p->steps[loop].step.depth > depth)
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

// Makes a window of a stash that of a whole element.
static void window_of_stash(const planner *p, window *w) {
  int64_t slot = w->at->slot;
  if (w->loop < 0 || (w->stride != slot && w->stride != -slot))
    LM_BUG("a step uses a stash in the host's memory outside of its loops");
  int64_t last = p->steps[w->loop].step.count - 1;
  w->offset = w->stride < 0 ? last * slot : 0;
  w->bytes = slot;
  w->from = 0;
  w->until = last + 1;
  w->shift = w->stride < 0 ? (int)(last % LM_STASH_RESIDENT) : 0;
  w->resident = LM_STASH_RESIDENT;
}

typedef struct range {
  int64_t from, until;
} range;

// The iterations of an enclosing loop in which step i runs. Only the innermost loop of a step can
// skip it in some iterations.
static range range_of(const planner *p, int i, int loop) {
  if (loop < 0)
    return (range){0, 1};
  const lm_plan_step *s = &p->steps[i].step;
  int64_t count = p->steps[loop].step.count;
  if (p->steps[i].loop != loop)
    return (range){0, count};
  return (range){s->from, s->end ? s->end : count};
}

// Widens the window to the iterations of the loops inside of the window's.
static void window_widen(const planner *p, int i, const ref *at, window *w) {
  for (int k = p->steps[i].loop; k != w->loop && k >= 0; k = p->steps[k].loop) {
    int64_t stride = at->loop[p->steps[k].step.depth];
    range r = range_of(p, i, k);
    w->offset += stride * (stride < 0 ? r.until - 1 : r.from);
    w->bytes += llabs(stride) * (r.until - 1 - r.from);
  }
}

// The window of one reference.
static window window_of(const planner *p, int i, const ref *r, bool write) {
  ref at = lm_ref_resolve(r);
  int depth = at.at->depth;
  int loop = at.loop[depth] ? loop_at(p, i, depth) : -1;
  range used = range_of(p, i, loop);
  window w = {
      .at = at.at,
      .loop = loop,
      .depth = depth,
      .offset = at.offset,
      .stride = at.loop[depth],
      .bytes = at.bytes,
      .from = used.from,
      .until = used.until,
      .first = step_at_depth(p, i, loop, false),
      .written = write ? step_at_depth(p, i, loop, true) : -1,
      .reads = !write || p->steps[i].accum,
      .writes = write,
  };
  window_widen(p, i, &at, &w);
  if (w.at->slot)
    window_of_stash(p, &w);
  return w;
}

static bool meet(const window *a, const window *b) {
  return a->at == b->at && a->loop == b->loop && a->stride == b->stride &&
         a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

// Joins b, which later steps use, to a. A range is copied in unless the first step that uses it
// writes all of it.
static void window_join(window *a, const window *b) {
  int64_t end = a->offset + a->bytes;
  int64_t other = b->offset + b->bytes;
  bool covered = b->offset >= a->offset && other <= end;
  covered &= b->from >= a->from && b->until <= a->until;
  a->reads |= b->first < a->first ? b->reads : !covered || (b->reads && !a->writes);
  a->writes |= b->writes;
  a->offset = b->offset < a->offset ? b->offset : a->offset;
  a->bytes = (other > end ? other : end) - a->offset;
  a->from = b->from < a->from ? b->from : a->from;
  a->until = b->until > a->until ? b->until : a->until;
  a->first = b->first < a->first ? b->first : a->first;
  a->written = b->written > a->written ? b->written : a->written;
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
  for (uint32_t i = 0; i < o->n; i++)
    o->all[i].reads &= !(o->all[i].resident && o->all[i].writes); // the window is first written
}

static int64_t iterations(const window *w) {
  return w->until - w->from;
}

// True if copies of both windows may be under way at the same time: one of their loops contains the
// other.
static bool together(const planner *p, const window *a, const window *b) {
  if (a->loop < 0 || b->loop < 0)
    return true;
  int a_end = p->steps[a->loop].step.match;
  int b_end = p->steps[b->loop].step.match;
  return a->loop <= b_end && b->loop <= a_end;
}

// Sets the handles of a window behind those of the windows in front of it in the list.
static void handles_set(const offloader *o, window *w) {
  w->in = o->handles;
  for (const window *x = o->all; x < w; x++)
    if (together(o->p, x, w) && x->end > w->in)
      w->in = x->end;
  w->out = w->in + (w->reads ? w->slots : 0);
  w->end = w->out + (w->writes ? w->slots : 0);
}

static void ring_make(const offloader *o, window *w) {
  planner *p = o->p;
  const char *label =
      w->resident ? lm_arena_printf(p->arena, "%d of %s", w->resident, w->at->label)
                  : lm_arena_printf(p->arena, "%s on the GPU", lm_arena_titles[w->at->arena]);
  int64_t count = iterations(w);
  int slots = w->reads && w->writes ? 3 : 2;
  w->slots = count < slots ? (int)count : slots;
  handles_set(o, w);
  for (const window *x = o->all; x < w && w->resident; x++)
    if (x->at == w->at)
      w->ring = x->ring;
  if (!w->ring)
    w->ring = lm_storage_new(p, lm_plan_aligned(w->bytes) * w->slots, w->depth, label);
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
      .at = w->at,
      .offset = w->offset + at.ahead * w->stride,
      .bytes = w->bytes,
  };
  r.loop[w->depth] = at.constant ? 0 : w->stride;
  return r;
}

static int slot_of(const window *w, moment at) {
  return ((at.ahead + w->shift) % w->slots + w->slots) % w->slots;
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
  r.loop[w->depth] = slot;
  r.ring[w->depth].slots = w->slots;
  r.ring[w->depth].ahead = slot_of(w, at);
  return r;
}

static pstep *copy_add(offloader *o, lm_step_kind kind, const window *w, int lane, moment at) {
  planner *p = o->p;
  lm_plan_comm *c = LM_NEW(p->arena, lm_plan_comm);
  bool fixed = at.constant || w->slots == 1;
  *c = (lm_plan_comm){
      .kind = LM_COLL_COPY,
      .lane = lane,
      .handle = (lane == LANE_IN ? w->in : w->out) + (fixed ? slot_of(w, at) : 0),
      .slots = fixed ? 0 : w->slots,
      .ahead = fixed ? 0 : slot_of(w, at),
  };
  pstep s = {
      .step = {.kind = kind,
               .comm = c,
               .n_bufs = 2,
               .n_read = 1,
               .n_write = 1,
               .label = lm_arena_printf(p->arena, "%s %s the GPU", lm_arena_titles[w->at->arena],
                                        lane == LANE_IN ? "to" : "from")},
      .refs = LM_NEW_N(p->arena, ref, 2),
  };
  s.refs[lane == LANE_IN ? 0 : 1] = host_ref(o, w, at);
  s.refs[lane == LANE_IN ? 1 : 0] = ring_ref(w, at);
  return lm_steps_push(p, &o->made, &s);
}

// In iterations from … end - 1 of the window's loop.
static void copy_when(const offloader *o, const window *w, pstep *s, int64_t from, int64_t end) {
  if (w->loop < 0)
    return;
  s->step.from = from;
  s->step.end = end == o->p->steps[w->loop].step.count ? 0 : end;
}

static const moment now = {0, false};

// Behind the LOOP step, at the beginning of each iteration: a slot that was written back is filled
// for the next iteration.
static void iteration_begin(offloader *o, const window *w) {
  int64_t count = iterations(w);
  int64_t from = w->from + (w->resident ? w->resident - 1 : 0);
  moment next = {1, false}, written = {1 - w->slots, false};
  if (!w->reads || count < 2)
    return;
  if (w->writes && count >= w->slots)
    copy_when(o, w, copy_add(o, LM_STEP_WAIT, w, LANE_OUT, written), w->from + w->slots - 1,
              w->until);
  copy_when(o, w, copy_add(o, LM_STEP_START, w, LANE_IN, next), from, w->until - 1);
}

// Before the first step that uses the window.
static void use_begin(offloader *o, const window *w) {
  moment written = {-w->slots, false};
  if (w->reads && w->loop < 0)
    copy_add(o, LM_STEP_START, w, LANE_IN, now);
  if (w->reads)
    copy_when(o, w, copy_add(o, LM_STEP_WAIT, w, LANE_IN, now), w->from + w->resident, w->until);
  else if (iterations(w) > w->slots)
    copy_when(o, w, copy_add(o, LM_STEP_WAIT, w, LANE_OUT, written), w->from + w->slots, w->until);
}

// Behind the last step that writes it. Later steps may read it during the copy.
static void write_end(offloader *o, const window *w) {
  pstep *s = copy_add(o, LM_STEP_START, w, LANE_OUT, now);
  copy_when(o, w, s, w->from, w->until - w->resident);
  if (w->loop < 0)
    copy_add(o, LM_STEP_WAIT, w, LANE_OUT, now);
}

static void loop_begin(offloader *o, const window *w) {
  if (w->reads && !w->resident)
    copy_add(o, LM_STEP_START, w, LANE_IN, (moment){(int)w->from, true});
}

// Behind the END step: the copies of the last iterations, which no iteration has waited for.
static void loop_end(offloader *o, const window *w) {
  if (w->resident)
    return;
  int64_t count = iterations(w), rest = w->slots;
  if (w->reads && count >= w->slots && count > 1)
    rest = w->slots - 1;
  for (int64_t i = w->until - rest; w->writes && i < w->until; i++)
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
static void windows_at_use(offloader *o, int step, window_fn *add) {
  for (uint32_t i = 0; i < o->n; i++)
    if (o->all[i].first == step)
      add(o, &o->all[i]);
}
static void windows_at_last_write(offloader *o, int step, window_fn *add) {
  for (uint32_t i = 0; i < o->n; i++)
    if (o->all[i].written == step)
      add(o, &o->all[i]);
}

static void refs_replace(offloader *o, int i) {
  pstep *s = &o->p->steps[i];
  for (int b = 0; b < s->step.n_bufs; b++) {
    if (!is_on_host(o->p, &s->refs[b]))
      continue;
    const window *w = window_with(o, i, &s->refs[b]);
    ref own = lm_ref_resolve(&s->refs[b]), at = ring_ref(w, now);
    at.offset += own.offset - w->offset;
    at.bytes = own.bytes;
    for (int d = 0; d < LM_PLAN_DEPTH; d++)
      if (d != w->depth || w->loop < 0)
        at.loop[d] = own.loop[d];
    s->refs[b] = at;
  }
}

// Writes the steps with the copies between them.
static void steps_write(offloader *o) {
  planner *p = o->p;
  for (int i = 0; i < (int)p->n_steps; i++) {
    const pstep *s = &p->steps[i];
    int loop = s->step.kind == LM_STEP_END ? s->step.match : i;
    if (s->step.kind == LM_STEP_LOOP)
      windows_at_loop(o, i, loop_begin);
    windows_at_use(o, i, use_begin);
    lm_steps_push(p, &o->made, s);
    if (s->step.kind == LM_STEP_LOOP)
      windows_at_loop(o, i, iteration_begin);
    windows_at_last_write(o, i, write_end);
    if (s->step.kind == LM_STEP_END)
      windows_at_loop(o, loop, loop_end);
  }
}

int lm_handles_count(const planner *p) {
  int n = 0;
  for (uint32_t i = 0; i < p->n_steps; i++) {
    const lm_plan_comm *c = p->steps[i].step.comm;
    int end = c ? c->handle + (c->slots ? c->slots : 1) : 0;
    n = end > n ? end : n;
  }
  return n;
}

void lm_steps_offload(planner *p) {
  offloader o = {
      .p = p,
      .handles = lm_handles_count(p),
  };
  windows_find(&o);
  if (!o.n)
    return;
  for (uint32_t i = 0; i < o.n; i++)
    ring_make(&o, &o.all[i]);
  for (int i = 0; i < (int)p->n_steps; i++)
    refs_replace(&o, i);
  steps_write(&o);
  lm_steps_replace(p, &o.made);
}
