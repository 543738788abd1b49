// kernel.c - a kernel operation as one CUDA function: points, passes, the launch.
#include <string.h>
#include "codegen/common/attend.h"
#include "codegen/common/scan.h"
#include "codegen/cuda/emit.h"
#include "compiler/ir/dot.h"
#include "compiler/ir/scan.h"
#include "runtime/base/diag_code.h"

// ---- computing in place

// True if the access is ordered before the write of the element that it reads, in a later pass or
// in the same one. The threads of a team are ordered by the barrier between passes of two depths;
// within a pass the thread that reads an element also writes it, unless the pass has no loop: then
// all threads read and one writes. Without reductions all passes run concurrently.
static bool ordered_before(const cuda_emit *e, const lm_gen_access *a, int written) {
  const lm_sched_pass *passes = e->g.s->passes;
  bool alone = e->form == CUDA_TEAM && e->team == 1;
  if (!a->same || a->pass > written)
    return false;
  if (a->pass == written)
    return alone || e->g.domains[written].n > 0;
  return alone || (e->form == CUDA_TEAM && passes[a->pass].depth < passes[written].depth);
}

// True if every read of the operand is at the current indices of the loops and ordered before the
// write of the result.
static bool in_place(const cuda_emit *e, uint32_t operand, uint32_t result) {
  const lm_op *k = e->g.kernel;
  const lm_value *v = lm_kernel_yield(k)->in[result];
  lm_type type = k->out[result]->type;
  bool dense = !e->g.result_stride || !e->g.result_stride[result];
  if (!dense || e->transposed[result] || lm_kernel_result_summed(k, result) ||
      !lm_kernel_fits(e->g.m, k, operand, result))
    return false;
  if (v->def && lm_op_is_reduction(v->def))
    return false;
  int written = (int)e->g.s->n_passes;
  for (int i = (int)e->g.s->n_passes - 1; i >= 0; i--)
    if (lm_schedule_pass_writes(e->g.s, i, result))
      written = i;
  for (uint32_t i = 0; i < e->g.n_accesses; i++) {
    const lm_gen_access *a = &e->g.accesses[i];
    if (a->operand == (int)operand &&
        (!lm_type_equal(a->type, type) || !ordered_before(e, a, written)))
      return false;
  }
  return true;
}

bool cuda_kernel_in_place(const lm_plan_options *o, const lm_op *kernel, uint32_t operand,
                          uint32_t result) {
  const lm_module *m = lm_op_module(kernel);
  if (kernel->code != LM_OP_KERNEL || cuda_scatter_fits(m, kernel) || lm_kernel_dot(kernel) ||
      lm_kernel_mix(kernel))
    return false;
  lm_arena *temporary = lm_arena_create();
  cuda_emit *e = cuda_emit_make(o, kernel, NULL, temporary);
  bool fine = in_place(e, operand, result);
  cuda_flat_free(e);
  lm_gen_free(&e->g);
  lm_arena_destroy(temporary);
  return fine;
}

static bool may_alias(void *user, uint32_t operand) {
  const cuda_emit *e = user;
  for (uint32_t r = 0; r < e->g.kernel->n_out; r++)
    if (in_place(e, operand, r))
      return true;
  return false;
}

// ---- the function around the passes

static void params_add(cuda_emit *e, cuda_code *c) {
  if (e->scan)
    cuda_scan_params(e->scan, c);
  else
    cuda_params(&e->g, may_alias, e, c);
  if (e->rows)
    c->n_params = e->g.kernel->n_in; // the result is no parameter
  for (int i = 0; i < e->n_workspaces; i++)
    cuda_code_param(c, "void *", lm_arena_printf(c->arena, "w%d", i));
}

static void put_types(cuda_emit *e, lm_buf *b) {
  for (uint32_t i = 0; i < e->g.kernel->n_in + e->g.kernel->n_out; i++) {
    bool in = i < e->g.kernel->n_in;
    uint32_t j = in ? i : i - e->g.kernel->n_in;
    lm_buf_printf(b, "// %s%u: ", in ? "a" : "r", j);
    lm_gen_type_print(&e->g, in ? e->g.kernel->in[j]->type : e->g.kernel->out[j]->type, b);
    lm_buf_puts(b, "\n");
  }
}

