// kernel_text_test.c - properties of the text of CUDA kernels that results do not show.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/cuda/cuda.h"
#include "compiler/passes/pass.h"
#include "tests/runtime/check.h"

// It lives as long as `ctx`.
static const lm_plan *plan_of_all(lm_ctx *ctx, const char *text) {
  lm_module *m = lm_module_parse(ctx, lm_source_add(ctx, "test", text, strlen(text)));
  CHECK(m);
  lm_plan_options *o = LM_NEW(m->arena, lm_plan_options);
  *o = lm_cuda_options("sm_90a", false);
  CHECK(lm_pipeline_run(m, LM_STAGE_KERNEL,
                        &(lm_pass_env){.target = &o->target, .codegen = o->codegen}));
  lm_plan *plan = lm_plan_build(m, o);
  CHECK(plan);
  for (int i = 0; i < plan->n_kernels && getenv("SHOW"); i++)
    printf("%s", plan->kernels[i].source);
  return plan;
}

// The plan of a program with one kernel.
static const lm_plan *plan_of(lm_ctx *ctx, const char *text) {
  const lm_plan *plan = plan_of_all(ctx, text);
  CHECK(plan->n_kernels == 1);
  return plan;
}

static int count(const char *text, const char *what) {
  int n = 0;
  for (const char *at = text; (at = strstr(at, what)); at++)
    n++;
  return n;
}

// A counter may reach twice the number of elements before its loop ends, so counters have 64 bits
// from 2^30 elements on.
static void test_counter(int64_t elements, const char *counter) {
  lm_ctx *ctx = lm_ctx_create();
  lm_buf text = {0};
  lm_buf_printf(&text,
                "stage step\naxis n = %lld\nfunc @f(%%x: f32[n]) -> (y: f32[n]) {\n"
                "  %%y = exp %%x\n  return %%y\n}\n",
                (long long)elements);
  const char *source = plan_of(ctx, text.p)->kernels[0].source;
  if (!strstr(source, counter))
    fprintf(stderr, "%lld elements:\n%s", (long long)elements, source);
  CHECK(strstr(source, counter));
  lm_buf_free(&text);
  lm_ctx_destroy(ctx);
}

// Parts of a concatenation and a result of their size, as in the derivative of SwiGLU: one loop, in
// vectors, over a grid that has a thread for each vector of a part.
static void test_concat(void) {
  static const char text[] =
      "stage step\naxis b = 4096, f = 512, w = 1536\n"
      "func @f(%x: bf16[b, w], %g: bf16[b, f]) -> (h: bf16[b, f], d: bf16[b, w]) {\n"
      "  %p = slice %x (w) -> (f) [0, 1]\n  %q = slice %x (w) -> (f) [512, 1]\n"
      "  %r = slice %x (w) -> (f) [1024, 1]\n  %gp = mul %g, %p\n"
      "  %gq = mul %g, %q\n  %gr = mul %g, %r\n  %d = concat %gp, %gq, %gr (f, f, f) -> (w)\n"
      "  return %gp, %d\n}\n";
  lm_ctx *ctx = lm_ctx_create();
  const lm_plan *plan = plan_of(ctx, text);
  const char *source = plan->kernels[0].source;
  bool good = count(source, "for (int32_t p = ") == 1 && count(source, "lm_store8_bf16(") == 4 &&
              !strstr(source, "lm_bf16_load(");
  if (!good)
    fprintf(stderr, "%s", source);
  CHECK(good);
  const lm_plan_step *step = plan->funcs[0].steps;
  CHECK(step->kind == LM_STEP_KERNEL && step->space.fixed == 4096 * 512);
  lm_ctx_destroy(ctx);
}

// The maximum and the sum of a softmax read the row once, the division reads it again.
static void test_softmax(void) {
  static const char text[] =
      "stage step\naxis b = 4096, v = 4096\nfunc @f(%x: bf16[b, v]) -> (p: bf16[b, v]) {\n"
      "  %xf = cast %x : f32[b, v]\n  %m = max %xf over(v)\n  %d = sub %xf, %m\n  %e = exp %d\n"
      "  %s = sum %e over(v)\n  %q = div %e, %s\n  %p = cast %q : bf16[b, v]\n  return %p\n}\n";
  lm_ctx *ctx = lm_ctx_create();
  const char *source = plan_of(ctx, text)->kernels[0].source;
  CHECK(count(source, "lm_load8_bf16(") == 2 &&
        count(source, "lm_team_max_f32(") + count(source, "lm_block_max_f32(") == 1);
  lm_ctx_destroy(ctx);
}

