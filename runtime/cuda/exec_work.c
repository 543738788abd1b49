// exec_work.c - the CUDA executor enqueues the steps of functions.
#include "runtime/cuda/exec_state.h"
#include "runtime/cuda/map.h"
#include "runtime/cuda/nvtx.h"

lm_status cuda_exec_wait(cuda_exec *e, void *event, int *result) {
  if (e->nccl)
    return lm_nccl_wait(e->nccl, event, result);
  *result = event ? e->d.cuEventSynchronize(event) : e->d.cuStreamSynchronize(e->stream);
  return NULL;
}

// ---- names of steps

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
  LM_TRY(cuda_exec_wait(e, NULL, &result));
  return lm_cuda_check(&e->d, result, "on %s", e->device.name);
}

static lm_status step_run(void *user, const lm_plan_step *s) {
  cuda_exec *e = user;
  cuda_exec_pointers_find(e, s);
  if (e->timeline)
    lm_nvtx_push(s->label ? s->label : "a step");
  for (int i = s->n_read; i < s->n_bufs; i++)
    lm_cuda_counts_written(&e->counts, e->pointers[i], s->bufs[i].bytes);
  bool enqueues;
  lm_status status = cuda_exec_part(e, cuda_exec_is_apart(e, s), &enqueues);
  if (!status && enqueues)
    status = step_enqueue(e, s);
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

// The begin of a run: its argument `scale`.
static lm_status scale_enqueue(cuda_exec *e, const cuda_work *w) {
  bool enqueues = w->scale != NULL;
  lm_scale_rule rule = {
      .sum = w->sum,
      .weight = w->weight,
      .norm = w->norm,
      .scale = w->scale,
  };
  if (w->scale)
    LM_TRY(cuda_exec_part(e, false, &enqueues));
  if (!enqueues)
    return NULL;
  return lm_cuda_totals_scale(&e->builtins, &rule, e->memory.at[LM_ARENA_IO], e->totals,
                              cuda_exec_rule(e));
}

// The end of a run: copies of its results, and of a fault.
static lm_status results_enqueue(cuda_exec *e, const lm_plan_func *f) {
  bool enqueues;
  LM_TRY(cuda_exec_part(e, false, &enqueues));
  if (!enqueues)
    return NULL;
  LM_TRY(lm_cuda_memory_end(&e->memory, f));
  if (!e->funcs[f - e->plan->funcs].may_fault)
    return NULL;
  return lm_cuda_check(
      &e->d,
      e->d.cuMemcpyDtoHAsync_v2(e->fault, e->builtins.fault, 2 * sizeof *e->fault, e->stream),
      "results from the GPU");
}

static lm_status totals_enqueue(cuda_exec *e, const cuda_work *w) {
  bool enqueues;
  LM_TRY(cuda_exec_part(e, false, &enqueues));
  if (!enqueues)
    return NULL;
  return lm_cuda_totals_add(&e->builtins, w->f, e->memory.at[LM_ARENA_IO], e->totals, w->first);
}

lm_status cuda_exec_work(cuda_exec *e, const cuda_work *w, const int64_t *extents) {
  const lm_plan_func *f = w->f;
  if (w->adds)
    return totals_enqueue(e, w);
  e->func = f;
  lm_cuda_counts_forget(&e->counts);
  e->walk.first = w->first;
  e->behind_kernel = false;
  LM_TRY(scale_enqueue(e, w));
  if (e->timeline)
    LM_TRY(mark_add(e, NULL));
  LM_TRY(lm_plan_walk_run(&e->walk, f, extents, step_run, e));
  return results_enqueue(e, f);
}