// The axes over which points are numbered: merged runs of parallel axes, the last varying fastest.
static int parallel_axes(cuda_emit *e, cuda_axis *out) {
  const lm_attr *a = &e->g.kernel->attr;
  int order[LM_RANK], n_order = cuda_order(e, order), n = 0;
  for (int k = 0; k < n_order; k++) {
    int64_t times = 1;
    const lm_axis_info *front = &e->g.m->axes[a->axes[order[k]]];
    while (e->parallel_merge[order[k]] && k + 1 < n_order)
      times *= lm_axis_size(e->g.m, a->axes[order[++k]]);
    if (front->size * times == 1 && !front->dyn)
      continue;
    out[n].var = e->g.parallel[order[k]];
    out[n++].extent = lm_gen_extent(&e->g, front->size, front->dyn, times);
  }
  return n;
}

static bool reduces_in_block(const cuda_emit *e) {
  return e->form == CUDA_TEAM && e->team > CUDA_WARP;
}

// The variables of a thread group.
static void put_team(const cuda_emit *e, lm_buf *b) {
  if (e->team == 1)
    return;
  if (e->team > CUDA_WARP)
    lm_buf_puts(b, "const int32_t lane = lm_thread(), team = 0;\n(void)team;\n");
  else
    lm_buf_printf(b,
                  "const int32_t lane = lm_thread() %% %d, team = lm_thread() / %d;\n(void)team;\n",
                  e->team, e->team);
  if (e->team <= CUDA_WARP)
    lm_buf_printf(b, "const uint32_t mask = lm_team_mask(%d);\n(void)mask;\n", e->team);
}

// Writes the coordinates of one point per team.
static void put_points(cuda_emit *e, lm_buf *b, const char *rows) {
  cuda_axis axes[LM_RANK];
  int n = parallel_axes(e, axes);
  const char *t = e->g.target->index;
  if (e->team > CUDA_WARP)
    lm_buf_printf(b, "const %s point = block;\n", t);
  else if (e->team > 1)
    lm_buf_printf(b, "const %s point = (%s)block * %d + team;\n", t, t, e->teams);
  else
    lm_buf_printf(b, "const %s point = (%s)block * %d + lm_thread();\n", t, t, e->teams);
  if (e->team <= CUDA_WARP)
    lm_buf_printf(b, "if (point >= %s) return;\n", cuda_axes_product(e, axes, n));
  lm_buf_puts(b, rows);
  cuda_decode(e, axes, n, "point", b);
  if (e->scan)
    cuda_scan_put(e, b);
  else
    lm_buf_add(b, e->g.body.p, e->g.body.n);
}

// Writes the loop over a chunk of points per block.
static void put_chunk(cuda_emit *e, lm_buf *b, const char *rows) {
  cuda_axis axes[LM_RANK];
  int n = parallel_axes(e, axes);
  const char *t = e->g.target->index;
  long long chunks = lm_axis_size(e->g.m, e->g.kernel->attr.to[0]);
  cuda_sums_begin(e, b);
  lm_buf_printf(b,
                "const int64_t points = %s;\nconst %s end = (%s)((block + 1) * points / %lld);\n",
                cuda_axes_product(e, axes, n), t, t, chunks);
  lm_buf_printf(b,
                "for (%s point = (%s)(block * points / %lld) + team; point < end; point += %d) {\n",
                t, t, chunks, e->teams);
  lm_buf_puts(b, rows);
  cuda_decode(e, axes, n, "point", b);
  lm_buf_add(b, e->g.body.p, e->g.body.n);
  if (cuda_holds_rows(e) || e->g.s->n_passes > 1)
    cuda_team_sync(e, b);
  lm_buf_puts(b, "}\n");
  cuda_sums_finish(e, b);
}

cuda_code *cuda_emit_code(cuda_emit *e, lm_arena *arena) {
  lm_buf arrays = {0}, rows = {0}, body = {0};
  const char *t = e->g.target->index;
  cuda_code *c =
      cuda_code_make(arena, e->form == CUDA_FLAT || e->rows ? CUDA_THREADS : e->team * e->teams);
  put_types(e, &body);
  if (e->form == CUDA_FLAT) {
    lm_buf_printf(&body, "const %s first = (%s)block * %d + lm_thread(), step = (%s)grid * %d;\n",
                  t, t, CUDA_THREADS, t, CUDA_THREADS);
    lm_buf_puts(&body, "(void)step;\n");
    cuda_transpose_declare(e, &arrays);
    lm_buf_add(&body, e->g.body.p, e->g.body.n);
    cuda_flat_put(e, &body);
  } else {
    if (e->scan && !e->carries_in_registers)
      e->workspace[e->n_workspaces++] = lm_gen_scan_workspace(e->g.m, e->scan);
    cuda_rows_declare(e, &arrays, &rows);
    if (reduces_in_block(e))
      lm_buf_puts(&arrays, "LM_SHARED(double, partials, 32);\n");
    put_team(e, &body);
    if (e->g.kernel->attr.n_to)
      put_chunk(e, &body, rows.n ? rows.p : "");
    else
      put_points(e, &body, rows.n ? rows.p : "");
  }
  params_add(e, c);
  c->extents = e->g.extents;
  c->whole_block = reduces_in_block(e) || e->shared || e->g.kernel->attr.n_to;
  cuda_code_body(c, &arrays, &body);
  lm_buf_free(&rows);
  return c;
}

