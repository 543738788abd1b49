// plan_fuzz.c - the text of a plan: a plan that parses prints to text that parses to the same plan.
#include "runtime/plan/plan.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  lm_arena *a = lm_arena_create();
  lm_plan *p, *again;
  lm_buf once = {0}, twice = {0};
  lm_status s = lm_plan_parse(a, (const char *)data, n, &p);
  if (!s) {
    lm_plan_print(p, &once);
    s = lm_plan_parse(a, once.p ? once.p : "", once.n, &again);
    LM_ASSERT(!s);
    lm_plan_print(again, &twice);
    LM_ASSERT(once.n == twice.n && (!once.n || !memcmp(once.p, twice.p, once.n)));
  }
  lm_buf_free(&once);
  lm_buf_free(&twice);
  lm_status_free(s);
  lm_arena_destroy(a);
  return 0;
}
