// kernel_form_test.c - the C text of a kernel: the two halves of a row of rotary positions are
// written side by side, so that each element of the row is loaded once in a pass.
#include <string.h>
#include "tests/codegen/run.h"

// An RMS norm without its mean, then rotary positions.
static const char TEXT[] =
    "stage step\naxis b = 64, e = 32, two = 2, c = 16, one = 1\n"
    "func @f(%x: f32[b, e], %co: f32[b, c], %si: f32[b, c]) -> (y: f32[b, e]) {\n"
    "  %q = mul %x, %x\n  %s = sum %q over(e)\n  %r = rsqrt %s\n  %n = mul %x, %r\n"
    "  %v = view %n (e) -> (two, c)\n  %lo = slice %v (two) -> () [0, 1]\n"
    "  %hi = slice %v (two) -> () [1, 1]\n  %lc = mul %lo, %co\n  %hs = mul %hi, %si\n"
    "  %y0 = sub %lc, %hs\n  %hc = mul %hi, %co\n  %ls = mul %lo, %si\n  %y1 = add %hc, %ls\n"
    "  %e0 = expand %y0 : f32[b, one, c]\n  %e1 = expand %y1 : f32[b, one, c]\n"
    "  %y = concat %e0, %e1 (one, one) -> (two)\n  %z = view %y (two, c) -> (e)\n  return %z\n}\n";

static int count(const char *text, const char *word) {
  int n = 0;
  for (const char *at = text; (at = strstr(at, word)); at++)
    n++;
  return n;
}

int main(void) {
  lm_ctx *c = lm_ctx_create();
  lm_module *m = parse_and_run(c, TEXT, "decompose,cse,dce,fuse");
  lm_plan_options target = lm_cpu_options();
  lm_plan *plan = lm_plan_build(m, &target);
  CHECK(plan && plan->n_kernels == 1);
  const char *text = plan->kernels[0].source;
  // The sum reads x once, the rotation each half once; cosine and sine are read once.
  bool fine = count(text, "= a0[") == 3 && count(text, "= a1[") == 1 && count(text, "= a2[") == 1;
  if (!fine)
    fprintf(stderr, "%s", text);
  CHECK(fine);
  lm_ctx_destroy(c);
  return 0;
}
