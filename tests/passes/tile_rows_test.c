// tile_rows_test.c - which tiles of rows are profitable: the bytes that they keep in the caches
// against the bytes that they add.
#include "compiler/plan/planner.h"
#include "tests/numeric/grad_check.h"

// The feed-forward half of a layer: the saved bytes grow with the rows, the added bytes with the
// weights and the trip count.
static const char text[] =
    "stage graph\naxis b = 8, t = %d, d = %d, ff = %d\n"
    "param @w : f32[d, ff]\nparam @v : f32[ff, d]\n"
    "func @loss(%%x: %s[b, t, d]) -> (sum: f32, weight: f32) {\n"
    "  %%w0 = param @w : f32[d, ff]\n  %%w = cast %%w0 : %s[d, ff]\n  %%v0 = param @v : f32[ff, "
    "d]\n  %%v = cast %%v0 : %s[ff, d]\n"
    "  %%h = dot %%x, %%w over(d)\n  %%a = tanh %%h\n  %%y = dot %%a, %%v over(ff)\n  %%z = add "
    "%%x, %%y\n"
    "  %%f = cast %%z : f32[b, t, d]\n  %%s = sum %%f over(b, t, d)\n  return %%s, %%s\n}\n";

static void count_loop(lm_op *op, void *user) {
  *(int *)user += op->code == LM_OP_LOOP;
}

typedef struct sizes {
  int t, d, ff;
  const char *type;
} sizes;

static int tiled_loops(sizes n, const lm_target *target, bool asked) {
  lm_ctx *c = lm_ctx_create();
  const char *s = lm_arena_printf(c->arena, text, n.t, n.d, n.ff, n.type, n.type, n.type);
  lm_module *m = must_parse(c, "tile_rows", s, strlen(s));
  lm_pass_env env = {.target = target};
  int found = 0;
  bool ok;
  if (asked)
    CHECK_OK(lm_pass_force(c->arena, "tile_rows", &env));
  CHECK_OK(lm_pass_run_list(m, "tile_rows", &env, &ok));
  CHECK(ok);
  lm_region_walk(lm_func_find(m, "loss")->body, count_loop, &found);
  lm_ctx_destroy(c);
  return found;
}

int main(void) {
  sizes usual = {1024, 256, 768, "bf16"}, f32 = {1024, 256, 768, "f32"},
        few = {64, 256, 768, "bf16"}, heavy = {1024, 8192, 8192, "bf16"};
  lm_target none = {0}, caches = {.choices.cached_bytes = 4 << 20},
            all = {.choices.cached_bytes = 1 << 30},
            large = {.choices = {.cached_bytes = 1 << 28, .rows = 512}},
            small = {.choices = {.cached_bytes = 1 << 18, .rows = 512}},
            short_iterations = {.choices = {.cached_bytes = 4 << 20, .rows = 32}},
            slow = {.choices = {.cached_bytes = 4 << 20, .launch = 32 << 20}};
  CHECK(tiled_loops(usual, &caches, false) == 1 && tiled_loops(usual, &large, false) == 1);
  CHECK(tiled_loops(usual, &none, false) == 0 &&
        tiled_loops(usual, &none, true) ==
            1); // the caches of the target are not known, as of a GPU
  CHECK(tiled_loops(f32, &caches, false) == 0 &&
        tiled_loops(f32, &caches, true) == 1); // the GEMMs take longer than the memory traffic
  CHECK(tiled_loops(usual, &all, true) == 0 &&
        tiled_loops(few, &caches, true) == 0); // one iteration
  CHECK(tiled_loops(usual, &small, false) == 0 &&
        tiled_loops(usual, &small, true) == 1); // the caches are too small
  CHECK(tiled_loops(heavy, &large, false) == 0 &&
        tiled_loops(heavy, &large, true) == 1); // too few rows for the size of the weights
  CHECK(tiled_loops(usual, &short_iterations, false) == 0 &&
        tiled_loops(usual, &short_iterations, true) ==
            1); // gradients of weights are accumulated too often
  CHECK(tiled_loops(usual, &slow, false) == 0 && tiled_loops(usual, &slow, true) == 1);
  return 0;
}
