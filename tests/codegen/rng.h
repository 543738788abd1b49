// rng.h - a random number generator for tests, a linear congruential one of 64 bits.
#ifndef LM_TESTS_CODEGEN_RNG_H
#define LM_TESTS_CODEGEN_RNG_H
#include <stdint.h>

typedef struct rng {
  uint64_t state;
} rng;

// A number from 0 to n - 1.
static int64_t draw(rng *r, int64_t n) {
  r->state = r->state * 6364136223846793005u + 1442695040888963407u;
  return (int64_t)(r->state >> 33) % n;
}
#endif
