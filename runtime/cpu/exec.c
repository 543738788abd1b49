// exec.c - runs the steps of a plan on the CPU.
//
// A function is one run of the team: every thread walks over its steps and computes a share of
// each: a contiguous range of a kernel's parallel space, or tiles of a GEMM. A barrier follows
// every shared step. Steps too small to be shared are run by the first thread alone; the others
// wait for it only before the next shared step. The first thread alone runs collectives, while the
// others wait.
#include "runtime/cpu/exec.h"

#include <string.h>

#include "runtime/base/pages.h"
#include "runtime/base/parallel.h"
#include "runtime/base/processors.h"
#include "runtime/base/team.h"
#include "runtime/comm/comm.h"
#include "runtime/cpu/detect.h"
#include "runtime/cpu/gemm.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/move.h"
#include "runtime/cpu/roofline.h"
#include "runtime/cpu/share.h"
#include "runtime/plan/walk.h"

enum {
  BYTES_OF_THREAD = 1 << 20 // the least that a thread writes
};
static const double ALONE = 20e-6; // seconds; steps that are estimated shorter are not shared

typedef struct cpu_exec {
  lm_exec hal;
  const lm_plan *plan;
  int threads;
  lm_kernels kernels;
  lm_pages arenas[LM_ARENAS];
  bool written[LM_ARENAS]; // otherwise all zeros, and without memory where nothing was read
  lm_timeline *timeline;   // optional
  lm_cpu_gemms *gemms;
  lm_team *team;
  lm_tickets *tickets;          // [threads]
  struct worker *workers;       // [threads]
  bool *alone;                  // by function: all of its steps are too small to be shared
  lm_comm *comm;                // optional
  int handles[LM_PLAN_HANDLES]; // of lm_comm, by handle of the plan
  bool comm_failed;             // the current collective
} cpu_exec;

// The times of a thread's share of a step; `passed`: when it left the barrier.
typedef struct thread_span {
  const lm_plan_step *step;
  double start;
  double end;
  double passed;
} thread_span;

// The state of one thread.
typedef struct worker {
  cpu_exec *e;
  lm_share share;
  lm_plan_walk walk;
  char **pointers; // of the current step
  bool behind;     // the first thread may still be running small steps
  // When there is a timeline: the times at which this thread arrived at the last two barriers, how
  // many it has passed, and when the last of all threads arrived at the latest of them.
  double arrived[2];
  uint32_t passed;
  double since;
  lm_status status;
  thread_span *spans; // of the current function, if the timeline has rows of threads
  uint32_t n_spans;
  uint32_t cap_spans;
} worker;

// ---- arenas

static lm_status arena_refuse(const lm_plan *plan, int arena) {
  lm_buf need = {0};
  lm_buf sizes = {0};
  lm_show_bytes(&need, (double)plan->arena_bytes[arena]);
  lm_status s = lm_fail_errno("cannot allocate %s for %s", need.p, lm_arena_titles[arena]);
  for (int i = 0; i < LM_ARENAS; i++)
    if (plan->arena_bytes[i]) {
      lm_buf_printf(&sizes, "%s%s ", sizes.n ? ", " : "", lm_arena_titles[i]);
      lm_show_bytes(&sizes, (double)plan->arena_bytes[i]);
    }
  s = lm_annotate(s, "the plan needs %s", sizes.p);
  lm_buf_free(&need);
  lm_buf_free(&sizes);
  return s;
}

static lm_status arenas_make(cpu_exec *e) {
  for (int i = 0; i < LM_ARENAS; i++)
    if (!lm_pages_make((size_t)e->plan->arena_bytes[i], &e->arenas[i]))
      return arena_refuse(e->plan, i);
  return NULL;
}

// ---- creation and destruction

static int threads_of(const lm_exec_options *o) {
  return o->threads > 0 ? o->threads : lm_threads(0);
}
static lm_cpu_gemm_options gemm_options(const lm_exec_options *o) {
  return (lm_cpu_gemm_options){
      .threads = threads_of(o),
      .tilings = o->tuning,
      .code = true,
  };
}

static int64_t workspace(const lm_plan *plan, const lm_exec_options *o) {
  lm_cpu_gemm_options g = gemm_options(o);
  return lm_cpu_gemms_of_plan_bytes(plan, &g);
}

