// exec_run.c - the CUDA executor runs functions: launches their steps, records and replays graphs,
// and reports failures of the device, which become known at a synchronization.
#include "runtime/cuda/exec_state.h"

#include <string.h>

#include "runtime/cuda/map.h"
#include "runtime/cuda/nvtx.h"

// ---- failures

lm_status cuda_exec_failure_copy(const cuda_exec *e) {
  return e->failed ? lm_fail(e->failed->kind, "%s", e->failed->text) : NULL;
}

// Records the first failure and returns a copy of it; takes s.
lm_status cuda_exec_fail(cuda_exec *e, lm_status s) {
  if (!s)
    return NULL;
  if (e->failed)
    lm_status_free(s);
  else
    e->failed = s;
  return cuda_exec_failure_copy(e);
}

// "micro: kernel k12ab (llama.lm:12,13)"; kernels that copy parameters have no origin
static void step_name(const cuda_exec *e, const lm_plan_step *s, lm_buf *out) {
  int kernel = lm_plan_step_kernel(s);
  const lm_plan_kernel *k = kernel >= 0 ? &e->plan->kernels[kernel] : NULL;
  lm_buf_printf(out, "%s: ", e->func->name);
  if (k)
    lm_buf_printf(out, "kernel %s", k->name);
  if (k && k->origin && *k->origin)
    lm_buf_printf(out, " (%s)", k->origin);
  if (!k)
    lm_buf_puts(out, s->label ? s->label : "a step");
}

static lm_status step_failed(const cuda_exec *e, const lm_plan_step *s, lm_status status) {
  if (!status)
    return NULL;
  lm_buf name = {0};
  step_name(e, s, &name);
  status = lm_annotate(status, "%s", name.p);
  lm_buf_free(&name);
  return status;
}

static lm_status fault_status(const cuda_exec *e) {
  const lm_plan_step *s = &e->may_fault->steps[e->fault[0] - 1];
  return lm_fail(LM_USER, "%s: position %d is outside of a cache of %lld", s->label, e->fault[1],
                 (long long)s->move->at_limit);
}

// Kernels run asynchronously, so it is not known which one failed. The message names the functions
// since the last synchronization: "micro … update".
static lm_status sync_failed(cuda_exec *e, int result) {
  const char *first = e->first_pending ? e->first_pending->name : "copying";
  const char *last = e->first_pending ? e->func->name : first;
  bool one = !strcmp(first, last);
  return cuda_exec_fail(e, lm_cuda_check(&e->d, result,
                                         "%s%s%s failed on %s; LMC_CUDA_SYNC=1 names the kernel",
                                         first, one ? "" : " … ", one ? "" : last, e->device.name));
}

// Waits for the event; NULL: for the stream.
static lm_status device_wait(cuda_exec *e, void *event, int *result) {
  if (e->nccl)
    return lm_nccl_wait(e->nccl, event, result);
  *result = event ? e->d.cuEventSynchronize(event) : e->d.cuStreamSynchronize(e->stream);
  return NULL;
}

// Synchronizes with the stream.
lm_status cuda_exec_synchronize(cuda_exec *e) {
  int result = 0;
  if (e->failed)
    return cuda_exec_failure_copy(e);
  e->deferring = false;
  LM_TRY(cuda_exec_fail(e, cuda_exec_flush(e)));
  LM_TRY(cuda_exec_fail(e, device_wait(e, NULL, &result)));
  if (result)
    return sync_failed(e, result);
  e->first_pending = NULL;
  if (e->fault && e->fault[0])
    return cuda_exec_fail(e, fault_status(e));
  return NULL;
}

// ---- steps

void cuda_exec_pointers_find(cuda_exec *e, const lm_plan_step *s) {
  for (int i = 0; i < s->n_bufs; i++)
    e->pointers[i] =
        e->memory.at[s->bufs[i].arena] + (uint64_t)lm_plan_walk_offset(&e->walk, &s->bufs[i]);
}

// By which a kernel names the step in a fault.
static int32_t step_number(const cuda_exec *e, const lm_plan_step *s) {
  return (int32_t)(s - e->func->steps) + 1;
}

