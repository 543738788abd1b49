// chain_case.h - loops that read and update a carry by GEMMs, as the states of a delta rule from
// chunk to chunk and their cotangents, as modules built from text, for tests of the kernels that
// pass chain_kernels makes.
#ifndef LM_TESTS_CUDA_CHAIN_CASE_H
#define LM_TESTS_CUDA_CHAIN_CASE_H
#include "codegen/cuda/cuda.h"
#include "compiler/ir/dot.h"
#include "tests/codegen/run.h"
#include "tests/cuda/passes.h"

typedef struct chain_case {
  const char *name, *axes, *text;
  int units; // multiprocessors, by which columns are divided
} chain_case;

// r = p s + own, s' = a s + q^T r; s begins with 0, and its last value is not used.
#define CHAIN_FORWARD                                                                              \
  "func @f(%p: bf16[c, j, b, h, k], %own: bf16[c, b, h, j, v], %q: bf16[c, b, h, j, k], "          \
  "%a: f32[c, b, h]) -> (s: bf16[c, b, h, k, v], r: bf16[c, b, h, j, v]) {\n"                      \
  "  %s0 = const 0 : f32[b, h, k, v]\n"                                                            \
  "  %h, %s, %r = loop 3 over(c) %i carry(%x = %s0) {\n"                                           \
  "    %p1 = at %p, %i [0, 1]\n    %o1 = at %own, %i [0, 1]\n    %q1 = at %q, %i [0, 1]\n"         \
  "    %a1 = at %a, %i [0, 1]\n    %xb = cast %x : bf16[b, h, k, v]\n"                             \
  "    %y = dot %p1, %xb over(k) : f32[j, b, h, v]\n    %y1 = permute %y : f32[b, h, j, v]\n"      \
  "    %of = cast %o1 : f32[b, h, j, v]\n    %rf = add %y1, %of\n"                                 \
  "    %rb = cast %rf : bf16[b, h, j, v]\n    %u = dot %rb, %q1 over(j) : f32[b, h, v, k]\n"       \
  "    %d = mul %x, %a1\n    %u1 = permute %u : f32[b, h, k, v]\n    %n = add %d, %u1\n"           \
  "    yield %n, %xb, %rb\n  }\n  return %s, %r\n}\n"

// From the last position to the first, as a cotangent: a factor for each row of s, which begins
// with s0; a term of s whose memory has another order of axes; the last value is used.
#define CHAIN_BACKWARD                                                                             \
  "func @f(%p: bf16[c, b, h, j, k], %own: bf16[c, b, h, j, v], %q: bf16[c, b, h, j, k], "          \
  "%a: f32[c, b, h, k], %z: bf16[c, b, k, h, v], %s0: f32[b, h, k, v]) -> "                        \
  "(h: f32[b, h, k, v], s: bf16[c, b, h, k, v], r: bf16[c, b, h, j, v]) {\n"                       \
  "  %zp = permute %z : bf16[c, b, h, k, v]\n"                                                     \
  "  %h, %s, %r = loop 3 reversed over(c) %i carry(%x = %s0) {\n"                                  \
  "    %p1 = at %p, %i [2, -1]\n    %o1 = at %own, %i [2, -1]\n    %q1 = at %q, %i [2, -1]\n"      \
  "    %a1 = at %a, %i [2, -1]\n    %z1 = at %zp, %i [2, -1]\n"                                    \
  "    %xb = cast %x : bf16[b, h, k, v]\n    %y = dot %p1, %xb over(k) : f32[b, h, j, v]\n"        \
  "    %of = cast %o1 : f32[b, h, j, v]\n    %rf = add %of, %y\n"                                  \
  "    %rb = cast %rf : bf16[b, h, j, v]\n    %u = dot %q1, %rb over(j) : f32[b, h, k, v]\n"       \
  "    %zf = cast %z1 : f32[b, h, k, v]\n    %e = add %zf, %u\n    %ax = expand %a1 : f32[v, b, "  \
  "h, k]\n"                                                                                        \
  "    %ap = permute %ax : f32[b, h, k, v]\n    %d = mul %x, %ap\n    %n = add %d, %e\n"           \
  "    yield %n, %xb, %rb\n  }\n  return %h, %s, %r\n}\n"