static void workers_make(cpu_exec *e) {
  e->workers = lm_calloc((size_t)e->threads, sizeof *e->workers);
  e->tickets = lm_calloc((size_t)e->threads, sizeof *e->tickets);
  for (int i = 0; i < e->threads; i++) {
    worker *w = &e->workers[i];
    w->e = e;
    w->pointers = lm_calloc((size_t)lm_plan_bufs_max(e->plan), sizeof *w->pointers);
    lm_plan_walk_open(e->plan, &w->walk);
  }
}

// True if a step is too small to be shared, by the plan's counts: at 2 GFLOP/s of generated scalar
// code, 50 GFLOP/s of GEMMs, and 10 GB/s. These are conservative.
static bool is_small(const lm_plan_step *s) {
  double flop = s->kind == LM_STEP_GEMM ? 0.02e-9 : 0.5e-9;
  int64_t moved = s->kind == LM_STEP_FILL ? s->bytes : s->moved;
  if (s->kind == LM_STEP_KERNEL && s->flops + s->moved == 0)
    return false; // its cost is unknown
  return s->kind == LM_STEP_LOOP || s->kind == LM_STEP_END ||
         (double)s->flops * flop + (double)moved * 0.1e-9 < ALONE;
}

static void alone_find(cpu_exec *e) {
  e->alone = lm_calloc((size_t)e->plan->n_funcs + 1, sizeof *e->alone);
  for (int i = 0; i < e->plan->n_funcs; i++) {
    const lm_plan_func *f = &e->plan->funcs[i];
    e->alone[i] = true;
    for (int k = 0; k < f->n_steps; k++)
      e->alone[i] &= is_small(&f->steps[k]);
  }
}

static void coordinates_write(cpu_exec *e) {
  e->written[LM_ARENA_IO] = true;
  const lm_plan_mesh *m = &e->plan->mesh;
  for (int k = 0; k < m->n; k++)
    if (m->axis[k].rank >= 0)
      *(int32_t *)(e->arenas[LM_ARENA_IO].start + m->axis[k].rank) = m->axis[k].at;
}

static const lm_exec_ops OPS;

lm_status lm_cpu_exec_create(const lm_plan *plan, const lm_exec_options *o, lm_exec **out) {
  static const lm_exec_options defaults = {0};
  if (!o)
    o = &defaults;
  cpu_exec *e = lm_alloc(sizeof *e);
  e->hal.ops = &OPS;
  e->plan = plan;
  e->team = lm_team_create(threads_of(o));
  e->threads = lm_team_size(e->team);
  workers_make(e);
  alone_find(e);
  e->timeline = o->timeline;
  e->comm = o->comm;
  lm_status s = lm_kernels_load(plan, o, e->threads, &e->kernels);
  if (!s)
    s = arenas_make(e);
  if (!s)
    coordinates_write(e);
  lm_cpu_gemm_options g = gemm_options(o);
  g.threads = e->threads;
  g.team = e->team;
  g.kernels = e->kernels.fn;
  if (!s)
    e->gemms = lm_cpu_gemms_of_plan(plan, &g);
  if (s)
    lm_exec_destroy(&e->hal);
  *out = s ? NULL : &e->hal;
  return s;
}

static void destroy(lm_exec *hal) {
  cpu_exec *e = (cpu_exec *)hal;
  lm_comm_stop(e->comm);
  for (int i = 0; i < LM_ARENAS; i++)
    lm_pages_free(&e->arenas[i]);
  lm_kernels_unload(&e->kernels);
  for (int i = 0; i < e->threads; i++) {
    lm_free(e->workers[i].spans);
    lm_free(e->workers[i].pointers);
    lm_plan_walk_close(&e->workers[i].walk);
  }
  lm_free(e->workers);
  lm_free(e->tickets);
  lm_free(e->alone);
  lm_cpu_gemms_destroy(e->gemms);
  lm_team_destroy(e->team);
  lm_free(e);
}

static char *slice(lm_exec *e, lm_arena_id id, int64_t offset, int64_t bytes) {
  const cpu_exec *self = (const cpu_exec *)e;
  LM_ASSERT(offset >= 0 && bytes >= 0 && offset + bytes <= self->plan->arena_bytes[id]);
  return self->arenas[id].start + offset;
}

