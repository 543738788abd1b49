// simt_merge_test.c - launches that compute several steps, under the shim, against the interpreter:
// kernels and appends to KV caches side by side, also at positions outside of the cache; GEMMs of
// few rows that compute their operand, a norm, a gated activation or the sums of attention; steps
// that depend on each other stay apart.
// Build: plain
#include "tests/codegen/cache.h" // asks the system for nftw, so before all others
#define SIMT_ARCH "sm_90a"
#define SIMT_UNITS 132
#include "tests/cuda/simt_run.h"
#include "tests/codegen/run.h"

#define NORM(Y, X, T)                                                                              \
  "    %" Y "2 = mul %" X ", %" X "\n    %" Y "s = sum %" Y "2 over(e)\n    %" Y "r = rsqrt %" Y   \
  "s\n    %" Y "n = mul %" X ", %" Y "r\n    %" Y " = cast %" Y "n : bf16[" T "]\n"
#define CACHES(ROWS)                                                                               \
  "stage step\naxis n = 2, b = " ROWS ", t = 1, s = 8, g = 3, h = 4, e = 16\n"                     \
  "cache @k : bf16[n, b, s, g, e] stacked 1 as @k.#\n"                                             \
  "cache @v : bf16[n, b, s, g, e] stacked 1 as @v.#\n"                                             \
  "cache @p : int[n, b, s] stacked 1 as @p.#\n"

// As the layers of a decoder: keys and queries are normalized; keys, values and positions appended.
static const char layers[] =
    "func @f(%x: f32[b, t, g, e], %v: bf16[b, t, g, e], %a: f32[b, t, g, h, e], %pos: int[b, t], "
    "%at: int) -> (y: f32[b, t, g, e], z: f32[b, t, g, h, s]) {\n"
    "  %zero = const 0 : f32[b, t, g, h, s]\n"
    "  %y, %z = loop 2 %i carry(%c = %x, %w = %zero) {\n" NORM("k", "c", "b, t, g, e") NORM(
        "q", "a",
        "b, t, g, h, e") "    %kc = append @k[%i], %at, %k (t) -> (s)\n"
                         "    %vc = append @v[%i], %at, %v (t) -> (s)\n"
                         "    %pc = append @p[%i], %at, %pos (t) -> (s)\n"
                         "    %pf = cast %pc : f32[b, s]\n    %kf = cast %kc : f32[b, s, g, e]\n"
                         "    %vf = cast %vc : f32[b, s, g, e]\n    %kp = mul %kf, %pf\n    %m = "
                         "add %kp, %vf\n"
                         "    %sm = sum %m over(s)\n    %d = add %c, %sm\n"
                         "    %qk = dot %q, %kc over(e) : f32[b, t, g, h, s]\n    %u = add %w, "
                         "%qk\n"
                         "    yield %d, %u\n  }\n  return %y, %z\n}\n";

// A norm of rows, whose row 2 has the same bits alone.
#define ROWS(X, Y, T)                                                                              \
  "  %" Y "2 = mul %" X ", %" X "\n  %" Y "s = sum %" Y "2 over(d)\n  %" Y "r = rsqrt %" Y         \
  "s\n  %" Y "n = mul %" X ", %" Y "r\n  %" Y "c = cast %" Y "n : bf16[" T "d]\n  %" Y             \
  " = dot %" Y "c, %w over(d)\n"
#define NORMS(W)                                                                                   \
  "stage step\naxis t = 3, d = 520, n = 72\nfunc @f(%x: f32[t, d], %w: bf16[" W "]) -> (y: "       \
  "bf16[t, n], q: bool[n]) {\n" ROWS(                                                              \
      "x", "y",                                                                                    \
      "t, ") "  %a = slice %x (t) -> () [2, 1] : f32[d]\n" ROWS("a", "z",                          \
                                                                "") "  %v = slice %y (t) -> () "   \
                                                                    "[2, 1] : bf16[n]\n  %q = eq " \
                                                                    "%v, %z\n  return %y, "        \
                                                                    "%q\n}\n"
