// dsl_fmt_test.c - fmt/*.lm are formatted as fmt/*.out. Formatting keeps the tree of every .lm file
// of the repository and is idempotent. An expression that is written from its tree parses to the
// same tree.
#include "tests/dsl/dsl_test.h"
#include <glob.h>

static lm_buf formatted(const parsed *p) {
  lm_buf out = {0};
  lm_fmt(p->c, p->source, &out);
  if (!out.p)
    lm_buf_puts(&out, "");
  return out;
}

// An expression that is written and parsed again has the same text.
static void check_expr(lm_ctx *c, const ast_expr *e) {
  lm_buf once = {0}, twice = {0};
  lm_expr_write(e, &once);
  ast_item *again = lm_parse_set(c, lm_arena_printf(c->arena, "x = %s", once.p));
  CHECK(!c->n_errors);
  lm_expr_write(again->expr, &twice);
  CHECK_TEXT(twice.p, once.p);
  lm_buf_free(&once);
  lm_buf_free(&twice);
}

static void check_keeps(const char *path, const char *text, size_t n) {
  parsed p = parse_n(text, n);
  if (p.c->n_errors) {
    lm_ctx_destroy(p.c);
    return;
  }
  lm_buf once = formatted(&p);
  parsed q = parse_n(once.p, once.n);
  lm_buf twice = formatted(&q);
  char *a = tree_of(&p);
  char *b = tree_of(&q);
  if (strcmp(a, b) || strcmp(once.p, twice.p))
    fprintf(stderr, "%s: changed by formatting\n", path);
  CHECK(!q.c->n_errors);
  CHECK_TEXT(b, a);
  CHECK_TEXT(twice.p, once.p);
  lm_free(a);
  lm_free(b);
  lm_buf_free(&once);
  lm_buf_free(&twice);
  lm_ctx_destroy(p.c);
  lm_ctx_destroy(q.c);
}

static void test_repository(void) {
  static const char *const patterns[] = {"stdlib/*.lm", "examples/*.lm", "examples/*/*.lm",
                                         "tests/*/*.lm", "tests/*/*/*.lm"};
  for (size_t k = 0; k < LM_COUNT(patterns); k++) {
    glob_t found;
    if (glob(patterns[k], 0, NULL, &found))
      continue;
    for (size_t i = 0; i < found.gl_pathc; i++) {
      lm_buf text = {0};
      CHECK_OK(lm_file_read(found.gl_pathv[i], 1 << 24, &text));
      if (text.n < 1 << 16)
        check_keeps(found.gl_pathv[i], text.p ? text.p : "", text.n);
      lm_buf_free(&text);
    }
    globfree(&found);
  }
}

static void test_layouts(void) {
  glob_t found;
  CHECK(!glob("tests/dsl/fmt/*.lm", 0, NULL, &found));
  for (size_t i = 0; i < found.gl_pathc; i++) {
    lm_ctx *c = lm_ctx_create();
    lm_buf expected = {0};
    char *path = lm_arena_printf(c->arena, "%.*s.out", (int)strlen(found.gl_pathv[i]) - 3,
                                 found.gl_pathv[i]);
    ast_file *f = lm_parse_path(c, found.gl_pathv[i], (lm_loc){0});
    CHECK(f && !c->n_errors);
    lm_buf out = {0};
    lm_fmt(c, f->source, &out);
    CHECK_OK(lm_file_read(path, 1 << 20, &expected));
    CHECK_TEXT(out.p, expected.p);
    lm_buf_free(&expected);
    lm_buf_free(&out);
    lm_ctx_destroy(c);
  }
  globfree(&found);
}

static void test_expressions(void) {
  static const char *const texts[] = {
      "a - (b - c) - -d",
      "(a + b) * c / (d * e)",
      "(-a) ^ b",
      "-a ^ -b",
      "(a ^ b) ^ c",
      "2 ^ (-3)",
      "(a == b) == c",
      "if a then b else c + 1",
      "(if a then b else c) + 1",
      "f(a = 1, b -> (c, d), ..r)[(a,)].x",
      "\"a\\n\\\"\\\\\"",
      "[@a.{b,c}, 10%, 2Ki tokens]",
      "-(-a)",
      "a in b & c | d",
      "()",
      "(-(if a then b else c)).x",
      "(a | b) & c",
  };
  lm_ctx *c = lm_ctx_create();
  for (size_t i = 0; i < LM_COUNT(texts); i++) {
    ast_item *it = lm_parse_set(c, lm_arena_printf(c->arena, "x = %s", texts[i]));
    CHECK(!c->n_errors);
    check_expr(c, it->expr);
  }
  lm_ctx_destroy(c);
}

int main(void) {
  test_layouts();
  test_repository();
  test_expressions();
}