static lm_status arena_read(lm_exec *e, lm_arena_id id, int64_t offset, int64_t bytes, void *to) {
  if (bytes)
    memcpy(to, slice(e, id, offset, bytes), (size_t)bytes);
  return NULL;
}

typedef struct writing {
  char *to;
  const char *from;
} writing;

static void bytes_write(void *user, int64_t first, int64_t last) {
  const writing *w = user;
  memcpy(w->to + first, w->from + first, (size_t)(last - first));
}

// All threads copy a part, so that the page faults of a new arena are divided among them.
static lm_status arena_write(lm_exec *e, lm_arena_id id, int64_t offset, int64_t bytes,
                             const void *from) {
  ((cpu_exec *)e)->written[id] = true;
  if (bytes)
    lm_parallel_ranges(bytes, BYTES_OF_THREAD, bytes_write,
                       &(writing){slice(e, id, offset, bytes), from});
  return NULL;
}

static void bytes_clear(void *user, int64_t first, int64_t last) {
  memset((char *)user + first, 0, (size_t)(last - first));
}

static void arena_clear(lm_exec *e, lm_arena_id id) {
  cpu_exec *self = (cpu_exec *)e;
  int64_t bytes = self->plan->arena_bytes[id];
  if (bytes && self->written[id])
    lm_parallel_ranges(bytes, BYTES_OF_THREAD, bytes_clear, self->arenas[id].start);
}

static void *port(lm_exec *e, const lm_plan_port *p) {
  ((cpu_exec *)e)->written[p->buf.arena] = true;
  return ((cpu_exec *)e)->arenas[p->buf.arena].start + p->buf.offset;
}
static int threads(const lm_exec *e) {
  return ((const cpu_exec *)e)->threads;
}
static int kernels_compiled(const lm_exec *e) {
  return ((const cpu_exec *)e)->kernels.compiled;
}

// ---- steps

static char *address(const worker *w, const lm_plan_buf *b) {
  return w->e->arenas[b->arena].start + lm_plan_walk_offset(&w->walk, b);
}

static void kernel_run(worker *w, const lm_plan_step *s, const lm_share *share) {
  int64_t space = lm_plan_extent_value(&s->space, w->walk.var);
  int64_t lo = lm_share_first(share, space);
  int64_t hi = lm_share_last(share, space);
  if (lo < hi)
    w->e->kernels.fn[s->kernel](w->pointers, w->walk.var, lo, hi);
}

static lm_status copy_run(worker *w, const lm_plan_step *s, const lm_share *share) {
  const lm_plan_move *m = s->move;
  int64_t at = 0;
  if (m->at_dim >= 0) {
    at = *(const int32_t *)w->pointers[1];
    int64_t length = lm_plan_extent_value(&m->dim[m->at_dim].size, w->walk.var);
    if (at < 0 || at + length > m->at_limit)
      return lm_fail(LM_USER, "%s: positions %lld to %lld are outside of a cache of %lld", s->label,
                     (long long)at, (long long)(at + length), (long long)m->at_limit);
  }
  bool adds = s->kind == LM_STEP_ADD && !lm_plan_walk_overwrites(&w->walk, s);
  lm_cpu_move(m, w->walk.var, w->pointers[0], w->pointers[s->n_read], at, adds, share);
  return NULL;
}

// Collective i of the bucket that a step begins.
static lm_coll collective_of(const worker *w, const lm_plan_step *s, int i) {
  const lm_plan_comm *c = s->comm;
  bool rows = c->kind == LM_COLL_EXCHANGE_ROWS;
  return (lm_coll){
      .kind = c->kind,
      .dtype = c->dtype,
      .op = c->op,
      .group = c->group,
      .count = lm_plan_comm_count(s, i),
      .from = s->n_read ? w->pointers[i] : NULL,
      .to = s->n_write ? w->pointers[s->n_read + i] : NULL,
      .peer = c->peer,
      .apart = c->lane != 0,
      .send = rows ? (const int32_t *)w->pointers[1] : NULL,
      .receive = rows ? (const int32_t *)w->pointers[2] : NULL,
      .from_rows = rows ? lm_plan_comm_rows(s, 0) : 0,
      .to_rows = rows ? lm_plan_comm_rows(s, s->n_read) : 0,
      .label = s->label,
  };
}