static lm_status kernel_launch(cuda_exec *e, const lm_plan_step *s) {
  int kernel = lm_plan_step_kernel(s);
  const lm_plan_launch *l = &e->plan->kernels[kernel].launch;
  int64_t space = lm_plan_extent_value(&s->space, e->walk.var);
  int64_t blocks = l->blocks ? l->blocks : (space + l->per_block - 1) / l->per_block;
  int32_t adds = !lm_plan_walk_overwrites(&e->walk, s), number = step_number(e, s);
  lm_cuda_map maps[LM_PLAN_MAPS];
  int n = 0;
  if (!blocks)
    return NULL;
  if (blocks > INT32_MAX)
    return lm_fail(LM_ENV, "%lld blocks exceed the limit of a launch", (long long)blocks);
  for (; n < s->n_bufs; n++)
    e->params[n] = &e->pointers[n];
  for (int i = 0; i < e->plan->n_extents; i++)
    if (l->extents >> i & 1)
      e->params[n++] = &e->extent_at[i];
  for (int i = 0; i < l->n_maps; i++) {
    LM_TRY(
        lm_cuda_map_make(&e->d, &l->maps[i], e->pointers[l->maps[i].buf], e->walk.var, &maps[i]));
    e->params[n++] = &maps[i];
  }
  if (l->adds)
    e->params[n++] = &adds;
  if (l->appends) {
    e->params[n++] = &e->builtins.fault;
    e->params[n++] = &number;
  }
  lm_cuda_launch launch = {
      .blocks = (unsigned)blocks,
      .threads = (unsigned)l->threads,
      .shared = (unsigned)l->shared,
      .early = e->behind_kernel && e->early[kernel],
  };
  LM_TRY(lm_cuda_kernel_launch(&e->d, e->stream, e->functions[kernel], &launch, e->params));
  e->behind_kernel = true;
  return NULL;
}

static lm_status move_launch(cuda_exec *e, const lm_plan_step *s) {
  lm_cuda_address at = s->move->at_dim >= 0 ? e->pointers[1] : 0;
  bool adds = s->kind == LM_STEP_ADD && !lm_plan_walk_overwrites(&e->walk, s);
  return lm_cuda_move(&e->builtins, s->move, e->walk.var, e->pointers[0], at,
                      e->pointers[s->n_read], adds, step_number(e, s));
}

static lm_status transfer_enqueue(cuda_exec *e, const lm_plan_step *s) {
  int64_t iteration = e->walk.iteration;
  if (s->kind == LM_STEP_WAIT)
    return lm_cuda_lanes_wait(&e->lanes, s, iteration);
  if (lm_plan_step_copies(s))
    return lm_cuda_lanes_copy(&e->lanes, s, iteration, e->pointers[0], e->pointers[1]);
  if (!e->nccl)
    return lm_fail(LM_BUG_STATUS, "%s: the ranks are not connected", s->label);
  if (s->comm->kind != LM_COLL_EXCHANGE_ROWS)
    return lm_nccl_start(e->nccl, s, iteration, e->pointers, NULL);
  lm_coll rows = {
      .group = s->comm->group,
      .send = (const int32_t *)(uintptr_t)e->pointers[1],
      .receive = (const int32_t *)(uintptr_t)e->pointers[2],
      .label = s->label,
  };
  LM_TRY(lm_cuda_counts_read(&e->counts, e->comm, e->nccl, &e->builtins, &rows));
  return lm_nccl_start(e->nccl, s, iteration, e->pointers, &rows);
}

static lm_status step_enqueue(cuda_exec *e, const lm_plan_step *s) {
  if (lm_plan_step_kernel(s) >= 0)
    return kernel_launch(e, s);
  e->behind_kernel = false;
  switch (s->kind) {
  case LM_STEP_GEMM:
    return lm_cuda_gemm(e->gemms, s, lm_plan_walk_overwrites(&e->walk, s), e->walk.var, e->pointers,
                        e->memory.workspace);
  case LM_STEP_COPY:
  case LM_STEP_ADD: return move_launch(e, s);
  case LM_STEP_FILL: return lm_cuda_fill(&e->builtins, e->pointers[0], s);
  case LM_STEP_LOOP:
    return lm_cuda_check(&e->d,
                         e->d.cuMemsetD32Async(e->pointers[0],
                                               (unsigned)lm_plan_walk_index(&e->walk, s), 1,
                                               e->stream),
                         "an index");
  case LM_STEP_START:
  case LM_STEP_WAIT: return transfer_enqueue(e, s);
  case LM_STEP_KERNEL:
  case LM_STEP_END: break;
  }
  LM_BUG("step of kind %d", (int)s->kind);
}

