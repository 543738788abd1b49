// exec.c - the CUDA executor: creation, memory as the host sees it, totals; see exec.h. exec_run.c
// runs functions.
#include "runtime/cuda/exec_state.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/processors.h"
#include "runtime/cuda/compile.h"
#include "runtime/cuda/nvtx.h"

static const lm_exec_ops OPS;

// ---- creation and destruction

static bool env_enabled(const char *name, bool by_default) {
  const char *text = getenv(name);
  return text && *text ? strcmp(text, "0") != 0 : by_default;
}

// *out: the context, also after an error, if it must be released.
static lm_status context_open(const lm_cuda_driver *d, const lm_cuda_device *x, void **out) {
  *out = NULL;
  LM_TRY(
      lm_cuda_check(d, d->cuDevicePrimaryCtxRetain(out, x->number), "%s cannot be used", x->name));
  return lm_cuda_check(d, d->cuCtxSetCurrent(*out), "%s cannot be used", x->name);
}

static lm_status device_open(cuda_exec *e, const char *arch, int device) {
  LM_TRY(lm_cuda_device_find(device, &e->d, &e->device));
  LM_TRY(lm_cuda_device_check(&e->device));
  if (arch && *arch && strcmp(arch, e->device.target.arch))
    return lm_fail(LM_ENV, "the plan is compiled for %s, but %s runs code for %s", arch,
                   e->device.name, e->device.target.arch);
  LM_TRY(context_open(&e->d, &e->device, &e->context));
  return lm_cuda_check(&e->d, e->d.cuStreamCreate(&e->stream, LM_CU_STREAM_NON_BLOCKING),
                       "a stream");
}

// The plan with a further kernel, whose source is the text of all builtins.
static lm_plan plan_extend(const cuda_exec *e) {
  lm_plan all = *e->plan;
  all.kernels = LM_NEW_N(e->arena, lm_plan_kernel, all.n_kernels + 1);
  if (all.n_kernels)
    memcpy(all.kernels, e->plan->kernels, sizeof *all.kernels * (size_t)all.n_kernels);
  all.kernels[all.n_kernels++] = (lm_plan_kernel){
      .name = "lm_builtin", .source = lm_cuda_builtin_text(e->arena), .origin = "the runtime"};
  return all;
}

static lm_status function_get(cuda_exec *e, void *module, const char *name, int64_t shared,
                              void **out) {
  LM_TRY(lm_cuda_check(&e->d, e->d.cuModuleGetFunction(out, module, name), "kernel %s", name));
  if (!shared)
    return NULL;
  return lm_cuda_check(&e->d, e->d.cuFuncSetAttribute(*out, LM_CU_DYNAMIC_SHARED, (int)shared),
                       "%lld bytes of shared memory for kernel %s", (long long)shared, name);
}

// Since CUDA 12.3 a recorded graph keeps it.
static bool may_begin_early(const cuda_exec *e) {
  enum {
    OLDEST = 12030
  };
  return e->device.major >= 9 && e->device.driver >= OLDEST && env_enabled("LMC_CUDA_EARLY", true);
}

static lm_status functions_get(cuda_exec *e, const lm_cuda_code *code) {
  int n = e->plan->n_kernels;
  e->functions = LM_NEW_N(e->arena, void *, n + LM_CUDA_BUILTIN_KERNELS);
  e->early = LM_NEW_N(e->arena, bool, n + 1);
  for (int i = 0; i < n; i++) {
    const lm_plan_kernel *k = &e->plan->kernels[i];
    LM_TRY(function_get(e, e->modules[code->kernels[i].image], k->name, k->launch.shared,
                        &e->functions[i]));
    e->early[i] = may_begin_early(e) && code->kernels[i].begins_first;
  }
  for (int i = 0; i < LM_CUDA_BUILTIN_KERNELS; i++)
    LM_TRY(function_get(e, e->modules[code->kernels[n].image], lm_cuda_builtin_names[i], 0,
                        &e->functions[n + i]));
  lm_cuda_builtins_set(&e->builtins, e->functions + n);
  return NULL;
}

static lm_status modules_load(cuda_exec *e, const lm_cuda_code *code) {
  e->modules = LM_NEW_N(e->arena, void *, code->n_images + 1);
  e->compiled = code->compiled;
  for (; e->n_modules < code->n_images; e->n_modules++)
    LM_TRY(lm_cuda_check(
        &e->d, e->d.cuModuleLoadData(&e->modules[e->n_modules], code->images[e->n_modules].bytes),
        "loading kernels on %s", e->device.name));
  return functions_get(e, code);
}