static lm_status collective_start(worker *w, const lm_plan_step *s, int *out_handle) {
  lm_coll x[LM_COLL_BUCKET];
  int n = lm_plan_comm_tensors(s->comm);
  for (int i = 0; i < n; i++)
    x[i] = collective_of(w, s, i);
  return lm_comm_start_bucket(w->e->comm, x, n, out_handle);
}

static lm_status collective_run(worker *w, const lm_plan_step *s) {
  int handle = lm_plan_comm_handle(s->comm, w->walk.iteration);
  if (!w->e->comm)
    return lm_fail(LM_BUG_STATUS, "%s: there is one process", s->label);
  LM_ASSERT(handle < LM_PLAN_HANDLES);
  int *own = &w->e->handles[handle];
  lm_status status =
      s->kind == LM_STEP_START ? collective_start(w, s, own) : lm_comm_wait(w->e->comm, *own);
  w->e->comm_failed = status != NULL;
  return status;
}

static bool is_collective(const lm_plan_step *s) {
  return s->kind == LM_STEP_START || s->kind == LM_STEP_WAIT;
}

static lm_status step_do(worker *w, const lm_plan_step *s, lm_share *share) {
  for (int i = 0; i < s->n_bufs; i++)
    w->pointers[i] = address(w, &s->bufs[i]);
  switch (s->kind) {
  case LM_STEP_KERNEL: kernel_run(w, s, share); return NULL;
  case LM_STEP_GEMM:
    lm_cpu_gemm_share(w->e->gemms, s->gemm, lm_plan_walk_overwrites(&w->walk, s), w->walk.var,
                      w->pointers[0], w->pointers[1], (const int32_t *)w->pointers[2],
                      w->pointers[s->n_read], share);
    return NULL;
  case LM_STEP_FILL:
    lm_cpu_fill(w->pointers[0], s->bytes, s->pattern, s->element, share);
    return NULL;
  case LM_STEP_COPY:
  case LM_STEP_ADD: return copy_run(w, s, share);
  case LM_STEP_LOOP: *(int32_t *)w->pointers[0] = lm_plan_walk_index(&w->walk, s); return NULL;
  case LM_STEP_START:
  case LM_STEP_WAIT: return share->me ? NULL : collective_run(w, s);
  default: LM_BUG("step of kind %d", (int)s->kind);
  }
}

// A thread can be one barrier ahead of another that still reads its time of arrival, not two.
static void barrier(worker *w) {
  cpu_exec *e = w->e;
  int parity = w->passed++ % 2;
  w->arrived[parity] = lm_timeline_now(e->timeline);
  if (w->share.all > 1)
    lm_team_barrier(e->team, w->share.me);
  w->since = w->arrived[parity];
  for (int i = 0; e->timeline && i < w->share.all; i++)
    if (e->workers[i].arrived[parity] > w->since)
      w->since = e->workers[i].arrived[parity];
}

// ---- spans of threads, for profiles

static bool wants_threads(const lm_timeline *t) {
  return t && t->threads;
}

static void span_keep(worker *w, const lm_plan_step *s, double start, double end) {
  if (!wants_threads(w->e->timeline) || w->share.all == 1)
    return;
  if (w->n_spans == w->cap_spans) {
    w->cap_spans = w->cap_spans ? 2 * w->cap_spans : 256;
    w->spans = lm_realloc(w->spans, w->cap_spans * sizeof *w->spans);
  }
  w->spans[w->n_spans++] = (thread_span){s, start, end, lm_now()};
}

// The timeline belongs to the first thread, so the spans of all threads are added after the run.
static void spans_report(worker *w, lm_timeline *t) {
  for (uint32_t i = 0; i < w->n_spans; i++) {
    const thread_span *x = &w->spans[i];
    lm_timeline_span(
        t, (lm_span){x->step->label, NULL, x->start, x->end, LM_ROW_THREAD, -1, w->share.me});
    lm_timeline_span(t, (lm_span){"wait", NULL, x->end, x->passed, LM_ROW_THREAD, -1, w->share.me});
  }
  w->n_spans = 0;
}

// ---- running a step on all threads