// r = (m + l) (p s + own), s' = a s + q^T r.
#define CHAIN_MIXED                                                                                \
  "func @f(%p: bf16[c, i, b, h, k], %own: bf16[c, b, h, i, v], %q: bf16[c, b, h, j, k], "          \
  "%m: bf16[c, b, h, j, i], %l: bf16[c, j, b, h, i], %a: f32[c, b, h], %g: f32[c, b, h, j]) -> "   \
  "(s: bf16[c, b, h, k, v], r: bf16[c, b, h, j, v]) {\n"                                           \
  "  %s0 = const 0 : f32[b, h, k, v]\n"                                                            \
  "  %h, %s, %r = loop 3 over(c) %n carry(%x = %s0) {\n"                                           \
  "    %p1 = at %p, %n [0, 1]\n    %o1 = at %own, %n [0, 1]\n    %q1 = at %q, %n [0, 1]\n"         \
  "    %a1 = at %a, %n [0, 1]\n    %m1 = at %m, %n [0, 1]\n    %l1 = at %l, %n [0, 1]\n"           \
  "    %g1 = at %g, %n [0, 1]\n    %xb = cast %x : bf16[b, h, k, v]\n"                             \
  "    %y = dot %p1, %xb over(k) : f32[i, b, h, v]\n    %y1 = permute %y : f32[b, h, i, v]\n"      \
  "    %of = cast %o1 : f32[b, h, i, v]\n    %ef = add %y1, %of\n"                                 \
  "    %e = cast %ef : bf16[b, h, i, v]\n    %z = dot %m1, %e over(i) : f32[b, h, j, v]\n"         \
  "    %w = dot %l1, %e over(i) : f32[j, b, h, v]\n    %w1 = permute %w : f32[b, h, j, v]\n"       \
  "    %rf = add %z, %w1\n    %ge = expand %g1 : f32[v, b, h, j]\n"                                \
  "    %gp = permute %ge : f32[b, h, j, v]\n    %rg = mul %rf, %gp\n"                              \
  "    %rb = cast %rg : bf16[b, h, j, v]\n    %u = dot %rb, %q1 over(j) : f32[b, h, v, k]\n"       \
  "    %d = mul %x, %a1\n    %u1 = permute %u : f32[b, h, k, v]\n    %t = add %d, %u1\n"           \
  "    yield %t, %xb, %rb\n  }\n  return %s, %r\n}\n"

// From the last position to the first, with the columns of m: r = m^T (p s + own), which is
// rounded twice, with its axes in two orders.
#define CHAIN_MIXED_BACKWARD                                                                       \
  "func @f(%p: bf16[c, b, h, i, k], %own: bf16[c, b, h, i, v], %q: bf16[c, b, h, j, k], "          \
  "%m: bf16[c, b, h, i, j], %a: f32[c, b, h], %z: bf16[c, b, h, k, v], %s0: f32[b, h, k, v]) -> "  \
  "(h: f32[b, h, k, v], s: bf16[c, b, h, k, v], r: bf16[c, b, h, j, v]) {\n"                       \
  "  %h, %s, %r = loop 3 reversed over(c) %n carry(%x = %s0) {\n"                                  \
  "    %p1 = at %p, %n [2, -1]\n    %o1 = at %own, %n [2, -1]\n    %q1 = at %q, %n [2, -1]\n"      \
  "    %a1 = at %a, %n [2, -1]\n    %m1 = at %m, %n [2, -1]\n    %z1 = at %z, %n [2, -1]\n"        \
  "    %xb = cast %x : bf16[b, h, k, v]\n    %y = dot %p1, %xb over(k) : f32[b, h, i, v]\n"        \
  "    %of = cast %o1 : f32[b, h, i, v]\n    %ef = add %y, %of\n"                                  \
  "    %e = cast %ef : bf16[b, h, i, v]\n    %rf = dot %m1, %e over(i) : f32[b, h, j, v]\n"        \
  "    %rp = permute %rf : f32[j, b, h, v]\n    %rc = cast %rp : bf16[j, b, h, v]\n"               \
  "    %rb = cast %rf : bf16[b, h, j, v]\n    %u = dot %q1, %rc over(j) : f32[b, h, k, v]\n"       \
  "    %zf = cast %z1 : f32[b, h, k, v]\n    %d = mul %x, %a1\n    %w = add %d, %zf\n"             \
  "    %t = add %w, %u\n    yield %t, %xb, %rb\n  }\n  return %h, %s, %r\n}\n"

static inline void chain_text(const chain_case *c, lm_buf *b) {
  lm_buf_printf(b, "stage step\naxis %s\n%s", c->axes, c->text);
}

static inline void chain_kernels_make(const lm_module *m, const char *arch, int units) {
  cuda_pass_run(m, "chain_kernels", arch, units);
}

static const chain_case chain_cases[] = {
    {"forward, in a module with a run-time size",
     "b = 2, h = 1, c = 3, j = 16, k = 32, v = 32, m = 8 dyn 1", CHAIN_FORWARD, 1},
    {"forward, 64 columns of 128", "b = 1, h = 2, c = 3, j = 32, k = 64, v = 128", CHAIN_FORWARD,
     1},
    {"forward, as many rows as the state", "b = 1, h = 1, c = 3, j = 32, k = 32, v = 48",
     CHAIN_FORWARD, 1},
    {"backward", "b = 1, h = 2, c = 3, j = 16, k = 32, v = 32", CHAIN_BACKWARD, 2},
    {"a factor of the rows", "b = 2, h = 1, c = 3, i = 16, j = 16, k = 32, v = 32", CHAIN_MIXED, 2},
    {"a factor of the rows, 64 columns of 128",
     "b = 1, h = 2, c = 3, i = 32, j = 32, k = 64, v = 128", CHAIN_MIXED, 1},
    {"a factor of the rows, backward", "b = 1, h = 2, c = 3, i = 32, j = 32, k = 64, v = 64",
     CHAIN_MIXED_BACKWARD, 4},
    {"a factor of the rows, as many rows as the state",
     "b = 1, h = 1, c = 3, i = 32, j = 32, k = 32, v = 48", CHAIN_MIXED_BACKWARD, 1},
    {"a factor of the rows, tiles of one position",
     "b = 1, h = 1, c = 3, i = 64, j = 64, k = 256, v = 64", CHAIN_MIXED, 1},
    {"backward, narrow slices", "b = 2, h = 1, c = 3, j = 64, k = 128, v = 64", CHAIN_BACKWARD, 4},
};
#endif
