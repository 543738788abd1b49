// emit.c - the common beginning of the kernels of fused regions: the width of its indices, the
// functions that it calls, and its parameters.
#include "codegen/cuda/emit.h"

// The functions of prelude/approx.cuh. They replace division only if the result is bf16: division
// of f32, like addition, multiplication and square roots, follows IEEE 754. The instructions are
// those of sm_90a (nvrtc_count_test).
static lm_gen_form approx_form(const lm_op *op) {
  bool rounds = op->out[0]->type.dtype == LM_BF16;
  switch (op->code) {
  case LM_OP_EXP:
    return rounds ? (lm_gen_form){"lm_exp_bf16($0)", 2} : (lm_gen_form){"lm_exp_f32($0)", 8};
  case LM_OP_LOGISTIC:
    return rounds ? (lm_gen_form){"lm_logistic_bf16($0)", 4}
                  : (lm_gen_form){"lm_logistic_f32($0)", 9};
  case LM_OP_TANH:
    return rounds ? (lm_gen_form){"lm_tanh_bf16($0)", 11} : (lm_gen_form){"lm_tanh_f32($0)", 21};
  case LM_OP_RSQRT: return (lm_gen_form){"lm_rsqrt_approx($0)", 4};
  case LM_OP_DIV: return rounds ? (lm_gen_form){"lm_divide_approx($0, $1)", 8} : (lm_gen_form){0};
  default: return (lm_gen_form){0};
  }
}

static const lm_gen_target narrow = {.index = "int32_t",
                                     .held = cuda_held,
                                     .load = cuda_load,
                                     .form = approx_form,
                                     .lanes = cuda_lanes,
                                     .contracts = true};
static const lm_gen_target wide = {.index = "int64_t",
                                   .held = cuda_held,
                                   .load = cuda_load,
                                   .form = approx_form,
                                   .lanes = cuda_lanes,
                                   .contracts = true};

// Indices have 32 bits if every tensor fits twice: the counter of a grid-stride loop ends at less
// than the number of elements plus a step, and a step is at most that number.
const lm_gen_target *cuda_gen_target(const lm_module *m, const lm_op *kernel) {
  int64_t max = 0;
  for (uint32_t i = 0; i < kernel->n_out; i++)
    if (cuda_result_span(m, kernel, i) > max)
      max = cuda_result_span(m, kernel, i);
  for (uint32_t i = 0; i < kernel->n_in; i++)
    if (lm_type_elements(m, kernel->in[i]->type) > max)
      max = lm_type_elements(m, kernel->in[i]->type);
  for (const lm_op *op = kernel->body->first; op; op = op->next)
    for (uint32_t i = 0; i < op->n_out; i++)
      if (lm_type_elements(m, op->out[i]->type) > max)
        max = lm_type_elements(m, op->out[i]->type);
  return max < (int64_t)1 << 30 ? &narrow : &wide;
}

void cuda_params(lm_gen *e, bool (*may_alias)(void *user, uint32_t operand), void *user,
                 cuda_code *c) {
  const lm_op *k = e->kernel;
  for (uint32_t i = 0; i < k->n_in; i++)
    cuda_operand_add(c, (lm_dtype)k->in[i]->type.dtype, may_alias && may_alias(user, i),
                     lm_arena_printf(c->arena, "a%u", i));
  for (uint32_t i = 0; i < k->n_out; i++)
    cuda_result_add(c, (lm_dtype)k->out[i]->type.dtype, lm_arena_printf(c->arena, "r%u", i));
}

// ---- sizes

lm_plan_extent cuda_extent_product(const lm_module *m, const lm_axis *axes, int n) {
  lm_plan_extent x = {.fixed = 1};
  for (int i = 0; i < n; i++) {
    const lm_axis_info *a = &m->axes[axes[i]];
    if (a->dyn)
      x.dyn[x.n_dyn++].var = a->dyn - 1;
    else
      x.fixed *= a->size;
  }
  return x;
}

const char *cuda_extent_text(const lm_plan_extent *x, lm_arena *arena) {
  const char *text = lm_arena_printf(arena, "%lld", (long long)x->fixed);
  for (int i = 0; i < x->n_dyn; i++)
    text = lm_arena_printf(arena, "%s * n%d", text, x->dyn[i].var);
  return text;
}

uint32_t cuda_extent_mask(const lm_plan_extent *x) {
  uint32_t mask = 0;
  for (int i = 0; i < x->n_dyn; i++)
    mask |= 1u << x->dyn[i].var;
  return mask;
}
