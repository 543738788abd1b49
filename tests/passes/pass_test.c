// pass_test.c - the runner of passes: lists, passes of another stage, disabled and forced passes,
// the callback before and after each; an invalid module at the end of a stage.
#include <sys/wait.h>
#include <unistd.h>

#include "tests/numeric/grad_check.h"

static const char text[] = "stage graph\naxis b = 2\nparam @w : f32[b] = ones\n"
                           "func @loss(%x: f32[b]) -> (sum: f32, weight: f32) {\n"
                           "  %w = param @w  %d = exp %x  %y = mul %x, %w  %s = sum %y over(b)  %n "
                           "= const 2 : f32  return %s, %n\n}\n";

static void note(void *user, const char *pass, bool after, const lm_module *m) {
  lm_buf_printf(user, "%s%s ", after ? "/" : "", pass);
}

static void check_list(void) {
  lm_ctx *c = lm_ctx_create();
  lm_module *m = must_parse(c, "pass.lmir", text, strlen(text));
  lm_buf seen = {0};
  lm_pass_env env = {.watch = note, .user = &seen};
  bool ok;
  CHECK_OK(lm_pass_run_list(m, "dce,grad", &env, &ok));
  CHECK(ok && m->stage == LM_STAGE_STEP && !strcmp(seen.p, "dce /dce grad /grad "));
  CHECK_FAILS(lm_pass_run_list(m, "cse,frob", &env, &ok), LM_USER, "there is no pass frob");
  CHECK_FAILS(lm_pass_run_list(m, "grad", &env, &ok), LM_USER,
              "pass grad does not run at the stage of this module");
  lm_buf_free(&seen);
  lm_ctx_destroy(c);
}

static void check_disabled(void) {
  lm_ctx *c = lm_ctx_create();
  lm_module *m = must_parse(c, "pass.lmir", text, strlen(text));
  lm_buf seen = {0};
  lm_pass_env env = {
      .watch = note, .user = &seen, .disabled = (const char *[]){"cse", "licm"}, .n_disabled = 2};
  CHECK(lm_pipeline_run(m, LM_STAGE_STEP, &env));
  CHECK(m->stage == LM_STAGE_STEP && strstr(seen.p, "simplify") && !strstr(seen.p, "cse") &&
        !strstr(seen.p, "licm"));
  lm_buf_free(&seen);
  lm_ctx_destroy(c);
}

// Gives the sum an invalid type behind the pass *user, so that no later pass of its stage sees it.
static void spoil(void *user, const char *pass, bool after, const lm_module *m) {
  if (after && m->stage == LM_STAGE_GRAPH && !strcmp(pass, user))
    m->funcs->body->last->in[0]->type.dtype = LM_INT;
}

// The last pass of the pipeline before the one that changes the stage.
static char *last_of_graph(void) {
  int i = 0;
  while (!lm_pass_changes_stage(lm_pass_find(lm_pipeline[i + 1])))
    i++;
  return (char *)lm_pipeline[i];
}

// The pass that changes the stage reads no invalid module, and so gives no wrong one.
static void check_invalid(void) {
  lm_ctx *c = lm_ctx_create();
  lm_module *m = must_parse(c, "pass.lmir", text, strlen(text));
  lm_pass_env env = {.watch = spoil, .user = last_of_graph()};
  pid_t child = fork();
  CHECK(child >= 0);
  if (!child) {
    CHECK(freopen("/dev/null", "w", stderr));
    CHECK(lm_pipeline_run(m, LM_STAGE_STEP, &env));
    _exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == LM_BUG_STATUS);
  lm_ctx_destroy(c);
}

// A former name stands for the pass in lists, and disables it.
static void check_former_names(void) {
  static const char *const names[][2] = {
      {"lookahead", "causal"},         {"chunk", "tile_vocab"},    {"pack", "fuse_gemms"},
      {"slab", "tile_rows"},           {"jam", "fuse_loops"},      {"widen", "accum_f32"},
      {"layout", "prepack"},           {"copies", "hoist_params"}, {"unattend", "expand_attention"},
      {"attend_mean", "attend_delta"},
  };
  for (size_t i = 0; i < LM_COUNT(names); i++) {
    const lm_pass *pass = lm_pass_former(names[i][0], strlen(names[i][0]));
    CHECK(pass && !strcmp(pass->name, names[i][1]));
    CHECK(!lm_pass_find(names[i][0]) && !lm_pass_former(names[i][1], strlen(names[i][1])));
  }
  lm_ctx *c = lm_ctx_create();
  lm_pass_env env = {0};
  CHECK_OK(lm_pass_disable(c->arena, "jam,cse", &env));
  CHECK(lm_pass_is_off(&env, "fuse_loops") && lm_pass_is_off(&env, "cse") && env.n_disabled == 2);
  CHECK_FAILS(lm_pass_force(c->arena, "jam", &env), LM_USER,
              "pass fuse_loops is both disabled and enabled");
  CHECK_FAILS(lm_pass_disable(c->arena, "lookahead", &env), LM_USER,
              "pass causal cannot be disabled: later passes need its result");
  lm_ctx_destroy(c);
}

// Errors of passes are user errors, at the source location of the operation.
static void check_errors(void) {
  static const struct {
    const char *text, *pass, *message;
  } cases[] = {
      {"stage graph\nfile \"m.lm\"\nfunc @f() -> () {\n call @g() loc(1:7:3)\n return\n}\nfunc "
       "@g() -> () {\n call @f() loc(1:9:1)\n return\n}\n",
       "inline", "@f calls itself"},
      {"stage graph\nfunc @g() -> () {\n return\n}\nfunc @loss() -> (s: f32, w: f32) {\n call "
       "@g()\n %s = const 1 : f32\n return %s, %s\n}\n",
       "grad", "call @g has no derivative before pass inline"},
      {"stage graph\nfunc @loss() -> (s: int, w: int) {\n %s = const 1 : int\n return %s, %s\n}\n",
       "grad", "@loss returns a sum, one floating number, and a weight"},
  };
  for (size_t i = 0; i < LM_COUNT(cases); i++) {
    lm_ctx *c = lm_ctx_create();
    bool ok = true;
    CHECK_OK(lm_pass_run_list(must_parse(c, "e.lmir", cases[i].text, strlen(cases[i].text)),
                              cases[i].pass, &(lm_pass_env){0}, &ok));
    CHECK(!ok && c->diags && !strcmp(c->diags->text, cases[i].message));
    lm_ctx_destroy(c);
  }
}

int main(void) {
  check_list();
  check_disabled();
  check_invalid();
  check_former_names();
  check_errors();
}
