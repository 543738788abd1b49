// lmir_fuzz.c - any bytes as .lmir: a module that parses prints to text that parses to the same
// module, and every pass keeps it well-formed (the runner verifies).
#include "compiler/passes/pass.h"
#include "tests/fuzz/fuzz.h"

static lm_module *parse(lm_ctx *c, const char *text, size_t n) {
  return lm_module_parse(c, lm_source_add(c, "fuzz", text, n));
}

static void round_trip(const lm_module *m) {
  lm_buf once = {0}, twice = {0};
  lm_ctx *c = lm_ctx_create();
  lm_module_print(m, &once);
  lm_module *again = parse(c, once.p, once.n);
  LM_ASSERT(again);
  lm_module_print(again, &twice);
  LM_ASSERT(once.n == twice.n && !__builtin_memcmp(once.p, twice.p, once.n));
  lm_buf_free(&once);
  lm_buf_free(&twice);
  lm_ctx_destroy(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  static const char *const passes[] = {"inline", "simplify", "cse", "licm", "dce",
                                       "grad",   "simplify", "cse", "licm", "dce"};
  lm_ctx *c = lm_ctx_create();
  lm_module *m = parse(c, (const char *)data, n);
  if (m)
    round_trip(m);
  else
    LM_ASSERT(c->n_errors);
  for (size_t i = 0; m && i < LM_COUNT(passes); i++) {
    const lm_pass *p = lm_pass_find(passes[i]);
    if (p->before != LM_STAGES && p->before != m->stage)
      continue;
    if (!lm_pass_run(m, p, &(lm_pass_env){0}))
      break;
    if (i + 1 == LM_COUNT(passes))
      round_trip(m);
  }
  lm_ctx_destroy(c);
  return 0;
}