// If a step fails, all threads must stop at that step, so a step that can fail runs on all of them.
static bool can_fail(const lm_plan_step *s) {
  bool moves = s->kind == LM_STEP_COPY || s->kind == LM_STEP_ADD;
  return is_collective(s) || (moves && s->move->at_dim >= 0);
}

// A shared step takes the time from the last arrival of a thread at the barrier before it to the
// last arrival at its own: where threads take pieces, one that the system has suspended does not
// begin before another has finished them, and would measure too short a time by itself.
static lm_status step_run(void *user, const lm_plan_step *s) {
  worker *w = user;
  bool first = w->share.me == 0;
  lm_timeline *timeline = first ? w->e->timeline : NULL;
  lm_status status = NULL;
  if (is_small(s) && !can_fail(s)) {
    lm_share alone = lm_share_alone();
    double start = lm_timeline_now(timeline);
    w->behind = true;
    if (first)
      status = step_do(w, s, &alone);
    if (s->kind != LM_STEP_LOOP)
      lm_timeline_add(timeline, LM_ROW_STEP, s->label, s, -1, start);
    return status;
  }
  if (w->behind)
    barrier(w);
  w->behind = false;
  double begin = w->since;
  double start = lm_timeline_now(w->e->timeline);
  status = step_do(w, s, &w->share);
  barrier(w);
  if (is_collective(s) && !first && w->e->comm_failed)
    status = lm_fail(LM_ENV, "%s: the first thread reports it", s->label);
  span_keep(w, s, start, w->arrived[(w->passed - 1) % 2]);
  if (timeline)
    lm_timeline_span(timeline, (lm_span){s->label, s, begin, w->since, LM_ROW_STEP, -1, 0});
  return status;
}

typedef struct call {
  cpu_exec *e;
  const lm_plan_func *f;
  const int64_t *extents;
  int threads;
  double start; // 0 without a timeline
} call;

static void worker_run(void *user, int me) {
  const call *c = user;
  worker *w = &c->e->workers[me];
  w->share = (lm_share){.tickets = c->e->tickets, .me = me, .all = c->threads};
  w->behind = false;
  w->passed = 0;
  w->since = c->start;
  w->walk.first = c->e->hal.first;
  w->status = lm_plan_walk_run(&w->walk, c->f, c->extents, step_run, w);
}

// All threads fail at the same step with the same message; the first one's is returned.
static lm_status workers_status(cpu_exec *e, int threads) {
  for (int i = 1; i < threads; i++)
    lm_status_free(e->workers[i].status);
  return e->workers[0].status;
}

static lm_status run(lm_exec *hal, const lm_plan_func *f, const int64_t *extents) {
  cpu_exec *e = (cpu_exec *)hal;
  call c = {e, f, extents, e->alone[f - e->plan->funcs] ? 1 : e->threads,
            lm_timeline_now(e->timeline)};
  lm_tickets_clear(e->tickets, e->threads);
  memset(e->written, true, sizeof e->written);
  if (c.threads == 1)
    worker_run(&c, 0);
  else
    lm_team_run(e->team, worker_run, &c);
  for (int i = 0; i < c.threads; i++)
    spans_report(&e->workers[i], e->timeline);
  lm_timeline_add(e->timeline, LM_ROW_FUNC, f->name, NULL, -1, c.start);
  return workers_status(e, c.threads);
}

static const lm_exec_ops OPS = {.destroy = destroy,
                                .run = run,
                                .read = arena_read,
                                .write = arena_write,
                                .arena_clear = arena_clear,
                                .port = port,
                                .threads = threads,
                                .kernels_compiled = kernels_compiled};

// ---- the backend

static lm_status find(lm_target *out) {
  lm_cpu_target_find(out);
  return NULL;
}

static double peak(const lm_target *t, int threads, lm_dtype dtype) {
  return lm_cpu_peak(threads, dtype);
}

static int64_t memory(const lm_target *t) {
  return t->memory; // what other processes use can be freed, or swapped
}

static lm_status create(const lm_plan *plan, const lm_target *t, const lm_exec_options *o,
                        lm_exec **out) {
  return lm_cpu_exec_create(plan, o, out);
}

const lm_runtime lm_cpu_runtime = {.find = find,
                                   .measure = lm_cpu_measure,
                                   .peak = peak,
                                   .create = create,
                                   .memory = memory,
                                   .workspace = workspace};