static void kernels_warn(const cuda_exec *e, const lm_cuda_code *code, const lm_exec_options *o) {
  for (int i = 0; o->warning && !e->check && i < e->plan->n_kernels; i++) {
    const lm_plan_kernel *k = &e->plan->kernels[i];
    lm_buf why = {0}, text = {0};
    if (lm_cuda_kernel_flaw(&code->kernels[i], &why)) {
      lm_buf_printf(&text, "kernel %s (%s) is slow on %s: %s", k->name, k->origin ? k->origin : "?",
                    e->device.name, why.p);
      o->warning(o->warning_user, text.p);
    }
    lm_buf_free(&why);
    lm_buf_free(&text);
  }
}

// A plan for another GPU of the same architecture may have kernels for which this one lacks memory.
static lm_status shared_check(const cuda_exec *e) {
  long long most = (long long)e->device.target.shared;
  for (int i = 0; most && i < e->plan->n_kernels; i++) {
    const lm_plan_kernel *k = &e->plan->kernels[i];
    if (k->launch.shared > most)
      return lm_fail(
          LM_ENV,
          "the plan is for another GPU: a block of kernel %s (%s) takes %lld bytes of "
          "shared memory, of which one on %s can have %lld; compile for it with --target "
          "cuda",
          k->name, k->origin ? k->origin : "?", (long long)k->launch.shared, e->device.name, most);
  }
  return NULL;
}

static lm_status kernels_make(cuda_exec *e, const lm_exec_options *o) {
  lm_plan all = plan_extend(e);
  lm_cuda_code code;
  LM_TRY(shared_check(e));
  LM_TRY(lm_cuda_compile(&all,
                         &(lm_cuda_compile_options){.arch = e->device.target.arch,
                                                    .driver = e->device.driver,
                                                    .threads = o->threads,
                                                    .dump_dir = o->dump_dir,
                                                    .load_dir = o->load_dir,
                                                    .check_waits = e->check},
                         &code));
  kernels_warn(e, &code, o);
  lm_status s = modules_load(e, &code);
  lm_cuda_code_free(&code);
  return s;
}

static bool extent_fixed(const lm_plan_extent *x) {
  return !x->n_dyn;
}

static bool step_fixed(const lm_plan_step *s) {
  const lm_plan_gemm *g = s->kind == LM_STEP_GEMM ? s->gemm : NULL;
  const lm_plan_move *m = s->kind == LM_STEP_COPY || s->kind == LM_STEP_ADD ? s->move : NULL;
  bool fixed = s->kind != LM_STEP_KERNEL || extent_fixed(&s->space);
  if (g)
    fixed = extent_fixed(&g->m) && extent_fixed(&g->n) && extent_fixed(&g->k);
  for (int i = 0; g && i < g->n_batch; i++)
    fixed = fixed && extent_fixed(&g->batch[i].size);
  for (int i = 0; m && i < m->rank; i++)
    fixed = fixed && extent_fixed(&m->dim[i].size);
  return fixed;
}

// A map of a tensor has its sizes.
static bool maps_fixed(const cuda_exec *e, int kernel) {
  const lm_plan_launch *l = &e->plan->kernels[kernel].launch;
  bool fixed = true;
  for (int i = 0; i < l->n_maps; i++)
    for (int k = 0; k < LM_PLAN_MAP_RANK; k++)
      fixed = fixed && extent_fixed(&l->maps[i].dim[k].size);
  return fixed;
}

static void func_describe(cuda_exec *e, const lm_plan_func *f, func_state *x) {
  x->fixed = true;
  cuda_exec_apart_find(e, f, x);
  for (int i = 0; i < f->n_steps; i++) {
    const lm_plan_step *s = &f->steps[i];
    int kernel = lm_plan_step_kernel(s);
    x->fixed = x->fixed && step_fixed(s) && (kernel < 0 || maps_fixed(e, kernel));
    x->extents |= kernel >= 0 && e->plan->kernels[kernel].launch.extents;
    x->may_fault |= s->move && s->move->at_dim >= 0;
  }
}