// A row of 32 numbers beside one of 2,048: a vector of four would leave 24 of 32 lanes idle.
static void test_short_row(void) {
  static const char text[] =
      "stage step\naxis b = 8192, n = 2048, h = 32\n"
      "func @f(%x: bf16[b, n], %y: f32[b, h]) -> (s: f32[b], e: f32[b, h]) {\n"
      "  %xf = cast %x : f32[b, n]\n  %q = mul %xf, %xf\n  %s = sum %q over(n)\n"
      "  %z = add %y, %s\n  %e = exp %z\n  return %s, %e\n}\n";
  lm_ctx *ctx = lm_ctx_create();
  const char *source = plan_of(ctx, text)->kernels[0].source;
  bool good = strstr(source, "lm_load8_bf16(") && !strstr(source, "lane < ") &&
              !strstr(source, "lm_load4_f32(") && !strstr(source, "lm_load2_f32(");
  if (!good)
    fprintf(stderr, "%s", source);
  CHECK(good);
  lm_ctx_destroy(ctx);
}

// The derivative of an RMS norm, with the sums of its weight's gradient: both passes read the row
// and its cotangent, which are loaded once while there are registers for them. Of 4,096 columns a
// block of 512 threads has a row, with vectors of four elements.
static void test_kept(int64_t n, int loads) {
  lm_ctx *ctx = lm_ctx_create();
  lm_buf text = {0};
  lm_buf_printf(&text,
                "stage step\naxis b = 4096, n = %lld\n"
                "func @f(%%x: bf16[b, n], %%g: bf16[b, n], %%w: bf16[n]) -> (dx: bf16[b, n], "
                "dw: f32[n]) {\n  %%xf = cast %%x : f32[b, n]\n  %%gw = mul %%g, %%w\n"
                "  %%gf = cast %%gw : f32[b, n]\n  %%q = mul %%gf, %%xf\n"
                "  %%s = sum %%q over(n)\n  %%d = mul %%s, %%xf\n  %%e = sub %%gf, %%d\n"
                "  %%dx = cast %%e : bf16[b, n]\n  %%h = mul %%g, %%x\n"
                "  %%hf = cast %%h : f32[b, n]\n  %%dw = sum %%hf over(b)\n"
                "  return %%dx, %%dw\n}\n",
                (long long)n);
  const lm_plan *plan = plan_of_all(ctx, text.p);
  const char *source = plan->kernels[plan->funcs[0].steps[0].kernel].source;
  int found = count(source, "lm_load8_bf16(") + count(source, "lm_load4_bf16(");
  printf("%lld columns: %d loads\n", (long long)n, found);
  if (found != loads)
    fprintf(stderr, "%s", source);
  CHECK(found == loads);
  lm_buf_free(&text);
  lm_ctx_destroy(ctx);
}

// A sum over rows that reads one number for each row: the number is read once, so it is no reason
// to have a thread for each row, which would read elements a row apart.
static void test_sum_of_rows(void) {
  static const char text[] = "stage step\naxis b = 4096, n = 1024\n"
                             "func @f(%x: f32[b, n], %m: f32[b]) -> (s: f32[b]) {\n"
                             "  %z = sub %x, %m\n  %e = exp %z\n  %s = sum %e over(n)\n"
                             "  return %s\n}\n";
  lm_ctx *ctx = lm_ctx_create();
  const char *source = plan_of(ctx, text)->kernels[0].source;
  if (!strstr(source, "lm_load4_f32("))
    fprintf(stderr, "%s", source);
  CHECK(strstr(source, "lm_load4_f32("));
  lm_ctx_destroy(ctx);
}

// A rotary embedding of normalized rows: its loops cover half a row, so half a row's vectors are a
// team, and no lane is idle. Every lane has the same iterations, so there is no loop.
static void test_rope(void) {
  static const char text[] =
      "stage step\naxis n = 131072, e = 64, two = 2, c = 32, one = 1\n"
      "func @f(%x: bf16[n, e], %co: f32[n, c], %si: f32[n, c]) -> (y: bf16[n, e]) {\n"
      "  %f = cast %x : f32[n, e]\n  %q = mul %f, %f\n  %s = sum %q over(e)\n  %r = rsqrt %s\n"
      "  %n = mul %f, %r\n  %v = view %n (e) -> (two, c)\n"
      "  %lo = slice %v (two) -> () [0, 1]\n  %hi = slice %v (two) -> () [1, 1]\n"
      "  %lc = mul %lo, %co\n  %hs = mul %hi, %si\n  %y0 = sub %lc, %hs\n"
      "  %hc = mul %hi, %co\n  %ls = mul %lo, %si\n  %y1 = add %hc, %ls\n"
      "  %e0 = expand %y0 : f32[n, one, c]\n  %e1 = expand %y1 : f32[n, one, c]\n"
      "  %z = concat %e0, %e1 (one, one) -> (two)\n  %w = view %z (two, c) -> (e)\n"
      "  %y = cast %w : bf16[n, e]\n  return %y\n}\n";
  lm_ctx *ctx = lm_ctx_create();
  const char *source = plan_of(ctx, text)->kernels[0].source;
  CHECK(strstr(source, "lane = lm_thread() % 4,") && !strstr(source, " = lane; i"));
  lm_ctx_destroy(ctx);
}