// Norms of queries and keys, as of a training step.
#define HEADS(T)                                                                                   \
  "stage step\naxis t = " T ", h = 12, g = 4, e = 64\nfunc @f(%a: bf16[t, h, e], %b: bf16[t, g, "  \
  "e]) -> (q: bf16[t, h, e], k: bf16[t, g, e]) {\n" NORM("q", "a", "t, h, e")                      \
      NORM("k", "b", "t, g, e") "  return %q, %k\n}\n"
// Weights that are contiguous along columns, and along k as those of tied embeddings.
static const char norm[] = NORMS("d, n"), norm_by_k[] = NORMS("n, d");
static const char gated[] =
    "stage step\naxis t = 3, f = 96, n = 40\nfunc @f(%g: f32[t, f], %u: f32[t, f], %w: f32[f, n], "
    "%r: f32[t, n]) -> (y: f32[t, n]) {\n  %s = logistic %g\n  %a = mul %g, %s\n"
    "  %h = mul %a, %u\n  %y = dot_add %h, %w, %r over(f)\n  return %y\n}\n";
// Attention of one query. SCORE computes %y and A from %x and A.
#define ATTEND(O, L, A, SCORE)                                                                     \
  "  %" O ", %" L " = attend over(t, s) (%v" A " = %v, %q" A " = %q, %k" A " = %k) {\n    %a" A    \
  " = dot %q" A ", %k" A " over(e) : f32[b, t, g, h, s]\n    %c" A " = const 0.3 : f32\n    %x" A  \
  " = mul %a" A ", %c" A "\n    " SCORE "\n    %m" A " = const 1 : bool\n    %one" A               \
  " = const 1 : f32\n    yield %y" A ", %m" A ", %one" A                                           \
  "\n  } : bf16[b, t, g, h, e], f32[b, t, g, h]\n"
#define ONCE ATTEND("o", "l", "1", "%y1 = add %x1, %x1")
#define AGAIN ATTEND("p", "m", "2", "%two = const 2 : f32\n    %y2 = mul %x2, %two")
#define ATTENDED(W, RESULTS)                                                                       \
  "stage step\naxis b = 2, t = 1, s = 600 dyn 1, g = 2, h = 3, e = 16, n = 40\nfunc @f(%q: "       \
  "bf16[b, t, g, h, e], %k: bf16[b, s, g, e], %v: bf16[b, s, g, e], %w: bf16[" W                   \
  "], %r: bf16[b, t, n]) -> (" RESULTS ") {\n" ONCE "  %y = dot_add %o, %w, %r over(g, h, e)\n"
// The first one has two launches, since %o is a result; the GEMM behind the second one computes its
// sums, to the same bits.
#define TWICE(W)                                                                                   \
  ATTENDED(W, "o: bf16[b, t, g, h, e], z: bf16[b, t, n], same: bool[b, t, n]")                     \
  AGAIN "  %z = dot_add %p, %w, %r over(g, h, e)\n  %same = eq %y, %z\n  return %o, %z, "          \
        "%same\n}\n"
static const char attended[] = TWICE("g, h, e, n"), attended_by_k[] = TWICE("n, g, h, e");
// The logarithm of the sums is a result, so the kernel that computes it stays.
static const char logarithm[] =
    ATTENDED("g, h, e, n", "y: bf16[b, t, n], l: f32[b, t, g, h]") "  return %y, %l\n}\n";
// The result overwrites an operand of the kernel, so the kernel stays.
static const char overwritten[] =
    "stage step\naxis t = 2, f = 64, h = 64\nfunc @f(%x: f32[t, h], %w: f32[f, h], %v: f32[h, f]) "
    "-> (y: f32[t, f]) {\n  %p = dot %x, %v over(h)\n  %y = loop 2 %i carry(%c = %p) {\n"
    "    %s = logistic %c\n    %a = rename %c (f) -> (h)\n    %z = dot_add %s, %w, %a over(f)\n"
    "    %b = rename %z (h) -> (f)\n    yield %b\n  }\n  return %y\n}\n";

static lm_plan *plan_of(lm_ctx *ctx, const char *text) {
  lm_plan_options o = simt_run_options();
  lm_plan *plan = lm_plan_build(parse_and_run(ctx, text, "decompose,cse,dce,fuse"), &o);
  CHECK(plan);
  return plan;
}

