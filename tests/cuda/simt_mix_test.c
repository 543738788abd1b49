// simt_mix_test.c - kernels that compute a factor of their GEMM, under the shim against the
// interpreter: the chunks of a linear recurrence and their derivative, heads in one block and in
// parts of a block each, one panel of columns and two, an operand that is read through views; forms
// beside the pattern; the width of indices.
// Build: plain
#include "tests/codegen/cache.h" // defines _GNU_SOURCE, so it comes first
#define SIMT_ARCH "sm_90a"
#define SIMT_UNITS 2
#include "tests/cuda/simt_run.h"
#include "tests/cuda/chosen.h"
#include "tests/cuda/mix_case.h"

static const mix_case *current;

// Forms beside the pattern: how many kernels mix, for parts of `units` blocks.
typedef struct near_case {
  const char *name, *text;
  int units, mixes;
  bool wide; // kernels do not round a value of bf16 that they do not store
} near_case;

#define NEAR "axis b = 1, c = 2, g = 1, h = 4, i = 32, j = 32, p = 16, r = 16\n"
#define TILE "f32[b, c, g, h, i, j]"
#define IN "%m: f32[b, c, g, i, j], %k: bf16[b, c, g, h, i, p], %u: bf16[b, c, g, h, j, p]"
#define OUT "y: bf16[b, c, g, h, i, p]"
#define SHARED "  %me = expand %m : " TILE "\n"
#define SCORES "  %s = dot %k, %u over(p) : " TILE "\n" SHARED
#define MIXED(Y, F, U)                                                                             \
  "  %w" Y " = cast " F " : bf16[b, c, g, h, i, j]\n  %" Y " = dot %w" Y ", " U " over(j)\n"

static const near_case near_cases[] = {
    {"weights divided by their sum of a row",
     "func @f(" IN ") -> (" OUT ") {\n" SCORES "  %e = exp %s\n  %f = mul %e, %me\n"
     "  %n = sum %e over(j)\n  %d = div %f, %n\n" MIXED("y", "%d", "%u") "  return %y\n}\n",
     1, 0},
    {"weights less their sum over heads",
     "func @f(" IN ") -> (" OUT ") {\n" SCORES "  %f = mul %s, %me\n  %n = sum %f over(h)\n"
     "  %d = sub %f, %n\n" MIXED("y", "%d", "%u") "  return %y\n}\n",
     1, 0},
    {"a sum over heads less its sum of a row",
     "func @f(" IN ") -> (" OUT ", s: f32[b, c, g, i, j]) {\n" SCORES "  %f = mul %s, %me\n"
     "  %n = sum %f over(h)\n  %t = sum %m over(j)\n  %z = sub %n, %t\n" MIXED(
         "y", "%f", "%u") "  return %y, %z\n}\n",
     1, 0},
    {"numbers of heads, in parts",
     "func @f(" IN ") -> (" OUT ") {\n" SHARED "  %n = iota : int[h]\n  %nf = cast %n : f32[h]\n"
     "  %f = mul %me, %nf\n" MIXED("y", "%f", "%u") "  return %y\n}\n",
     4, 1},
    {"scores that are read as bf16",
     "func @f(" IN ") -> (" OUT ") {\n  %s = dot %k, %u over(p) : bf16[b, c, g, h, i, j]\n"
     "  %mb = cast %m : bf16[b, c, g, i, j]\n  %w = mul %s, %mb\n  %y = dot %w, %u over(j)\n"
     "  return %y\n}\n",
     1, 1, true},
    {"a kernel behind another reader of the result",
     "func @f(" IN ", %o: bf16[p, r], %n: bf16[r]) -> (y: bf16[b, c, g, h, i, r], "
     "q: f32[b, c, g, h, i]) {\n" SCORES "  %f = mul %s, %me\n" MIXED(
         "x", "%f", "%u") "  %y = dot %x, %o over(p) : bf16[b, c, g, h, i, r]\n"
                          "  %t = dot %y, %n over(r) : f32[b, c, g, h, i]\n  %v = mul %s, %t\n"
                          "  %q = sum %v over(j)\n  return %y, %q\n}\n",
     1, 0},
    {"one that reads the result of another",
     "func @f(" IN ") -> (" OUT ") {\n" SCORES "  %f = mul %s, %me\n" MIXED(
         "x", "%f", "%u") "  %xj = rename %x (i) -> (j)\n  %s2 = dot %x, %xj over(p) : " TILE "\n"
                          "  %f2 = mul %s2, %me\n" MIXED("y", "%f2", "%xj") "  return %y\n}\n",
     4, 2},
};

