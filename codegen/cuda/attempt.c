// attempt.c - generates the passes of a kernel until its shape is known.
//
// The first attempts have no teams and no vectors. They show which memory the passes access, and
// how views split loops. Then the shape is chosen, and the next attempt shows which loops are one.
#include "codegen/common/scan.h"
#include "codegen/cuda/emit.h"

enum {
  ATTEMPTS = 64
};

int64_t cuda_max_pool(const lm_target *t) {
  enum {
    LEAST_SHARED = 99 << 10 // of all architectures
  };
  return (t->shared ? t->shared : LEAST_SHARED) - 1024;
}

static void parallel_vars(cuda_emit *e) {
  lm_gen *g = &e->g;
  int n = g->kernel->attr.n_axes;
  for (int i = 0; i < n; i++) {
    lm_axis axis = g->kernel->attr.axes[i];
    const lm_axis_info *a = &g->m->axes[axis];
    const char *name = lm_arena_printf(g->arena, "i_%s", lm_gen_axis_name(g, axis));
    g->parallel[i] = lm_var_add(
        &g->vars,
        (lm_var){
            .kind = LM_VAR_PARALLEL, .name = name, .size = a->size, .dyn = a->dyn, .hi = a->size});
  }
  for (int i = n - 2; i >= 0; i--) {
    uint16_t next = g->parallel[i + 1];
    if (e->parallel_merge[i])
      g->vars.v[g->parallel[i]].into = g->vars.v[next].into ? g->vars.v[next].into : next;
  }
}

static void attempt(cuda_emit *e) {
  lm_gen_attempt(&e->g);
  cuda_flat_begin(e);
  e->partial = 0;
  cuda_kept_begin(e);
  e->n_sum_parts = 0;
  parallel_vars(e);
  for (uint32_t i = 0; i < e->g.s->n_passes; i++)
    cuda_pass_emit(e, (int)i);
}

cuda_emit *cuda_emit_shaped(const lm_plan_options *o, const lm_op *kernel, const char *rows,
                            const cuda_wish *wish, lm_arena *arena) {
  cuda_emit *e = LM_NEW(arena, cuda_emit);
  e->rows = rows;
  e->wish = *wish;
  e->max_pool = cuda_max_pool(&o->target);
  e->scan = kernel->code == LM_OP_SCAN ? kernel : NULL;
  e->carries_in_registers = e->scan && lm_gen_scan_is_pointwise(kernel);
  const lm_op *shape = e->scan ? lm_gen_scan_position(arena, kernel) : kernel;
  cuda_shape_begin(e, &o->target, lm_op_module(kernel), shape, arena);
  e->g.result_stride = e->scan ? NULL : cuda_part_strides(kernel, arena);
  for (int i = 0; i < ATTEMPTS; i++) {
    attempt(e);
    if (!lm_gen_request_apply(&e->g))
      break;
  }
  cuda_shape_choose(e);
  attempt(e);
  cuda_shape_merge(e);
  attempt(e);
  if (cuda_kept_any(e))
    attempt(e);
  return e;
}
