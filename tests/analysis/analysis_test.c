// analysis_test.c - the facts that passes `analyze` and `count` record: table sizes, row mixing,
// FLOPs.
#include "compiler/analysis/analysis.h"
#include "tests/numeric/grad_check.h"

#define HEAD                                                                                       \
  "stage graph\naxis b = 4, t = 8, d = 3, v = 16, p = 32, l = 5, u = 8\n"                          \
  "param @e : f32[v, d] = ones\nparam @o : f32[p, d] = ones\nparam @w : f32[l, d, v]"              \
  " stacked 1 as @w.# = ones\n"                                                                    \
  "func @loss(%tok: int[b, t], %pos: int[b, t], %w: f32[b, t]) -> (sum: f32, weight: f32) {\n"
#define TAIL "  %weight = sum %w over(b, t)\n  return %sum, %weight\n}\n"
#define EMBED "  %e = param @e\n  %x = gather %e, %tok over(v)\n  %r = sum %x over(d)\n"

static const lm_analysis *analyzed(lm_ctx **c, const char *text) {
  lm_module *m = must_parse(*c = lm_ctx_create(), "analysis.lmir", text, strlen(text));
  must_run(m, "inline,analyze,simplify,count");
  return lm_analysis_of(m);
}

static void limits_test(void) {
  lm_ctx *c;
  const lm_analysis *a =
      analyzed(&c, HEAD EMBED "  %o = param @o\n  %q = rename %pos (t) -> (u)\n"
                              "  %back = rename %q (u) -> (t)\n"
                              "  %y = gather %o, %back over(p)\n"
                              "  %z = mul %x, %y\n  %sum = sum %z over(b, t, d)\n" TAIL);
  CHECK(a->limits.tok == 16 && a->limits.pos == 32 && a->limits.next == INT64_MAX);
  lm_ctx_destroy(c);
}

static lm_row_mix_kind row_mix_of(const char *text) {
  lm_ctx *c;
  lm_row_mix_kind kind = analyzed(&c, text)->row_mix.kind;
  lm_ctx_destroy(c);
  return kind;
}

static void row_mix_test(void) {
  static const struct {
    const char *text;
    lm_row_mix_kind kind;
  } tests[] = {
      {HEAD EMBED "  %y = mul %r, %w\n  %sum = sum %y over(b, t)\n" TAIL, LM_ROW_MIX_INDEPENDENT},
      {HEAD EMBED "  %y = log1p %r\n  %z = div %y, %w\n  %sum = sum %z over(b, t)\n" TAIL,
       LM_ROW_MIX_INDEPENDENT},
      {HEAD EMBED "  %m = sum %r over(b)\n  %s = exp %m\n  %sum = sum %s over(t)\n" TAIL,
       LM_ROW_MIX_MIXED},
      {HEAD EMBED "  %y = max %r over(b)\n  %sum = sum %y over(t)\n" TAIL, LM_ROW_MIX_MIXED},
      {HEAD EMBED "  %k = slice %r (b) -> () [1, 1]\n  %sum = sum %k over(t)\n" TAIL,
       LM_ROW_MIX_MIXED},
      {HEAD EMBED "  %y = sum %r over(b, t)\n  %n = const 2 : f32\n  %sum = add %y, %n\n" TAIL,
       LM_ROW_MIX_PER_MICRO_BATCH},
  };
  for (size_t i = 0; i < LM_COUNT(tests); i++) {
    if (row_mix_of(tests[i].text) == tests[i].kind)
      continue;
    fprintf(stderr, "not %d:\n%s", tests[i].kind, tests[i].text);
    exit(1);
  }
}

// Five projections of 4 * 8 rows by 3 * 16, in a loop.
static void gemms_test(void) {
  lm_ctx *c;
  const lm_analysis *a =
      analyzed(&c, HEAD EMBED "  %y = loop 5 %i carry(%s = %r) {\n    %w0 = param @w[%i]\n"
                              "    %z = dot %x, %w0 over(d)\n    %n = sum %z over(v)\n"
                              "    %s1 = add %s, %n\n    yield %s1\n  }\n"
                              "  %u = mul %y, %w\n  %sum = sum %u over(b, t)\n" TAIL);
  CHECK(a->gemms.n == 1);
  const lm_weight_gemm *p = a->gemms.v;
  CHECK(p->m == 32 && p->k == 3 && p->n == 16 && p->count == 5);
  CHECK(a->n_flops == 1 && a->flops[0].func.id == LM_FUNC_LOSS);
  CHECK(a->flops[0].flops == 3.0 * 5 * 2 * 32 * 3 * 16);
  lm_ctx_destroy(c);
}

int main(void) {
  limits_test();
  row_mix_test();
  gemms_test();
  return 0;
}