static lm_status fault_make(cuda_exec *e) {
  void *p;
  LM_TRY(lm_cuda_check(&e->d, e->d.cuMemAlloc_v2(&e->builtins.fault, 2 * sizeof *e->fault),
                       "%s cannot allocate any memory", e->device.name));
  LM_TRY(lm_cuda_check(&e->d, e->d.cuMemsetD32Async(e->builtins.fault, 0, 2, e->stream), "memory"));
  LM_TRY(
      lm_cuda_check(&e->d, e->d.cuMemHostAlloc(&p, 2 * sizeof *e->fault, 0), "pinned host memory"));
  e->fault = memset(p, 0, 2 * sizeof *e->fault);
  return NULL;
}

static lm_status extents_make(cuda_exec *e) {
  int n = e->plan->n_extents;
  e->extents_sent = LM_NEW_N(e->arena, int64_t, n + 1);
  e->extent_at = LM_NEW_N(e->arena, lm_cuda_address, n + 1);
  if (!n)
    return NULL;
  size_t bytes = (size_t)n * sizeof *e->extents_sent;
  LM_TRY(lm_cuda_check(&e->d, e->d.cuMemAlloc_v2(&e->extents, bytes),
                       "%s cannot allocate any memory", e->device.name));
  for (int i = 0; i < n; i++)
    e->extent_at[i] = e->extents + (uint64_t)i * sizeof *e->extents_sent;
  return lm_cuda_check(&e->d, e->d.cuMemsetD32Async(e->extents, 0, bytes / 4, e->stream), "memory");
}

static lm_status totals_make(cuda_exec *e) {
  void *p;
  size_t bytes = sizeof e->hal.totals + sizeof e->rule_sent;
  LM_TRY(lm_cuda_check(&e->d, e->d.cuMemAlloc_v2(&e->totals, bytes),
                       "%s cannot allocate any memory", e->device.name));
  LM_TRY(
      lm_cuda_check(&e->d, e->d.cuMemHostAlloc(&p, sizeof e->hal.totals, 0), "pinned host memory"));
  e->totals_read = p;
  return NULL;
}

static lm_status gemm_measure(void *user, const lm_plan_step *s) {
  cuda_exec *e = user;
  if (s->kind != LM_STEP_GEMM || s->gemm->code)
    return NULL;
  cuda_exec_pointers_find(e, s);
  return lm_cuda_gemm(e->gemms, s, false, e->walk.var, e->pointers, e->memory.workspace);
}

// Measures the GEMMs of functions that are recorded. All memory is zero at this time,
// and remains so.
static lm_status gemms_measure(cuda_exec *e) {
  lm_status s = lm_cuda_gemms_measure(e->gemms, true);
  for (int i = 0; !s && i < e->plan->n_funcs; i++)
    if (e->funcs[i].fixed)
      s = lm_plan_walk_run(&e->walk, &e->plan->funcs[i], NULL, gemm_measure, e);
  lm_status end = lm_cuda_gemms_measure(e->gemms, false);
  if (!s)
    return end ? end : cuda_exec_synchronize(e);
  lm_status_free(end);
  return s;
}

static int64_t workspace_bytes(void) {
  return LM_CUDA_WORKSPACE + LM_CUDA_SUMS;
}

// The ranks' coordinates are arguments of kernels.
static lm_status coordinates_write(cuda_exec *e) {
  const lm_plan_mesh *m = &e->plan->mesh;
  for (int k = 0; k < m->n; k++) {
    int32_t at = m->axis[k].at;
    if (m->axis[k].rank >= 0)
      LM_TRY(lm_cuda_memory_write(&e->memory, LM_ARENA_IO, m->axis[k].rank, sizeof at, &at));
  }
  return NULL;
}

static lm_status exec_make(cuda_exec *e, const char *arch, int device, const lm_exec_options *o) {
  const lm_plan *plan = e->plan;
  LM_TRY(device_open(e, arch, device));
  lm_nvtx_open();
  LM_TRY(kernels_make(e, o));
  e->builtins.driver = &e->d;
  e->builtins.stream = e->stream;
  LM_TRY(lm_cuda_gemms_create(&e->builtins, &e->device, o, &e->gemms));
  LM_TRY(fault_make(e));
  LM_TRY(totals_make(e));
  LM_TRY(extents_make(e));
  for (int i = 0; i < plan->n_funcs; i++)
    func_describe(e, &plan->funcs[i], &e->funcs[i]);
  LM_TRY(lm_cuda_memory_make(&e->memory, plan, &e->d, &e->device, e->stream, workspace_bytes()));
  LM_TRY(lm_cuda_lanes_open(&e->lanes, plan, &e->d, e->stream));
  LM_TRY(coordinates_write(e));
  LM_TRY(cuda_exec_synchronize(e));
  const lm_cuda_choices *choices = o->tuning;
  return choices && !choices->pinned ? gemms_measure(e) : NULL;
}

