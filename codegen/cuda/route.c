// route.c - the kernels that sort rows by group: calls of prelude/route.cuh. Each block reads all
// ids, which fit into the cache of a GPU, and sorts the rows of its group.
#include "codegen/cuda/emit.h"
#include "compiler/ir/dot.h"

enum {
  THREADS = 256 // as in route.cuh
};

static double instructions(double groups, int64_t rows, bool counts) {
  enum {
    COUNT = 8,
    SORT = 20
  };
  return groups * (double)rows * (counts ? COUNT : SORT);
}

cuda_code *cuda_route_emit(const lm_op *op, lm_arena *arena, lm_kernel_code *out) {
  const lm_module *m = lm_op_module(op);
  bool counts = op->code == LM_OP_GROUP_COUNTS;
  const lm_value *by_group = counts ? op->out[0] : op->in[1];
  lm_type id = op->in[0]->type;
  int64_t groups = lm_axis_size(m, by_group->type.axis[0]);
  lm_plan_extent rows = cuda_extent_product(m, id.axis, id.rank);
  cuda_code *c = cuda_code_make(arena, THREADS);
  lm_buf b = {0}, arrays = {0};
  cuda_operand_add(c, LM_INT, false, "id");
  if (!counts)
    cuda_operand_add(c, LM_INT, false, "counts");
  cuda_code_param(c, "int32_t *LM_RESTRICT ", "out");
  c->extents = cuda_extent_mask(&rows);
  c->whole_block = true;
  lm_buf_puts(&arrays, "LM_SHARED(double, partials, 32);\n");
  if (!counts)
    lm_buf_puts(&arrays, "LM_SHARED(int32_t, found, LM_ROUTE_WARPS);\n");
  lm_buf_printf(&b,
                "const int32_t group = (int32_t)block;\n"
                "const int64_t rows = %s;\n",
                cuda_extent_text(&rows, arena));
  if (counts)
    lm_buf_printf(&b,
                  "const int32_t n = lm_group_count(id, rows, %lld, group, partials);\n"
                  "if (lm_thread() == 0) out[group] = n;\n",
                  (long long)groups);
  else
    lm_buf_printf(&b,
                  "const int64_t start = lm_group_start(counts, group, partials);\n"
                  "lm_group_sort(id, rows, %lld, group, start, out, %s, found);\n",
                  (long long)groups, op->code == LM_OP_GROUP_INVERSE ? "true" : "false");
  cuda_code_body(c, &arrays, &b);
  out->launch.per_block = 1;
  out->space = (lm_plan_extent){.fixed = groups};
  out->instructions = instructions((double)groups, lm_type_elements(m, id), counts);
  return c;
}
