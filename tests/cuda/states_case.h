// states_case.h - states of a linear recurrence that a scan passes from chunk to chunk, with the
// GEMMs around it, as modules built from text, for tests that run or compile the kernels that pass
// scan_gemms makes.
#ifndef LM_TESTS_CUDA_STATES_CASE_H
#define LM_TESTS_CUDA_STATES_CASE_H
#include "codegen/cuda/cuda.h"
#include "compiler/ir/scan.h"
#include "tests/codegen/run.h"
#include "tests/cuda/passes.h"

typedef struct states_case {
  const char *name, *axes, *text;
  int dots;       // of the scan
  int64_t blocks; // of its kernel, on two multiprocessors
} states_case;

#define STATES_ADDED "  %a = dot %u, %k over(j) : bf16[c, b, g, h, p, n]\n"
#define STATES_READ "  %y = dot %q, %s over(n) : bf16[c, i, b, g, h, p]\n"
#define STATES_FORWARD                                                                             \
  "  %z = const 0 : f32[b, g, h, p, n]\n"                                                          \
  "  %l, %s = scan over(c) [1, 2, 0] (%s0 = %z, %s1 = %f, %s2 = %a) {\n"                           \
  "    %m = mul %s0, %s1 : f32[b, g, h, p, n]\n    %w = cast %s2 : f32[b, g, h, p, n]\n"           \
  "    %t = add %m, %w\n    %r = cast %t : bf16[b, g, h, p, n]\n    yield %t, %r\n  }\n"
// The state is multiplied behind the sum, from the last chunk to the first.
#define STATES_BACKWARD                                                                            \
  "  %z = const 0 : f32[b, g, h, p, n]\n"                                                          \
  "  %l, %s = scan over(c) [1, 2, 1] (%s0 = %z, %s1 = %f, %s2 = %a) {\n"                           \
  "    %w = cast %s2 : f32[b, g, h, p, n]\n    %t = add %s0, %w\n"                                 \
  "    %r = cast %t : bf16[b, g, h, p, n]\n    %m = mul %t, %s1\n    yield %m, %r\n  }\n"
#define STATES_IN                                                                                  \
  "%u: bf16[c, j, b, g, h, p], %k: bf16[c, j, b, g, n], %q: bf16[c, i, b, g, n], "                 \
  "%f: f32[c, b, g, h]"
#define STATES_OUT "s: bf16[c, b, g, h, p, n]"
#define STATES_BOTH STATES_OUT ", y: bf16[c, i, b, g, h, p]"
#define STATES_ALL(SCAN)                                                                           \
  "func @f(" STATES_IN ") -> (" STATES_BOTH ") {\n" STATES_ADDED SCAN STATES_READ                  \
  "  return %s, %y\n}\n"
// Keys and queries are columns of one tensor, and the queries are behind the scan.
#define STATES_VIEWS                                                                               \
  "func @f(%u: bf16[c, j, b, g, h, p], %x: bf16[b, v, w], %f: f32[c, b, g, h]) -> (" STATES_BOTH   \
  ") {\n  %x1 = slice %x (w) -> (gn) [16, 1]\n  %x2 = view %x1 (gn) -> (g, n)\n"                   \
  "  %x3 = permute %x2 : bf16[v, b, g, n]\n  %k = view %x3 (v) -> (c, j)\n" STATES_ADDED           \
      STATES_FORWARD "  %x4 = slice %x (w) -> (gn) [112, 1]\n"                                     \
  "  %x5 = view %x4 (gn) -> (g, n)\n  %x6 = permute %x5 : bf16[v, b, g, n]\n"                      \
  "  %q = view %x6 (v) -> (c, i)\n" STATES_READ "  return %s, %y\n}\n"

static const states_case states_cases[] = {
    {"forward, in a module with a run-time size",
     "c = 3, i = 32, j = 32, b = 2, g = 1, h = 2, p = 32, n = 48, m = 8 dyn 1",
     STATES_ALL(STATES_FORWARD), 2, 4},
    {"backward", "c = 4, i = 48, j = 16, b = 1, g = 2, h = 1, p = 16, n = 32",
     STATES_ALL(STATES_BACKWARD), 2, 2},
    {"forward, all rows of a state",
     "c = 2, i = 128, j = 128, b = 1, g = 1, h = 2, p = 64, n = 128", STATES_ALL(STATES_FORWARD), 2,
     2},
    {"backward, one state in two blocks",
     "c = 3, i = 16, j = 32, b = 1, g = 1, h = 1, p = 64, n = 16", STATES_ALL(STATES_BACKWARD), 2,
     2},
    {"forward, nothing reads", "c = 2, i = 16, j = 16, b = 2, g = 1, h = 1, p = 48, n = 16",
     "func @f(" STATES_IN ") -> (" STATES_OUT ") {\n" STATES_ADDED STATES_FORWARD
     "  return %s\n}\n",
     1, 2},
    {"forward, views",
     "c = 3, i = 16, j = 16, v = 48, b = 2, g = 2, h = 1, p = 16, n = 16, "
     "gn = 32, w = 160",
     STATES_VIEWS, 2, 4},
};

static inline void states_text(const states_case *c, lm_buf *b) {
  lm_buf_printf(b, "stage step\naxis %s\n%s", c->axes, c->text);
}

static inline void states_kernels_make(const lm_module *m, const char *arch) {
  cuda_pass_run(m, "scan_gemms", arch, 0);
}
#endif
