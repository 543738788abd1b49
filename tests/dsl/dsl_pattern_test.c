// dsl_pattern_test.c - path patterns: matching, captures, expansion, syntax; similar names.
#include "tests/dsl/dsl_test.h"

static bool matches(lm_ctx *c, const char *pattern, const char *path) {
  return lm_pattern_match(c, pattern, path, NULL);
}

static void test_match(lm_ctx *c) {
  CHECK(matches(c, "@embed", "embed"));
  CHECK(!matches(c, "@embed", "embed.x"));
  CHECK(matches(c, "@layers.*.attn.wq", "layers.17.attn.wq"));
  CHECK(!matches(c, "@layers.*.wq", "layers.17.attn.wq"));
  CHECK(matches(c, "@layers.#.wq", "layers.17.wq"));
  CHECK(!matches(c, "@layers.#.wq", "layers.a.wq"));
  CHECK(matches(c, "@**", "a") && matches(c, "@**", "a.b.c"));
  CHECK(matches(c, "@**.norm", "norm") && matches(c, "@**.norm", "a.b.norm"));
  CHECK(!matches(c, "@**.norm", "norm.a"));
  CHECK(matches(c, "@layers.**", "layers.0") && !matches(c, "@layers.**", "layers"));
  CHECK(matches(c, "@a.**.b", "a.b") && matches(c, "@a.**.b", "a.x.y.b"));
  CHECK(matches(c, "@**.**.**.a", "x.y.a"));
  CHECK(matches(c, "@layers.{0,23}.**", "layers.23.attn.wq") &&
        !matches(c, "@layers.{0,23}.**", "layers.2.attn.wq"));
  CHECK(matches(c, "@x{1,2}.w", "x2.w") && !matches(c, "@x{1,2}.w", "x3.w"));
  CHECK(matches(c, "@{attn.wq,mlp.*}", "attn.wq") && matches(c, "@{attn.wq,mlp.*}", "mlp.wd"));
}

static void test_captures(lm_ctx *c) {
  lm_match m;
  CHECK(lm_pattern_match(c, "@layers.#.*.{wq,wk,wv}", "layers.12.attn.wv", &m));
  CHECK(m.n_cap == 2 && !strcmp(m.cap[0], "12") && !strcmp(m.cap[1], "attn"));
  CHECK(m.n_alt == 1 && m.alt[0] == 2);
  CHECK(lm_pattern_match(c, "@**.#", "a.1.2", &m));
  CHECK(m.n_cap == 1 && !strcmp(m.cap[0], "2"));
}

static void test_expand(lm_ctx *c) {
  int n;
  const char **v = lm_pattern_expand(c, "@a.{b,c}.x{0,1}", &n);
  CHECK(n == 4 && !strcmp(v[0], "@a.b.x0") && !strcmp(v[1], "@a.b.x1") && !strcmp(v[3], "@a.c.x1"));
  v = lm_pattern_expand(c, "@a.b", &n);
  CHECK(n == 1 && !strcmp(v[0], "@a.b"));
}

static void test_syntax(void) {
  static const char *const good[] = {"@a", "@a.*.#.**", "@{a,b.c}.d", "@x{1,2}y{3,4}.z"};
  static const char *const bad[] = {"@",
                                    "@a.",
                                    "@.a",
                                    "@a..b",
                                    "@a*",
                                    "@***",
                                    "@{a,}",
                                    "@{}",
                                    "@x{a.b}",
                                    "@{a",
                                    "@{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}",
                                    "@*.*.*.*.*.*.*.*.*"};
  for (size_t i = 0; i < LM_COUNT(good); i++)
    CHECK(!lm_pattern_check(good[i]));
  for (size_t i = 0; i < LM_COUNT(bad); i++)
    CHECK(lm_pattern_check(bad[i]));
}

static void test_nearest(void) {
  static const char *const names[] = {"optimizer", "schedule", "batch", "betas", "lr"};
  CHECK(!strcmp(lm_nearest("optimiser", names, 5), "optimizer"));
  CHECK(!strcmp(lm_nearest("bacth", names, 5), "batch"));
  CHECK(!strcmp(lm_nearest("beta", names, 5), "betas"));
  CHECK(!lm_nearest("momentum", names, 5) && !lm_nearest("", names, 5) &&
        !lm_nearest("x", names, 0));
}

int main(void) {
  lm_ctx *c = lm_ctx_create();
  test_match(c);
  test_captures(c);
  test_expand(c);
  test_syntax();
  test_nearest();
  lm_ctx_destroy(c);
}
