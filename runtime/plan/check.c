// check.c - checks a plan's memory by running it on shadow memory.
//
// Each granule of the work arena records the live range, and the life of it, through which it was
// last written. Live ranges inside a loop's body begin a new life with each iteration, since values
// of an earlier iteration must not be read.
#include "runtime/plan/plan.h"

enum {
  GRANULE = LM_PLAN_ALIGN
};

// live: index + 1; 0: never written
typedef struct mark {
  int live, life;
} mark;

typedef struct checker {
  const lm_plan *plan;
  const lm_plan_func *f;
  mark *shadow;
  int *life; // by live range
  int64_t index[LM_PLAN_DEPTH];
  lm_buf *why;
  int faults;
} checker;

static void fault(checker *c, int step, int buf, const char *what) {
  if (c->faults++ < 20)
    lm_buf_printf(c->why, "%s: step %d (%s), buffer %d: %s\n", c->f->name, step,
                  c->f->steps[step].label, buf, what);
}

static int64_t offset_of(const checker *c, const lm_plan_buf *b) {
  int64_t offset = b->offset;
  for (int d = 0; d < LM_PLAN_DEPTH; d++)
    offset += b->stride[d] * c->index[d];
  return offset;
}

static bool bounds_hold(checker *c, int step, int i) {
  const lm_plan_buf *b = &c->f->steps[step].bufs[i];
  int64_t lo = offset_of(c, b);
  int64_t hi = lo + b->bytes;
  if (lo < 0 || hi > c->plan->arena_bytes[b->arena]) {
    fault(c, step, i, "outside its arena");
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

static void step_check(checker *c, int step) {
  const lm_plan_step *s = &c->f->steps[step];
  for (int i = 0; i < s->n_read; i++)
    touch(c, step, i, false);
  for (int i = s->n_read; i < s->n_bufs; i++)
    touch(c, step, i, true);
}

static void iteration_begin(checker *c, int loop) {
  const lm_plan_step *s = &c->f->steps[loop];
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
  if (*index < c->f->steps[loop].count) {
    iteration_begin(c, loop);
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
  checker c = {.plan = p, .f = f, .why = why};
  c.shadow = lm_calloc((size_t)(p->arena_bytes[LM_ARENA_WORK] / GRANULE) + 1, sizeof *c.shadow);
  c.life = lm_calloc((size_t)f->n_live + 1, sizeof *c.life);
  ranges_check(&c);
  for (int pc = 0; pc < f->n_steps;) {
    lm_step_kind kind = f->steps[pc].kind;
    if (kind == LM_STEP_LOOP || kind == LM_STEP_END)
      pc = loop_step(&c, pc);
    else
      step_check(&c, pc++);
  }
  lm_free(c.shadow);
  lm_free(c.life);
  return !c.faults;
}
