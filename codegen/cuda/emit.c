// emit.c - the common beginning of the kernels of fused regions: the width of its indices, the
// functions that it calls, and its parameters.
#include "codegen/cuda/emit.h"
#include "compiler/ops/interface.h"

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
  case LM_OP_REDUCE_PRECISION: return (lm_gen_form){NULL, rounds ? 1 : 2};
  case LM_OP_RSQRT: return (lm_gen_form){"lm_rsqrt_approx($0)", 4};
  case LM_OP_DIV: return rounds ? (lm_gen_form){"lm_divide_approx($0, $1)", 8} : (lm_gen_form){0};
  default: return (lm_gen_form){0};
  }
}

// Instructions that encode and decode a code, as compiled for sm_80 and, where those of e4m3 and
// e5m2 are instructions of the GPU, for sm_90a (nvrtc_count_test).
typedef struct code_row {
  int encode, decode;
  int own_encode, own_decode;
} code_row;
static const code_row codes[LM_DTYPES] = {
    [LM_E4M3] = {26, 11, 2, 2},   [LM_E5M2] = {26, 13, 2, 2},    [LM_E8M0] = {18, 5, 18, 5},
    [LM_DYN8] = {62, 33, 62, 33}, [LM_UDYN8] = {58, 30, 58, 30},
};

static int cast_instructions(const lm_op *cast, bool has_codes) {
  const code_row *from = &codes[cast->in[0]->type.dtype], *to = &codes[cast->out[0]->type.dtype];
  return has_codes ? from->own_decode + to->own_encode : from->decode + to->encode;
}

static lm_gen_form form(const lm_op *op) {
  int casts = op->code == LM_OP_CAST ? cast_instructions(op, false) : 0;
  return casts ? (lm_gen_form){NULL, casts} : approx_form(op);
}

static lm_gen_form form_with_codes(const lm_op *op) {
  int casts = op->code == LM_OP_CAST ? cast_instructions(op, true) : 0;
  return casts ? (lm_gen_form){NULL, casts} : approx_form(op);
}

#define TARGET(INDEX, FORM)                                                                        \
  {                                                                                                \
    .index = (INDEX), .held = cuda_held, .load = cuda_load, .form = (FORM), .lanes = cuda_lanes,   \
    .contracts = true                                                                              \
  }
// By the width of indices and whether the GPU has instructions of e4m3 and e5m2.
static const lm_gen_target targets[2][2] = {
    {TARGET("int32_t", form), TARGET("int32_t", form_with_codes)},
    {TARGET("int64_t", form), TARGET("int64_t", form_with_codes)},
};

// The elements between the first and the last one of an operand, which is read through its views.
static int64_t operand_span(const lm_module *m, const lm_value *v) {
  int64_t stride[LM_RANK];
  int64_t offsets;
  int64_t last = 0;
  int64_t n = lm_type_elements(m, v->type);
  bool is_view = v->def && lm_op_has(v->def, LM_T_VIEW);
  if (!is_view || !lm_plan_strides(m, v, stride, &offsets))
    return n;
  for (int i = 0; i < v->type.rank; i++) {
    int64_t size = lm_axis_size(m, v->type.axis[i]);
    last += (size - 1) * stride[i];
  }
  return last >= n ? last + 1 : n;
}

// Indices have 32 bits if every tensor fits twice: the counter of a grid-stride loop ends at less
// than the number of elements plus a step, and a step is at most that number.
const lm_gen_target *cuda_gen_target(const lm_target *t, const lm_module *m, const lm_op *kernel) {
  int64_t max = 0;
  for (uint32_t i = 0; i < kernel->n_out; i++)
    if (cuda_result_span(m, kernel, i) > max)
      max = cuda_result_span(m, kernel, i);
  for (uint32_t i = 0; i < kernel->n_in; i++)
    if (operand_span(m, kernel->in[i]) > max)
      max = operand_span(m, kernel->in[i]);
  for (const lm_op *op = kernel->body->first; op; op = op->next)
    for (uint32_t i = 0; i < op->n_out; i++)
      if (lm_type_elements(m, op->out[i]->type) > max)
        max = lm_type_elements(m, op->out[i]->type);
  return &targets[max >= (int64_t)1 << 30][t->math[LM_E4M3].native];
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

static bool type_is_known(const lm_module *m, lm_type t) {
  for (int i = 0; i < t.rank; i++)
    if (m->axes[t.axis[i]].dyn)
      return false;
  return true;
}

static bool values_are_known(const lm_module *m, lm_value *const *v, uint32_t n) {
  for (uint32_t i = 0; i < n; i++)
    if (!type_is_known(m, v[i]->type))
      return false;
  return true;
}

bool cuda_sizes_known(const lm_module *m, const lm_op *op) {
  bool known = values_are_known(m, op->in, op->n_in) && values_are_known(m, op->out, op->n_out);
  for (const lm_op *o = op->body->first; known && o; o = o->next)
    known = values_are_known(m, o->out, o->n_out);
  return known;
}

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