static lm_status mark_add(cuda_exec *e, const lm_plan_step *s) {
  if (e->n_marks == e->n_events) {
    mark m = {0};
    LM_TRY(lm_cuda_check(&e->d, e->d.cuEventCreate(&m.event, 0), "an event"));
    LM_PUSH(e->arena, e->marks, e->n_events, e->cap_marks) = m;
  }
  mark *m = &e->marks[e->n_marks++];
  m->step = s;
  e->behind_kernel = false;
  return lm_cuda_check(&e->d, e->d.cuEventRecord(m->event, e->stream), "an event");
}

static lm_status step_wait(cuda_exec *e) {
  int result = 0;
  LM_TRY(device_wait(e, NULL, &result));
  return lm_cuda_check(&e->d, result, "on %s", e->device.name);
}

static lm_status step_run(void *user, const lm_plan_step *s) {
  cuda_exec *e = user;
  cuda_exec_pointers_find(e, s);
  if (e->timeline)
    lm_nvtx_push(s->label ? s->label : "a step");
  for (int i = s->n_read; i < s->n_bufs; i++)
    lm_cuda_counts_written(&e->counts, e->pointers[i], s->bufs[i].bytes);
  lm_status status = step_enqueue(e, s);
  if (e->timeline)
    lm_nvtx_pop();
  if (e->sync)
    e->behind_kernel = false;
  if (!status && e->sync)
    status = step_wait(e);
  if (status)
    return step_failed(e, s, status);
  return e->timeline ? mark_add(e, s) : NULL;
}

// ---- functions

// Extents are counts of elements, so their upper words stay 0.
static lm_status extents_send(cuda_exec *e, const lm_plan_func *f, const int64_t *extents) {
  LM_TRY(lm_plan_walk_extents(&e->walk, f, extents));
  for (int i = 0; i < e->plan->n_extents; i++) {
    int64_t n = e->walk.var[i];
    if (n == e->extents_sent[i])
      continue;
    if (n > INT32_MAX)
      return lm_fail(LM_ENV, "extent %s of %lld exceeds the limit of a GPU",
                     e->plan->extents[i].name, (long long)n);
    LM_TRY(lm_cuda_check(&e->d, e->d.cuMemsetD32Async(e->extent_at[i], (unsigned)n, 1, e->stream),
                         "an extent"));
    e->extents_sent[i] = n;
  }
  return NULL;
}

// Writes the numbers of the rule to the device, if they have changed.
static lm_status rule_take(cuda_exec *e, cuda_work *w) {
  const lm_scale_rule *r = e->rule;
  lm_cuda_rule now = {r->loss_scale, r->clip, r->limit};
  e->rule = NULL;
  w->norm = r->norm;
  w->scale = r->scale;
  w->sum = r->sum;
  w->weight = r->weight;
  if (!memcmp(&now, &e->rule_sent, sizeof now))
    return NULL;
  for (int i = 0; i < e->deferred.n; i++)
    if (e->deferred.work[i].scale)
      LM_TRY(cuda_exec_flush(e)); // which reads the rule before
  e->rule_sent = now;
  return lm_cuda_rule_send(&e->builtins, &now, cuda_exec_rule(e));
}

