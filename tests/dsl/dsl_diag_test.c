// dsl_diag_test.c - diagnostics as text and as JSON: carets, invalid bytes, long lines, order,
// repeated errors, limits.
#include "tests/dsl/dsl_test.h"

static void check_rendered(lm_ctx *c, const char *expected) {
  lm_buf out = {0};
  lm_diag_render(c, &out, 0);
  CHECK_TEXT(out.p ? out.p : "", expected);
  lm_buf_free(&out);
  lm_ctx_destroy(c);
}

static lm_loc at(uint16_t file, uint32_t line, uint32_t col, uint16_t len) {
  return (lm_loc){file, len, line, col};
}

static LM_PRINTF(5, 6) lm_diag *report(lm_ctx *c, lm_severity severity, lm_loc where,
                                       const char *code, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  lm_diag *d = lm_diag_add(c, severity, where, code, fmt, ap);
  va_end(ap);
  return d;
}

static void test_full(void) {
  static const char text[] = "block A {\n  let k = dot(x, wk, d)\n}\n";
  lm_ctx *c = lm_ctx_create();
  uint16_t s = lm_source_add(c, "a.lm", text, strlen(text));
  uint16_t other = lm_source_add(c, "b.lm", "x", 1);
  lm_diag *d = report(c, LM_SEV_ERROR, at(s, 2, 18, 2), "E031", "axis mismatch in %s", "dot");
  lm_diag_label(c, d, "real[f, g] has no axis 'd'");
  lm_diag_note(c, d, at(s, 1, 1, 1), "x: real[b, d]");
  lm_diag_note(c, d, at(other, 1, 1, 1), "wk declared");
  lm_diag_note(c, d, (lm_loc){0}, "nowhere");
  lm_diag_help(c, d, "declare wk as real[d, g]");
  report(c, LM_SEV_WARNING, at(s, 1, 7, 1), NULL, "first in the file");
  check_rendered(c, "a.lm:1:7: warning: first in the file\n1 | block A {\n  |       ^\n"
                    "a.lm:2:18: error[E031]: axis mismatch in dot\n2 |   let k = dot(x, wk, d)\n"
                    "  |                  ^^ real[f, g] has no axis 'd'\n  = x: real[b, d] (line "
                    "1)\n  = wk declared (b.lm:1:1)\n"
                    "  = nowhere\n  = help: declare wk as real[d, g]\n");
}

// The caret is under the right column with multi-byte and wide characters and with escapes.
static void test_cells(void) {
  static const char text[] = "é\t日本 \x1b[31m \xff x\xe2\x80\xae!";
  lm_ctx *c = lm_ctx_create();
  uint16_t s = lm_source_add(c, "bad\nname.lm", text, strlen(text));
  report(c, LM_SEV_ERROR, at(s, 1, 19, 1), "E1", "here %s", "\x1b]0;x\a");
  check_rendered(c, "bad\\x0aname.lm:1:19: error[E1]: here \\x1b]0;x\\x07\n"
                    "1 | é 日本 \\x1b[31m \\xff x\\u{202e}!\n  |                      ^\n");
}

static void test_long_line(void) {
  lm_ctx *c = lm_ctx_create();
  lm_buf text = {0}, out = {0};
  for (int i = 0; i < 100000; i++)
    lm_buf_puts(&text, "é");
  uint16_t s = lm_source_add(c, "long.lm", text.p, text.n);
  report(c, LM_SEV_ERROR, at(s, 1, 100001, 2), "E1", "in the middle");
  report(c, LM_SEV_ERROR, at(s, 1, 4000000, 9), "E2", "behind the end");
  report(c, LM_SEV_ERROR, at(s, 77, 3, 1), "E3", "below the end");
  lm_diag_render(c, &out, 0);
  CHECK(out.n < 2000);
  lm_buf_free(&text);
  lm_buf_free(&out);
  lm_ctx_destroy(c);
}

static void test_repetition(void) {
  lm_ctx *c = lm_ctx_create();
  uint16_t s = lm_source_add(c, "a.lm", "x\n", 2);
  report(c, LM_SEV_ERROR, at(s, 1, 1, 1), "E1", "one");
  report(c, LM_SEV_ERROR, at(s, 1, 1, 1), "E1", "one again");
  CHECK(c->n_errors == 1);
  for (uint32_t i = 2; i < 500; i++)
    report(c, LM_SEV_ERROR, at(s, i, 1, 1), "E1", "many");
  CHECK(c->n_errors == 499);
  lm_buf out = {0};
  lm_diag_render(c, &out, 0);
  CHECK(strstr(out.p, "... and 399 more errors"));
  lm_buf_free(&out);
  lm_ctx_destroy(c);
}

static void test_json(void) {
  lm_ctx *c = lm_ctx_create();
  uint16_t s = lm_source_add(c, "a.lm", "x\n", 2);
  lm_diag *d = report(c, LM_SEV_ERROR, at(s, 1, 1, 1), "E1", "say \"x\"");
  lm_diag_note(c, d, (lm_loc){0}, "n");
  lm_buf out = {0};
  lm_diag_render_json(c, &out);
  CHECK_TEXT(out.p, "[\n {\"severity\": \"error\", \"code\": \"E1\", \"file\": \"a.lm\", \"line\": "
                    "1, \"column\": 1, \"length\": 1, "
                    "\"message\": \"say \\\"x\\\"\", \"label\": null, \"help\": null, \"notes\": "
                    "[{\"kind\": \"note\", \"message\": "
                    "\"n\", "
                    "\"file\": null, \"line\": 0, \"column\": 0, \"length\": 0}]}\n]\n");
  lm_buf_free(&out);
  lm_ctx_destroy(c);
}

int main(void) {
  test_full();
  test_cells();
  test_long_line();
  test_repetition();
  test_json();
}
