// simt_attend_split_test.c - attention of one query under the shim, against the interpreter: chunks
// that are full, in part and beyond the positions in use; heads that share keys, in one block and
// in several; masks, biases, queries without visible keys; equal bits for other capacities.
// Build: plain
#include "tests/codegen/cache.h" // asks the system for nftw, so before all others
#include "tests/cuda/simt_run.h"
#include "tests/cuda/chosen.h"
#include "tests/codegen/run.h"

#define HEAD "stage step\naxis "
// A query is at position i of documents j of positions p and documents d.
#define ARGS(T)                                                                                    \
  "%q: " T "[b, t, g, h, e], %k: " T "[b, s, g, e], %v: " T "[b, s, g, f], %i: int[b, t], %j: "    \
  "int[b, s]"
#define ATTEND(T, s, score)                                                                        \
  "attend over(t, " s ") (%v1 = %v, %q1 = %q, %k1 = %k, %i1 = %i, %j1 = %j) {\n    %a = dot %q1, " \
  "%k1 over(e) : f32[b, t, g, h, " s "]\n    %x = cast %a : f32[b, t, g, h, " s "]\n    %c = "     \
  "const 0.3 : f32\n" score "    %n = expand %i1 : int[b, t, " s "]\n    %m = ge %n, %j1\n    "    \
  "%one = const 1 : f32\n    yield %y, %m, %one\n  } : " T "[b, t, g, h, f], f32[b, t, g, h]\n"
#define PLAIN "    %y = mul %x, %c\n"
#define RESULTS(T) ") -> (o: " T "[b, t, g, h, f], l: f32[b, t, g, h]) {\n  %o, %l = "
#define RETURN "  return %o, %l\n}\n"

static const struct {
  const char *name, *text;
  int64_t extent; // of s
} cases[] = {
    {"bf16, three heads, chunks beyond the end",
     HEAD "b = 2, t = 1, s = 1100 dyn 1, g = 2, h = 3, e = 64, f = 64\nfunc @f(" ARGS("bf16")
         RESULTS("bf16") ATTEND("bf16", "s", PLAIN) RETURN,
     700},
    {"f32, ten heads in two blocks, other width of v",
     HEAD "b = 1, t = 1, s = 300, g = 2, h = 10, e = 24, f = 40\nfunc @f(" ARGS("f32")
         RESULTS("f32") ATTEND("f32", "s", PLAIN) RETURN,
     0},
    {"f16, wide heads, one position",
     HEAD "b = 3, t = 1, s = 40 dyn 1, g = 1, h = 1, e = 128, f = 256\nfunc @f(" ARGS("f16")
         RESULTS("f16") ATTEND("f16", "s", PLAIN) RETURN,
     1},
};

// The same positions in a longer cache, whose other positions are hidden.
static const char longer[] = HEAD
    "b = 1, t = 1, s = 900, z = 300, g = 1, h = 2, e = 16, f = 16\nfunc @f(%q: bf16[b, t, g, h, "
    "e], %k0: bf16[b, s, g, e], %v0: bf16[b, s, g, f]) -> (p: bf16[b, t, g, h, f], r: bool[b, "
    "t, g, h, f]) {\n  %n = const 299 : int\n  %i = expand %n : int[b, t]\n  %j0 = iota : "
    "int[s]\n  %ja = expand %j0 : int[b, s]\n  %jz = iota : int[z]\n  %jb = expand %jz : int[b, "
    "z]\n  %k2 = slice %k0 (s) -> (z) [0, 1]\n  %v2 = slice %v0 (s) -> (z) [0, 1]\n"
    "  %o, %l = attend over(t, s) (%v1 = %v0, %q1 = %q, %k1 = %k0, %i1 = %i, %j1 = %ja) {\n"
    "    %a = dot %q1, %k1 over(e) : f32[b, t, g, h, s]\n    %e = expand %i1 : int[b, t, s]\n"
    "    %m = ge %e, %j1\n    %one = const 1 : f32\n    yield %a, %m, %one\n  } : bf16[b, t, g, "
    "h, f], f32[b, t, g, h]\n"
    "  %p, %w = attend over(t, z) (%v3 = %v2, %q3 = %q, %k3 = %k2, %i3 = %i, %j3 = %jb) {\n"
    "    %a3 = dot %q3, %k3 over(e) : f32[b, t, g, h, z]\n    %e3 = expand %i3 : int[b, t, z]\n"
    "    %m3 = ge %e3, %j3\n    %one3 = const 1 : f32\n    yield %a3, %m3, %one3\n  } : bf16[b, "
    "t, g, h, f], f32[b, t, g, h]\n  %r = eq %o, %p\n  return %p, %r\n}\n";

int main(int argc, char **argv) {
  cache_begin();
  for (size_t i = 0; i <= LM_COUNT(cases); i++) {
    bool last = i == LM_COUNT(cases);
    const char *name = last ? "equal bits in a longer cache" : cases[i].name;
    int64_t extent = last ? 0 : cases[i].extent;
    if (case_is_chosen(name, argc > 1 ? argv[1] : NULL))
      run_both(last ? longer : cases[i].text, &(run_options){.name = name,
                                                             .tolerance = 2e-6,
                                                             .seed = i,
                                                             .extents = &extent,
                                                             .n_extents = extent > 0});
  }
}