static int expected;

static void count_check(const lm_module *m, int units) {
  int mixes = 0;
  mix_kernels_make(m, "sm_90a", units);
  for (const lm_op *op = m->funcs->body->first; op; op = op->next)
    mixes += lm_kernel_mix(op) != NULL;
  CHECK(mixes == expected);
}

static void one_block(const lm_module *m) {
  count_check(m, 1);
}

static void four_blocks(const lm_module *m) {
  count_check(m, 4);
}

static void near_run(const near_case *c, size_t seed) {
  lm_buf text = {0};
  expected = c->mixes;
  lm_buf_printf(&text, "stage step\n" NEAR "%s", c->text);
  run_both(text.p, &(run_options){.name = c->name,
                                  .tolerance = 1e-6,
                                  .seed = seed,
                                  .rounds = !c->wide,
                                  .kernels = c->units == 1 ? one_block : four_blocks});
  lm_buf_free(&text);
}

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

// u is 32 of 2,048 columns of a tensor of 2^31 elements, so that its indices need 64 bits.
static const char wide_text[] =
    "stage step\naxis c = 65536, h = 2, i = 16, j = 16, p = 16, hp = 32, all = 2048\n"
    "func @f(%x: bf16[c, j, all], %m: f32[c, i, j], %z: f32[c, h]) -> (y: bf16[c, h, i, p]) {\n"
    "  %s = slice %x (all) -> (hp) [16, 1]\n  %v = view %s (hp) -> (h, p)\n"
    "  %u = permute %v : bf16[c, h, j, p]\n  %me = expand %m : f32[c, h, i, j]\n"
    "  %f = mul %me, %z\n  %w = cast %f : bf16[c, h, i, j]\n  %y = dot %w, %u over(j)\n"
    "  return %y\n}\n";

static void wide_check(void) {
  lm_ctx *ctx = lm_ctx_create();
  lm_plan_options target = RUN_OPTIONS();
  lm_module *m = parse_and_run_for(ctx, wide_text, "decompose,cse,dce,fuse", &target.target);
  mix_kernels_make(m, "sm_90a", 1);
  lm_plan *plan = lm_plan_build(m, &target);
  CHECK(plan && plan->n_kernels == 1 && plan->kernels[0].name[0] == 'x');
  CHECK(strstr(plan->kernels[0].source, "typedef int64_t lm_at"));
  CHECK(strstr(plan->kernels[0].source, " * 2048"));
  lm_ctx_destroy(ctx);
}

static void mix_run(const mix_case *c, uint64_t seed) {
  lm_buf text = {0};
  current = c;
  mix_text(c, &text);
  run_both(text.p,
           &(run_options){.name = c->name, .tolerance = 1e-6, .seed = seed, .kernels = one_kernel});
  lm_buf_free(&text);
}

int main(int argc, char **argv) {
  const char *only = argc > 1 ? argv[1] : NULL;
  cache_begin();
  for (size_t i = 0; i < LM_COUNT(mix_cases); i++)
    if (case_is_chosen(mix_cases[i].name, only))
      mix_run(&mix_cases[i], i);
  for (size_t i = 0; i < LM_COUNT(near_cases); i++)
    if (case_is_chosen(near_cases[i].name, only))
      near_run(&near_cases[i], i);
  if (!only)
    wide_check();
}
