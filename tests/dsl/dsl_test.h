// dsl_test.h - a context with one source, for tests of the language.
#ifndef LM_DSL_TEST_H
#define LM_DSL_TEST_H
#include "dsl/syntax/ast.h"
#include "tests/runtime/check.h"

typedef struct parsed {
  lm_ctx *c;
  ast_file *f;
  uint16_t source;
} parsed;

static inline parsed parse_n(const char *text, size_t n) {
  parsed p = {.c = lm_ctx_create()};
  p.source = lm_source_add(p.c, "t.lm", text, n);
  p.f = lm_parse_file(p.c, p.source);
  return p;
}

static inline parsed parse(const char *text) {
  return parse_n(text, strlen(text));
}

static inline char *tree_of(const parsed *p) { // to be freed
  lm_buf b = {0};
  lm_ast_print(p->f, &b);
  return b.p ? b.p : lm_strdup("");
}

static inline void check_text(const char *got, const char *wanted, const char *file, int line) {
  if (!strcmp(got, wanted))
    return;
  fprintf(stderr, "%s:%d: got\n%s\nwanted\n%s\n", file, line, got, wanted);
  exit(1);
}
#define CHECK_TEXT(got, wanted) check_text((got), (wanted), __FILE__, __LINE__)
#endif
