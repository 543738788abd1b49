// op_interface_test.c - the properties in compiler/ops/interface.h against the reference
// interpreter.
#include <math.h>

#include "compiler/eval/eval.h"
#include "compiler/ops/interface.h"
#include "tests/runtime/check.h"

enum {
  OPERANDS = 3
};

typedef struct sample {
  lm_op op;
  lm_value values[OPERANDS], result, *in[OPERANDS], *out[1];
  uint32_t active; // a bit for each operand
} sample;

static void sample_make(sample *s, lm_opcode code) {
  *s = (sample){.op = {.code = code, .n_in = (uint32_t)lm_op_table[code].n_in, .n_out = 1}};
  for (int i = 0; i < OPERANDS; i++) {
    s->values[i] = (lm_value){.type = {.dtype = LM_F64}, .index = (uint32_t)i};
    s->in[i] = &s->values[i];
  }
  s->result.type.dtype = LM_F64;
  s->out[0] = &s->result;
  s->op.in = s->in;
  s->op.out = s->out;
}

static bool is_active(const void *user, const lm_value *v) {
  const sample *s = user;
  return s->active >> v->index & 1;
}

// A multiple of 1/4, so that sums are exact and comparisons also get equal operands.
static double quarter(uint32_t *state) {
  *state = *state * 1664525 + 1013904223;
  return (*state >> 24) % 8 / 4.0;
}

// Whether f(x + y) + f(0) = f(x) + f(y), where x, y and 0 differ only in the active operands.
static bool adds_up(const sample *s) {
  enum {
    TRIALS = 200
  };
  uint32_t state = 1;
  for (int k = 0; k < TRIALS; k++) {
    double x[OPERANDS], y[OPERANDS], sum[OPERANDS], zero[OPERANDS];
    for (int i = 0; i < OPERANDS; i++) {
      bool active = s->active >> i & 1;
      x[i] = quarter(&state) + (active ? 0 : 0.25); // a denominator is not 0
      y[i] = active ? quarter(&state) : x[i];
      sum[i] = active ? x[i] + y[i] : x[i];
      zero[i] = active ? 0 : x[i];
    }
    double left = lm_eval_scalar(&s->op, sum) + lm_eval_scalar(&s->op, zero);
    double right = lm_eval_scalar(&s->op, x) + lm_eval_scalar(&s->op, y);
    if (!(fabs(left - right) <= 1e-12))
      return false;
  }
  return true;
}

static bool is_elementwise(int code) {
  const lm_op_info *info = &lm_op_table[code];
  return info->traits & LM_T_ELEMENTWISE && info->n_in > 0;
}

// The condition of a select has no derivative.
static uint32_t differentiable(int code) {
  return code == LM_OP_SELECT ? 6 : (1u << lm_op_table[code].n_in) - 1;
}

static void linear_test(void) {
  sample s;
  for (int code = 0; code < LM_OPS; code++) {
    if (!is_elementwise(code) || lm_op_derivative(code) != LM_DERIVATIVE_RULE)
      continue;
    sample_make(&s, (lm_opcode)code);
    for (s.active = 1; s.active <= differentiable(code); s.active++) {
      if (s.active & ~differentiable(code))
        continue;
      if (lm_op_is_linear(&s.op, is_active, &s) == adds_up(&s))
        continue;
      fprintf(stderr, "%s, active operands %u\n", lm_op_table[code].name, s.active);
      exit(1);
    }
  }
}

static void class_test(void) {
  sample s;
  for (int code = 0; code < LM_OPS; code++) {
    if (!is_elementwise(code))
      continue;
    sample_make(&s, (lm_opcode)code);
    CHECK(lm_op_row_class(&s.op) == LM_ROW_EACH && lm_op_touched_axes(&s.op, 0).rank == 0);
    lm_recompute_class expected = code == LM_OP_EXPAND ? LM_RECOMPUTE_FREE : LM_RECOMPUTE_CHEAP;
    CHECK(lm_op_recompute_class(&s.op) == expected);
  }
  static const struct {
    lm_opcode code;
    lm_recompute_class class;
    lm_row_class rows;
  } tests[] = {
      {LM_OP_VIEW, LM_RECOMPUTE_FREE, LM_ROW_EACH},
      {LM_OP_CONCAT, LM_RECOMPUTE_CHEAP, LM_ROW_EACH},
      {LM_OP_SUM, LM_RECOMPUTE_FUSED, LM_ROW_EACH},
      {LM_OP_GATHER, LM_RECOMPUTE_FUSED, LM_ROW_BY_INDEX},
      {LM_OP_RNG, LM_RECOMPUTE_FUSED, LM_ROW_NUMBERED},
      {LM_OP_SCATTER, LM_RECOMPUTE_FUSED, LM_ROW_MIXED},
      {LM_OP_DOT, LM_RECOMPUTE_UNFUSED, LM_ROW_EACH},
      {LM_OP_PARAM, LM_RECOMPUTE_UNFUSED, LM_ROW_MIXED},
      {LM_OP_APPEND, LM_RECOMPUTE_UNFUSED, LM_ROW_MIXED},
      {LM_OP_CONST, LM_RECOMPUTE_FREE, LM_ROW_EACH},
  };
  for (size_t i = 0; i < LM_COUNT(tests); i++) {
    lm_op op = {.code = tests[i].code};
    CHECK(lm_op_recompute_class(&op) == tests[i].class && lm_op_row_class(&op) == tests[i].rows);
  }
}

static void axes_test(void) {
  lm_op op = {.code = LM_OP_SLICE, .attr = {.axes = {3}, .n_axes = 1, .to = {4}, .n_to = 1}};
  lm_type t = lm_op_touched_axes(&op, 0);
  CHECK(t.rank == 2 && lm_type_find(t, 3) >= 0 && lm_type_find(t, 4) >= 0);
  op = (lm_op){.code = LM_OP_GATHER, .attr = {.axes = {3}, .n_axes = 1}};
  CHECK(lm_op_touched_axes(&op, 0).rank == 1 && lm_op_touched_axes(&op, 1).rank == 0);
  op.code = LM_OP_SUM;
  CHECK(lm_op_touched_axes(&op, 0).rank == 0);
}

int main(void) {
  linear_test();
  class_test();
  axes_test();
  return 0;
}