// The sums of the four teams of a warp begin in different banks of shared memory.
static void test_banks(void) {
  static const char text[] =
      "stage step\naxis n = 131072, d = 64\nfunc @f(%x: bf16[n, d]) -> (s: f32[d]) {\n"
      "  %f = cast %x : f32[n, d]\n  %q = mul %f, %f\n  %s = sum %q over(n)\n  return %s\n}\n";
  lm_ctx *ctx = lm_ctx_create();
  const lm_plan *plan = plan_of_all(ctx, text);
  CHECK(strstr(plan->kernels[0].source, "lane = lm_thread() % 8,"));
  CHECK(strstr(plan->kernels[0].source, "lm_put(c0, team * 72 + "));
  lm_ctx_destroy(ctx);
}

// Until the end of a chunk a thread has its sums in registers, with an index that is constant after
// unrolling; shared memory is not cleared then. A thread has room for 32 sums; where a warp has too
// many columns for that, all threads of the block share them.
static void test_sums(int columns, int in_registers, int team) {
  static const char form[] =
      "stage step\naxis n = 131072, d = %d\nfunc @f(%%x: bf16[n, d]) -> (s: f32[d], q: f32[d]) {\n"
      "  %%f = cast %%x : f32[n, d]\n  %%q = mul %%f, %%f\n  %%s = sum %%f over(n)\n"
      "  %%t = sum %%q over(n)\n  return %%s, %%t\n}\n";
  char text[512];
  snprintf(text, sizeof text, form, columns);
  lm_ctx *ctx = lm_ctx_create();
  const char *source = plan_of_all(ctx, text)->kernels[0].source;
  const char *index = lm_arena_printf(ctx->arena, " - lane) / %d * 8 + ", team);
  CHECK(count(source, index) == 2 * in_registers);
  CHECK(count(source, ", z, 0.0f);") == 2 - in_registers);
  CHECK(count(source, "lm_barrier();") == (in_registers == 2 ? 1 : 2));
  lm_ctx_destroy(ctx);
}

// A short form of a function if the result is bf16, a more exact one if it is f32; only a bf16
// quotient is approximate.
static void test_functions(const char *dtype, const char *form, const char *quotient) {
  lm_ctx *ctx = lm_ctx_create();
  lm_buf text = {0};
  lm_buf_printf(&text,
                "stage step\naxis n = 4096\nfunc @f(%%x: %s[n], %%y: %s[n]) -> (z: %s[n]) {\n"
                "  %%a = logistic %%x\n  %%b = div %%a, %%y\n  %%z = tanh %%b\n  return %%z\n}\n",
                dtype, dtype, dtype);
  const char *source = plan_of(ctx, text.p)->kernels[0].source;
  const char *tanh = lm_arena_printf(ctx->arena, "lm_tanh_%s(", form);
  const char *logistic = lm_arena_printf(ctx->arena, "lm_logistic_%s(", form);
  CHECK(strstr(source, tanh) && strstr(source, logistic) && strstr(source, quotient));
  lm_buf_free(&text);
  lm_ctx_destroy(ctx);
}

// All threads of a grid read a scalar and one writes the result, so the result may not overlap it.
// An element of a tensor is read and written by the same thread.
static void test_overlap(const char *type, int restricted) {
  lm_ctx *ctx = lm_ctx_create();
  lm_buf text = {0};
  lm_buf_printf(&text,
                "stage step\naxis n = 4096\nfunc @f(%%x: %s, %%y: %s) -> (z: %s) {\n"
                "  %%z = add %%x, %%y\n  return %%z\n}\n",
                type, type, type);
  const char *source = plan_of(ctx, text.p)->kernels[0].source;
  CHECK(strstr(source, "first") && count(source, "LM_RESTRICT ") == restricted);
  lm_buf_free(&text);
  lm_ctx_destroy(ctx);
}

