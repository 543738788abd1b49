// dsl_test.h - parses one text in a new context, for tests of the language.
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

// The printed tree; the caller frees it.
static inline char *tree_of(const parsed *p) {
  lm_buf b = {0};
  lm_ast_print(p->f, &b);
  return b.p ? b.p : lm_strdup("");
}

static inline void check_text(const char *got, const char *expected, const char *file, int line) {
  if (!strcmp(got, expected))
    return;
  fprintf(stderr, "%s:%d: got\n%s\nexpected\n%s\n", file, line, got, expected);
  exit(1);
}
#define CHECK_TEXT(got, expected) check_text((got), (expected), __FILE__, __LINE__)
#endif
