// threads.h - the number of threads of a test.
#ifndef LM_TESTS_CODEGEN_THREADS_H
#define LM_TESTS_CODEGEN_THREADS_H
#include <stdlib.h>

// The system on the emulated processor with AMX (tests/emulate) does not save tiles when it
// switches from one thread to another, so only one may use them.
static inline int test_threads(int wanted) {
  return getenv("LM_TEST_AMX") ? 1 : wanted;
}
#endif