lm_status lm_cuda_exec_create(const lm_plan *plan, const char *arch, int device,
                              const lm_exec_options *o, lm_exec **out) {
  static const lm_exec_options defaults = {0};
  if (!o)
    o = &defaults;
  if (!o->comm)
    LM_TRY(lm_plan_of_one_process(plan));
  cuda_exec *e = lm_alloc(sizeof *e);
  *e = (cuda_exec){.hal.ops = &OPS,
                   .plan = plan,
                   .threads = lm_threads(o->threads),
                   .arena = lm_arena_create(),
                   .comm = o->comm,
                   .timeline = o->timeline};
  e->check = env_enabled("LMC_CUDA_CHECK", false);
  e->sync = env_enabled("LMC_CUDA_SYNC", false) || e->check;
  e->graphs = env_enabled("LMC_CUDA_GRAPHS", true) && !e->sync && !o->timeline;
  int max_bufs = lm_plan_bufs_max(plan);
  e->pointers = LM_NEW_N(e->arena, lm_cuda_address, max_bufs);
  e->params = LM_NEW_N(e->arena, void *, max_bufs + LM_COUNT(plan->extents) + LM_PLAN_MAPS + 3);
  e->funcs = LM_NEW_N(e->arena, func_state, plan->n_funcs + 1);
  lm_plan_walk_open(plan, &e->walk);
  lm_status s = exec_make(e, arch, device, o);
  if (s)
    lm_exec_destroy(&e->hal);
  *out = s ? NULL : &e->hal;
  return s;
}

static void destroy(lm_exec *hal) {
  cuda_exec *e = (cuda_exec *)hal;
  const lm_cuda_driver *d = &e->d;
  cuda_exec_graphs_free(e); // first: NCCL waits for those with its operations
  lm_nccl_close(e->nccl, e->failed != NULL);
  lm_cuda_counts_close(&e->counts, d);
  if (e->stream)
    d->cuStreamSynchronize(e->stream);
  for (uint32_t i = 0; i < e->n_events; i++)
    d->cuEventDestroy_v2(e->marks[i].event);
  lm_cuda_gemms_destroy(e->gemms);
  lm_cuda_lanes_close(&e->lanes);
  lm_cuda_memory_free(&e->memory);
  if (e->builtins.fault)
    d->cuMemFree_v2(e->builtins.fault);
  if (e->fault)
    d->cuMemFreeHost(e->fault);
  if (e->extents)
    d->cuMemFree_v2(e->extents);
  if (e->totals)
    d->cuMemFree_v2(e->totals);
  if (e->totals_read)
    d->cuMemFreeHost(e->totals_read);
  if (e->drawn)
    d->cuMemFree_v2(e->drawn);
  if (e->drawn_read)
    d->cuMemFreeHost(e->drawn_read);
  for (uint32_t i = 0; i < e->n_modules; i++)
    d->cuModuleUnload(e->modules[i]);
  if (e->stream)
    d->cuStreamDestroy_v2(e->stream);
  if (e->context)
    d->cuDevicePrimaryCtxRelease_v2(e->device.number);
  lm_status_free(e->failed);
  lm_plan_walk_close(&e->walk);
  lm_arena_destroy(e->arena);
  lm_free(e);
}

static lm_status wait(lm_exec *hal) {
  return cuda_exec_synchronize((cuda_exec *)hal);
}

// ---- access by the host. `wait` and `run` report failures.

static bool is_synchronized(cuda_exec *e) {
  lm_status s = cuda_exec_synchronize(e);
  lm_status_free(s);
  return !s;
}

static lm_status arena_read(lm_exec *hal, lm_arena_id id, int64_t offset, int64_t bytes, void *to) {
  cuda_exec *e = (cuda_exec *)hal;
  LM_TRY(cuda_exec_synchronize(e));
  return cuda_exec_fail(e, lm_cuda_memory_read(&e->memory, id, offset, bytes, to));
}

static lm_status arena_write(lm_exec *hal, lm_arena_id id, int64_t offset, int64_t bytes,
                             const void *from) {
  cuda_exec *e = (cuda_exec *)hal;
  LM_TRY(cuda_exec_synchronize(e));
  return cuda_exec_fail(e, lm_cuda_memory_write(&e->memory, id, offset, bytes, from));
}

