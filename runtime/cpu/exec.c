// exec.c - runs the steps of a plan on the CPU.
//
// Each step is one parallel region; steps too small to be worth one run on the calling thread. A thread takes a contiguous
// range of a kernel's parallel space.
#include "runtime/cpu/exec.h"

#include <omp.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/cpu/gemm.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/move.h"
#include "runtime/plan/walk.h"

enum { HUGE_PAGE = 2 << 20 };
static const double ALONE = 20e-6;     // seconds of work below which one thread does it

typedef struct mapping { void *base; size_t bytes; char *start; } mapping;

typedef struct cpu_exec {
  lm_exec hal;
  const lm_plan *plan;
  int threads;
  lm_kernels kernels;
  mapping arenas[LM_ARENAS];
  lm_timeline *timeline;               // NULL: nobody looks
  char **pointers;                     // of the step being run
  lm_plan_walk walk;
  lm_cpu_gemms *gemms;
} cpu_exec;

// ---- arenas

static const char *const ARENA_NAMES[LM_ARENAS] = {
    "parameters", "gradients", "optimizer state", "arguments and results", "activations", "caches"};

// Aligned to huge pages, since the kernel backs only whole ones.
static bool mapping_make(int64_t bytes, mapping *out) {
  if (!bytes) return true;
  size_t size = (size_t)bytes, whole = size + (size >= HUGE_PAGE ? HUGE_PAGE : 0);
  void *p = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return false;
  *out = (mapping){p, whole, p};
  if (size >= HUGE_PAGE) {
    out->start = (char *)(((uintptr_t)p + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
    madvise(out->start, size, MADV_HUGEPAGE);   // advice: refusal costs only speed
  }
  return true;
}

static lm_status arenas_make(cpu_exec *e) {
  for (int i = 0; i < LM_ARENAS; i++) {
    if (mapping_make(e->plan->arena_bytes[i], &e->arenas[i])) continue;
    lm_status s =
        lm_fail_errno("cannot allocate %.1f MB for %s", (double)e->plan->arena_bytes[i] * 1e-6, ARENA_NAMES[i]);
    lm_buf sizes = {0};
    for (int j = 0; j < LM_ARENAS; j++)
      lm_buf_printf(&sizes, "%s%s %.1f MB", j ? ", " : "", ARENA_NAMES[j], (double)e->plan->arena_bytes[j] * 1e-6);
    s = lm_annotate(s, "the plan needs %s", sizes.p);
    lm_buf_free(&sizes);
    return s;
  }
  return NULL;
}

// ---- life

int64_t lm_cpu_workspace(int threads) {
  return (int64_t)(threads > 0 ? threads : omp_get_num_procs()) * lm_cpu_gemm_scratch();
}

static void gemms_make(cpu_exec *e) {
  int before = omp_get_max_threads();
  omp_set_num_threads(1);
  e->gemms = lm_cpu_gemms_create(&(lm_cpu_gemm_options){.threads = e->threads});
  for (int i = 0; i < e->plan->n_funcs; i++)
    for (int j = 0; j < e->plan->funcs[i].n_steps; j++)
      if (e->plan->funcs[i].steps[j].gemm) lm_cpu_gemm_prepare(e->gemms, e->plan->funcs[i].steps[j].gemm);
  omp_set_num_threads(before);
}

static const lm_exec_ops OPS;

lm_status lm_exec_create(const lm_plan *plan, const lm_exec_options *o, lm_exec **out) {
  static const lm_exec_options defaults = {0};
  if (!o) o = &defaults;
  cpu_exec *e = lm_alloc(sizeof *e);
  e->hal.ops = &OPS;
  e->plan = plan;
  e->threads = o->threads > 0 ? o->threads : omp_get_num_procs();
  e->pointers = lm_calloc((size_t)lm_plan_bufs_most(plan), sizeof *e->pointers);
  lm_plan_walk_open(plan, &e->walk);
  gemms_make(e);
  e->timeline = o->timeline;
  lm_status s = lm_kernels_load(plan, o, e->threads, &e->kernels);
  if (!s) s = arenas_make(e);
  if (s) lm_exec_destroy(&e->hal);
  *out = s ? NULL : &e->hal;
  return s;
}

static void destroy(lm_exec *hal) {
  cpu_exec *e = (cpu_exec *)hal;
  for (int i = 0; i < LM_ARENAS; i++)
    if (e->arenas[i].base) munmap(e->arenas[i].base, e->arenas[i].bytes);
  lm_kernels_unload(&e->kernels);
  lm_free(e->pointers);
  lm_plan_walk_close(&e->walk);
  lm_cpu_gemms_destroy(e->gemms);
  lm_free(e);
}

static void *arena(lm_exec *e, lm_arena_id id, bool change) { return ((cpu_exec *)e)->arenas[id].start; }

static void arena_clear(lm_exec *e, lm_arena_id id) {
  cpu_exec *own = (cpu_exec *)e;
  if (own->plan->arena_bytes[id]) memset(own->arenas[id].start, 0, (size_t)own->plan->arena_bytes[id]);
}

static void *port(lm_exec *e, const lm_plan_port *p) { return ((cpu_exec *)e)->arenas[p->buf.arena].start + p->buf.offset; }
static int threads(const lm_exec *e) { return ((const cpu_exec *)e)->threads; }
static int kernels_compiled(const lm_exec *e) { return ((const cpu_exec *)e)->kernels.compiled; }

// ---- steps

static char *address(const cpu_exec *e, const lm_plan_buf *b) { return e->arenas[b->arena].start + lm_plan_walk_offset(&e->walk, b); }

// A guess from the plan's counts, at 2 GFLOP/s of generated scalar code at worst and 10 GB/s.
static int threads_for(const cpu_exec *e, const lm_plan_step *s) {
  double work = (double)s->flops * 0.5e-9 + (double)s->moved * 0.1e-9;
  return work < ALONE && s->flops + s->moved > 0 ? 1 : e->threads;
}

static void kernel_run(cpu_exec *e, const lm_plan_step *s) {
  lm_kernel_fn *fn = e->kernels.fn[s->kernel];
  int64_t space = lm_plan_extent_value(&s->space, e->walk.var);
  int threads = threads_for(e, s);
  if (threads > space) threads = (int)space;
  if (threads <= 1) {
    if (space > 0) fn(e->pointers, e->walk.var, 0, space);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    int64_t me = omp_get_thread_num(), all = omp_get_num_threads();
    int64_t lo = space * me / all, hi = space * (me + 1) / all;
    if (lo < hi) fn(e->pointers, e->walk.var, lo, hi);
  }
}

static lm_status copy_run(cpu_exec *e, const lm_plan_step *s) {
  const lm_plan_move *m = s->move;
  int64_t at = 0;
  if (m->at_dim >= 0) {
    at = *(const int32_t *)e->pointers[1];
    int64_t more = lm_plan_extent_value(&m->dim[m->at_dim].size, e->walk.var);
    if (at < 0 || at + more > m->at_limit)
      return lm_fail(LM_USER, "%s: places %lld to %lld of a cache of %lld", s->label, (long long)at,
                     (long long)(at + more), (long long)m->at_limit);
  }
  lm_cpu_move(m, e->walk.var, e->pointers[0], e->pointers[s->n_read], at, s->kind == LM_STEP_ADD, e->threads);
  return NULL;
}

static void step_do(cpu_exec *e, const lm_plan_step *s) {
  switch (s->kind) {
  case LM_STEP_KERNEL: kernel_run(e, s); return;
  case LM_STEP_GEMM: lm_cpu_gemm(e->gemms, s->gemm, e->walk.var, e->pointers[0], e->pointers[1], e->pointers[2]); return;
  case LM_STEP_FILL: lm_cpu_fill(e->pointers[0], s->bytes, s->pattern, s->element, e->threads); return;
  case LM_STEP_LOOP: *(int32_t *)e->pointers[0] = lm_plan_walk_index(&e->walk, s); return;
  default: LM_BUG("step of kind %d", (int)s->kind);
  }
}

static lm_status step_run(void *user, const lm_plan_step *s) {
  cpu_exec *e = user;
  double start = lm_timeline_now(e->timeline);
  for (int i = 0; i < s->n_bufs; i++) e->pointers[i] = address(e, &s->bufs[i]);
  if (s->kind == LM_STEP_COPY || s->kind == LM_STEP_ADD) LM_TRY(copy_run(e, s));
  else step_do(e, s);
  if (s->kind != LM_STEP_LOOP) lm_timeline_add(e->timeline, LM_ROW_STEP, s->label, s, -1, start);
  return NULL;
}

static lm_status run(lm_exec *hal, const lm_plan_func *f, const int64_t *extents) {
  cpu_exec *e = (cpu_exec *)hal;
  int before = omp_get_max_threads();
  omp_set_num_threads(1);   // inherited by our regions: what libraries open inside them has one thread
  double start = lm_timeline_now(e->timeline);
  lm_status s = lm_plan_walk_run(&e->walk, f, extents, step_run, e);
  lm_timeline_add(e->timeline, LM_ROW_FUNC, f->name, NULL, -1, start);
  omp_set_num_threads(before);
  return s;
}

static const lm_exec_ops OPS = {.destroy = destroy,
                                .run = run,
                                .arena = arena,
                                .arena_clear = arena_clear,
                                .port = port,
                                .threads = threads,
                                .kernels_compiled = kernels_compiled};