// Offsets in a weight of 2^30 elements or more have 64 bits.
static void test_few_rows(int64_t columns, const char *offset) {
  lm_ctx *ctx = lm_ctx_create();
  const char *text = lm_arena_printf(
      ctx->arena,
      "stage step\naxis t = 2, d = 16384, n = %lld\nfunc @f(%%x: bf16[t, d], %%w: bf16[d, n]) -> "
      "(y: bf16[t, n]) {\n  %%y = dot %%x, %%w over(d)\n  return %%y\n}\n",
      (long long)columns);
  const char *source = plan_of(ctx, text)->kernels[0].source;
  CHECK(strstr(source, offset) && strstr(source, "b + (lm_at)(k + i * "));
  lm_ctx_destroy(ctx);
}

// Codes and their copy with the other order of axes. 80 rows are no tile: a store of the copy is of
// 32 bytes in 32 sectors, of which one would do. With 128 rows the copy goes through a tile. A
// group with a reduction, which has a row at a time, leaves the copy to another kernel.
static void test_sectors(int rows, bool reduces, bool in_tiles, double partial) {
  lm_ctx *ctx = lm_ctx_create();
  const char *text = lm_arena_printf(
      ctx->arena,
      "stage step\naxis t = %d, e = 256\nfunc @f(%%x: f32[t, e]) -> (y: e4m3[t, e], z: e4m3[e, t], "
      "m: f32[t]) {\n  %%s = %s\n  %%y = cast %%s : e4m3[t, e]\n  %%p = permute %%s : f32[e, t]\n"
      "  %%z = cast %%p : e4m3[e, t]\n  %%m = %s\n  return %%y, %%z, %%m\n}\n",
      rows, reduces ? "exp %x" : "neg %x",
      reduces ? "max %s over(e)" : "slice %x (e) -> () [0, 1]");
  const lm_plan *plan = plan_of_all(ctx, text);
  int tiles = 0;
  double found = 0;
  for (int i = 0; i < plan->n_kernels; i++) {
    const char *source = plan->kernels[i].source;
    bool tiled = strstr(source, "lm_tile_store") != NULL;
    tiles += tiled;
    CHECK(!tiled || (!strstr(source, "lm_team_max") && !strstr(source, "] = (uint8_t)")));
  }
  for (int i = 0; i < plan->funcs[0].n_steps; i++)
    found += plan->funcs[0].steps[i].again;
  printf("%d rows%s: %d tiles, %.0f bytes of sectors\n", rows, reduces ? " reduced" : "", tiles,
         found);
  CHECK(tiles == in_tiles && found == partial * rows);
  lm_ctx_destroy(ctx);
}

// Sums over the middle axis. Neighbouring threads read neighbouring elements, of which there are 64
// for each element of the result, although they are not neighbours there.
static void test_order(void) {
  static const char text[] =
      "stage step\naxis a = 48, b = 64, c = 160\nfunc @f(%x: bf16[a, b, c]) -> (y: f32[c, a]) {\n"
      "  %f = cast %x : f32[a, b, c]\n  %s = sum %f over(b)\n  %p = permute %s : f32[c, a]\n"
      "  %y = exp %p\n  return %y\n}\n";
  lm_ctx *ctx = lm_ctx_create();
  const char *source = plan_of(ctx, text)->kernels[0].source;
  CHECK(strstr(source, " = q % 160;"));
  lm_ctx_destroy(ctx);
}

int main(void) {
  test_order();
  test_sectors(80, false, false, 31 * 256);
  test_sectors(128, false, true, 0);
  test_sectors(128, true, true, 0);
  test_few_rows(32768, "typedef int32_t lm_at;");
  test_few_rows(262144, "typedef int64_t lm_at;");
  test_overlap("f32", 2);
  test_overlap("f32[n]", 0);
  test_softmax();
  test_sum_of_rows();
  test_kept(256, 3);
  test_kept(768, 4);
  test_kept(1024, 5);
  test_kept(4096, 3);
  test_short_row();
  test_rope();
  test_banks();
  test_sums(512, 2, 32);
  test_sums(768, 1, 32);
  test_sums(1536, 0, 32);
  test_sums(3072, 2, 384);
  test_sums(8192, 2, 512);
  test_functions("bf16", "bf16", " = lm_divide_approx(v");
  test_functions("f32", "f32", " / x");
  test_counter(((int64_t)1 << 30) - 1, "for (int32_t ");
  test_counter((int64_t)1 << 30, "for (int64_t ");
  test_counter(((int64_t)3 << 29) - 1, "for (int64_t ");
  test_concat();
}