static void arena_clear(lm_exec *hal, lm_arena_id id) {
  cuda_exec *e = (cuda_exec *)hal;
  if (e->failed)
    return;
  lm_status s = cuda_exec_flush(e);
  if (!s)
    s = lm_cuda_memory_clear(&e->memory, id);
  lm_status_free(cuda_exec_fail(e, s));
}

static void *port(lm_exec *hal, const lm_plan_port *p) {
  cuda_exec *e = (cuda_exec *)hal;
  if (p->buf.arena != LM_ARENA_IO)
    LM_BUG("port %s is not in the IO arena", p->name);
  if (!lm_cuda_memory_is_argument(&e->memory, p) && is_synchronized(e))
    lm_status_free(cuda_exec_fail(e, lm_cuda_memory_result(&e->memory, p)));
  return e->memory.io_host + p->buf.offset;
}

// ---- totals of a step

static lm_status totals_add(lm_exec *hal, const lm_plan_func *f, bool first) {
  cuda_exec *e = (cuda_exec *)hal;
  cuda_work w = {
      .f = f,
      .adds = true,
      .first = first,
  };
  if (e->failed)
    return cuda_exec_failure_copy(e);
  return cuda_exec_fail(e, cuda_exec_add(e, &w));
}

static lm_status totals_scale(lm_exec *hal, const lm_scale_rule *r) {
  ((cuda_exec *)hal)->rule = r;
  return NULL;
}

static lm_status totals_read(lm_exec *hal) {
  cuda_exec *e = (cuda_exec *)hal;
  if (!e->failed)
    LM_TRY(cuda_exec_fail(e, cuda_exec_flush(e)));
  if (!e->failed)
    LM_TRY(cuda_exec_fail(e, lm_cuda_check(&e->d,
                                           e->d.cuMemcpyDtoHAsync_v2(e->totals_read, e->totals,
                                                                     sizeof hal->totals, e->stream),
                                           "totals from the GPU")));
  LM_TRY(cuda_exec_synchronize(e));
  memcpy(hal->totals, e->totals_read, sizeof hal->totals);
  return NULL;
}

static lm_status totals_write(lm_exec *hal) {
  cuda_exec *e = (cuda_exec *)hal;
  if (e->failed)
    return cuda_exec_failure_copy(e);
  LM_TRY(cuda_exec_fail(e, cuda_exec_flush(e)));
  memcpy(e->totals_read, hal->totals, sizeof hal->totals);
  return cuda_exec_fail(e, lm_cuda_check(&e->d,
                                         e->d.cuMemcpyHtoDAsync_v2(e->totals, e->totals_read,
                                                                   sizeof hal->totals, e->stream),
                                         "totals to the GPU"));
}

// ---- a token from a row of logits

// The memory is not in use, since the last token has been awaited.
static lm_status drawn_make(cuda_exec *e, int64_t n) {
  const lm_cuda_driver *d = &e->d;
  size_t bytes = lm_cuda_draw_bytes(n);
  void *p;
  if (e->drawn_bytes < bytes) {
    if (e->drawn)
      d->cuMemFree_v2(e->drawn);
    e->drawn = e->drawn_bytes = 0;
    LM_TRY(lm_cuda_check(d, d->cuMemAlloc_v2(&e->drawn, bytes), "%s cannot allocate any memory",
                         e->device.name));
    e->drawn_bytes = bytes;
  }
  if (e->drawn_read)
    return NULL;
  LM_TRY(lm_cuda_check(d, d->cuMemHostAlloc(&p, sizeof *e->drawn_read, 0), "pinned host memory"));
  e->drawn_read = p;
  return NULL;
}

static lm_status draw_enqueue(cuda_exec *e, const lm_plan_port *p, int64_t row,
                              const lm_draw_rule *r) {
  int64_t n = p->shape[p->rank - 1];
  lm_dtype type = (lm_dtype)p->dtype;
  lm_cuda_address from =
      e->memory.at[p->buf.arena] + (uint64_t)(p->buf.offset + row * n * lm_dtype_bytes(type));
  LM_TRY(drawn_make(e, n));
  LM_TRY(lm_cuda_draw(&e->builtins, type, from, n, r, e->drawn));
  return lm_cuda_check(
      &e->d, e->d.cuMemcpyDtoHAsync_v2(e->drawn_read, e->drawn, sizeof *e->drawn_read, e->stream),
      "the token of %s", p->name);
}

