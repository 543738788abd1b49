// attend_kernel_test.c - attention on the CPU against the interpreter: loss and derivatives, odd
// sizes, f32 and bf16.
// Build: plain
#include "tests/codegen/cache.h" // defines _GNU_SOURCE, so it comes first
#include "tests/attend/cases.h"
#include <unistd.h>
#include "tests/attend/bare.h"

// Queries, keys and values in bf16, scores and the loss in f32.
static const attend_case half = {
    "bf16",
    "",
    "%a0 = dot %q, %k over(e)\n%a = cast %a0 : f32[b, t, g, h, s]\n" SCALE "%z = mul %a, %c\n",
    CAUSAL,
    "%ph = cast %p : bf16[b, t, g, h, s]\n%oh = dot %ph, %v over(s)\n%o = cast %oh : f32[b, t, g, "
    "h, f]\n",
    false};

static char *text_of(lm_arena *a, const attend_case *x, const int *size) {
  static const char *const params[] = {"param @q : f32", "param @k : f32", "param @v : f32"};
  char *text = attend_text(a, x, size);
  for (size_t i = 0; i < LM_COUNT(params) && x == &half; i++) {
    char *at = strstr(text, params[i]);
    text = lm_arena_printf(a, "%.*s%.*sbf16%s", (int)(at - text), text, (int)strlen(params[i]) - 3,
                           at, at + strlen(params[i]));
  }
  return text;
}

// The module at stage step as text, with attention expanded to operations and all numbers as
// arguments.
static char *step_text(lm_ctx *c, const attend_case *x, const int *size, bool rounds) {
  bool ok;
  lm_module *m = parse_and_run(c, text_of(c->arena, x, size), "attend,cse,licm,dce");
  if (rounds)
    attends_round(m);
  CHECK_OK(lm_pass_run_list(m, "grad,simplify,cse,licm,dce", &(lm_pass_env){0}, &ok));
  return bare_text(c, m);
}

static void check(const attend_case *x, const int *size, bool rounds) {
  lm_ctx *c = lm_ctx_create();
  char *text = step_text(c, x, size, rounds);
  run_both(text, &(run_options){.name = x->name, .tolerance = x == &half ? 1e-2 : 2e-5, .seed = 3});
  lm_ctx_destroy(c);
}

// Each case at one of the sizes, the first one at all; with LM_TEST_NIGHTLY in the environment,
// every case at all; with LM_TEST_BRIEF, each case at one, and every other case.
int main(void) {
  static const int sizes[][8] = {
      {2, 9, 9, 2, 2, 3, 5, 2}, {1, 70, 65, 1, 3, 16, 24, 8}, {2, 40, 96, 3, 1, 40, 17, 1}};
  bool nightly = getenv("LM_TEST_NIGHTLY"), brief = getenv("LM_TEST_BRIEF") && !nightly;
  cache_begin();
  for (size_t i = 0; i < LM_COUNT(attend_cases); i++)
    for (size_t k = 0; k < LM_COUNT(sizes); k++)
      if (nightly || (!i && !brief) || (i % LM_COUNT(sizes) == k && (i % 2 == 0 || !brief)))
        check(&attend_cases[i], sizes[k], false);
  for (size_t k = brief ? 1 : 0; k < LM_COUNT(sizes) - brief; k++)
    check(&half, sizes[k], false);
  check(&attend_cases[0], sizes[1], true);
}