static lm_status work_enqueue(cuda_exec *e, const cuda_work *w, const int64_t *extents) {
  const lm_plan_func *f = w->f;
  lm_cuda_address io = e->memory.at[LM_ARENA_IO];
  if (w->adds)
    return lm_cuda_totals_add(&e->builtins, f, io, e->totals, w->first);
  e->func = f;
  lm_cuda_counts_forget(&e->counts);
  e->walk.first = w->first;
  e->behind_kernel = false;
  lm_scale_rule rule = {
      .sum = w->sum,
      .weight = w->weight,
      .norm = w->norm,
      .scale = w->scale,
  };
  if (w->scale)
    LM_TRY(lm_cuda_totals_scale(&e->builtins, &rule, io, e->totals, cuda_exec_rule(e)));
  if (e->timeline)
    LM_TRY(mark_add(e, NULL));
  LM_TRY(lm_plan_walk_run(&e->walk, f, extents, step_run, e));
  LM_TRY(lm_cuda_memory_end(&e->memory, f));
  if (!e->funcs[f - e->plan->funcs].may_fault)
    return NULL;
  return lm_cuda_check(
      &e->d,
      e->d.cuMemcpyDtoHAsync_v2(e->fault, e->builtins.fault, 2 * sizeof *e->fault, e->stream),
      "results from the GPU");
}

// ---- work that the device starts together, as a graph

static func_state *state_of(const cuda_exec *e, const cuda_work *w) {
  return &e->funcs[w->f - e->plan->funcs];
}

static bool is_same(const cuda_work *a, const cuda_work *b) {
  bool rule = a->norm == b->norm && a->scale == b->scale;
  rule = rule && a->sum == b->sum && a->weight == b->weight;
  return a->f == b->f && a->adds == b->adds && a->first == b->first && rule;
}

static bool is_same_list(const cuda_graph *a, const cuda_graph *b) {
  bool same = a->n == b->n;
  for (int i = 0; same && i < a->n; i++)
    same = is_same(&a->work[i], &b->work[i]);
  return same;
}

static cuda_graph *seen_find(cuda_exec *e, const cuda_graph *list) {
  for (uint32_t i = 0; i < e->n_seen; i++)
    if (is_same_list(&e->seen[i], list))
      return &e->seen[i];
  LM_PUSH(e->arena, e->seen, e->n_seen, e->cap_seen) = *list;
  return &e->seen[e->n_seen - 1];
}

static lm_status list_enqueue(cuda_exec *e, const cuda_graph *g) {
  for (int i = 0; i < g->n; i++)
    LM_TRY(work_enqueue(e, &g->work[i], NULL));
  return NULL;
}

static lm_status list_run(cuda_exec *e, const cuda_graph *g) {
  lm_status s = NULL;
  for (int i = 0; !s && i < g->n; i++) {
    bool shown = !g->work[i].adds;
    if (shown)
      lm_nvtx_push(g->work[i].f->name);
    s = work_enqueue(e, &g->work[i], NULL);
    if (shown)
      lm_nvtx_pop();
    state_of(e, &g->work[i])->has_run |= shown;
  }
  return s;
}

// The first run of a function asks the library for its GEMMs, which is no part of a graph.
static bool can_record(const cuda_exec *e, const cuda_graph *g) {
  bool can = e->graphs;
  for (int i = 0; i < g->n; i++)
    can = can && (g->work[i].adds || state_of(e, &g->work[i])->has_run);
  return can;
}

static lm_status graph_record(cuda_exec *e, cuda_graph *g, const char *name) {
  const lm_cuda_driver *d = &e->d;
  void *graph = NULL;
  LM_TRY(lm_cuda_check(d, d->cuStreamBeginCapture_v2(e->stream, LM_CU_CAPTURE_RELAXED),
                       "recording %s", name));
  lm_status s = list_enqueue(e, g);
  int result = d->cuStreamEndCapture(e->stream, &graph);
  if (!s)
    s = lm_cuda_check(d, result, "recording %s", name);
  if (!s)
    s = lm_cuda_check(d, d->cuGraphInstantiateWithFlags(&g->graph, graph, 0), "a graph of %s",
                      name);
  if (graph)
    d->cuGraphDestroy(graph);
  return s;
}

// The last function of the list is the current one afterwards, as without a graph.
static lm_status graph_launch(cuda_exec *e, cuda_graph *g) {
  const lm_plan_func *first = g->work[0].f, *last = g->work[g->n - 1].f;
  lm_buf name = {0};
  lm_buf_puts(&name, first->name);
  if (last != first)
    lm_buf_printf(&name, " … %s", last->name);
  lm_nvtx_push(name.p);
  lm_status s = g->graph ? NULL : graph_record(e, g, name.p);
  if (!s)
    s = lm_cuda_check(&e->d, e->d.cuGraphLaunch(g->graph, e->stream), "%s", name.p);
  lm_nvtx_pop();
  lm_buf_free(&name);
  e->func = last;
  return s;
}

