// route_test.c - routing as kernels and grouped GEMMs against the interpreter: top_k, rows that
// are sorted by group, grouped GEMMs and the sums of their gradients.
#include "tests/codegen/cache.h"
#include "tests/codegen/run.h"

#define HEAD "stage step\n"
// Integer arguments are from 0 to 4: with 5 groups all occur, with 9 some are empty, with 3 the
// last one gets the ids beyond it. Less 2, some are of no group.
#define ROWS                                                                                       \
  "  %k = group_counts %i (b, t, c) -> (g)\n  %o = group_order %i, %k (b, t, c) -> (n)\n"          \
  "  %p = group_inverse %i, %k over(b, t, c)\n  %r = group_rows %x, %o, %p (b, t, c) -> (n)\n"

#define SOME_ROWS                                                                                  \
  "  %two = const 2 : int\n  %i = sub %all, %two\n" ROWS                                           \
  "  %y = grouped_dot %r, %w, %k over(d)\n  %u = ungroup_rows %y, %p, %o (n) -> (b, t, c)\n"

typedef struct route_case {
  const char *name, *text;
} route_case;

static const route_case cases[] = {
    {"top_k along the last axis and in the middle", HEAD
     "axis b = 5, v = 13, c = 4, d = 3, e = 70, k = 8\n"
     "func @f(%x: f32[b, v], %y: bf16[b, v, d], %i: int[b, v], %z: f32[b, e]) -> (p: int[b, "
     "c], q: int[b, c, d], r: int[b, c], s: int[b, k], a: int[b]) {\n"
     "  %p = top_k %x (v) -> (c)\n  %q = top_k %y (v) -> (c)\n  %r = top_k %i (v) -> (c)\n  %s "
     "= top_k %z (e) -> (k)\n  %a = argmax %x over(v)\n  return %p, %q, %r, %s, %a\n}\n"},
    {"top_k of infinities and NaN",
     HEAD "axis b = 6, v = 9, c = 9\n"
          "func @f(%x: f32[b, v], %j: int[b, v]) -> (p: int[b, c]) {\n"
          "  %o = const 1 : int\n  %z = const 0 : f32\n  %l = log %z\n  %h = sub %l, %l\n  %e = eq "
          "%j, %o\n  %n = gt %j, %o\n  %y = select %e, %l, %x\n  %m = add %o, %o\n  %q = eq %j, "
          "%m\n  %w = select %q, %h, %y\n  %p = top_k %w (v) -> (c)\n  return %p\n}\n"},
    {"rows of five groups, weights in rows", HEAD
     "axis b = 3, t = 7, c = 2, n = 42, g = 5, d = 40, f = 33\n"
     "func @f(%x: f32[b, t, d], %i: int[b, t, c], %w: f32[g, d, f], %h: f32[b, t, c]) -> (k: "
     "int[g], o: int[n], p: int[b, t, c], r: f32[n, d], y: f32[n, f], z: f32[b, t, f]) {\n" ROWS
     "  %y = grouped_dot %r, %w, %k over(d)\n  %u = ungroup_rows %y, %p, %o (n) -> (b, t, c)\n"
     "  %m = mul %u, %h\n  %z = sum %m over(c)\n  return %k, %o, %p, %r, %y, %z\n}\n"},
    {"rows of nine groups, transposed weights, gradients",
     HEAD "axis b = 4, t = 9, c = 3, n = 108, g = 9, d = 48, f = 32\n"
          "func @f(%x: f32[b, t, c, d], %i: int[b, t, c], %w: f32[g, f, d], %a: f32[g, d, f]) -> "
          "(y: f32[n, f], v: f32[n, d], s: f32[g, d, f], u: f32[g, f, d]) {\n" ROWS
          "  %y = grouped_dot %r, %w, %k over(d)\n  %v = grouped_dot %y, %w, %k over(f)\n"
          "  %s = grouped_outer %r, %y, %k over(n)\n  %u = grouped_outer %y, %r, %k over(n)\n"
          "  return %y, %v, %s, %u\n}\n"},
    {"few columns, an axis in front that the rows lack, ids out of range", HEAD
     "axis b = 2, t = 5, c = 2, n = 20, g = 3, d = 7, f = 5\n"
     "func @f(%x: f32[c, t, d], %i: int[b, t, c], %w: f32[g, d, f]) -> (r: f32[n, d], y: "
     "f32[n, f], s: f32[g, d, f]) {\n" ROWS
     "  %y = grouped_dot %r, %w, %k over(d)\n  %s = grouped_outer %r, %y, %k over(n)\n  return "
     "%r, %y, %s\n}\n"},
    {"ids of no group", HEAD
     "axis b = 2, t = 35, c = 2, n = 140, g = 4, d = 40, f = 33\n"
     "func @f(%x: f32[b, t, d], %h: f32[d], %all: int[b, t, c], %w: f32[g, d, f]) -> (k: int[g], "
     "o: int[n], p: int[b, t, c], r: f32[n, d], q: f32[n, d], y: f32[n, f], u: f32[b, t, c, f], v: "
     "f32[n, d], s: f32[g, d, f]) {\n" SOME_ROWS "  %q = group_rows %h, %o, %p (b, t, c) -> (n)\n"
     "  %v = grouped_dot %y, %w, %k over(f)\n  %s = grouped_outer %r, %y, %k over(n)\n"
     "  return %k, %o, %p, %r, %q, %y, %u, %v, %s\n}\n"},
    {"ids of no group, bf16",
     HEAD "axis b = 2, t = 35, c = 2, n = 140, g = 4, d = 64, f = 48\n"
          "func @f(%x: bf16[b, t, d], %all: int[b, t, c], %w: bf16[g, d, f], %h: bf16[n, f]) -> "
          "(y: bf16[n, f], u: "
          "bf16[b, t, c, f], s: f32[g, d, f]) {\n" SOME_ROWS
          "  %s = grouped_outer %r, %h, %k over(n) : f32[g, d, f]\n  return %y, %u, %s\n}\n"},
    {"two axes summed, two free ones",
     HEAD "axis b = 3, t = 11, c = 1, n = 33, g = 5, h = 3, e = 16, p = 2, q = 24\n"
          "func @f(%x: f32[b, t, h, e], %i: int[b, t, c], %w: f32[g, h, e, p, q]) -> (y: f32[n, p, "
          "q], s: f32[g, h, e, p, q]) {\n" ROWS
          "  %y = grouped_dot %r, %w, %k over(h, e)\n  %s = grouped_outer %r, %y, %k over(n)\n"
          "  return %y, %s\n}\n"},
    {"bf16",
     HEAD "axis b = 3, t = 13, c = 2, n = 78, g = 5, d = 64, f = 48\n"
          "func @f(%x: bf16[b, t, d], %i: int[b, t, c], %w: bf16[g, d, f], %h: bf16[n, f]) -> (y: "
          "bf16[n, f], v: bf16[n, d], s: f32[g, d, f]) {\n" ROWS
          "  %y = grouped_dot %r, %w, %k over(d)\n  %v = grouped_dot %h, %w, %k over(f)\n"
          "  %s = grouped_outer %r, %h, %k over(n) : f32[g, d, f]\n  return %y, %v, %s\n}\n"},
    {"f64", HEAD
     "axis b = 3, t = 3, c = 2, n = 18, g = 5, d = 6, f = 4\n"
     "func @f(%x: f64[b, t, d], %i: int[b, t, c], %w: f64[g, d, f]) -> (y: f64[n, f], s: "
     "f64[g, d, f]) {\n" ROWS
     "  %y = grouped_dot %r, %w, %k over(d)\n  %s = grouped_outer %r, %y, %k over(n)\n  return "
     "%y, %s\n}\n"},
    {"one row of each group at most",
     HEAD "axis b = 1, t = 1, c = 2, n = 2, g = 5, d = 40, f = 32\n"
          "func @f(%x: f32[b, t, d], %i: int[b, t, c], %w: f32[g, d, f]) -> (y: f32[n, f]) {\n" ROWS
          "  %y = grouped_dot %r, %w, %k over(d)\n  return %y\n}\n"},
};

