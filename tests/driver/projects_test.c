// projects_test.c - several projects at once in one process: a project does not change once it is
// open, compiling it is repeatable, and steps of two projects may alternate.
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "driver/session.h"
#include "tests/runtime/check.h"

// %s: the folder; %d: the width; "auto" as micro lets a budget choose the micro-batch.
static const char program[] =
    "import std.nn: rmsnorm, xent\n"
    "model Tiny(d = %d, vocab = 256) {\n"
    "  param embed: real[vocab, d] = normal(0.02)\n"
    "  param norm: real[d] = ones\n"
    "  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {\n"
    "    return dot(rmsnorm(gather(embed, tok, vocab), norm), embed, d)\n"
    "  }\n"
    "  loss(bt: Batch[b, t]) -> (f32, f32) {\n"
    "    return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w))\n"
    "  }\n"
    "}\n"
    "data D { source words = text(\"%s/words.txt\"); pack best_fit(seq = 32 tokens) }\n"
    "recipe R {\n"
    "  model = Tiny(); data = D; seed = %d\n"
    "  run = 4 steps; batch = 128 tokens; micro = auto\n"
    "  optimizer = adamw(lr = 1e-3); schedule = none\n"
    "}\n";

typedef struct opened {
  lm_ctx *ctx;
  lm_session s;
} opened;

static const char *file_write(const char *dir, int width, int seed) {
  static char path[256];
  lm_buf b = {0};
  snprintf(path, sizeof path, "%s/tiny-%d.lm", dir, width);
  lm_buf_printf(&b, program, width, dir, seed);
  CHECK_OK(lm_file_write_atomic(path, b.p, b.n));
  lm_buf_free(&b);
  return path;
}

static void check_ctx(lm_ctx *c, lm_status s) {
  lm_buf why = {0};
  if (!s)
    return;
  lm_diag_render(c, &why, 0);
  fprintf(stderr, "%s%s\n", why.p ? why.p : "", s->text);
  exit(1);
}

static void project_open(opened *x, const char *path) {
  *x = (opened){.ctx = lm_ctx_create()};
  check_ctx(x->ctx, lm_session_open(&x->s, x->ctx, NULL, &(lm_recipe_choice){.path = path}));
  check_ctx(x->ctx, lm_session_data(&x->s));
}

static void project_start(opened *x) {
  check_ctx(x->ctx, lm_session_compile(&x->s, LM_LOWER_TRAIN, 0));
  check_ctx(x->ctx, lm_session_start(&x->s, NULL));
  check_ctx(x->ctx, lm_session_train(&x->s));
}

static double step(opened *x, int64_t i) {
  lm_step_result r;
  check_ctx(x->ctx, lm_trainer_step(x->s.execution.trainer, i, i - 1, INFINITY, &r));
  return r.loss;
}

static void project_close(opened *x) {
  lm_session_close(&x->s);
  lm_ctx_destroy(x->ctx);
}

static void test_alternating(const char *first, const char *second) {
  double alone[2][2], together[2][2];
  const char *paths[2] = {first, second};
  opened x[2];
  for (int i = 0; i < 2; i++) {
    project_open(&x[0], paths[i]);
    project_start(&x[0]);
    for (int k = 0; k < 2; k++)
      alone[i][k] = step(&x[0], k + 1);
    project_close(&x[0]);
  }
  for (int i = 0; i < 2; i++)
    project_open(&x[i], paths[i]);
  for (int i = 0; i < 2; i++)
    project_start(&x[i]);
  for (int k = 0; k < 2; k++)
    for (int i = 0; i < 2; i++)
      together[i][k] = step(&x[i], k + 1);
  CHECK(!memcmp(alone, together, sizeof alone));
  CHECK(alone[0][0] != alone[1][0] && alone[0][0] > 1 && alone[0][1] < alone[0][0]);
  for (int i = 0; i < 2; i++)
    project_close(&x[i]);
}

static lm_buf plan_text(opened *x, const lm_compile_spec *spec) {
  lm_compiled c;
  lm_buf text = {0};
  check_ctx(x->ctx, lm_compile(&x->s.project, spec, &c));
  lm_plan_print(c.plan, &text);
  return text;
}

// The same spec gives the same plan, whatever was compiled in between; fitting changes neither the
// project nor the spec.
static void test_repeatable(const char *path) {
  opened x;
  project_open(&x, path);
  lm_recipe before = *x.s.project.recipe;
  lm_compile_spec spec = lm_session_spec(&x.s, LM_LOWER_TRAIN, 0), half = spec;
  lm_run_spec_set_micro(&half.run, 64);
  lm_buf a = plan_text(&x, &spec);
  lm_buf b = plan_text(&x, &half);
  lm_fit fit;
  lm_compiled fitted;
  lm_compile_spec asked = spec;
  check_ctx(x.ctx, lm_fit_find(&x.s.project, &asked, 0, &fit, &fitted));
  lm_buf c = plan_text(&x, &spec);
  CHECK(a.n == c.n && !memcmp(a.p, c.p, a.n));
  CHECK(a.n != b.n || memcmp(a.p, b.p, a.n));
  CHECK(!memcmp(&asked, &spec, sizeof spec));
  CHECK(!memcmp(&before, x.s.project.recipe, sizeof before));
  lm_buf_free(&a);
  lm_buf_free(&b);
  lm_buf_free(&c);
  project_close(&x);
}

int main(void) {
  char dir[] = "/tmp/lmc-projects-XXXXXX";
  char path[2][256];
  lm_buf words = {0};
  CHECK(mkdtemp(dir));
  for (int i = 0; i < 400; i++)
    lm_buf_printf(&words, "the %d words of line %d\n\n", i * i % 17, i);
  snprintf(path[0], sizeof path[0], "%s/words.txt", dir);
  CHECK_OK(lm_file_write_atomic(path[0], words.p, words.n));
  lm_buf_free(&words);
  snprintf(path[0], sizeof path[0], "%s", file_write(dir, 16, 1));
  snprintf(path[1], sizeof path[1], "%s", file_write(dir, 24, 2));
  test_alternating(path[0], path[1]);
  test_repeatable(path[0]);
  CHECK_OK(lm_path_remove(dir));
  return 0;
}