lm_status cuda_exec_flush(cuda_exec *e) {
  cuda_graph list = e->deferred;
  e->deferred.n = 0;
  if (!list.n)
    return NULL;
  return can_record(e, &list) ? graph_launch(e, seen_find(e, &list)) : list_run(e, &list);
}

// The copies of arguments of a run are enqueued when it is deferred. They can come before the other
// deferred work, since no two functions share arguments or results. True if a run of f cannot be
// deferred behind that work.
static bool conflicts(const cuda_exec *e, const lm_plan_func *f) {
  bool runs = false;
  for (int i = 0; i < e->deferred.n; i++)
    runs |= e->deferred.work[i].f == f && !e->deferred.work[i].adds;
  return runs || e->deferred.n == CUDA_DEFERRED;
}

lm_status cuda_exec_add(cuda_exec *e, const cuda_work *w) {
  if (e->deferred.n == CUDA_DEFERRED)
    LM_TRY(cuda_exec_flush(e));
  e->deferred.work[e->deferred.n++] = *w;
  return e->deferring ? NULL : cuda_exec_flush(e);
}

static lm_status run(cuda_exec *e, const lm_plan_func *f, const int64_t *extents) {
  const func_state *x = &e->funcs[f - e->plan->funcs];
  cuda_work w = {
      .f = f,
      .first = e->hal.first && f->initializes,
  };
  if (!x->fixed || x->extents || conflicts(e, f))
    LM_TRY(cuda_exec_flush(e));
  e->func = f;
  void *sent = lm_cuda_memory_sent(&e->memory, f);
  int result = 0;
  if (sent)
    LM_TRY(device_wait(e, sent, &result));
  if (result)
    return sync_failed(e, result);
  LM_TRY(lm_cuda_memory_begin(&e->memory, f));
  if (e->rule) // after the copy of the arguments, one of which it overwrites
    LM_TRY(rule_take(e, &w));
  if (x->extents)
    LM_TRY(extents_send(e, f, extents));
  if (x->may_fault)
    e->may_fault = f;
  if (x->fixed)
    return cuda_exec_add(e, &w);
  lm_nvtx_push(f->name);
  lm_status s = work_enqueue(e, &w, extents);
  lm_nvtx_pop();
  return s;
}

// Converts the device's times between marks to the host's clock, such that the last step ends now.
static lm_status timeline_fill(cuda_exec *e, const lm_plan_func *f) {
  double end = lm_now();
  float all = 0, from = 0, to = 0;
  const lm_cuda_driver *d = &e->d;
  LM_TRY(lm_cuda_check(
      d, d->cuEventElapsedTime(&all, e->marks[0].event, e->marks[e->n_marks - 1].event),
      "times of %s", f->name));
  for (uint32_t i = 1; i < e->n_marks; i++, from = to) {
    const lm_plan_step *s = e->marks[i].step;
    LM_TRY(lm_cuda_check(d, d->cuEventElapsedTime(&to, e->marks[0].event, e->marks[i].event),
                         "times of %s", f->name));
    if (s->kind != LM_STEP_LOOP)
      lm_timeline_span(e->timeline, (lm_span){s->label, s, end - (all - from) * 1e-3,
                                              end - (all - to) * 1e-3, LM_ROW_STEP, -1});
  }
  lm_timeline_span(e->timeline, (lm_span){f->name, NULL, end - all * 1e-3, end, LM_ROW_FUNC, -1});
  return NULL;
}

lm_status cuda_exec_run(lm_exec *hal, const lm_plan_func *f, const int64_t *extents) {
  cuda_exec *e = (cuda_exec *)hal;
  if (e->failed)
    return cuda_exec_failure_copy(e);
  if (!e->first_pending)
    e->first_pending = f;
  e->n_marks = 0;
  LM_TRY(cuda_exec_fail(e, run(e, f, extents)));
  if (!e->timeline)
    return NULL;
  LM_TRY(cuda_exec_synchronize(e));
  return cuda_exec_fail(e, timeline_fill(e, f));
}