// The steps of function f that are launches, and those that append.
static void steps_count(const char *text, int launches, int appends) {
  lm_ctx *ctx = lm_ctx_create();
  lm_plan *plan = plan_of(ctx, text);
  int n = 0, m = 0;
  lm_buf why = {0};
  for (int i = 0; i < plan->funcs[0].n_steps; i++) {
    const lm_plan_step *s = &plan->funcs[0].steps[i];
    n += s->kind != LM_STEP_LOOP && s->kind != LM_STEP_END;
    m += s->move && s->move->at_dim >= 0;
  }
  CHECK(lm_plan_check(plan, plan->funcs, &why));
  if (n != launches || m != appends)
    lm_plan_print(plan, &why);
  if (why.n)
    fprintf(stderr, "%d launches, %d append\n%s", n, m, why.p);
  CHECK(n == launches && m == appends);
  lm_buf_free(&why);
  lm_ctx_destroy(ctx);
}

// A position outside of the caches: nothing is appended, and one part reports it.
static void outside_check(const char *text, int32_t at) {
  lm_ctx *ctx = lm_ctx_create();
  lm_plan *plan = plan_of(ctx, text);
  simt_prepare(plan, ctx->arena);
  lm_exec *e;
  CHECK_OK(lm_cpu_exec_create(plan, &(lm_exec_options){.threads = 1}, &e));
  const lm_plan_func *f = plan->funcs;
  for (int i = 0; i < f->n_in; i++)
    memset(lm_exec_port(e, &f->in[i]), 0x3f, (size_t)f->in[i].buf.bytes);
  memcpy(lm_exec_port(e, &f->in[4]), &at, sizeof at);
  CHECK_OK(lm_exec_run(e, f, NULL));
  simt_clean("a position outside of the cache");
  bool inside = at >= 0 && at < 8;
  CHECK(inside ? !simt_fault()[0] : simt_fault()[0] == 1);
  CHECK(inside || simt_fault()[1] == at);
  int64_t n = plan->arena_bytes[LM_ARENA_CACHE];
  char *cache = lm_calloc((size_t)n, 2);
  CHECK_OK(lm_exec_read(e, LM_ARENA_CACHE, 0, n, cache));
  CHECK(inside == (memcmp(cache, cache + n, (size_t)n) != 0));
  lm_free(cache);
  lm_exec_destroy(e);
  lm_ctx_destroy(ctx);
}

// An attention in two launches and a GEMM; one in a GEMM; a comparison.
static void attended_check(const char *text, int64_t extent) {
  steps_count(text, 6, 0);
  run_both(text, &(run_options){.name = "attention in its GEMM",
                                .tolerance = 3e-3,
                                .extents = &extent,
                                .n_extents = 1,
                                .rounds = true});
}

int main(void) {
  cache_begin();
  lm_arena *a = lm_arena_create();
  const char *one = lm_arena_printf(a, "%s%s", CACHES("1"), layers);
  const char *two = lm_arena_printf(a, "%s%s", CACHES("2"), layers);
  steps_count(one, 5, 1); // a carry's copy and fill; norms and appends; a GEMM; sums
  steps_count(two, 6, 2); // rows of a cache are apart, so a copy appends the keys
  run_both(one, &(run_options){.name = "appends", .tolerance = 1e-6, .rounds = true});
  run_both(two, &(run_options){.name = "two rows", .tolerance = 1e-6, .rounds = true});
  steps_count(HEADS("4096"), 1, 0);
  steps_count(HEADS("262144"), 2, 0); // a launch is a small part of their time
  steps_count(norm, 3, 0);            // both norms are in GEMMs
  steps_count(gated, 1, 0);
  run_both(norm, &(run_options){.name = "norms", .tolerance = 1e-6, .rounds = true});
  steps_count(norm_by_k, 3, 0);
  run_both(norm_by_k, &(run_options){.name = "norms, by k", .tolerance = 1e-6, .rounds = true});
  steps_count(logarithm, 3, 0);
  attended_check(attended, 530);
  attended_check(attended_by_k, 200);
  run_both(gated, &(run_options){.name = "gated", .tolerance = 1e-6});
  steps_count(overwritten, 3, 0);
  run_both(overwritten, &(run_options){.name = "overwritten", .tolerance = 1e-6});
  outside_check(one, 7);
  outside_check(one, 8);
  lm_arena_destroy(a);
}
