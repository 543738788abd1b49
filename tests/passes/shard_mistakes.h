// shard_mistakes.h - programs with a part of their text replaced, and what passes report of them.
#ifndef LM_TESTS_SHARD_MISTAKES_H
#define LM_TESTS_SHARD_MISTAKES_H
#include "compiler/ops/interface.h"
#include "tests/passes/shard_check.h"

// `message`: a part of the diagnostic; NULL: none is expected.
typedef struct mistake {
  const char *from, *to, *message;
} mistake;

static inline char *replaced(lm_arena *a, const char *text, const char *from, const char *to) {
  const char *at = strstr(text, from);
  CHECK(at);
  return lm_arena_printf(a, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
}

// The diagnostics of the passes over a text; empty if there are none.
static inline lm_buf judged(const char *text, const char *passes) {
  lm_ctx *c = lm_ctx_create();
  lm_buf out = {0};
  lm_module *m = lm_module_parse(c, lm_source_add(c, "mistake", text, strlen(text)));
  bool ok = true;
  if (m)
    CHECK_OK(lm_pass_run_list(m, passes, &(lm_pass_env){0}, &ok));
  lm_diag_render(c, &out, false);
  CHECK((m && ok) == !out.n);
  lm_ctx_destroy(c);
  return out;
}

static inline void expect(const char *text, const char *passes, const char *message) {
  lm_buf got = judged(text, passes);
  bool as_expected = message ? got.n && strstr(got.p, message) : !got.n;
  if (!as_expected)
    fprintf(stderr, "%s\nexpected %s, got %s\n", text, message ? message : "nothing",
            got.n ? got.p : "nothing");
  CHECK(as_expected);
  lm_buf_free(&got);
}
#endif