// ---- launch

// Every pass runs over the whole grid, which fits the longest loop, and with run-time extents the
// longest pass.
static void launch_flat(const cuda_emit *e, lm_kernel_code *out) {
  double max = 0, longest = 0;
  out->launch.per_block = CUDA_THREADS;
  for (uint32_t i = 0; i < e->g.s->n_passes; i++) {
    lm_type t = e->g.s->passes[i].space;
    double n = (double)lm_type_elements(e->g.m, t) / e->width[i];
    if (n <= max)
      continue;
    max = n;
    out->space = cuda_extent_product(e->g.m, t.axis, t.rank);
    out->launch.per_block = (int64_t)CUDA_THREADS * e->width[i];
  }
  for (uint32_t i = 0; !out->space.n_dyn && i < e->n_loops; i++) {
    const cuda_flat_loop *l = &e->loops[i];
    if (l->elements / l->width <= longest)
      continue;
    longest = l->elements / l->width;
    out->space.fixed = (int64_t)l->elements;
    out->launch.per_block = (int64_t)CUDA_THREADS * l->width;
  }
}

static void launch_of(const cuda_emit *e, lm_kernel_code *out) {
  const lm_attr *a = &e->g.kernel->attr;
  out->instructions = e->g.instructions;
  out->partial = e->partial;
  if (e->scan) {
    int64_t positions = lm_axis_size(e->g.m, lm_scan_axis(e->scan));
    out->instructions *= (double)positions;
    out->partial *= (double)positions;
    out->launch.waits = cuda_scan_waits(e);
  }
  bool unrolled = e->team == 1 && (!e->scan || e->carries_in_registers);
  out->n_workspaces = e->n_workspaces;
  memcpy(out->workspace, e->workspace, sizeof out->workspace);
  if (e->form == CUDA_FLAT) {
    launch_flat(e, out);
    return;
  }
  out->launch.per_block = a->n_to ? 1 : e->teams;
  out->launch.unroll = unrolled ? CUDA_UNROLLED : 0;
  out->launch.shared = a->n_to ? cuda_sums_pool(e) : 0;
  out->space = a->n_to ? (lm_plan_extent){.fixed = lm_axis_size(e->g.m, a->to[0])}
                       : cuda_extent_product(e->g.m, a->axes, a->n_axes);
}

bool cuda_kernel_emit(const lm_plan_options *o, const lm_op *kernel, lm_arena *arena,
                      lm_kernel_code *out) {
  const lm_module *m = lm_op_module(kernel);
  if (lm_op_attends(kernel))
    return cuda_attend_emit(o, kernel, arena, out);
  if (lm_kernel_mix(kernel)) {
    cuda_mix_emit(o, kernel, arena, out);
    return true;
  }
  if (lm_op_chains(kernel)) {
    (cuda_states_fits(kernel) ? cuda_states_emit : cuda_chain_emit)(o, kernel, arena, out);
    return true;
  }
  if (lm_kernel_dot(kernel)) {
    cuda_gemm_emit(o, kernel, arena, out);
    return true;
  }
  lm_arena *temporary = lm_arena_create();
  cuda_code *c;
  *out = (lm_kernel_code){0};
  if (lm_op_sorts(kernel)) {
    c = cuda_route_emit(kernel, arena, out);
  } else if (kernel->code == LM_OP_KERNEL && cuda_scatter_fits(m, kernel)) {
    c = cuda_scatter_emit(&o->target, kernel, temporary, arena, out);
  } else {
    cuda_emit *e = cuda_emit_make(o, kernel, NULL, temporary);
    c = cuda_emit_code(e, arena);
    launch_of(e, out);
    c->paired = cuda_is_paired(e);
    cuda_flat_free(e);
    lm_gen_free(&e->g);
  }
  cuda_code_render(c, "k", arena, out);
  lm_arena_destroy(temporary);
  return true;
}
