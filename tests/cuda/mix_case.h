// mix_case.h - GEMMs of weights that a kernel computes, as in the chunks of a linear recurrence
// and in their derivative, as modules built from text, for tests that run or compile the kernels
// that pass mix_kernels makes.
#ifndef LM_TESTS_CUDA_MIX_CASE_H
#define LM_TESTS_CUDA_MIX_CASE_H
#include "codegen/cuda/cuda.h"
#include "compiler/ir/dot.h"
#include "tests/codegen/run.h"
#include "tests/cuda/passes.h"

typedef struct mix_case {
  const char *name, *axes, *text;
  int units;     // multiprocessors, by which heads are divided into parts
  int64_t parts; // into how many
} mix_case;

// exp(z[i] - z[j]) where q[i] = q[j] and i >= j, else 0.
#define MIX_DECAY                                                                                  \
  "  %zi = expand %z : f32[j, i, b, c, g, h]\n  %zj = rename %z (i) -> (j)\n"                      \
  "  %zd = sub %zi, %zj\n  %qi = expand %q : int[j, i, c, b]\n  %qj = rename %q (i) -> (j)\n"      \
  "  %same = eq %qi, %qj\n  %at = iota : int[i]\n  %ai = expand %at : int[j, i]\n"                 \
  "  %aj = iota : int[j]\n  %behind = ge %ai, %aj\n  %known = and %same, %behind\n"                \
  "  %zero = const 0 : f32\n  %low = const -1e30 : f32\n  %gap = select %known, %zero, %low\n"     \
  "  %e = add %zd, %gap\n  %l = exp %e\n  %d = permute %l : f32[b, c, g, h, i, j]\n"
#define MIX_WEIGHTS MIX_DECAY "  %wf = mul %d, %s\n  %w = cast %wf : bf16[b, c, g, h, i, j]\n"

// y = dot(w, u) over j.
#define MIX_FORWARD                                                                                \
  "func @f(%z: f32[i, b, c, g, h], %q: int[i, c, b], %s: f32[c, i, b, g, j], "                     \
  "%u: bf16[c, j, b, g, h, p]) -> (y: bf16[b, c, g, h, i, p]) {\n" MIX_WEIGHTS                     \
  "  %y = dot %w, %u over(j)\n  return %y\n}\n"

// The derivative by u, by s, and by z: sums over rows less sums over columns. dy has another order
// of axes.
#define MIX_BACKWARD                                                                               \
  "func @f(%z: f32[i, b, c, g, h], %q: int[i, c, b], %s: f32[c, i, b, g, j], "                     \
  "%u: bf16[c, j, b, g, h, p], %dy: bf16[b, c, i, g, h, p]) -> (du: bf16[b, c, g, h, j, p], "      \
  "ds: bf16[c, i, b, g, j], dz: f32[i, b, c, g, h]) {\n"                                           \
  "  %dyp = permute %dy : bf16[c, i, b, g, h, p]\n"                                                \
  "  %dyq = permute %dyp : bf16[b, c, g, h, i, p]\n"                                               \
  "  %dw = dot %dyq, %u over(p) : bf16[b, c, g, h, i, j]\n" MIX_WEIGHTS                            \
  "  %df = cast %dw : f32[b, c, g, h, i, j]\n  %dl = mul %df, %d\n  %sum = sum %dl over(h)\n"      \
  "  %sp = permute %sum : f32[c, i, b, g, j]\n  %ds = cast %sp : bf16[c, i, b, g, j]\n"            \
  "  %wg = cast %w : f32[b, c, g, h, i, j]\n  %dd = mul %df, %wg\n"                                \
  "  %dp = permute %dd : f32[j, i, b, c, g, h]\n  %cols = sum %dp over(i)\n"                       \
  "  %du = dot %w, %dyp over(i) : bf16[b, c, g, h, j, p]\n"                                        \
  "  %rows = sum %dp over(j)\n  %less = neg %cols\n  %li = rename %less (j) -> (i)\n"              \
  "  %dz = add %rows, %li\n  return %du, %ds, %dz\n}\n"

static inline void mix_text(const mix_case *c, lm_buf *b) {
  lm_buf_printf(b, "stage step\naxis %s\n%s", c->axes, c->text);
}

static inline void mix_kernels_make(const lm_module *m, const char *arch, int units) {
  cuda_pass_run(m, "mix_kernels", arch, units);
}

static const mix_case mix_cases[] = {
    {"forward, in a module with a run-time size",
     "b = 1, c = 3, g = 1, h = 4, i = 32, j = 32, p = 16, m = 8 dyn 1", MIX_FORWARD, 1, 1},
    {"forward, heads in parts, two panels", "b = 2, c = 1, g = 2, h = 4, i = 128, j = 128, p = 64",
     MIX_FORWARD, 8, 2},
    {"forward, an odd number of warps", "b = 1, c = 1, g = 1, h = 3, i = 48, j = 48, p = 32",
     MIX_FORWARD, 1, 1},
    {"backward", "b = 2, c = 2, g = 1, h = 3, i = 48, j = 48, p = 32", MIX_BACKWARD, 1, 1},
    {"backward, heads in parts, two panels", "b = 1, c = 1, g = 2, h = 4, i = 128, j = 128, p = 64",
     MIX_BACKWARD, 4, 2},
    {"backward, a head for each part", "b = 1, c = 1, g = 1, h = 2, i = 16, j = 16, p = 128",
     MIX_BACKWARD, 132, 2},
};
#endif
