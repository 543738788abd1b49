// check.c - checks a plan's memory by running it on shadow memory.
//
// Each granule of the work arena records the live range, and the life of it, through which it was
// last written. Live ranges inside a loop's body begin a new life with each iteration, since values
// of an earlier iteration must not be read.
//
// A collective or copy reads and writes its buffers at any time between its START and its WAIT. Its
// results count as written at the WAIT.
//
// A stash in the host's memory is written and read in one iteration of the loops around its own, as
// in that of one micro-batch.
#include "runtime/plan/plan.h"

enum {
  GRANULE = LM_PLAN_ALIGN
};

// live: index + 1; 0: never written
typedef struct mark {
  int live, life;
} mark;

// A buffer of a collective that is under way.
typedef struct hold {
  int handle, start; // start: the step
  uint8_t arena;
  int64_t lo, hi;
  bool written;
} hold;

typedef struct checker {
  const lm_plan *plan;
  const lm_plan_func *f;
  mark *shadow;
  int *life; // by live range
  // By granule of STASH: 1 + the iteration in which it was last written; 0: never.
  int64_t *stash;
  int64_t index[LM_PLAN_DEPTH];
  int64_t number[LM_PLAN_DEPTH], iterations; // number: of the iteration, of all `iterations`
  int depth;                                 // of the current step
  hold *holds;                               // of all collectives that are under way
  uint32_t n_holds, cap_holds;
  lm_arena *arena;
  lm_buf *why;
  int faults;
} checker;

static void fault(checker *c, int step, int buf, const char *what) {
  if (c->faults++ < 20)
    lm_buf_printf(c->why, "%s: step %d (%s), buffer %d: %s\n", c->f->name, step,
                  c->f->steps[step].label, buf, what);
}

static int64_t offset_of(const checker *c, const lm_plan_buf *b) {
  return lm_plan_buf_offset(b, &c->plan->mesh, c->index);
}

static bool bounds_hold(checker *c, int step, int i) {
  const lm_plan_buf *b = &c->f->steps[step].bufs[i];
  int64_t lo = offset_of(c, b);
  int64_t hi = lo + b->bytes;
  if (lo < 0 || hi > c->plan->arena_bytes[b->arena]) {
    fault(c, step, i, "outside its arena");
    return false;
  }
  if (c->plan->on_host[b->arena] && !lm_plan_step_copies(&c->f->steps[step])) {
    fault(c, step, i, "in the host's memory, which only copies may use");
    return false;
  }
  if (b->arena != LM_ARENA_WORK)
    return true;
  if (b->live < 0 || b->live >= c->f->n_live) {
    fault(c, step, i, "no live range");
    return false;
  }
  const lm_plan_live *l = &c->f->live[b->live];
  if (lo < l->offset || hi > l->offset + l->bytes) {
    fault(c, step, i, "outside its live range");
    return false;
  }
  if (step < l->first || step > l->last) {
    fault(c, step, i, "used outside the lifetime of its live range");
    return false;
  }
  return true;
}

static void touch(checker *c, int step, int i, bool write) {
  const lm_plan_buf *b = &c->f->steps[step].bufs[i];
  if (!bounds_hold(c, step, i) || b->arena != LM_ARENA_WORK || !b->bytes)
    return;
  mark now = {b->live + 1, c->life[b->live]};
  int64_t lo = offset_of(c, b);
  for (int64_t g = lo / GRANULE; g <= (lo + b->bytes - 1) / GRANULE; g++) {
    if (write)
      c->shadow[g] = now;
    else if (!c->shadow[g].live)
      return fault(c, step, i, "read before it was written");
    else if (c->shadow[g].live != now.live)
      return fault(c, step, i, "overwritten by another buffer before it was read");
    else if (c->shadow[g].life != now.life)
      return fault(c, step, i, "read in an iteration that has not written it");
  }
}

static void step_touch(checker *c, int step) {
  const lm_plan_step *s = &c->f->steps[step];
  for (int i = 0; i < s->n_read; i++)
    touch(c, step, i, false);
  for (int i = s->n_read; i < s->n_bufs; i++)
    touch(c, step, i, true);
}

// ---- collectives

static int64_t iteration_of(const checker *c) {
  return c->depth ? c->index[c->depth - 1] : 0;
}

static int handle_of(const checker *c, const lm_plan_comm *x) {
  return lm_plan_comm_handle(x, iteration_of(c));
}

static void holds_respect(checker *c, int step) {
  const lm_plan_step *s = &c->f->steps[step];
  for (int i = 0; i < s->n_bufs; i++) {
    const lm_plan_buf *b = &s->bufs[i];
    int64_t lo = offset_of(c, b);
    int64_t hi = lo + b->bytes;
    for (uint32_t k = 0; k < c->n_holds; k++) {
      const hold *h = &c->holds[k];
      if (h->arena == b->arena && lo < h->hi && h->lo < hi && (h->written || i >= s->n_read))
        return fault(c, step, i, "touches the memory of a collective that is under way");
    }
  }
}

static bool is_under_way(const checker *c, int handle) {
  for (uint32_t k = 0; k < c->n_holds; k++)
    if (c->holds[k].handle == handle)
      return true;
  return false;
}

static void stash_touch(checker *c, int step, int i, bool write) {
  const lm_plan_buf *b = &c->f->steps[step].bufs[i];
  int64_t now = 1 + (c->depth > 1 ? c->number[c->depth - 2] : 0);
  int64_t lo = offset_of(c, b);
  if (b->arena != LM_ARENA_STASH || !bounds_hold(c, step, i))
    return;
  for (int64_t g = lo / GRANULE; g <= (lo + b->bytes - 1) / GRANULE; g++) {
    if (write)
      c->stash[g] = now;
    else if (c->stash[g] != now)
      return fault(c, step, i, "read in an iteration that has not written it");
  }
}