static const char dynamic_case[] = HEAD
    "axis b = 1, t = 20 dyn 1, c = 3, n = 60 dyn 3 (1 * 3), g = 5, d = 40, f = 33\n"
    "func @f(%x: f32[b, t, d], %h: f32[b, t, c, d], %all: int[b, t, c], %w: f32[g, d, f]) -> (k: "
    "int[g], r: f32[n, d], q: f32[n, d], y: f32[n, f], z: f32[b, t, f]) {\n" SOME_ROWS
    "  %q = group_rows %h, %o, %p (b, t, c) -> (n)\n"
    "  %z = sum %u over(c)\n  return %k, %r, %q, %y, %z\n}\n";

int main(int argc, char **argv) {
  static const int64_t extents[][2] = {{20, 0}, {1, 0}, {7, 0}}; // the second one is unused
  cache_begin();
  for (size_t i = 0; i < LM_COUNT(cases); i++) {
    if (argc > 1 && !strstr(cases[i].name, argv[1]))
      continue;
    run_options o = {.name = cases[i].name, .tolerance = 2e-6, .seed = i};
    run_both(cases[i].text, &o);
  }
  for (size_t i = 0; i < LM_COUNT(extents); i++) {
    run_options o = {.name = "rows whose number is known at run time",
                     .tolerance = 2e-6,
                     .extents = extents[i],
                     .n_extents = 1,
                     .seed = i};
    run_both(dynamic_case, &o);
  }
  return 0;
}