static lm_status draw(lm_exec *hal, const lm_plan_port *p, int64_t row, const lm_draw_rule *r,
                      int32_t *out) {
  cuda_exec *e = (cuda_exec *)hal;
  if (e->failed)
    return cuda_exec_failure_copy(e);
  LM_TRY(cuda_exec_fail(e, cuda_exec_flush(e)));
  LM_TRY(cuda_exec_fail(e, draw_enqueue(e, p, row, r)));
  LM_TRY(cuda_exec_synchronize(e));
  *out = *e->drawn_read;
  return NULL;
}

// A collective is recorded on all ranks or on none: NCCL requires it.
static lm_status graphs_agree(cuda_exec *e) {
  int without = !e->graphs;
  LM_TRY(lm_comm_any(e->comm, "recording graphs", &without));
  e->graphs_of_ranks = !without;
  return NULL;
}

static lm_status connect(lm_exec *hal) {
  cuda_exec *e = (cuda_exec *)hal;
  if (!e->comm || e->nccl)
    return NULL;
  lm_status s = lm_nccl_open(e->comm, e->plan, &e->builtins, &e->lanes, &e->nccl);
  return cuda_exec_fail(e, s ? s : graphs_agree(e));
}

static void range(lm_exec *hal, const char *name) {
  if (name)
    lm_nvtx_push(name);
  else
    lm_nvtx_pop();
}

static void defer(lm_exec *hal) {
  cuda_exec *e = (cuda_exec *)hal;
  e->deferring = e->graphs;
}

static lm_status submit(lm_exec *hal) {
  cuda_exec *e = (cuda_exec *)hal;
  e->deferring = false;
  return e->failed ? cuda_exec_failure_copy(e) : cuda_exec_fail(e, cuda_exec_flush(e));
}

static int threads(const lm_exec *e) {
  return ((const cuda_exec *)e)->threads;
}
static int kernels_compiled(const lm_exec *e) {
  return ((const cuda_exec *)e)->compiled;
}

static const lm_exec_ops OPS = {.destroy = destroy,
                                .run = cuda_exec_run,
                                .wait = wait,
                                .read = arena_read,
                                .write = arena_write,
                                .arena_clear = arena_clear,
                                .port = port,
                                .threads = threads,
                                .kernels_compiled = kernels_compiled,
                                .connect = connect,
                                .range = range,
                                .defer = defer,
                                .submit = submit,
                                .totals_add = totals_add,
                                .totals_scale = totals_scale,
                                .totals_read = totals_read,
                                .totals_write = totals_write,
                                .draw = draw};

// ---- the backend

static lm_status find(lm_target *out) {
  lm_cuda_driver driver;
  lm_cuda_device device;
  LM_TRY(lm_cuda_device_find(0, &driver, &device));
  LM_TRY(lm_cuda_device_check(&device));
  *out = device.target;
  return NULL;
}

static void measure(lm_target *t, int threads, lm_dtype dtype) {
  // The figures are published, or known from the clocks.
}

static double peak(const lm_target *t, int threads, lm_dtype dtype) {
  return t->math[dtype].peak;
}

// A context exists meanwhile, as in an execution: it takes memory itself.
static lm_status memory_measure(int number, size_t *out_free) {
  lm_cuda_driver d;
  lm_cuda_device device;
  void *context;
  size_t total;
  LM_TRY(lm_cuda_device_find(number, &d, &device));
  lm_status s = context_open(&d, &device, &context);
  if (!s)
    s = lm_cuda_check(&d, d.cuMemGetInfo_v2(out_free, &total), "free memory");
  if (context)
    d.cuDevicePrimaryCtxRelease_v2(device.number);
  return s;
}

// Creating an executor reports why a device cannot be used.
static int64_t memory(const lm_target *t) {
  size_t bytes = 0;
  lm_status s = memory_measure(t->device, &bytes);
  bool known = !s;
  lm_status_free(s);
  return known ? (int64_t)bytes : 0;
}

static lm_status create(const lm_plan *plan, const lm_target *t, const lm_exec_options *o,
                        lm_exec **out) {
  return lm_cuda_exec_create(plan, t->arch, t->device, o, out);
}

static int64_t workspace(const lm_plan *plan, const lm_exec_options *o) {
  return workspace_bytes() + lm_nccl_workspace(plan);
}

const lm_runtime lm_cuda_runtime = {.find = find,
                                    .measure = measure,
                                    .peak = peak,
                                    .create = create,
                                    .memory = memory,
                                    .workspace = workspace};
