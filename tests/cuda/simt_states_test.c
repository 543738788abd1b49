// simt_states_test.c - scans that multiply at each position, under the shim against the
// interpreter: both directions, states in one block and in two, operands that are read through
// views; forms beside the pattern; the width of indices.
// Build: plain
#include "tests/codegen/cache.h" // defines _GNU_SOURCE, so it comes first
#define SIMT_ARCH "sm_90a"
#define SIMT_UNITS 2
#include "tests/cuda/simt_run.h"
#include "tests/cuda/chosen.h"
#include "tests/cuda/literals.h"
#include "tests/cuda/states_case.h"

static const states_case *current;

static int dots_of(const lm_op *scan) {
  int n = 0;
  for (const lm_op *op = scan->body->first; op; op = op->next)
    n += op->code == LM_OP_DOT;
  return n;
}

// Makes the kernels, and checks how many GEMMs are in scans and how many are left.
static void kernels_check(const lm_module *m, int inside, int left) {
  states_kernels_make(m, "sm_90a");
  for (const lm_op *op = m->funcs->body->first; op; op = op->next) {
    inside -= op->code == LM_OP_SCAN ? dots_of(op) : 0;
    left -= op->code == LM_OP_DOT;
  }
  CHECK(!inside && !left);
}

static void all_inside(const lm_module *m) {
  kernels_check(m, current->dots, 0);
}

// Blocks are for so many multiprocessors, which a GPU has not.
static void blocks_check(const lm_plan *plan) {
  bool few = RUN_OPTIONS().target.units == SIMT_UNITS;
  const lm_plan_func *f = &plan->funcs[0];
  const lm_plan_step *s = NULL;
  for (int i = 0; i < f->n_steps; i++)
    if (f->steps[i].kind == LM_STEP_KERNEL && f->steps[i].multiplied > 0)
      s = &f->steps[i];
  CHECK(s && (!few || s->space.fixed == current->blocks) && s->instructions > 0);
}

static void states_run(const states_case *c, uint64_t seed) {
  lm_buf text = {0};
  current = c;
  states_text(c, &text);
  run_both(text.p, &(run_options){.name = c->name,
                                  .tolerance = 1e-6,
                                  .seed = seed,
                                  .kernels = all_inside,
                                  .plan = blocks_check});
  lm_buf_free(&text);
}

// ---- forms beside the pattern

typedef struct near_case {
  const char *name, *text;
  int inside, left;
} near_case;

#define NEAR "axis c = 3, i = 16, j = 16, b = 1, g = 1, h = 2, p = 16, n = 16, e = 16\n"
#define NEAR_BEGIN "func @f(" STATES_IN ") -> (" STATES_BOTH
#define NEAR_SCAN(Z, F, R)                                                                         \
  "  %z = const " Z " : f32[b, g, h, p, n]\n"                                                      \
  "  %l, %s = scan over(c) [1, 2, 0] (%s0 = %z, %s1 = %f, %s2 = %a) {\n" F                         \
  "    %w = cast %s2 : f32[b, g, h, p, n]\n    %t = add %m, %w\n" R                                \
  "    %r = cast %o : bf16[b, g, h, p, n]\n    yield %t, %r\n  }\n"
#define NEAR_MUL "    %m = mul %s0, %s1 : f32[b, g, h, p, n]\n"
#define NEAR_SAME "    %o = mul %t, %t\n"
#define NEAR_BEFORE "    %o = mul %s0, %s0\n"

static const near_case near_cases[] = {
    {"a state that begins with ones",
     NEAR_BEGIN ") {\n" STATES_ADDED NEAR_SCAN("1", NEAR_MUL, NEAR_SAME) STATES_READ
     "  return %s, %y\n}\n",
     0, 2},
    {"a stack of squares",
     NEAR_BEGIN ") {\n" STATES_ADDED NEAR_SCAN("0", NEAR_MUL, NEAR_SAME) STATES_READ
     "  return %s, %y\n}\n",
     0, 2},
    {"a stack of squares of the states before",
     NEAR_BEGIN ") {\n" STATES_ADDED NEAR_SCAN("0", NEAR_MUL, NEAR_BEFORE) STATES_READ
     "  return %s, %y\n}\n",
     0, 2},
    {"a use of the last state",
     NEAR_BEGIN ", l: f32[b, g, h, p, n]) {\n" STATES_ADDED STATES_FORWARD STATES_READ
                "  return %s, %y, %l\n}\n",
     0, 2},
    {"another use of the first GEMM",
     NEAR_BEGIN ", a: bf16[c, b, g, h, p, n]) {\n" STATES_ADDED STATES_FORWARD STATES_READ
                "  return %s, %y, %a\n}\n",
     0, 2},
    {"queries from the stack",
     NEAR_BEGIN ", y2: bf16[c, i, b, g, h, p]) {\n" STATES_ADDED STATES_FORWARD STATES_READ
                "  %y1 = rename %y (p) -> (n)\n  %q1 = sum %y1 over(h)\n"
                "  %y2 = dot %q1, %s over(n) : bf16[c, i, b, g, h, p]\n  return %s, %y, %y2\n}\n",
     2, 1},
    {"a read over rows and heads",
     "func @f(" STATES_IN ", %v: bf16[c, i, b, g, h, p]) -> (" STATES_OUT
     ", y: bf16[c, i, b, g, n]) {\n" STATES_ADDED STATES_FORWARD
     "  %y = dot %v, %s over(h, p) : bf16[c, i, b, g, n]\n  return %s, %y\n}\n",
     1, 1},
};
static const near_case *near_current;

static void near_kernels(const lm_module *m) {
  kernels_check(m, near_current->inside, near_current->left);
}

static void near_run(const near_case *c, uint64_t seed) {
  lm_buf text = {0};
  near_current = c;
  lm_buf_printf(&text, "stage step\n" NEAR "%s", c->text);
  run_both(text.p, &(run_options){.name = c->name,
                                  .tolerance = 1e-6,
                                  .seed = seed,
                                  .rounds = !c->inside,
                                  .kernels = near_kernels});
  lm_buf_free(&text);
}

// The stack has 2^33 elements, so its indices need 64 bits.
#define WIDE "stage step\naxis c = 128, i = 64, j = 64, b = 4096, g = 1, h = 4, p = 64, n = 64\n"

static void wide_check(const char *text) {
  lm_ctx *ctx = lm_ctx_create();
  lm_plan_options target = RUN_OPTIONS();
  lm_module *m = parse_and_run_for(ctx, text, "decompose,cse,dce,fuse", &target.target);
  states_kernels_make(m, "sm_90a");
  lm_plan *plan = lm_plan_build(m, &target);
  CHECK(plan && plan->n_kernels == 1 && plan->kernels[0].name[0] == 's');
  CHECK(strstr(plan->kernels[0].source, "typedef int64_t lm_at"));
  literals_check(plan->kernels[0].source);
  lm_ctx_destroy(ctx);
}

int main(int argc, char **argv) {
  const char *only = argc > 1 ? argv[1] : NULL;
  cache_begin();
  for (size_t i = 0; i < LM_COUNT(states_cases); i++)
    if (case_is_chosen(states_cases[i].name, only))
      states_run(&states_cases[i], i);
  for (size_t i = 0; i < LM_COUNT(near_cases); i++)
    if (case_is_chosen(near_cases[i].name, only))
      near_run(&near_cases[i], i);
  if (only)
    return 0;
  wide_check(WIDE STATES_ALL(STATES_FORWARD));
  wide_check(WIDE STATES_ALL(STATES_BACKWARD));
}
