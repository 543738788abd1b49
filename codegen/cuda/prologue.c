// prologue.c - a kernel whose result is the operand A of a GEMM of few rows, as text for each block
// of the GEMM: the block computes all rows, into shared memory.
#include <string.h>

#include "codegen/cuda/emit.h"

// One array for all rows, in the type of the result.
static bool rows_fit(const lm_op *kernel, const lm_plan_gemm *g, int64_t *out_bytes) {
  const lm_module *m = lm_op_module(kernel);
  lm_type t = kernel->out[0]->type;
  bool dense = g->a_k == 1 && (g->a_m == g->k.fixed || g->m.fixed == 1) && !g->n_batch;
  *out_bytes = g->m.fixed * g->k.fixed * lm_dtype_bytes((lm_dtype)t.dtype);
  return dense && lm_type_elements(m, t) == g->m.fixed * g->k.fixed && t.dtype == g->dtype_ab;
}

// The passes for all threads of the block.
static void put_flat(const cuda_emit *e, lm_buf *b) {
  lm_buf_printf(b, "const %s first = lm_thread(), step = %d;\n(void)step;\n", e->g.target->index,
                CUDA_THREADS);
  lm_buf_add(b, e->g.body.p, e->g.body.n);
  cuda_flat_put(e, b);
  lm_buf_puts(b, "lm_barrier();\n");
}

static void put_points(cuda_emit *e, lm_buf *b) {
  lm_buf rows = {0};
  cuda_rows_declare(e, b, &rows);
  cuda_team_put(e, b);
  lm_buf_printf(b, "for (%s point = 0; point < %lld; point++) {\n", e->g.target->index,
                (long long)cuda_points(e));
  cuda_point_put(e, b);
  lm_buf_puts(b, "lm_barrier();\n}\n");
  lm_buf_free(&rows);
}

bool cuda_prologue_make(const lm_plan_options *o, const lm_op *kernel, const lm_plan_gemm *g,
                        int64_t max_shared, lm_arena *arena, cuda_prologue *out) {
  lm_arena *temporary = lm_arena_create();
  lm_buf text = {0}, params = {0};
  int64_t bytes;
  bool fits = kernel->code == LM_OP_KERNEL && !kernel->attr.n_to && kernel->n_out == 1 &&
              rows_fit(kernel, g, &bytes);
  cuda_emit *e = fits ? cuda_emit_make(o, kernel, CUDA_A_ROWS, temporary) : NULL;
  if (e && e->form == CUDA_FLAT)
    put_flat(e, &text);
  else if (e)
    put_points(e, &text);
  fits = e && !e->n_workspaces && !e->g.extents && bytes + e->shared + 256 <= max_shared;
  for (uint32_t i = 0; i < kernel->n_in; i++)
    lm_buf_printf(&params, "const %s *LM_RESTRICT a%u, ",
                  lm_gen_memory_type((lm_dtype)kernel->in[i]->type.dtype), i);
  if (fits)
    *out = (cuda_prologue){
        .params = lm_arena_strndup(arena, params.p, params.n),
        .text = lm_arena_strndup(arena, text.p, text.n),
        .instructions = e->g.instructions,
    };
  lm_buf_free(&text);
  lm_buf_free(&params);
  if (e) {
    cuda_flat_free(e);
    lm_gen_free(&e->g);
  }
  lm_arena_destroy(temporary);
  return fits;
}
