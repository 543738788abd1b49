// simt_few_rows_test.c - the kernels of GEMMs of at most eight rows under the shim, against the
// interpreter: both layouts of B, sizes that end within a block, batch axes, epilogues; a row has
// the same bits alone and among others.
// Build: plain
#include "tests/codegen/cache.h" // asks the system for nftw, so before all others
#include "tests/cuda/simt_run.h"
#include "tests/cuda/chosen.h"
#include "tests/codegen/run.h"

#define HEAD "stage step\naxis "
// %y of all rows, and whether row 2 of them equals the GEMM of this row alone.
#define ROW_ALONE(T)                                                                               \
  "  %a = slice %x (t) -> () [2, 1] : " T "[d]\n  %z = dot %a, %w over(d) : " T "[n]\n"            \
  "  %v = slice %y (t) -> () [2, 1] : " T "[n]\n  %q = eq %v, %z\n  return %y, %q\n}\n"

static const struct {
  const char *name, *text;
} cases[] = {
    {"columns, bf16, a row alone",
     HEAD "t = 5, d = 520, n = 264\nfunc @f(%x: bf16[t, d], %w: bf16[d, n]) -> (y: bf16[t, n], q: "
          "bool[n]) {\n  %y = dot %x, %w over(d)\n" ROW_ALONE("bf16")},
    {"k, bf16, a row alone",
     HEAD "t = 8, d = 328, n = 75\nfunc @f(%x: bf16[t, d], %w: bf16[n, d]) -> (y: bf16[t, n], q: "
          "bool[n]) {\n  %y = dot %x, %w over(d)\n" ROW_ALONE("bf16")},
    {"columns, f32, a row alone, many blocks",
     HEAD "t = 3, d = 96, n = 4100\nfunc @f(%x: f32[t, d], %w: f32[d, n]) -> (y: f32[t, n], q: "
          "bool[n]) {\n  %y = dot %x, %w over(d)\n" ROW_ALONE("f32")},
    {"k, f32, short k, a batch",
     HEAD "g = 3, t = 2, d = 20, n = 130\nfunc @f(%x: f32[t, g, d], %w: f32[g, n, d]) -> (y: "
          "f32[t, g, n]) {\n  %y = dot %x, %w over(d)\n  return %y\n}\n"},
    {"columns, f16 with f32 sums, a batch",
     HEAD "g = 2, t = 1, d = 40, n = 48\nfunc @f(%x: f16[t, g, d], %w: f16[g, d, n]) -> (y: "
          "f32[t, g, n]) {\n  %y = dot %x, %w over(d) : f32[t, g, n]\n  return %y\n}\n"},
    {"residual and bias, both layouts",
     HEAD "t = 2, d = 136, n = 72\nfunc @f(%x: bf16[t, d], %w: bf16[d, n], %v: bf16[n, d], %r: "
          "bf16[t, n], %b: bf16[n]) -> (y: bf16[t, n], z: bf16[t, n]) {\n"
          "  %y = dot_add %x, %w, %r, %b over(d)\n  %z = dot_add %x, %v, %b over(d)\n  return %y, "
          "%z\n}\n"},
    {"gelu and its argument",
     HEAD "t = 4, d = 64, n = 40\nfunc @f(%x: bf16[t, d], %w: bf16[d, n], %b: bf16[n]) -> (y: "
          "bf16[t, n], u: bf16[t, n]) {\n  %y, %u = dot_gelu %x, %w, %b over(d)\n  return %y, "
          "%u\n}\n"},
};

int main(int argc, char **argv) {
  cache_begin();
  for (size_t i = 0; i < LM_COUNT(cases); i++)
    if (case_is_chosen(cases[i].name, argc > 1 ? argv[1] : NULL))
      run_both(cases[i].text, &(run_options){.name = cases[i].name, .tolerance = 1e-6, .seed = i});
}
