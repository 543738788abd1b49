// prelude_fma_test.c - prelude_test.c compiled for a processor with fused multiply-add.
// Build: plain
#define main prelude_main
#include "tests/codegen/prelude_test.c"
#undef main

int main(void) {
#ifdef __x86_64__
  if (!__builtin_cpu_supports("fma") || !__builtin_cpu_supports("avx2"))
    return 0;
#endif
  return prelude_main();
}
