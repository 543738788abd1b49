// fp8_search_test.c - casts of GEMMs to 8-bit floats that gain by themselves, and with which the
// whole step takes longer, are found by comparing whole plans (driver/fit.c): E2F4.
//
// Which casts these are depends on the constants of the cost model, so the machine is planted: one
// whose kernels begin late. If each begins at once, the casts of a weight gain; if the next one
// begins very late, they do not. Near the time between where they gain nothing, the kernels that
// only the plan has decide. The test looks for such a time by bisection, for one weight after the
// other.
#include <string.h>

#include "driver/session.h"
#include "tests/runtime/check.h"

enum {
  HALVINGS = 24,
  TEXT = 512
};
static const double LATEST = 1e-4; // seconds between two kernels
static const char model[] = "model = Llama(depth = 2, d = 2048, ff = 2048, heads = 8, kv = 8, "
                            "e = 128, vocab = 32_000)";

// The GEMMs that may be cast, and those of the parameters that may not.
typedef struct form {
  const char *scale, *keep;
} form;
static const form forms[] = {
    {"current", "@layers.*.{wu,wd,attn.*}"},
    {"current", "@layers.*.{wg,wu,attn.*}"},
    {"delayed", "@layers.*.{wg,wu,attn.*}"},
    {"delayed", "@layers.*.{wu,wd,attn.*}"},
};

typedef enum {
  CAST,   // the plan has casts
  LONGER, // E2F4: they gain, and the step takes longer
  NO_GAIN // E2F4: they do not
} verdict;

// gap: seconds from one kernel to the next. on: passes that are forced. The seconds of a step are
// 0 without a plan.
static verdict compiled(double gap, const char *precision, const char *on, double *out_seconds) {
  lm_ctx *c = lm_ctx_create();
  lm_session s = {.variant = {.on = on}};
  const char *sets[] = {model, precision};
  lm_recipe_choice choice = {.path = "examples/bench-180m.lm", .overrides = {sets, 2}};
  CHECK_OK(lm_target_find("h100", &s.target));
  s.target.rates.gap = gap;
  CHECK_OK(lm_session_open(&s, c, NULL, &choice));
  CHECK_OK(lm_session_sizes(&s));
  lm_status refused = lm_session_compile(&s, LM_LOWER_TRAIN, 0);
  lm_buf why = {0};
  lm_diag_render(c, &why, 0);
  CHECK(!refused || strstr(why.p, "error[E2F4]"));
  bool longer =
      refused && strstr(why.p, "in 8-bit floats, as predicted, but the step takes longer");
  *out_seconds = 0;
  if (!refused) {
    lm_target t = lm_compiled_machine(&s.compiled, 1);
    *out_seconds = lm_cost_of_training(&t, s.compiled.plan, s.compiled.run.n_micro).seconds;
  }
  lm_buf_free(&why);
  lm_status_free(refused);
  lm_session_close(&s);
  lm_ctx_destroy(c);
  return longer ? LONGER : refused ? NO_GAIN : CAST;
}

static const char *precision_of(const form *f, char *text) {
  snprintf(text, TEXT, "precision { compute = bf16; matmul = fp8(scale = %s); keep bf16 = [%s] }",
           f->scale, f->keep);
  return text;
}

// A plan that has casts is not slower than the plan without casts. If the search refused all casts,
// then a plan that is forced to have them is slower.
static void test_seconds(double gap, const char *precision, verdict v, double with) {
  double without, forced;
  compiled(gap, "precision.compute = bf16", NULL, &without);
  compiled(gap, precision, "fp8", &forced);
  CHECK(v != CAST || with <= without);
  CHECK(v != LONGER || forced > without);
}

// The time between two kernels with which the casts are refused for the step; 0: none is found.
static double refused_gap(const char *precision) {
  double low = 0, high = LATEST;
  for (int i = 0; i < HALVINGS; i++) {
    double seconds, gap = (low + high) / 2;
    verdict v = compiled(gap, precision, NULL, &seconds);
    test_seconds(gap, precision, v, seconds);
    if (v == LONGER)
      return gap;
    *(v == CAST ? &low : &high) = gap;
  }
  return 0;
}

int main(void) {
  double gap = 0;
  for (size_t i = 0; i < LM_COUNT(forms) && gap <= 0; i++) {
    char text[TEXT];
    gap = refused_gap(precision_of(&forms[i], text));
    if (gap > 0)
      printf("scale = %s, all but %s: refused with %g s between kernels\n", forms[i].scale,
             forms[i].keep, gap);
  }
  CHECK(gap > 0);
}
