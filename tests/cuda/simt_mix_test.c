// simt_mix_test.c - kernels that compute a factor of their GEMM, under the shim against the
// interpreter: the chunks of a linear recurrence and their derivative, heads in one block and in
// parts of a block each, one panel of columns and two, an operand that is read through views.
#include "tests/codegen/cache.h" // defines _GNU_SOURCE, so it comes first
#define SIMT_ARCH "sm_90a"
#define SIMT_UNITS 2
#include "tests/cuda/simt_run.h"
#include "tests/cuda/mix_case.h"

static const mix_case *current;

// All that reads the weights, or the other GEMM of their axes, is one kernel.
static void one_kernel(const lm_module *m) {
  int mixes = 0;
  mix_kernels_make(m, "sm_90a", current->units);
  for (const lm_op *op = m->funcs->body->first; op; op = op->next) {
    mixes += lm_kernel_mix(op) != NULL;
    CHECK(op->code != LM_OP_DOT);
    if (!lm_kernel_mix(op))
      continue;
    int64_t points = 1;
    for (int i = 0; i < op->attr.n_axes; i++)
      points *= lm_axis_size(m, op->attr.axes[i]);
    lm_type z = op->in[op->n_in - 1]->type; // s, which lacks heads and parts
    CHECK(points * lm_axis_size(m, z.axis[1]) * lm_axis_size(m, z.axis[4]) ==
          lm_type_elements(m, z) * current->parts);
  }
  CHECK(mixes == 1);
}

int main(int argc, char **argv) {
  cache_begin();
  if (!RUN_HAS("sm_90a"))
    return 0;
  for (size_t i = 0; i < LM_COUNT(mix_cases); i++) {
    lm_buf text = {0};
    current = &mix_cases[i];
    if (argc > 1 && !strstr(current->name, argv[1]))
      continue;
    mix_text(current, &text);
    run_both(
        text.p,
        &(run_options){.name = current->name, .tolerance = 1e-6, .seed = i, .kernels = one_kernel});
    lm_buf_free(&text);
  }
}