static void collective_start(checker *c, int step) {
  const lm_plan_step *s = &c->f->steps[step];
  int handle = handle_of(c, s->comm);
  if (s->comm->lane >= (lm_plan_step_copies(s) ? 2 : LM_PLAN_LANES))
    return fault(c, step, 0, "the number of its lane is too high");
  if (is_under_way(c, handle))
    return fault(c, step, 0, "its handle is that of a collective that is under way");
  if (!s->n_bufs)
    return fault(c, step, 0, "a collective without buffers");
  for (int i = 0; i < s->n_read; i++)
    touch(c, step, i, false);
  for (int i = 0; i < s->n_bufs; i++) {
    int64_t lo = offset_of(c, &s->bufs[i]);
    bounds_hold(c, step, i);
    stash_touch(c, step, i, i >= s->n_read);
    LM_PUSH(c->arena, c->holds, c->n_holds, c->cap_holds) =
        (hold){handle, step, s->bufs[i].arena, lo, lo + s->bufs[i].bytes, i >= s->n_read};
  }
}

// The WAIT's buffers are those of the START that it ends.
static void collective_wait(checker *c, int step) {
  const lm_plan_step *s = &c->f->steps[step];
  int handle = handle_of(c, s->comm), n = 0;
  uint32_t kept = 0;
  bool same = true;
  for (uint32_t k = 0; k < c->n_holds; k++) {
    const hold *h = &c->holds[k];
    if (h->handle != handle) {
      c->holds[kept++] = *h;
      continue;
    }
    const lm_plan_buf *b = n < s->n_bufs ? &s->bufs[n] : NULL;
    same &= b && b->arena == h->arena && offset_of(c, b) == h->lo && b->bytes == h->hi - h->lo &&
            (n >= s->n_read) == h->written;
    n++;
  }
  c->n_holds = kept;
  if (!n)
    return fault(c, step, 0, "waits for a collective that is not under way");
  if (!same || n != s->n_bufs)
    return fault(c, step, 0, "has other buffers than the collective that it ends");
  for (int i = s->n_read; i < s->n_bufs; i++)
    touch(c, step, i, true);
}

static void step_check(checker *c, int step) {
  switch (c->f->steps[step].kind) {
  case LM_STEP_START:
    holds_respect(c, step);
    collective_start(c, step);
    break;
  case LM_STEP_WAIT: collective_wait(c, step); break;
  default: holds_respect(c, step); step_touch(c, step);
  }
}

static void iteration_begin(checker *c, int loop) {
  const lm_plan_step *s = &c->f->steps[loop];
  c->number[s->depth] = ++c->iterations;
  for (int i = 0; i < c->f->n_live; i++)
    if (c->f->live[i].first > loop && c->f->live[i].last < s->match)
      c->life[i]++;
  step_check(c, loop);
}

static int loop_step(checker *c, int pc) {
  const lm_plan_step *s = &c->f->steps[pc];
  int loop = s->kind == LM_STEP_LOOP ? pc : s->match;
  int64_t *index = &c->index[s->depth];
  *index = s->kind == LM_STEP_LOOP ? 0 : *index + 1;
  c->depth = s->depth;
  if (*index < c->f->steps[loop].count) {
    iteration_begin(c, loop);
    c->depth = s->depth + 1;
    return loop + 1;
  }
  *index = 0;
  return c->f->steps[loop].match + 1;
}

static bool overlap(const lm_plan_live *a, const lm_plan_live *b) {
  return a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes &&
         a->first <= b->last && b->first <= a->last;
}

static void ranges_check(checker *c) {
  for (int i = 0; i < c->f->n_live; i++)
    for (int j = 0; j < i; j++)
      if (overlap(&c->f->live[i], &c->f->live[j]) && c->faults++ < 20)
        lm_buf_printf(c->why, "%s: live ranges %d and %d overlap\n", c->f->name, j, i);
}

bool lm_plan_check(const lm_plan *p, const lm_plan_func *f, lm_buf *why) {
  checker c = {
      .plan = p,
      .f = f,
      .why = why,
      .arena = lm_arena_create(),
  };
  c.shadow = lm_calloc((size_t)(p->arena_bytes[LM_ARENA_WORK] / GRANULE) + 1, sizeof *c.shadow);
  c.life = lm_calloc((size_t)f->n_live + 1, sizeof *c.life);
  c.stash = lm_calloc((size_t)(p->arena_bytes[LM_ARENA_STASH] / GRANULE) + 1, sizeof *c.stash);
  ranges_check(&c);
  for (int pc = 0; pc < f->n_steps;) {
    lm_step_kind kind = f->steps[pc].kind;
    if (kind == LM_STEP_LOOP || kind == LM_STEP_END)
      pc = loop_step(&c, pc);
    else if (lm_plan_step_runs(&f->steps[pc], iteration_of(&c)))
      step_check(&c, pc++);
    else
      pc++;
  }
  for (uint32_t k = 0; k < c.n_holds; k++)
    fault(&c, c.holds[k].start, (int)k, "nothing waits for this collective");
  lm_arena_destroy(c.arena);
  lm_free(c.shadow);
  lm_free(c.life);
  lm_free(c.stash);
  return !c.faults;
}
