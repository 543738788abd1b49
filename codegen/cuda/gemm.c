// gemm.c - a kernel that begins with a dot, for sm_90a: the GEMM (gemm_ring.c) with the rest of the
// kernel as its epilogue (gemm_epilogue.c).
#include <string.h>

#include "codegen/cuda/gemm.h"

static void put_operands(cuda_emit *e, lm_buf *b) {
  const lm_op *kernel = e->g.kernel;
  for (uint32_t i = 0; i < kernel->n_in + kernel->n_out; i++) {
    bool in = i < kernel->n_in;
    lm_buf_printf(b, "// %c%u: ", in ? 'a' : 'r', in ? i : i - kernel->n_in);
    lm_gen_type_print(&e->g, in ? kernel->in[i]->type : kernel->out[i - kernel->n_in]->type, b);
    lm_buf_puts(b, "\n");
  }
}

static void emit_free(cuda_emit *e, lm_arena *temporary) {
  cuda_flat_free(e);
  lm_gen_free(&e->g);
  lm_arena_destroy(temporary);
}

bool cuda_gemm_is_supported(const lm_target *t, const lm_op *kernel) {
  cuda_gemm x;
  if (!cuda_ring_fits(t) || !lm_kernel_dot(kernel) ||
      !cuda_gemm_make(lm_op_module(kernel), kernel, &x))
    return false;
  lm_arena *temporary = lm_arena_create();
  cuda_emit *e = LM_NEW(temporary, cuda_emit);
  cuda_shape_begin(e, t, lm_op_module(kernel), kernel, temporary);
  bool written = cuda_gemm_epilogue(e, &x);
  emit_free(e, temporary);
  return written;
}

void cuda_gemm_emit(const lm_plan_options *o, const lm_op *kernel, lm_arena *arena,
                    lm_kernel_code *out) {
  const lm_module *m = lm_op_module(kernel);
  lm_arena *temporary = lm_arena_create();
  cuda_emit *e = LM_NEW(temporary, cuda_emit);
  cuda_code *c = cuda_code_make(arena, cuda_ring_threads());
  lm_buf body = {0};
  cuda_gemm x;
  if (!cuda_gemm_make(m, kernel, &x))
    LM_BUG("a kernel that begins with a dot of an unsupported form");
  cuda_shape_begin(e, &o->target, m, kernel, temporary);
  const char *epilogue = cuda_gemm_epilogue(e, &x);
  LM_ASSERT(epilogue);
  // The epilogue reads operands in many loads, which are in flight together if they are constants.
  c->read_only = kernel->n_in > 2;
  cuda_params(&e->g, NULL, NULL, c);
  c->last_params = ", LM_CONSTANT lm_map m0, LM_CONSTANT lm_map m1";
  c->whole_block = true;
  put_operands(e, &body);
  cuda_ring_put(&x, epilogue, &body);
  cuda_code_body(c, NULL, &body);
  *out = (lm_kernel_code){.instructions = e->g.instructions};
  out->launch = cuda_ring_launch(&x, &o->target, arena);
  out->space.fixed = out->launch.blocks;
  out->launch.blocks = 0;
  out->launch.note = "a GEMM by wgmma on tiles that TMA copies, with the kernel in its epilogue";
  cuda_code_render(c, "g", arena, out);
  emit_free(e, temporary);
}
