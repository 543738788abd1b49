// lm_fuzz.c - the text of the language: parser, formatter, tree printer, diagnostics. A text that
// parses must keep its tree through the formatter, and must not change when it is formatted again.
// check_fuzz.c covers the meaning of a text.
#include "dsl/syntax/ast.h"
#include "tests/fuzz/fuzz.h"

static void print(const ast_file *f, lm_buf *out) {
  lm_ast_print(f, out);
  if (!out->p)
    lm_buf_puts(out, "");
}

static void check_formatted(lm_ctx *c, const ast_file *f) {
  lm_buf once = {0}, twice = {0}, tree = {0}, again = {0};
  lm_fmt(c, f->source, &once);
  uint16_t source = lm_source_add(c, "formatted", once.p ? once.p : "", once.n);
  const ast_file *g = lm_parse_file(c, source);
  lm_fmt(c, source, &twice);
  print(f, &tree);
  print(g, &again);
  if (c->n_errors || strcmp(tree.p, again.p) || once.n != twice.n ||
      memcmp(once.p ? once.p : "", twice.p ? twice.p : "", once.n))
    abort();
  lm_buf_free(&once);
  lm_buf_free(&twice);
  lm_buf_free(&tree);
  lm_buf_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  lm_ctx *c = lm_ctx_create();
  const ast_file *f = lm_parse_file(c, lm_source_add(c, "t.lm", (const char *)data, n));
  if (!c->n_errors)
    check_formatted(c, f);
  fuzz_render(c);
  lm_ctx_destroy(c);
  return 0;
}
