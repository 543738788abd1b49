// prologue.c - a kernel whose result is the operand A of a GEMM of few rows, for each block of the
// GEMM: the block computes all rows, into shared memory. The kernel is one of the other forms: its
// elements, or one point after another; or the sums over the chunks of attention of one query.
#include "codegen/common/attend.h"
#include "codegen/cuda/attend.h"
#include "codegen/cuda/emit.h"
#include "compiler/ir/dot.h"

// One array for all rows, in the type of the result.
static bool rows_fit(const lm_op *kernel, const lm_plan_gemm *g, int64_t *out_bytes) {
  const lm_module *m = lm_op_module(kernel);
  lm_type t = kernel->out[0]->type;
  bool dense = g->a_k == 1 && (g->a_m == g->k.fixed || g->m.fixed == 1) && !g->n_batch;
  *out_bytes = g->m.fixed * g->k.fixed * lm_dtype_bytes((lm_dtype)t.dtype);
  return dense && lm_type_elements(m, t) == g->m.fixed * g->k.fixed && t.dtype == g->dtype_ab;
}

static bool of_kernel(const lm_plan_options *o, const lm_op *kernel, int64_t max_shared,
                      lm_arena *arena, cuda_prologue *out) {
  enum {
    PARTIALS = 256 // bytes in which the warps of a block exchange sums
  };
  lm_arena *temporary = lm_arena_create();
  cuda_emit *e = cuda_emit_make(o, kernel, CUDA_A_ROWS, temporary);
  *out = (cuda_prologue){
      .code = cuda_emit_code(e, arena),
      .blocks = e->form == CUDA_FLAT ? 1 : cuda_points(e),
      .instructions = e->g.instructions,
  };
  bool fits = !e->n_workspaces && !e->g.extents && e->shared + PARTIALS <= max_shared;
  cuda_flat_free(e);
  lm_gen_free(&e->g);
  lm_arena_destroy(temporary);
  return fits;
}

// The sums of attention of one query.
static bool of_attend(const lm_plan_options *o, const lm_op *attend, lm_arena *arena,
                      cuda_prologue *out) {
  lm_arena *temporary = lm_arena_create();
  lm_buf why = {0};
  cuda_attend e;
  bool fits = cuda_attend_make(o, attend, temporary, &e, &why) && cuda_attend_is_split(&e.f) &&
              !cuda_attend_split_why(&e.f) && !e.result_stride[0];
  out->blocks = 1;
  if (fits)
    out->code = cuda_attend_combine(&e, CUDA_A_ROWS, arena, &out->instructions);
  cuda_attend_free(&e);
  lm_buf_free(&why);
  lm_arena_destroy(temporary);
  return fits;
}

bool cuda_prologue_make(const lm_plan_options *o, const lm_op *kernel, const lm_plan_gemm *g,
                        int64_t max_shared, lm_arena *arena, cuda_prologue *out) {
  int64_t bytes;
  if (!rows_fit(kernel, g, &bytes) || bytes > max_shared)
    return false;
  if (lm_op_attends(kernel))
    return of_attend(o, kernel, arena, out);
  bool plain = kernel->code == LM_OP_KERNEL && !lm_kernel_dot(kernel) && !lm_kernel_mix(kernel);
  return plain && !kernel->attr.n_to && kernel->n_out == 1 &&
         of_kernel(o, kernel, max_shared - bytes, arena, out);
}
